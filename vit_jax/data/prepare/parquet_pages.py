"""Images of Parquet files one by one, where they are: each by the page that holds it.

A page is the least that is unpacked. The images of one are listed by its header alone, so listing
takes no longer for larger images.
"""

import bisect
import collections
import contextlib
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from vit_jax.data import decoding
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import parquet, parquet_headers
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.prepare.parquet_headers import DATA, DATA_2, DICTIONARY, Column, Page
from vit_jax.data.source import DataError
from vit_jax.utils.storage import reason

CODECS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
UNREAD = {3: "LZO", 5: "Hadoop's LZ4"}
PLAIN, INDEXED, RLE = 0, (2, 8), 3  # encodings: values, their places in a dictionary, and levels
OTHERS = {6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}
OPTION = "data.labels"
MOST_ROWS = 2**20  # of any file; more, up to one for each byte
LARGEST = 2**28  # bytes of a page
KEPT = 2**27  # bytes of the pages that a reader keeps
HEADER = 2**14  # bytes to read before a page; most headers have a hundred
WIDEST = 32  # bits of a place in a dictionary
DAMAGED = (pa.ArrowException, OSError, ValueError, OverflowError, IndexError, struct.error)


class Values(NamedTuple):
    """The images of a page."""

    data: memoryview  # the page unpacked, or the dictionary that its images are in
    # Where in it each of N rows starts and ends, (N, 2) int64; -1 for a row without one.
    spans: np.ndarray


def rows(path: Path, label: str | None, option: str) -> Iterator[FileEntry | None]:
    """Yields the images of a file in order, named as by `parquet.rows` but for a suffix.

    The offset of each is that of its page in the file, and its size is its number in the page, as
    `Reader` takes them; None where `parquet.rows` has none. Takes and raises as
    `parquet.find_columns`.
    """
    with parquet.opened(path, label, option) as (file, table, columns):
        leaf, chunks = _chunks(path, table, file, columns.image)
        largest = collections.Counter[tuple[int, int]]()
        pages: list[list[tuple[int, int]]] = [[] for _ in chunks]  # the place and rows of each
        for group, column, page in parquet_headers.pages(table, file, path, columns.read):
            if column != leaf:
                largest[group, column] += page.size
            elif count := _rows(page, path):
                pages[group].append((page.place, count))

        def places() -> Iterator[tuple[int, int, bool]]:
            """Yields each row's page, number in it, and whether an image is there."""
            read = Reader(label)
            for at, chunk in enumerate(chunks):
                # Labels come from Arrow, images from pages: they would be paired wrongly.
                if sum(count for _, count in pages[at]) != chunk.rows:
                    raise ValueError(f"row group {at} has pages of other rows")
                for place, count in pages[at]:
                    spans = None
                    # Headers do not say which rows lack an image, so these pages are unpacked.
                    if chunk.missing != 0:
                        with contextlib.suppress(BadImage):  # which a run counts
                            spans = read.values(str(path), place).spans
                    for row in range(count):
                        yield place, row, spans is None or bool(spans[row, 0] >= 0)

        named = parquet.row_names(path)
        if columns.label is None:
            for number, (place, row, there) in enumerate(places()):
                yield FileEntry(named(number), str(path), place, row) if there else None
            return
        size = parquet.batch_rows(max(largest.values(), default=0))
        batches = table.iter_batches(size, columns=[columns.label])
        labels = (value for batch in batches for value in batch.column(0).to_pylist())
        for number, (one, value) in enumerate(zip(places(), labels, strict=True)):
            place, row, there = one
            kind = parquet.class_name(value, columns, str(path))
            labeled = there and kind is not None
            yield FileEntry(named(number, kind), str(path), place, row) if labeled else None


def _chunks(
    path: Path, table: pyarrow.parquet.ParquetFile, file: pa.NativeFile, image: str
) -> tuple[int, list[Column]]:
    """The number of the column of images, and what it is in each row group."""
    names = (image, f"{image}.bytes")
    leaf = next((n for n, p in enumerate(parquet_headers.leaves(table)) if p in names), None)
    # A repetition level is that of a list: a row of several images.
    if leaf is None or table.schema.column(leaf).max_repetition_level:
        raise DataError(f"{path}: column {image}: must be bytes, or a struct of bytes and a path")
    chunks = [group[leaf] for group in parquet_headers.row_groups(table, file)]
    rows, most = [chunk.rows for chunk in chunks], max(MOST_ROWS, file.size())
    if min(rows, default=0) < 0 or sum(rows) > most:
        raise DataError(f"{path}: says that it has {sum(rows):,} rows, of at most {most:,}")
    for chunk in chunks:
        if chunk.codec not in CODECS:
            by = UNREAD.get(chunk.codec, chunk.codec)
            raise DataError(f"{path}: is compressed by {by}; {_prepare(path)}")
    return leaf, chunks


