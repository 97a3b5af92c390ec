"""Decodes a rectangle of a JPEG without the rest of the image.

This folder is optional: a C extension (`_jpeg.c`), built where a compiler and libjpeg-turbo's
headers are present. Without it OpenCV decodes whole images, to the same pixels: the extension is
used only if it decodes a test image exactly like OpenCV. Its only user is `pipeline.Views`; also
`vit_jax bench input` names it, and setup.py builds the extension.
"""

import types

import cv2
import numpy as np

Rectangle = tuple[int, int, int, int]  # top, left, height, width

# Extra columns decoded at most: blocks of up to 32 pixels, rounded up to a width of 64.
BESIDE = 96


def size(encoded: bytes) -> tuple[int, int] | None:
    """The `(height, width)` of a JPEG whose rectangles can be decoded; None for other data.

    Supports upright, sequential, gray or three-color files that are not truncated.
    """
    return _JPEG.size(encoded) if _JPEG else None


def buffer_size(rectangle: Rectangle) -> int:
    """Size in bytes of the buffer that `decode` needs for a rectangle."""
    _, _, height, width = rectangle
    return height * (width + BESIDE) * 3


def decode(encoded: bytes, rectangle: Rectangle, scratch: np.ndarray) -> np.ndarray | None:
    """Decodes a rectangle of a JPEG with a `size` into `scratch`: uint8 `height width 3`, RGB.

    `scratch` is a uint8 vector of `buffer_size` bytes. Returns None if the part read is damaged;
    the caller then falls back to `decoding.decode_image`. Releases the GIL while decoding.
    """
    found = _JPEG and _JPEG.decode(encoded, scratch, *rectangle)
    if not found:
        return None
    first, columns = found
    _, left, height, width = rectangle
    rows = scratch[: height * columns * 3].reshape(height, columns, 3)
    return rows[:, left - first : left - first + width]


def decoder() -> str:
    """Describes the JPEG decoder in use."""
    whole = f"OpenCV {cv2.__version__}"
    if not _JPEG:
        return f"{whole}, whole images (no extension)"
    version = divmod(_JPEG.turbo, 1000)
    return f"libjpeg-turbo {version[0] // 1000}.{version[0] % 1000}.{version[1]}, parts of images"


def _load_extension() -> types.ModuleType | None:
    """The extension, if it is installed and decodes like OpenCV."""
    try:
        from vit_jax.data.jpeg import _jpeg  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return None
    blocks = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    picture = cv2.resize(blocks, (128, 96), interpolation=cv2.INTER_CUBIC)
    encoded = cv2.imencode(".jpg", picture)[1]
    whole = cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB)
    # Its edges are those of no block of 8 or 16 pixels.
    rectangle = (21, 51, 50, 40)
    # `decode` reads it; it is set again to None if the test image differs.
    global _JPEG
    _JPEG = _jpeg
    part = decode(encoded.tobytes(), rectangle, np.empty(buffer_size(rectangle), np.uint8))
    same = part is not None and whole is not None and np.array_equal(part, whole[21:71, 51:91])
    return _jpeg if same else None


_JPEG: types.ModuleType | None = None
_JPEG = _load_extension()
