"""Image inputs of the Python API: paths, arrays, Pillow images."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.data import decoding

EXPECTED = "expected uint8 or uint16 (H, W) or (H, W, C), or a batch (B, H, W, C) of these"


def read(images: Any) -> Iterator[tuple[str, bytes | np.ndarray]]:
    """Yields the name and the encoded, uint8 or uint16 `H W C` pixels of each image.

    Args:
      images: a path, a Pillow image, a uint8 or uint16 array (H, W), (H, W, C) or (B, H, W, C), or
        a list of these; C is that of the model, or 1 or 3 of 3 or 1.

    Raises BadImage for a file that cannot be read, and for any other type or shape.
    """
    return _read(images, "images")


def _read(images: Any, name: str) -> Iterator[tuple[str, bytes | np.ndarray]]:
    if isinstance(images, str | os.PathLike):
        yield os.fspath(images), _file(images)
    elif isinstance(images, Image.Image):
        mode = images.mode if images.mode.startswith("I;16") else None
        mode = mode or ("L" if images.mode in ("1", "L") else "RGB")
        yield name, np.asarray(images.convert(mode)).astype("u2" if mode[0] == "I" else "u1")
    elif hasattr(images, "__array__"):
        array = np.asarray(images)
        if array.ndim == 4:
            for index, image in enumerate(array):
                yield f"{name}[{index}]", _checked(image, f"{name}[{index}]")
        else:
            yield name, _checked(array, name)
    elif isinstance(images, Iterable):
        for index, image in enumerate(images):
            yield from _read(image, f"{name}[{index}]")
    else:
        raise decoding.BadImage(
            f"{name}: has type {type(images).__name__}; expected a path, a Pillow image, or a "
            "uint8 or uint16 array"
        )


def _file(path: str | os.PathLike[str]) -> bytes:
    try:
        return decoding.read(path)
    except (OSError, decoding.BadImage) as error:
        reason = getattr(error, "strerror", None) or error
        raise decoding.BadImage(f"{os.fspath(path)}: {reason}") from error


def _checked(image: np.ndarray, name: str) -> np.ndarray:
    known = image.dtype in (np.uint8, np.uint16) and image.ndim in (2, 3)
    if not known or not image.size:
        raise decoding.BadImage(f"{name}: is {image.dtype} {image.shape}; {EXPECTED}")
    return image
