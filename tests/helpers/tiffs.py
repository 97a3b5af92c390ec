"""Writes TIFF files of every form, without the code that reads them."""

import io
import struct
import zlib

import numpy as np
import PIL.Image

COMPRESSIONS = {"none": 1, "lzw": 5, "deflate": 8, "old_deflate": 32946, "packbits": 32773}


def tiff(
    pixels, *, order="<", compression="none", predictor=1, planar=False, tile=None, rows=None,
    photometric=1, orientation=1, extra=None, colors=None, **fields,
):  # fmt: skip
    """A file of uint8 or uint16 pixels (H, W, C), stored as the options say.

    `tile` is a (height, width), `rows` the rows of a strip; `fields` overrides values by tag, as
    `tag_256=3` does.
    """
    height, width, channels = pixels.shape
    block = tile or (rows or height, width)
    planes = np.split(pixels, channels, axis=2) if planar else [pixels]
    blocks = []
    for plane in planes:
        for top in range(0, height, block[0]):
            for left in range(0, width, block[1]):
                part = plane[top : top + block[0], left : left + block[1]]
                if tile:
                    down, right = block[0] - part.shape[0], block[1] - part.shape[1]
                    part = np.pad(part, [(0, down), (0, right), (0, 0)], mode="edge")
                if predictor == 2:
                    part = np.diff(part, axis=1, prepend=np.zeros_like(part[:, :1]))
                blocks.append(packed(part.astype(part.dtype.newbyteorder(order)), compression))
    places = (324, 325) if tile else (273, 279)
    bits = pixels.dtype.itemsize * 8
    tags = {
        256: width, 257: height, 258: [bits] * channels, 259: COMPRESSIONS[compression],
        262: photometric, 274: orientation, 277: channels, 284: 2 if planar else 1, 317: predictor,
    }  # fmt: skip
    tags |= {322: block[1], 323: block[0]} if tile else {278: block[0]}
    tags |= {} if extra is None else {338: extra}
    tags |= {} if colors is None else {320: colors}
    ends = 8 + np.cumsum([0, *map(len, blocks)])
    tags |= {places[0]: ends[:-1].tolist(), places[1]: [len(one) for one in blocks]}
    tags |= {int(name.removeprefix("tag_")): value for name, value in fields.items()}
    return header(b"".join(blocks), tags, order)


def header(body, tags, order="<"):
    """A file with fields of whole numbers, after the bytes of its blocks."""
    start = 8 + len(body)
    entries, beyond = b"", b""
    behind = start + 2 + 12 * len(tags) + 4
    for tag, value in sorted(tags.items()):
        values = value if isinstance(value, list) else [value]
        form = "H" if max(values) < 2**16 and tag not in (273, 279, 324, 325) else "I"
        raw = struct.pack(f"{order}{len(values)}{form}", *values)
        if len(raw) > 4:
            raw, beyond = struct.pack(f"{order}I", behind + len(beyond)), beyond + raw
        kind = 3 if form == "H" else 4
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + raw.ljust(4, b"\0")
    magic = b"II*\0" if order == "<" else b"MM\0*"
    directory = struct.pack(f"{order}H", len(tags)) + entries + bytes(4)
    return magic + struct.pack(f"{order}I", start) + body + directory + beyond


def packed(part, compression):
    """The bytes of a block."""
    plain = part.tobytes()
    if compression == "none":
        return plain
    if compression in ("deflate", "old_deflate"):
        return zlib.compress(plain)
    rows = np.frombuffer(plain, np.uint8).reshape(part.shape[0], -1)
    stream = io.BytesIO()
    name = {"lzw": "tiff_lzw"}.get(compression, compression)
    PIL.Image.fromarray(rows).save(stream, "TIFF", compression=name, strip_size=2**30)
    opened = PIL.Image.open(stream)
    (start,), (size,) = opened.tag_v2[273], opened.tag_v2[279]
    return stream.getvalue()[start : start + size]
