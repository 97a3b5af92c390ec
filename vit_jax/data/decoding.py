"""Decodes image files to correct pixels, or raises one clear error."""

import os
import re
import struct

import cv2
import numpy as np

from vit_jax import limits
from vit_jax.config import UserError

# Many threads and processes decode images at once, so OpenCV's own thread pool would only add
# contention. Its log lines lack the file name, which callers of `decode` add to its errors.
cv2.setNumThreads(1)
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


MOST_BYTES = 2**28  # of a file; 100 megapixels of 16 bits without compression are twice as much

# Limits for the cost of decoding. Encoders write about 10 scans, at most about 15 for the smallest
# files. A scan needs one bit per block for DC values, so a black JPEG has at most 512 pixels per
# byte, or 5,120 pixel visits per byte with 10 scans.
MOST_SCANS = 50
MOST_WORK = 10_000  # pixels x scans of a JPEG for each byte of its file
# Other formats have no such bound for a single color; this size takes at most a second.
CHEAP_PIXELS = 2**24


class BadImage(UserError):
    """Bytes that cannot be turned into pixels; the message is the reason, without a file name."""


def read(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of a file; raises OSError, or BadImage if it is too large or no file.

    A pipe of that name would otherwise block the reader forever.
    """
    try:
        return limits.read(path, MOST_BYTES)
    except limits.LimitError as error:
        raise BadImage(str(error)) from None


def check_bytes(size: int) -> None:
    """Raises BadImage for a file too large to read."""
    if size > MOST_BYTES:
        raise BadImage(f"has {size:,} bytes, more than {MOST_BYTES:,}")


def decode(encoded: bytes, *, channels: int, max_pixels: int) -> np.ndarray:
    """Returns the pixels of a JPEG, PNG, WebP, GIF or BMP file, RGB or gray, as uint8 `H W C`.

    C is `channels`, 1 or 3. 16-bit samples keep their high byte, CMYK becomes RGB, palettes are
    looked up, gray is repeated, alpha is dropped (the colors under it stay), an EXIF orientation
    is applied, and of an animation the first frame counts.

    Raises BadImage for anything but a complete image of at most `max_pixels`, checked in the header
    before allocating pixels, and for files that decode too slowly for their length: JPEGs with many
    scans, small files with many pixels. Damage that the format cannot detect (JPEG and WebP have no
    checksums) gives wrong pixels, not an error.

    JPEGs decode as in TensorFlow with `dct_method="INTEGER_ACCURATE"`, bit for bit on 60 photos.
    TensorFlow's default, the fast transform used to train the published models, differs by 1.2 gray
    levels on average and 22 at most.
    """
    if not encoded:
        raise BadImage("is empty")
    kind, size = _header(encoded)
    if kind is None:
        raise BadImage(f"is no JPEG, PNG, WebP, GIF or BMP: it starts with {encoded[:16]!r}")
    if size is None:
        raise BadImage(f"is a truncated or damaged {kind}")
    height, width = size
    if height * width > max_pixels:
        raise BadImage(
            f"is a {kind} of {width} x {height} pixels, more than data.max_pixels={max_pixels}"
        )
    if not _complete(kind, encoded):
        raise BadImage(f"is a truncated or damaged {kind}")
    _check_work(kind, height, width, encoded)
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error:
        image = None
    if image is None:
        raise BadImage(f"is a truncated or damaged {kind}")
    return with_channels(image, channels)


def load(image: bytes | np.ndarray, *, channels: int, max_pixels: int) -> np.ndarray:
    """Returns the pixels of an example as a source gives it: `decode` or `with_channels`."""
    if isinstance(image, bytes):
        return decode(image, channels=channels, max_pixels=max_pixels)
    return with_channels(image, channels)


def with_channels(image: np.ndarray, channels: int) -> np.ndarray:
    """Returns uint8 pixels `H W` or `H W C`, C = 1 or 3, as `H W channels`.

    Gray is repeated; color becomes gray by the weights of JPEG (0.299, 0.587, 0.114).
    """
    image = image.reshape(*image.shape[:2], -1)
    if image.shape[2] == channels:
        return image
    if channels == 1:
        return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None]
    return np.repeat(image, channels, axis=2)


def without_border(image: np.ndarray, border: int) -> np.ndarray:
    """Returns pixels `H W C` without `border` rows and columns on every side.

    Raises BadImage if no pixels would remain.
    """
    height, width = image.shape[:2]
    if min(height, width) <= 2 * border:
        raise BadImage(f"has {width} x {height} pixels, all of them in its border of {border}")
    return np.ascontiguousarray(image[border : height - border, border : width - border])


SCAN = b"\xff\xda"
# Markers except those within scan data, fill bytes, and the start of an image.
MARKER = re.compile(rb"\xff[\x01-\xcf\xd9-\xfe]")


def _header(data: bytes) -> tuple[str | None, tuple[int, int] | None]:
    """Returns `(format, (height, width))` from the first bytes; None for unknown parts."""
    for magic, kind, size in (
        (b"\x89PNG\r\n\x1a\n", "PNG", _png_size),
        (b"\xff\xd8\xff", "JPEG", _jpeg_size),
        (b"RIFF", "WebP", _webp_size),
        (b"GIF8", "GIF", _gif_size),
        (b"BM", "BMP", _bmp_size),
    ):
        if data.startswith(magic) and (kind != "WebP" or data[8:12] == b"WEBP"):
            try:
                return kind, size(data)
            except (struct.error, IndexError):
                return kind, None
    return None, None


def _png_size(data: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from(">II", data, 16)
    return (height, width) if data[12:16] == b"IHDR" else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walks the segments up to the frame header (ITU-T T.81, B.1.1)."""
    at = 2
    while True:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a segment
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return height, width
        elif marker in (0xD9, 0xDA):  # pixels, or the end, before a frame header
            return None
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]


