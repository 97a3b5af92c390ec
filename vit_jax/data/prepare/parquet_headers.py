"""What a Parquet file says of its row groups and pages, read without unpacking any of them.

Arrow's own objects for that end the process on some damaged files.
"""

import collections
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from vit_jax.data.source import DataError

LARGEST = 2**33  # bytes of a row group
# 30 kB of zeros can unpack to all of LARGEST.
FREE = 2**26  # bytes that a row group of any file may unpack to; more, up to RATIO times its file
RATIO = 32
HEADER = 2**24  # bytes of a page's header, as in Arrow
DEEPEST = 8  # structures in one another; the end of a file has four
DATA, DICTIONARY, DATA_2 = 0, 2, 3  # kinds of pages
OWN = {DATA: 5, DICTIONARY: 7, DATA_2: 8}  # the field of a page's header that has its own one
# Fields that are read, by number: numbers, structures, and lists of structures. Source:
# PageHeader and FileMetaData of parquet.thrift.
# PageHeader: the kind, the sizes unpacked and packed, then the header of the kind: values,
# encoding, and encoding of levels; of version 2: values, encoding, bytes of definition and of
# repetition levels, and whether it is compressed.
OF_PAGE = dict.fromkeys((1, 2, 3)) | {
    5: dict.fromkeys((1, 2, 3)),
    7: dict.fromkeys((1, 2)),
    8: dict.fromkeys((1, 4, 5, 6, 7)),
}
# ColumnMetaData: codec, packed size, places of data and dictionary, and rows without a value.
OF_COLUMN = {4: None, 7: None, 9: None, 11: None, 12: {3: None}}
# FileMetaData: the row groups, each with its column chunks and its number of rows.
OF_FILE = {4: [{1: [{3: OF_COLUMN}], 3: None}]}


class Column(NamedTuple):
    """A column of a row group."""

    start: int  # of its pages in the file, as `end`
    end: int
    codec: int  # the number of what they are compressed by
    levels: int  # how many structures of a value may be missing, itself included
    rows: int  # how many there are
    missing: int | None  # how many of these have no value; None: the file does not say


class Page(NamedTuple):
    """A page of a column of a row group."""

    place: int  # of its header in the file
    body: int  # of what follows the header
    end: int  # of the page
    size: int  # bytes that it unpacks to
    kind: int  # DATA, DICTIONARY, DATA_2 or another
    # Numbers and flags of the header of its kind, by the numbers of their fields.
    own: Mapping[int, int]


def largest_column(
    table: pyarrow.parquet.ParquetFile, file: pa.NativeFile, path: Path, names: Sequence[str]
) -> int:
    """The most bytes that a column of a row group unpacks to, of those that are read.

    Raises DataError for a row group of too many.
    """
    sizes = collections.Counter[tuple[int, int]]()
    for group, column, page in pages(table, file, path, names):
        sizes[group, column] += page.size
    return max(sizes.values(), default=0)


def pages(
    table: pyarrow.parquet.ParquetFile, file: pa.NativeFile, path: Path, names: Sequence[str]
) -> Iterator[tuple[int, int, Page]]:
    """Yields the pages of some columns, with the numbers of their row group and column.

    By the headers of the pages: Arrow unpacks a page into as many bytes as its header says,
    whatever the end of the file says. Raises DataError for a row group of too many, and ValueError
    for a damaged header.
    """
    length, read = file.size(), 0
    most = min(LARGEST, max(FREE, RATIO * length))
    wanted = [n for n, p in enumerate(leaves(table)) if p.partition(".")[0] in names]
    for at, group in enumerate(row_groups(table, file)):
        total = 0
        for number in wanted:
            column = group[number]
            if not column.rows:  # of which Arrow says wrong places
                continue
            place, end = column.start, column.end
            # All columns have at most the bytes of the file: shared ones would unpack each time.
            read += end - place
            if not 0 <= place <= end <= length or read > length:
                raise DataError(f"{path}: is damaged: row group {at} lies outside of the file")
            while place < end:
                file.seek(place)
                page = parse_page(file.read_buffer(min(HEADER, end - place)), place)
                place, total = page.end, total + page.size
                if total > most:
                    raise DataError(f"{path}: row group {at} has more than {most:,} bytes")
                yield at, number, page


def leaves(table: pyarrow.parquet.ParquetFile) -> list[str]:
    """The paths of the columns in the schema, such as `image.bytes`."""
    return [table.schema.column(number).path for number in range(len(table.schema))]


