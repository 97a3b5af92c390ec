"""Reads format, size, orientation and scans of image files without decoding them."""

import re
import struct
from collections.abc import Iterator

from vit_jax.data import tiff

SCAN = b"\xff\xda"
# Markers except those within scan data, fill bytes, and the start of an image.
MARKER = re.compile(rb"\xff[\x01-\xcf\xd9-\xfe]")


def read_header(data: bytes) -> tuple[str | None, tuple[int, int] | None]:
    """Parses `(format, (height, width))` from the first bytes; None if unknown."""
    for magic, kind, size in (
        (b"\x89PNG\r\n\x1a\n", "PNG", _png_size),
        (b"\xff\xd8\xff", "JPEG", _jpeg_size),
        (b"RIFF", "WebP", _webp_size),
        (b"GIF8", "GIF", _gif_size),
        (b"BM", "BMP", _bmp_size),
    ):
        # RIFF also holds sound and video.
        if data.startswith(magic) and (kind != "WebP" or data[8:12] == b"WEBP"):
            try:
                return kind, size(data)
            except (struct.error, IndexError):
                return kind, None
    return None, None


def orientation(data: bytes) -> int:
    """The orientation in the EXIF data of a JPEG, PNG or WebP, 1 to 8; 1 without any."""
    try:
        start = _exif(data)
        if start is None or data[start : start + 4] not in tiff.MAGIC:
            return 1
        found = int(tiff.fields(data, start).get(tiff.ORIENTATION, (1,))[0])
    except (struct.error, IndexError):
        return 1
    return found if 1 <= found <= 8 else 1


def _exif(data: bytes) -> int | None:
    """The offset of the EXIF data, themselves a TIFF; None if there are none."""
    if data.startswith(b"\xff\xd8"):
        exif = (at for marker, at in _segments(data) if marker == 0xE1)
        return next((at + 10 for at in exif if data[at + 4 : at + 10] == b"Exif\0\0"), None)
    png = data.startswith(b"\x89PNG")
    if not png and not data.startswith(b"RIFF"):
        return None  # pixels of a BMP may look like chunks
    at, name, order = (8, b"eXIf", ">") if png else (12, b"EXIF", "<")
    while at + 8 <= len(data):
        kind, size = (data[at + 4 : at + 8], data[at : at + 4])
        kind, size = (kind, size) if png else (size, kind)
        if kind == name:
            # Some writers keep JPEG's prefix of EXIF data in the chunks of other formats.
            return at + 8 + 6 * (data[at + 8 : at + 14] == b"Exif\0\0")
        (length,) = struct.unpack(f"{order}I", size)
        # A PNG chunk ends in a checksum; RIFF pads chunks to an even length.
        at += length + 12 if png else length + length % 2 + 8
    return None


def _png_size(data: bytes) -> tuple[int, int] | None:
    # 8 bytes of signature, then the length and the name of the first chunk, which must be IHDR.
    width, height = struct.unpack_from(">II", data, 16)
    return (height, width) if data[12:16] == b"IHDR" else None


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the marker and the place of each segment before the pixels (ITU-T T.81, B.1.1)."""
    at = 2
    while data[at] == 0xFF and (marker := data[at + 1]) not in (0xD9, 0xDA):  # the end, or pixels
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a segment
            at += 2
        else:
            yield marker, at
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]


def _jpeg_frame(data: bytes) -> int | None:
    # All are frame headers but tables of codes (C4, CC) and a reserved marker (C8).
    frames = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
    return next((at for marker, at in _segments(data) if marker in frames), None)


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    if (at := _jpeg_frame(data)) is None:
        return None
    # Behind the marker: two bytes of length, one of precision.
    height, width = struct.unpack_from(">HH", data, at + 5)
    return height, width


def jpeg_components(data: bytes) -> int | None:
    """The number of components of a JPEG: 1 is gray, 3 color, 4 CMYK; None for other data."""
    try:
        at = _jpeg_frame(data) if data.startswith(b"\xff\xd8\xff") else None
        return None if at is None else data[at + 9]
    except (struct.error, IndexError):
        return None


def jpeg_scans(data: bytes) -> int:
    """Counts the scans of a JPEG before its end (ITU-T T.81, B.1.1)."""
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
        # Behind the head of the chunk (at 12), 3 bytes of frame tag and 3 of start code.
        width, height = struct.unpack_from("<HH", data, 26)
        # 14 bits each; the upper two ask for scaling (RFC 6386, section 9.1).
        return height & 0x3FFF, width & 0x3FFF
    if chunk == b"VP8L":
        # Behind a signature byte: two fields of 14 bits, each less 1.
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if chunk == b"VP8X":
        # Behind four bytes of flags: 24 bits each, less 1.
        width, height = int.from_bytes(data[24:27], "little"), int.from_bytes(data[27:30], "little")
        return height + 1, width + 1
    return None


def _gif_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return height, width


def _bmp_size(data: bytes) -> tuple[int, int]:
    (header,) = struct.unpack_from("<I", data, 14)
    # The oldest header, of 12 bytes, has sizes of 16 bits.
    width, height = struct.unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(height), abs(width)  # a negative height means rows from the top


def without_animation(data: bytes) -> bytes:
    """A PNG without its `acTL` chunk: what programs show that know no animations.

    That is the first frame, or an image of its own that stands before all frames.
    """
    at = 8
    while at + 12 <= len(data) and (kind := data[at + 4 : at + 8]) != b"IDAT":
        end = at + 12 + struct.unpack_from(">I", data, at)[0]
        if kind == b"acTL":
            return data[:at] + data[end:]
        at = end
    return data


def is_complete(kind: str, data: bytes) -> bool:
    """Whether a PNG or WebP is complete; OpenCV detects truncation in other formats.

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