def _check_work(kind: str, height: int, width: int, data: bytes) -> None:
    """Raises BadImage for an image that is too expensive to decode for its file size."""
    pixels, most = height * width, MOST_WORK * len(data)
    size = f"is a {kind} of {width} x {height} pixels in {len(data):,} bytes"
    if kind != "JPEG":
        if pixels > max(most, CHEAP_PIXELS):
            raise BadImage(f"{size}, more than {MOST_WORK:,} pixels a byte")
        return
    scans = data.count(SCAN)  # those of thumbnails, and what looks alike behind the end, included
    if scans > MOST_SCANS or pixels * scans > most:
        scans = _jpeg_scans(data)
    if scans > MOST_SCANS:
        raise BadImage(f"is a JPEG of {scans:,} scans, more than {MOST_SCANS}")
    if pixels * scans > most:
        raise BadImage(f"{size} and {scans} scans, more than {MOST_WORK:,} pixels a byte")


def _jpeg_scans(data: bytes) -> int:
    """Returns how many scans a JPEG has before its end (ITU-T T.81, B.1.1)."""
    at, scans = 2, 0
    while (found := MARKER.search(data, at)) is not None:
        marker, at = data[found.start() + 1], found.end()
        if marker == 0xD9:
            break
        scans += marker == 0xDA
        if marker != 0x01:  # the only one of them without a segment
            at += int.from_bytes(data[at : at + 2], "big")
    return scans


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Reads the first chunk (RFC 9649): lossy, lossless, or extended with its canvas."""
    chunk = data[12:16]
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if chunk == b"VP8X":
        width, height = int.from_bytes(data[24:27], "little"), int.from_bytes(data[27:30], "little")
        return height + 1, width + 1
    return None


def _gif_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return height, width


def _bmp_size(data: bytes) -> tuple[int, int]:
    (header,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(height), abs(width)  # a negative height means rows from the top


def _complete(kind: str, data: bytes) -> bool:
    """Returns whether a PNG or WebP is complete; OpenCV detects truncation in other formats.

    OpenCV detects a truncated PNG too, but libpng writes to stderr, and without any pixels OpenCV
    5.0 takes many seconds and gigabytes.
    """
    if kind == "WebP":
        return len(data) >= 8 + struct.unpack_from("<I", data, 4)[0]
    if kind == "PNG":
        at, pixels = 8, False
        while at + 12 <= len(data):
            if data[at + 4 : at + 8] == b"IEND":
                return pixels
            pixels = pixels or data[at + 4 : at + 8] == b"IDAT"
            at += 12 + struct.unpack_from(">I", data, at)[0]
        return False
    return True
