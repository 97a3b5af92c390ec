"""Reads the arrays of Flax's MessagePack files (`.msgpack`, `checkpoint_N`), one at a time.

An array is an extension of MessagePack that holds its shape, its NumPy type and its values; larger
ones than 1 GiB are cut into chunks. Source: `flax/serialization.py`, and the MessagePack
specification. The file is walked once without reading values; nothing is executed.
"""

import dataclasses
import io
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from vit_jax.utils import limits, storage
from vit_jax.weights.arrays import MAX_ENTRIES, WeightsError

File = io.BufferedIOBase | io.RawIOBase

MAX_DEPTH = 32
MAX_TEXT = 1_000  # bytes of a name
DTYPES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": ml_dtypes.bfloat16,
    "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "i1", "uint64": "<u8", "uint32": "<u4",
    "uint16": "<u2", "uint8": "u1", "bool": "?",
}  # fmt: skip
CHUNKED = "__msgpack_chunked_array__"
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class MsgpackArray:
    """An array and where its values are: (start, bytes) of each part."""

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: tuple[tuple[int, int], ...]

    def read(self, file: File) -> np.ndarray:
        """Its values, (shape)."""
        data, start = np.empty(sum(size for _, size in self.parts), np.uint8), 0
        for place, size in self.parts:
            file.seek(place)
            storage.fill(file, data.data[start : start + size])
            start += size
        return data.view(self.dtype).reshape(self.shape)


def open_arrays(file: File) -> dict[str, MsgpackArray]:
    """The arrays by their names on the way through the dictionaries, joined by slashes.

    Raises WeightsError for other contents, ValueError for a damaged file.
    """
    walker = _Walker(file)
    found = dict(walker.arrays("", 0))
    if file.tell() != walker.size:
        raise ValueError("other bytes behind the last array")
    return found