def _prepare(path: Path) -> str:
    return f"copy its images out: vit_jax prepare NAME --from={path}"


def _rows(page: Page, path: Path) -> int:
    """How many rows a page has; raises DataError if they cannot be read one page at a time."""
    if page.size > LARGEST:
        raise DataError(f"{path}: has a page of {page.size:,} bytes; {_prepare(path)}")
    if page.kind not in (DATA, DATA_2):
        return 0
    encoding = page.own.get(2 if page.kind == DATA else 4, -1)
    if encoding not in (PLAIN, *INDEXED):
        raise DataError(
            f"{path}: has images in encoding {OTHERS.get(encoding, encoding)}, which is not read "
            f"one by one; {_prepare(path)}"
        )
    if (rows := page.own.get(1, -1)) < 0:
        raise ValueError("a page's header does not say how many rows it has")
    return rows


class Reader:
    """Reads listed images from several threads; keeps the latest pages."""

    _close = staticmethod(os.close)  # `os` is gone for one that is dropped at exit

    def __init__(self, label: str | None = None) -> None:
        """Takes the column of labels, as `parquet.find_columns` does."""
        self._label, self._lock = label, threading.Lock()
        self._files: dict[str, tuple[int, list[Column]]] = {}
        self._kept = collections.OrderedDict[tuple[str, int], Values]()
        self._size = 0

    def __reduce__(self) -> tuple[type["Reader"], tuple[str | None]]:
        # Neither descriptors nor locks can be pickled; a copy opens the files itself.
        return Reader, (self._label,)

    def __del__(self) -> None:
        for descriptor, _ in self._files.values():
            self._close(descriptor)

    def __call__(self, found: FileEntry) -> bytes:
        """The bytes of an image.

        Raises BadImage for faults of its page only, and DataError if its file has changed since it
        was listed.
        """
        values = self.values(found.container, found.offset)
        if not found.size < len(values.spans):
            raise DataError(f"{found.path}: changed since it was listed, in {found.container}")
        start, end = values.spans[found.size].tolist()
        if start < 0:
            raise BadImage("is missing")
        decoding.check_bytes(end - start)
        return bytes(values.data[start:end])

    def values(self, path: str, place: int) -> Values:
        """The images of the page at `place`; raises like reading one."""
        key = (path, place)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            descriptor, chunks = self._file(path)
        # Not under the lock: threads unpack at the same time, and pread moves no position.
        at = bisect.bisect_right(chunks, place, key=lambda chunk: chunk.start) - 1
        chunk = chunks[at] if chunks else None
        try:
            if chunk is None or not chunk.start <= place < chunk.end:
                raise ValueError("there is no page")
            header = os.pread(descriptor, min(HEADER, chunk.end - place), place)
            try:
                page = parquet_headers.parse_page(header, place)
            except ValueError:  # of a page with long values in its header, or of none
                header = os.pread(descriptor, min(parquet_headers.HEADER, chunk.end - place), place)
                page = parquet_headers.parse_page(header, place)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: changed since it was listed: {reason(error)}") from None
        try:
            if page.end > chunk.end or page.size > LARGEST:
                raise ValueError("it is larger than its column")
            packed = os.pread(descriptor, page.end - page.body, page.body)
            if len(packed) != page.end - page.body:
                raise DataError(f"{path}: changed since it was listed: it is shorter")
            values = self._unpacked(path, page, chunk, memoryview(packed))
        except DAMAGED as error:
            raise BadImage(f"is in a damaged page: {reason(error)}") from None
        with self._lock:
            # Another thread may have unpacked the page meanwhile: threads read without the lock.
            if key not in self._kept:
                self._kept[key] = values
                self._size += _weight(values)
                # The newest stays, however large: images that are read in order share it.
                while self._size > KEPT and len(self._kept) > 1:
                    self._size -= _weight(self._kept.popitem(last=False)[1])
        return values

    def _file(self, path: str) -> tuple[int, list[Column]]:
        if path not in self._files:
            with parquet.opened(Path(path), self._label, OPTION) as (file, table, columns):
                chunks = _chunks(Path(path), table, file, columns.image)[1]
            self._files[path] = os.open(path, os.O_RDONLY), chunks
        return self._files[path]

    def _unpacked(self, path: str, page: Page, chunk: Column, packed: memoryview) -> Values:
        """Raises one of DAMAGED."""
        own, kind, codec = page.own, page.kind, CODECS[chunk.codec]
        if kind == DICTIONARY:
            # In a dictionary's own page, 2 (PLAIN_DICTIONARY, deprecated) means plain values.
            if own.get(2) not in (PLAIN, 2):
                raise ValueError("its dictionary is encoded")
            data = _unpack(packed, page.size, codec)
            return Values(data, _spans(data, 0, own.get(1, -1)))
        count = own.get(1, -1)
        if kind not in (DATA, DATA_2) or not 0 <= count <= chunk.rows:
            raise ValueError("it is another kind of page")
        at, levels = 0, memoryview(b"")
        if kind == DATA:
            data, encoding = _unpack(packed, page.size, codec), own.get(2)
            if chunk.levels:
                if own.get(3) != RLE:
                    raise ValueError("its levels are encoded")
                # Pages of version 1 begin with the size of the levels and these.
                at = 4 + struct.unpack_from("<I", data)[0]
                levels = data[4:at]
        else:
            before, encoding = own.get(5, 0), own.get(4)
            # Repetition levels would be those of lists, which are refused.
            if own.get(6) or not 0 <= before <= min(page.size, len(packed)):
                raise ValueError("it has other levels")
            # A version 2 header without this flag belongs to a compressed page.
            codec = codec if own.get(7, 1) else ""
            # Pages of version 2 keep the levels, uncompressed, in front of the values.
            levels, data = packed[:before], _unpack(packed[before:], page.size - before, codec)
        there = np.ones(count, bool)
        if chunk.levels:
            # A level says how many structures of a value are there; at the highest, the value is.
            there = hybrid(levels, chunk.levels.bit_length(), count) == chunk.levels
        number = int(np.count_nonzero(there))
        if encoding == PLAIN:
            found = _spans(data, at, number)
        elif encoding in INDEXED:
            if not number:
                found = np.zeros((0, 2), np.int64)
            else:
                # The dictionary comes first; a page that took itself for it would never end.
                if page.place == chunk.start:
                    raise ValueError("it has no dictionary")
                # The first byte is the width of the places in bits.
                places = hybrid(data[at + 1 :], data[at], number)
                data, spans = self.values(path, chunk.start)
                found = spans[places]
        else:
            raise ValueError("it is encoded")
        spans = np.full((count, 2), -1, np.int64)
        spans[there] = found
        return Values(data, spans)