def row_groups(
    table: pyarrow.parquet.ParquetFile, file: pa.NativeFile
) -> Iterator[tuple[Column, ...]]:
    """Yields each row group of a file that Arrow has opened, in the order of the schema.

    Raises ValueError.
    """
    # A file ends in its metadata, their size (uint32), and the four bytes PAR1.
    file.seek(file.size() - 8)
    (size,) = struct.unpack("<I", file.read(4))
    file.seek(file.size() - 8 - size)
    found = _Compact(file.read_buffer(size)).structure(OF_FILE)
    levels = [table.schema.column(at).max_definition_level for at in range(len(table.schema))]
    for group in found.get(4, ()):
        columns, rows = group.get(1, ()), group.get(3, -1)
        if len(columns) != len(levels):
            raise ValueError("a row group has other columns than its file")
        yield tuple(_column(*one, rows) for one in zip(columns, levels, strict=True))


def _column(found: Mapping[int, Any], levels: int, rows: int) -> Column:
    about = found.get(3, {})
    start, dictionary = about.get(9, -1), about.get(11, 0)
    start = dictionary if 0 < dictionary < start else start  # as Arrow reads it
    missing = about.get(12, {}).get(3)
    return Column(start, start + about.get(7, -1), about.get(4, -1), levels, rows, missing)


def parse_page(data: bytes | pa.Buffer, place: int) -> Page:
    """A page by its header, which is at `place` in its file and at the start of `data`.

    Raises ValueError.
    """
    header = _Compact(data)
    found = header.structure(OF_PAGE)
    size, packed, kind = (found.get(field, -1) for field in (2, 3, 1))
    if min(size, packed) < 0:
        raise ValueError("a header does not say how large its page is")
    body = place + header.at
    return Page(place, body, body + packed, size, kind, found.get(OWN.get(kind, -1), {}))


def read_number(data: memoryview, at: int) -> tuple[int, int]:
    """A whole number in groups of seven bits, the lowest first, and where it ends.

    Raises IndexError at the end of the data, ValueError for more than 64 bits.
    """
    value = 0
    for shift in range(0, 64, 7):
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number has more than 64 bits")


class _Compact:
    """Structures in Thrift's compact protocol, of which wanted fields are read."""

    def __init__(self, data: bytes | pa.Buffer) -> None:
        self._data, self.at = memoryview(data).cast("B"), 0

    def structure(self, wanted: Mapping[int, Any]) -> dict[int, Any]:
        """The values of some fields that are there, and moves behind all; raises ValueError."""
        try:
            return self._structure(wanted, 0)
        except IndexError:
            raise ValueError("a header is cut off") from None

    def _structure(self, wanted: Mapping[int, Any], depth: int) -> dict[int, Any]:
        if depth > DEEPEST:
            raise ValueError("a header is nested too deeply")
        found, field = {}, 0
        while start := self._data[self.at]:
            self.at += 1
            kind, step = start & 15, start >> 4
            field = field + step if step else self._signed()
            if field in wanted:
                found[field] = self._value(kind, wanted[field], depth)
            else:
                self._value(kind, {}, depth, skip=True)
        self.at += 1
        return found

    def _value(self, kind: int, wanted: Any, depth: int, *, skip: bool = False) -> Any:
        # One byte has the kind and the step from the last number; after 0 the number follows.
        expected = {dict: (12,), list: (9,)}.get(type(wanted), (1, 2, 4, 5, 6))
        if not skip and kind not in expected:
            raise ValueError(f"a header has a field of another kind, {kind}")
        match kind:
            case 1 | 2:
                return 2 - kind  # true and false
            case 4 | 5 | 6:
                return self._signed()
            case 12:
                return self._structure(wanted, depth + 1)
            case 9:
                return self._list(wanted, depth, skip=skip)
            case 3 | 7 | 8:  # a byte, a fraction, a text
                size = {3: 1, 7: 8}.get(kind) or self._number()
                self.at += size
                return None
        raise ValueError(f"a header has a field of kind {kind}")

    def _list(self, wanted: Any, depth: int, *, skip: bool) -> list[Any]:
        if depth > DEEPEST:
            raise ValueError("a header is nested too deeply")
        head = self._data[self.at]
        self.at += 1
        # Kind and count in one byte; 15 means that the count follows.
        kind, count = head & 15, head >> 4
        count = self._number() if count == 15 else count
        kind = 3 if kind in (1, 2) else kind  # in lists these are bytes
        inner, found = {} if skip else wanted[0], []
        for _ in range(count):
            value = self._value(kind, inner, depth + 1, skip=skip)
            # Raises IndexError behind the end: a damaged count of billions would go on for as long.
            self._data[self.at - 1]
            if not skip:
                found.append(value)
        return found

    def _signed(self) -> int:
        # Zigzag: 0, 1, 2, 3 stand for 0, -1, 1, -2.
        value = self._number()
        return value >> 1 ^ -(value & 1)

    def _number(self) -> int:
        value, self.at = read_number(self._data, self.at)
        return value
