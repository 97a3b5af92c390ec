"""Reads TIFF files (TIFF 6.0): 8 or 16 bits a sample, any number of channels.

OpenCV reads one, three or four channels, and takes a truncated file for a whole one; tifffile
(82 MB with imagecodecs, which LZW takes) allocates whatever size the header declares. Here the
header is checked before anything is allocated.
"""

import dataclasses
import io
import itertools
import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from vit_jax.data.source import BadImage

MAGIC = (b"II*\0", b"MM\0*")
MOST_BLOCKS = 2**18  # strips or tiles
SMALL = 2**20  # pixels that padded tiles may have, however small the image
MOST_LZW = 2**26  # bytes that Pillow takes for no bomb
SPARE = 1024  # packed bytes of a block beyond twice its samples, which no writer needs
CHANNELS = 64  # at most

# Numbers of the fields, as TIFF 6.0 and its supplements have them.
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 256, 257, 258, 259, 262, 266
STRIPS, ORIENTATION, SAMPLES, STRIP_ROWS, STRIP_BYTES, PLANAR = 273, 274, 277, 278, 279, 284
PREDICTOR, COLORS, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES = 317, 320, 322, 323, 324, 325
EXTRA, FORMAT = 338, 339

TYPES = {1: "B", 3: "H", 4: "I"}  # of the values of a field: bytes, shorts, longs
NONE, LZW, DEFLATE, OLD_DEFLATE, PACKBITS = 1, 5, 8, 32946, 32773
WHITE_IS_0, BLACK_IS_0, RGB, PALETTE = range(4)
FORMATS = {1: "whole", 2: "signed whole", 3: "floating-point"}


def fields(data: bytes, start: int = 0) -> dict[int, np.ndarray]:
    """The whole numbers of the first directory by tag; others are left out.

    The TIFF begins at `start`, as that of EXIF data. Raises struct.error or IndexError where it is
    damaged.
    """
    order = "<" if data[start : start + 2] == b"II" else ">"
    (first,) = struct.unpack_from(f"{order}I", data, start + 4)
    (count,) = struct.unpack_from(f"{order}H", data, start + first)
    found: dict[int, np.ndarray] = {}
    for number in range(count):
        # An entry has 12 bytes: tag, type and count, then the values or their offset.
        at = start + first + 2 + 12 * number
        tag, kind, values = struct.unpack_from(f"{order}HHI", data, at)
        if kind not in TYPES:
            continue
        form = np.dtype(f"{order}u{struct.calcsize(TYPES[kind])}")
        place = at + 8
        # Values of up to 4 bytes stand in the entry itself; it is the offset of longer ones.
        if values * form.itemsize > 4:
            place = start + struct.unpack_from(f"{order}I", data, at + 8)[0]
        # In Python's unbounded integers: a damaged count cannot overflow to pass.
        if not values or place + values * form.itemsize > len(data):
            raise IndexError(f"field {tag} ends behind the file")
        found[tag] = np.frombuffer(data, form, values, place)
    return found


