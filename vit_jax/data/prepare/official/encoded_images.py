"""Encoded images for records: mostly the bytes from the archive."""

import cv2
import numpy as np

from vit_jax.config import Data
from vit_jax.data import decoding
from vit_jax.data.decoding import BadImage

JPEG = b"\xff\xd8\xff"
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")  # of Pillow, which has some that run programs
STARTS = (JPEG, b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"RIFF")


def checked(encoded: bytes) -> bytes:
    """Returns the bytes of an image unchanged; raises BadImage for an unknown signature.

    Whether they can be decoded is not tried, which takes most of the time of packing: that is what
    `prepare --verify` is for.
    """
    if not encoded:
        raise BadImage("is empty")
    if not encoded.startswith(STARTS):
        raise BadImage(f"is not an image: it starts with {encoded[:16]!r}")
    return encoded


def check_pixels(height: float, width: float) -> None:
    """Raises BadImage for more pixels than images of any data set have."""
    if height * width > Data().max_pixels:
        raise BadImage(f"has {width:.0f} x {height:.0f} pixels, more than {Data().max_pixels:,}")


def as_jpeg(encoded: bytes, quality: int, *, again: bool = False) -> bytes:
    """Returns a gray or RGB JPEG unchanged, and other images encoded as one.

    With `again`, encodes a JPEG again, too. Encodes with `quality`. Raises BadImage for anything
    but an image.
    """
    colors = _colors(checked(encoded))
    if colors in (1, 3) and not again:
        return encoded
    pixels = decoding.decode(encoded, channels=3, max_pixels=Data().max_pixels)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def as_png(pixels: np.ndarray) -> bytes:
    """Returns uint8 pixels `H W C`, C = 1 or 3, RGB, as a PNG."""
    if pixels.shape[-1] == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    found, encoded = cv2.imencode(".png", pixels)
    if not found:
        raise BadImage(f"cannot be encoded: {pixels.shape}")
    return encoded.tobytes()


def _colors(encoded: bytes) -> int | None:
    """Returns the number of components in the frame header of a JPEG; None for another format."""
    if not encoded.startswith(JPEG):
        return None
    at = 2
    while at + 9 < len(encoded):
        marker = encoded[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return encoded[at + 9]
        at += 1 if marker == 0xFF else 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
    return None