def _weight(values: Values) -> int:
    return len(values.data) + values.spans.nbytes


def _unpack(packed: memoryview, size: int, codec: str) -> memoryview:
    """`size` bytes; raises OSError or ValueError."""
    data = packed if size else memoryview(b"")
    if codec and size:
        data = memoryview(pa.decompress(packed, decompressed_size=size, codec=codec)).cast("B")
    if len(data) != size:
        raise ValueError(f"it has {len(data):,} bytes, not {size:,}")
    return data


def _spans(data: memoryview, at: int, count: int) -> np.ndarray:
    """Starts and ends (count, 2) of values from `at` to the end, each with its size before it."""
    if not 0 <= count <= len(data) // 4:
        raise ValueError(f"it has {len(data):,} bytes for {count:,} values")
    spans = []
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, at)
        spans.append((at + 4, at + 4 + size))
        at += 4 + size
    if at != len(data):
        raise ValueError(f"its values end at byte {at:,} of {len(data):,}")
    return np.array(spans, np.int64).reshape(count, 2)


def hybrid(data: memoryview, width: int, count: int) -> np.ndarray:
    """`count` numbers of `width` bits in runs of one value and in groups of eight, int64.

    Source: "RLE / bit-packing hybrid" of Parquet's encodings. Raises ValueError or IndexError.
    """
    if width > WIDEST:
        raise ValueError(f"it has numbers of {width} bits")
    numbers, at, done = np.zeros(count, np.int64), 0, 0
    while done < count:
        head, at = parquet_headers.read_number(data, at)
        if head & 1:
            take = min((head >> 1) * 8, count - done)
            size = -(-take * width // 8)
            packed = np.frombuffer(data[at : at + size], np.uint8)
            bits = np.unpackbits(packed, bitorder="little")[: take * width].reshape(take, width)
            numbers[done : done + take] = bits @ (1 << np.arange(width))
            # The whole run, whose last group may go on beyond `count`.
            at += (head >> 1) * width
        else:
            take, size = min(head >> 1, count - done), -(-width // 8)
            if at + size > len(data):
                raise ValueError("its runs are cut off")
            numbers[done : done + take] = int.from_bytes(data[at : at + size], "little")
            at += size
        done += take
    return numbers