@dataclasses.dataclass(frozen=True)
class TiffHeader:
    """The first directory of a TIFF: of several pages the first counts."""

    height: int  # rows as stored, as `width` before `orientation`
    width: int  # columns
    samples: int  # channels, those of alpha included
    bits: int  # of a sample, 8 or 16
    alpha: bool  # whether the last channel is opacity
    orientation: int  # 1 to 8, as in EXIF
    compression: int
    photometric: int
    predictor: int
    planar: bool
    block: tuple[int, int]
    offsets: np.ndarray
    sizes: np.ndarray
    colors: np.ndarray | None
    order: str

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as shown."""
        if self.orientation > 4:
            return self.width, self.height
        return self.height, self.width

    @property
    def cost(self) -> int:
        """Pixels of up to four channels that take as much memory."""
        return self.height * self.width * math.ceil(self.samples / 4)


def parse_header(data: bytes) -> TiffHeader:
    """Parses the header of a TIFF; raises BadImage for damage and unsupported features."""
    try:
        found = fields(data)
        height, width = int(found[HEIGHT][0]), int(found[WIDTH][0])
    except (struct.error, IndexError, KeyError):
        raise BadImage("is a truncated or damaged TIFF") from None

    def one(tag: int, default: int) -> int:
        return int(found[tag][0]) if tag in found else default

    samples = one(SAMPLES, 1)
    tiled = TILES in found
    if tiled:
        block = one(TILE_HEIGHT, 0), one(TILE_WIDTH, 0)
    else:
        block = min(one(STRIP_ROWS, height), height), width
    places, sizes = (TILES, TILE_BYTES) if tiled else (STRIPS, STRIP_BYTES)
    if not (0 < samples <= CHANNELS and min(height, width, *block) > 0 and places in found):
        raise BadImage("is a truncated or damaged TIFF")
    bits, formats = (
        np.unique(found.get(tag, np.array([1]))[:CHANNELS]).tolist() for tag in (BITS, FORMAT)
    )
    # Format 4, undefined, is read as unsigned whole numbers (TIFF 6.0, SampleFormat).
    if formats not in ([1], [4]) or bits not in ([8], [16]):
        kinds = " and ".join(FORMATS.get(kind, "other") for kind in formats)
        raise BadImage(
            f"is a TIFF of {kinds} numbers of {' and '.join(map(str, bits))} bits; save it with "
            "whole numbers of 8 or 16"
        )
    # 1 and 2 are alpha, premultiplied or not; 0 is a channel of another meaning.
    extra = found.get(EXTRA, np.array([], int))[-1:].tolist()
    made = TiffHeader(
        height=height, width=width, samples=samples, bits=bits[0],
        alpha=samples > 1 and extra in ([1], [2]),
        orientation=one(ORIENTATION, 1) if 1 <= one(ORIENTATION, 1) <= 8 else 1,
        compression=one(COMPRESSION, NONE), photometric=one(PHOTOMETRIC, BLACK_IS_0),
        predictor=one(PREDICTOR, 1), planar=one(PLANAR, 1) == 2 and samples > 1, block=block,
        offsets=found[places],
        sizes=found.get(sizes, np.array([len(data)])), colors=found.get(COLORS),
        order="<" if data[:2] == b"II" else ">",
    )  # fmt: skip
    _check_header(made, one(FILL_ORDER, 1))
    return made


def _check_header(made: TiffHeader, fill_order: int) -> None:
    """Raises BadImage for a form that is not read, and for blocks that do not cover the image."""
    forms = {
        "compression": (made.compression, (NONE, LZW, DEFLATE, OLD_DEFLATE, PACKBITS)),
        "photometric interpretation": (made.photometric, (WHITE_IS_0, BLACK_IS_0, RGB, PALETTE)),
        "predictor": (made.predictor, (1, 2)),
        "fill order": (fill_order, (1,)),
    }
    for name, (value, known) in forms.items():
        if value not in known:
            raise BadImage(
                f"is a TIFF of {name} {value}, which is not read; save it without compression, as "
                "RGB or gray"
            )
    if made.photometric == PALETTE and (
        made.samples != 1 or made.colors is None or len(made.colors) != 3 * 2**made.bits
    ):
        raise BadImage("is a truncated or damaged TIFF")
    down, across = _blocks(made)
    # Planar files have blocks of their own for each channel.
    count = down * across * (made.samples if made.planar else 1)
    # Tiles may reach beyond the image, but not take memory that it would not.
    padded = down * made.block[0] * across * made.block[1]
    whole = len(made.offsets) == len(made.sizes) == count
    if not whole or count > MOST_BLOCKS or padded > max(4 * made.height * made.width, SMALL):
        raise BadImage("is a truncated or damaged TIFF")


def _blocks(made: TiffHeader) -> tuple[int, int]:
    """The numbers of strips or tiles down and across the image."""
    return -(-made.height // made.block[0]), -(-made.width // made.block[1])


def decode_tiff(data: bytes, made: TiffHeader) -> np.ndarray:
    """All samples, uint8 or uint16 (H, W, C), in the order of the file, upright.

    Alpha is the last channel; a palette is looked up, so it is RGB of 8 bits. Raises BadImage.
    """
    kind = np.dtype(f"u{made.bits // 8}")
    image = np.empty((made.height, made.width, made.samples), kind)
    # Blocks at the right and lower edge are padded beyond the image; `part` is what lies inside.
    for (top, left, first, shape), plain in zip(
        _block_places(made), _unpacked(data, made), strict=True
    ):
        samples = np.frombuffer(plain, f"{made.order}u{made.bits // 8}").reshape(shape)
        rows, columns, channels = shape
        part = image[top : top + rows, left : left + columns, first : first + channels]
        # Sums wrap around in the type of the samples, as the differences did.
        if made.predictor == 2:  # each sample less its left neighbor
            samples = np.cumsum(samples, axis=1, dtype=kind)
        part[:] = samples[: part.shape[0], : part.shape[1]]
    if made.photometric == WHITE_IS_0:
        image = np.iinfo(kind).max - image
    elif made.photometric == PALETTE:
        assert made.colors is not None
        # A color map has all reds, then all greens, then all blues, of 16 bits each. Some writers
        # put 8 bits in their lower half; others leave that half empty or repeat the upper one.
        colors = made.colors.reshape(3, -1).T
        colors = colors >> 8 if colors.max() > 255 else colors
        image = colors.astype(np.uint8)[image[:, :, 0]]
    return upright(image, made.orientation)


def _block_places(made: TiffHeader) -> Iterator[tuple[int, int, int, tuple[int, int, int]]]:
    """Yields the top row, the left column, the first channel and the shape of each block."""
    down, across = _blocks(made)
    rows, columns = made.block
    channels = 1 if made.planar else made.samples
    tiled = columns != made.width  # of the rows of strips, the last ones are fewer
    for first in range(0, made.samples, channels):
        for top in range(0, down * rows, rows):
            shape = rows if tiled else min(rows, made.height - top), columns, channels
            for left in range(0, across * columns, columns):
                yield top, left, first, shape


def _unpacked(data: bytes, made: TiffHeader) -> Iterator[bytes | memoryview]:
    """Yields the samples of each strip or tile as stored; raises BadImage if some are missing.

    Blocks are views of the file: a copy of the rest for each would take time with their square.
    They are as long as their samples can make them, as all may name the same bytes.
    """
    whole = memoryview(data)
    waiting: list[tuple[memoryview, int]] = []  # of LZW, with their rows
    offsets, sizes = made.offsets.tolist(), made.sizes.tolist()
    for place, at, size in zip(_block_places(made), offsets, sizes, strict=True):
        rows, columns, channels = place[3]
        across = columns * channels * made.bits // 8
        packed = whole[at : at + min(size, 2 * rows * across + SPARE)]
        if made.compression != LZW:
            yield _block(packed, made.compression, rows, across)
            continue
        # Strips of equal rows, and a last one of fewer, are one image to libtiff.
        if waiting and (
            rows > waiting[0][1]
            or waiting[-1][1] < waiting[0][1]
            or (len(waiting) + 1) * waiting[0][1] * across > MOST_LZW
        ):
            yield from _from_lzw(waiting, across)
            waiting = []
        waiting.append((packed, rows))
    if waiting:
        yield from _from_lzw(waiting, across)


def _block(packed: memoryview, compression: int, rows: int, across: int) -> bytes | memoryview:
    """The bytes of a block; raises BadImage if some are missing."""
    try:
        if compression == NONE:
            plain = packed[: rows * across]
        elif compression == PACKBITS:
            plain = Image.frombytes("L", (across, rows), bytes(packed), "packbits", "L").tobytes()
        else:
            # The limit keeps a small block from unpacking to gigabytes.
            plain = zlib.decompressobj().decompress(packed, rows * across)
    except (zlib.error, ValueError, OSError, SyntaxError):
        plain = b""
    if len(plain) != rows * across:
        raise BadImage("is a truncated or damaged TIFF")
    return plain


def _from_lzw(blocks: list[tuple[memoryview, int]], across: int) -> Iterator[memoryview]:
    """Yields the bytes of blocks of LZW, unpacked by libtiff as the strips of one gray image."""
    rows, total = blocks[0][1], sum(rows for _, rows in blocks)
    if total * across > MOST_LZW:
        raise BadImage(f"is a TIFF with LZW of more than {MOST_LZW:,} bytes in a strip")
    # Pillow offers libtiff's LZW only as part of a TIFF, so one is written around the blocks. Its
    # tags must ascend (TIFF 6.0, section 2).
    gray = {
        WIDTH: [across], HEIGHT: [total], BITS: [8], COMPRESSION: [LZW],
        PHOTOMETRIC: [BLACK_IS_0], STRIPS: [0] * len(blocks), SAMPLES: [1], STRIP_ROWS: [rows],
        STRIP_BYTES: [len(packed) for packed, _ in blocks],
    }  # fmt: skip
    behind = 8 + 2 + 12 * len(gray) + 4
    body = behind + 8 * len(blocks) * (len(blocks) > 1)
    gray[STRIPS] = list(itertools.accumulate(gray[STRIP_BYTES][:-1], initial=body))
    listed, beyond = b"", b""
    for tag, values in gray.items():
        raw = struct.pack(f"<{len(values)}I", *values)
        if len(values) > 1:
            raw, beyond = struct.pack("<I", behind + len(beyond)), beyond + raw
        listed += struct.pack("<HHI", tag, 4, len(values)) + raw
    head = b"II*\0" + struct.pack("<IH", 8, len(gray)) + listed + bytes(4) + beyond
    stream = io.BytesIO(b"".join([head, *(packed for packed, _ in blocks)]))
    try:
        plain = memoryview(Image.open(stream, formats=("TIFF",)).tobytes())
    except (ValueError, OSError, SyntaxError):
        plain = memoryview(b"")
    if len(plain) != total * across:
        raise BadImage("is a truncated or damaged TIFF")
    at = 0
    for _, rows in blocks:
        yield plain[at : at + rows * across]
        at += rows * across


def upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """An image turned and mirrored as EXIF's orientation asks for."""
    if orientation > 4:
        image = image.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):  # stored from the bottom
        image = image[::-1]
    if orientation in (2, 3, 6, 7):  # stored from the right
        image = image[:, ::-1]
    return np.ascontiguousarray(image)