class _Walker:
    def __init__(self, file: File) -> None:
        self._file = file
        self._entries = 0
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)

    def arrays(self, path: str, depth: int) -> Iterator[tuple[str, MsgpackArray]]:
        """The arrays of the value that comes next, whose name is `path`."""
        if len(path) > MAX_TEXT:  # each of many arrays would repeat it
            raise ValueError("a name of many long keys")
        kind, value = self._next()
        if kind in ("map", "array") and depth == MAX_DEPTH:
            raise WeightsError(
                f"has dictionaries nested more than {MAX_DEPTH} deep; arrays alone are read"
            )
        if kind == "map":
            keys = set()
            for number in range(value):
                # A map may declare 2^32 entries, but each is read here: a short file ends before.
                key = self._text()
                # Flax writes this key first.
                if key == CHUNKED and number == 0:
                    yield path, self._chunked(value)
                    return
                if key in keys:
                    raise ValueError(f"{key[:80]!r} occurs twice")
                keys.add(key)
                yield from self.arrays(f"{path}/{key}" if path else key, depth + 1)
        elif kind == "array":  # Flax stores lists as maps: an array here belongs to a counter
            for number in range(value):
                yield from self.arrays(f"{path}/{number}" if path else str(number), depth + 1)
        elif kind == "extension":
            code, size = value
            end = self._file.tell() + size
            # Flax's codes: 1 an array, 2 a complex number, 3 a scalar of NumPy.
            if code in (1, 3):
                yield path, self._array(end)
            elif code != 2:
                raise WeightsError(f"has the extension {code}; arrays alone are read")
            self._file.seek(end)
        elif kind in ("bytes", "text"):
            self._skip(value)

    def _array(self, end: int) -> MsgpackArray:
        """The array of an extension that ends at `end`."""
        # The payload is MessagePack too: flax packs (shape, name of the type, bytes).
        if self._next() != ("array", 3):
            raise ValueError("an array that is not shape, type and values")
        kind, axes = self._next()
        if kind != "array" or axes > limits.AXES:
            raise ValueError(f"an array of {axes} axes")
        shape = tuple(self._count() for _ in range(axes))
        name = self._text()
        if name not in DTYPES:
            raise WeightsError(f"has the type {name[:80]!r}; arrays alone are read")
        kind, size = self._next()
        start, dtype = self._file.tell(), np.dtype(DTYPES[name])
        if kind != "bytes" or start + size != end or size != math.prod(shape) * dtype.itemsize:
            raise ValueError("an array of another size than its shape and type")
        self._skip(size)
        return MsgpackArray(shape, dtype, ((start, size),))

    def _chunked(self, entries: int) -> MsgpackArray:
        """An array in chunks: a map of a mark, the shape and the chunks, each by its number."""
        if entries != 3 or self._next() != ("value", True) or self._text() != "shape":
            raise ValueError("a chunked array without a shape")
        shape = tuple(self._numbered(self._count))
        if self._text() != "chunks":
            raise ValueError("a chunked array without chunks")
        chunks = list(self._numbered(self._chunk))
        dtypes = {chunk.dtype for chunk in chunks}
        if len(dtypes) != 1 or sum(math.prod(one.shape) for one in chunks) != math.prod(shape):
            raise ValueError("chunks that do not make the array")
        return MsgpackArray(shape, dtypes.pop(), tuple(p for one in chunks for p in one.parts))

    def _chunk(self) -> MsgpackArray:
        kind, value = self._next()
        if kind != "extension" or value[0] != 1:
            raise ValueError("a chunk that is not an array")
        return self._array(self._file.tell() + value[1])

    def _numbered(self, read: Callable[[], Value]) -> Iterator[Value]:
        """The values of a map whose keys count from 0."""
        kind, count = self._next()
        if kind != "map":
            raise ValueError(f"a {kind} for a map")
        for number in range(count):
            if self._text() != str(number):
                raise ValueError("parts out of order")
            yield read()

    def _count(self) -> int:
        kind, value = self._next()
        if kind != "value" or type(value) is not int or not 0 <= value < 2**48:
            raise ValueError("a shape that is not a count")
        return value

    def _text(self) -> str:
        kind, size = self._next()
        if kind != "text" or size > MAX_TEXT:
            raise ValueError(f"a {kind} for a name")
        return self._bytes(size).decode("utf-8")

    def _next(self) -> tuple[str, Any]:
        """The kind of the value that comes next, and its value, entries, or bytes that follow."""
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise WeightsError(f"has more than {MAX_ENTRIES:,} values; arrays alone are read")
        (first,) = self._bytes(1)
        if first < 0x80 or first >= 0xE0:  # positive and negative fixint
            return "value", first if first < 0x80 else first - 0x100
        if first < 0xC0:
            if first >= 0xA0:  # fixstr
                return "text", first & 0x1F
            return "map" if first < 0x90 else "array", first & 0x0F
        if first in CONSTANTS:
            return "value", CONSTANTS[first]
        if first in SIZED:
            kind, width = SIZED[first]
            number = int.from_bytes(self._bytes(width), "big", signed=kind == "signed")
            if kind in ("signed", "unsigned"):
                return "value", number
            # Its bytes are read by now; no part of an array is a lone float.
            if kind == "float":
                return "value", None
            if kind == "extension":
                return kind, (self._bytes(1)[0], number)
            return kind, number
        if 0xD4 <= first <= 0xD8:  # fixext
            return "extension", (self._bytes(1)[0], 1 << (first - 0xD4))
        raise ValueError(f"the byte {first:#x}")

    def _skip(self, size: int) -> None:
        # A seek beyond the end succeeds; only a read would notice it.
        if self._file.seek(size, io.SEEK_CUR) > self.size:
            raise EOFError("the file ends too early")

    def _bytes(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise EOFError("the file ends too early")
        return data


CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
SIZED = {
    0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4),
    0xC7: ("extension", 1), 0xC8: ("extension", 2), 0xC9: ("extension", 4),
    0xCA: ("float", 4), 0xCB: ("float", 8),
    0xCC: ("unsigned", 1), 0xCD: ("unsigned", 2), 0xCE: ("unsigned", 4), 0xCF: ("unsigned", 8),
    0xD0: ("signed", 1), 0xD1: ("signed", 2), 0xD2: ("signed", 4), 0xD3: ("signed", 8),
    0xD9: ("text", 1), 0xDA: ("text", 2), 0xDB: ("text", 4),
    0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4),
}  # fmt: skip
