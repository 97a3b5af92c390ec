"""Images and labels in Arrow files, as the library `datasets` saves datasets.

Such a file holds the encoded bytes of an image as they are, so that reading one takes its place
alone.
"""

import contextlib
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from flatbuffers.table import Table

from vit_jax.data.prepare import parquet
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.source import DataError
from vit_jax.utils.storage import reason

FILE = b"ARROW1\0\0"  # the start of a file with random access: a stream and a list follow
# Fields in tables of Message.fbs, by number.
HEADER, DATA, COMPRESSION = 2, 1, 3


def rows(path: Path, label: str | None, option: str = "--label") -> Iterator[FileEntry | None]:
    """Yields the images of a file in order, named as by `parquet.rows`; None where that has none.

    Takes and raises as `parquet.find_columns`, and DataError for a damaged or a compressed file.
    """
    named, number = parquet.row_names(path), 0
    try:
        with pa.memory_map(str(path)) as file:
            whole = file.read_buffer()
            for batch in _batches(whole, path):
                # pyarrow ends the process where it reads values of a damaged batch: 18 of 2,000
                # files. Of 30,000 that were validated first, none did (measured).
                columns = parquet.find_columns(batch.schema, str(path), label, option)
                batch.validate(full=True)  # before any value is read, which can end the process
                places, sizes = _places(batch.column(columns.image), whole)
                kinds = _class_names(batch, columns, path)
                for kind, place, size in zip(kinds, places, sizes, strict=True):
                    if (kind is None and columns.label is not None) or not size:
                        yield None
                    else:
                        start = whole[place : place + min(size, parquet.START)].to_pybytes()
                        name = f"{named(number, kind)}{parquet.image_suffix(start)}"
                        yield FileEntry(name, str(path), place, size)
                    number += 1
    except (pa.ArrowException, OSError, ValueError, LookupError, MemoryError) as error:
        raise DataError(f"{path}: is damaged, or no Arrow file: {reason(error)}") from None


def _class_names(
    batch: pa.RecordBatch, columns: parquet.Columns, path: Path
) -> Iterator[str | None]:
    """Yields the class of each row; None: it has none, or none is wanted."""
    if columns.label is None:
        yield from itertools.repeat(None, len(batch))
        return
    labels = batch.column(columns.label)
    step = parquet.batch_rows(labels.nbytes)
    for at in range(0, len(labels), step):
        for value in labels.slice(at, step).to_pylist():
            yield parquet.class_name(value, columns, str(path))


def _batches(whole: pa.Buffer, path: Path) -> Iterator[pa.RecordBatch]:
    """Raises DataError before anything is unpacked: a small file may hold terabytes of zeros."""
    if whole[: len(FILE)].to_pybytes() == FILE:
        # Read as a stream up to its end mark: the list behind it may point anywhere.
        whole = whole[len(FILE) :]
    with contextlib.suppress(StopIteration):
        messages = pa.ipc.MessageReader.open_stream(whole)
        while True:
            if _is_compressed(messages.read_next_message()):
                raise DataError(f"{path}: is compressed; write it again without compression")
    with pa.ipc.open_stream(whole) as stream:
        yield from stream


def _is_compressed(message: pa.ipc.Message) -> bool:
    if message.type not in ("record batch", "dictionary"):
        return False
    # pyarrow does not say how a message is compressed, so its FlatBuffers table is read here.
    data = message.metadata.to_pybytes()

    def inner(table: Table, number: int) -> Table:
        if not (place := table.Offset(4 + 2 * number)):  # a field's in the table of their offsets
            raise ValueError("a batch has no header")
        return Table(data, table.Indirect(table.Pos + place))

    header = inner(Table(data, *struct.unpack_from("<I", data)), HEADER)
    if message.type == "dictionary":
        # A dictionary batch wraps a record batch, which alone says how its buffers are compressed.
        header = inner(header, DATA)
    return header.Offset(4 + 2 * COMPRESSION) != 0


def _places(column: pa.Array, whole: pa.Buffer) -> tuple[list[int], list[int]]:
    """Where in the file the image of each row starts, and its size; 0: there is none."""
    there = np.ones(len(column), bool)
    # An image is bytes, or a struct that has them: it is missing where either is.
    while True:
        there &= column.is_valid().to_numpy(zero_copy_only=False)
        if not pa.types.is_struct(column.type):
            break
        # `field` ignores the rows in which the struct itself is missing.
        column = column.field("bytes")
    if not there.any():
        return [0] * len(column), [0] * len(column)
    _, offsets, data = column.buffers()
    kind = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    ends = np.frombuffer(offsets, kind)[column.offset :][: len(column) + 1].astype(np.int64)
    start = data.address - whole.address if data else 0
    if not 0 <= start <= whole.size - (data.size if data else 0):
        raise ValueError("its numbers have another byte order")  # so that pyarrow has copied them
    return (ends[:-1] + start).tolist(), np.where(there, np.diff(ends), 0).tolist()
