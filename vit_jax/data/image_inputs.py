"""Image inputs of the Python API: paths, encoded bytes, arrays, Pillow images.

All become what a file of the same picture decodes to, so that one view follows.
"""

import os
import struct
from collections.abc import Iterable, Iterator

import ml_dtypes
import numpy as np
import numpy.typing
from PIL import Image, ImageOps

from vit_jax import config
from vit_jax.data import decoding
from vit_jax.runtime import logs
from vit_jax.utils import storage

EXPECTED = "expected (H, W) or (H, W, C), or a batch (B, H, W, C) of these"
RANGES = "expected 0 to 255, 0 to 65535, or fractions from 0 to 1"
# What Pillow raises for damaged files, among them broken EXIF.
DAMAGED = (OSError, SyntaxError, ValueError, KeyError, struct.error)

# A path, the bytes of a file, a Pillow image or an array, of jax too; or several.
ImageInput = str | os.PathLike[str] | bytes | Image.Image | numpy.typing.ArrayLike
ImageInputs = ImageInput | Iterable[ImageInput]


def read_images(
    images: ImageInputs, data: config.Data, name: str = "images"
) -> Iterator[tuple[str, bytes | np.ndarray]]:
    """Yields the name and the encoded, uint8 or uint16 `H W C` pixels of each image.

    Pillow images are read as their files are: EXIF orientation applied, alpha dropped for models of
    1 or 3 channels. uint16 are of 16 bits; other integers too, unless none exceeds 255. Fractions
    from 0 to 1 are scaled to `data.depth` bits; larger ones, to 255, are gray levels.

    Args:
      images: a path, the bytes of a file, a Pillow image, an array (H, W), (H, W, C) or
        (B, H, W, C) of numbers or truth values, or a list of these; C is that of the model, or 1
        or 3 of 3 or 1.
      data: options of the pixels.
      name: of those that are no files.

    Raises BadImage for a file that cannot be read, and for any other type, shape or range.
    """
    if isinstance(images, str | os.PathLike):
        yield os.fspath(images), _file(images)
    elif isinstance(images, bytes | bytearray | memoryview):
        yield name, bytes(images)
    elif isinstance(images, Image.Image):
        yield name, _pillow(images, name, data)
    elif hasattr(images, "__array__"):
        array = np.asarray(images)
        if array.ndim not in (2, 3, 4) or not array.size:
            raise decoding.BadImage(f"{name}: is {array.dtype} {array.shape}; {EXPECTED}")
        pixels = _pixels(array, name, data)
        if array.ndim == 4:
            yield from ((f"{name}[{index}]", image) for index, image in enumerate(pixels))
        else:
            yield name, pixels
    elif isinstance(images, Iterable) and not hasattr(images, "read"):  # an open file has lines
        for index, image in enumerate(images):
            yield from read_images(image, data, f"{name}[{index}]")
    else:
        raise decoding.BadImage(
            f"{name}: has type {type(images).__name__}; expected a path, a Pillow image, or an "
            "array"
        )


def _file(path: str | os.PathLike[str]) -> bytes:
    if why := storage.path_problem(os.fspath(path), remote=False):
        raise decoding.BadImage(f"{os.fspath(path)}: {why}")
    try:
        return decoding.read_file(storage.as_path(path))
    except (OSError, decoding.BadImage) as error:
        reason = getattr(error, "strerror", None) or error
        raise decoding.BadImage(f"{os.fspath(path)}: {reason}") from error


def _pillow(image: Image.Image, name: str, data: config.Data) -> np.ndarray:
    """The pixels of a Pillow image, uint8 or uint16 (H, W) or (H, W, C)."""
    width, height = image.size
    if not width or not height:
        raise decoding.BadImage(f"{name}: has no pixels: {width} x {height}")
    if width * height > data.max_pixels:
        raise decoding.BadImage(
            f"{name}: has {width} x {height} pixels, more than data.max_pixels={data.max_pixels}"
        )
    try:
        # Pillow decodes on first use: here damage is an error of this image.
        image.load()
        image = ImageOps.exif_transpose(image)
    except DAMAGED as error:
        raise decoding.BadImage(f"{name}: is a truncated or damaged image: {error}") from error
    mode = image.mode
    # Pillow would clip these to 255 when it converts them to gray or RGB.
    if mode in ("I", "F") or mode.startswith("I;16"):
        return _pixels(np.asarray(image), name, data)
    if mode in ("1", "L"):
        return np.asarray(image.convert("L"))
    opacity = mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info
    gray = mode in ("LA", "La")
    if opacity and data.channels == 4:  # a channel of its own, the last
        return np.asarray(image.convert("RGBA"))
    if gray and data.channels == 2:
        return np.asarray(image.convert("LA"))
    if gray:
        return np.asarray(image.convert("LA"))[:, :, 0]
    return np.asarray(image.convert("RGB"))


def _pixels(array: np.ndarray, name: str, data: config.Data) -> np.ndarray:
    """An array of numbers as uint8 or uint16."""
    # NumPy takes it for raw bytes: its kind is V.
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float32)
    kind = array.dtype.kind
    if kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint8 or array.dtype == np.dtype("u2") or array.dtype == np.dtype(">u2"):
        if array.itemsize == 2 and 0 < array.max() <= 255:
            what = "uint16 of at most 255 are taken for 16 bits, nearly black; give 8 bits as uint8"
            logs.warn_of_assumptions(name, [what])
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    if kind not in "iuf":
        raise decoding.BadImage(f"{name}: is {array.dtype} {array.shape}; expected numbers")
    low, high = array.min(), array.max()
    most = 255 if kind == "f" else 65535
    if not (low >= 0 and high <= most):  # NaN neither
        raise decoding.BadImage(
            f"{name}: is {array.dtype} with values from {low:g} to {high:g}; {RANGES}"
        )
    if kind != "f":
        return array.astype(np.uint8 if high <= 255 else np.uint16)
    white = np.iinfo(data.pixel_type).max
    levels = array.astype(np.float64) * (white / (1 if high <= 1 else 255))
    return np.rint(levels).astype(data.pixel_type)
