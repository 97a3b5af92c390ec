"""Images and labels in Parquet files, as Hugging Face stores datasets."""

import json
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from vit_jax.data import splits
from vit_jax.data.source import DataError
from vit_jax.utils.storage import reason

Path = pathlib.Path

PARQUET, ARROW = ".parquet", ".arrow"
ROWS = 64  # in memory at a time
MEMORY = 2**30  # bytes of these, if their values are no larger than a column
LARGEST = 2**33  # bytes of a row group
FREE = 2**26  # bytes that a row group of any file may unpack to; more, up to RATIO times its file
RATIO = 32
HEADER = 2**24  # bytes of a page's header, as in Arrow
DEEPEST = 8  # structures in one another; a page's header has three
STARTS = {
    b"\xff\xd8": ".jpg",
    b"\x89PNG": ".png",
    b"RIFF": ".webp",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}


class ParquetRow(NamedTuple):
    """One image: a path `SPLIT/CLASS/FILE-ROW.SUFFIX`, and its encoded bytes.

    A row without a label, or without bytes, has no suffix: it is counted as no image.
    """

    path: str
    data: bytes


class Columns(NamedTuple):
    """The columns of images and labels, and the names of integer labels, if the file has them."""

    image: str
    label: str
    names: tuple[str, ...] | None


def rows(path: Path, label: str | None = None) -> Iterator[ParquetRow]:
    """Yields the rows of a file in order; `label` names the column where several could be meant.

    Raises DataError for a damaged file, and for one without columns of images and labels.
    """
    if path.suffix.lower() == ARROW:  # damage can end the process: 18 of 2,000 files did
        raise DataError(
            f"{path}: Arrow files are not read; with the library `datasets`: "
            'load_from_disk(FOLDER)["train"].to_parquet("train.parquet")'
        )
    split = split_name(path)
    parents = f"{split}/" if split else ""
    try:
        with pa.memory_map(str(path)) as file:
            table = pyarrow.parquet.ParquetFile(file)
            columns = find_columns(table.schema_arrow, str(path), label)
            names = (columns.image, columns.label)
            number, size = 0, _batch_rows(largest_column(table.metadata, file, path, names))
            for batch in table.iter_batches(size, columns=[*names]):
                images, labels = batch.column(0), batch.column(1)
                for image, value in zip(images, labels, strict=True):
                    name = f"{path.stem}-{number:08d}"
                    number += 1
                    image = image.as_py()
                    data = image["bytes"] if isinstance(image, dict) else image
                    kind = class_name(value.as_py(), columns, str(path))
                    if kind is None or not data:
                        yield ParquetRow(f"{parents}{name}", b"")
                        continue
                    suffix = next((s for start, s in STARTS.items() if data.startswith(start)), "")
                    yield ParquetRow(f"{parents}{kind}/{name}{suffix}", data)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: is damaged, or no Parquet file: {reason(error)}") from None


def _batch_rows(largest: int) -> int:
    """Rows to read at a time, of columns that unpack to at most `largest` bytes.

    A value that a dictionary holds once may be that of every row, and as large as its column.
    """
    return max(1, min(ROWS, MEMORY // max(1, largest)))


def largest_column(
    metadata: pyarrow.parquet.FileMetaData, file: pa.NativeFile, path: Path, names: Sequence[str]
) -> int:
    """The most bytes that a column of a row group unpacks to, of those that are read.

    By the headers of its pages: Arrow unpacks a page into as many bytes as its header says,
    whatever the end of the file says. Raises DataError for a row group of too many.
    """
    length, read, largest = file.size(), 0, 0
    most = min(LARGEST, max(FREE, RATIO * length))
    for at in range(metadata.num_row_groups):
        group, total = metadata.row_group(at), 0
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] not in names:
                continue
            place = column.data_page_offset
            if column.has_dictionary_page and 0 < column.dictionary_page_offset < place:
                place = column.dictionary_page_offset  # as Arrow reads it
            end, unpacked = place + column.total_compressed_size, 0
            read += end - place
            if not 0 <= place <= end <= length or read > length:
                raise DataError(f"{path}: is damaged: row group {at} lies outside of the file")
            while place < end:
                file.seek(place)
                header = memoryview(file.read_buffer(min(HEADER, end - place)))
                head, size, packed = _page(header.cast("B"))
                place, unpacked = place + head + packed, unpacked + size
                if total + unpacked > most:
                    raise DataError(f"{path}: row group {at} has more than {most:,} bytes")
            total, largest = total + unpacked, max(largest, unpacked)
    return largest


def _page(data: memoryview) -> tuple[int, int, int]:
    """The bytes of a page's header, and those of its page, unpacked and packed.

    Source: PageHeader of parquet.thrift, in Thrift's compact protocol. Raises ValueError.
    """
    place, sizes = 0, {2: -1, 3: -1}

    def number() -> int:
        nonlocal place
        value = 0
        for shift in range(0, 64, 7):
            byte, place = data[place], place + 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number of a page's header has more than 64 bits")

    def structure(depth: int) -> None:
        nonlocal place
        if depth > DEEPEST:
            raise ValueError("a page's header is nested too deeply")
        field = 0
        while start := data[place]:
            place += 1
            kind, step = start & 15, start >> 4
            field = field + step if step else number()
            if kind in (4, 5, 6):  # whole numbers
                value = number()
                if not depth and field in sizes:
                    sizes[field] = value >> 1 ^ -(value & 1)
            elif kind == 8:  # a text
                size = number()
                place += size
            elif kind == 12:
                structure(depth + 1)
            elif kind not in (1, 2):  # true and false; no field is a list, a map or a fraction
                raise ValueError(f"a page's header has a field of kind {kind}")
        place += 1

    try:
        structure(0)
    except IndexError:
        raise ValueError("a page's header is cut off") from None
    if min(sizes.values()) < 0:
        raise ValueError("a page's header does not say how large the page is")
    return place, sizes[2], sizes[3]


def find_columns(schema: pa.Schema, path: str, label: str | None) -> Columns:
    """The columns to read, by Hugging Face's description of the file, else by their types.

    Raises DataError if there is no such column, or more than one.
    """
    known = _described(schema)
    images = [field.name for field in schema if _holds_bytes(field.type)]
    images = [n for n in images if known.get(n, {}).get("_type") == "Image"] or images
    labels = [n for n in schema.names if known.get(n, {}).get("_type") == "ClassLabel"] or [
        field.name for field in schema if pa.types.is_integer(field.type) or _is_text(field.type)
    ]
    if label is not None:
        labels = [label] if label in schema.names else []
    if len(images) != 1:
        raise DataError(f"{path}: {_counted('column of images', images, schema)}")
    if len(labels) != 1:
        remedy = "; name one: --label=COLUMN" if labels else ""
        what = "column of labels" if label is None else f"column {label} of labels"
        raise DataError(f"{path}: {_counted(what, labels, schema)}{remedy}")
    kind = schema.field(labels[0]).type
    if not (pa.types.is_integer(kind) or _is_text(kind)):
        raise DataError(
            f"{path}: column {labels[0]}: must be whole numbers or texts, and is {kind}"
        )
    names = known.get(labels[0], {}).get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = None
    return Columns(images[0], labels[0], None if names is None else tuple(names))


def _counted(what: str, found: list[str], schema: pa.Schema) -> str:
    if found:
        return f"more than one {what}: {', '.join(found)}"
    return f"no {what}; it has {', '.join(schema.names) or 'none'}"


def _described(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Hugging Face's description of each column, by name; empty for other files."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: one for name, one in found.items() if isinstance(one, dict)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        return "bytes" in names and _holds_bytes(kind.field(names.index("bytes")).type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def class_name(value: object, columns: Columns, path: str) -> str | None:
    """The class folder for a label; None if the label is missing (-1 in test splits)."""
    if value is None or value == -1:
        return None
    if isinstance(value, int) and columns.names is not None:
        if not 0 <= value < len(columns.names):
            raise DataError(
                f"{path}: {columns.label} {value}: the file names {len(columns.names)} classes"
            )
        value = columns.names[value]
    return folder_name(str(value))


def folder_name(name: str) -> str | None:
    """A class name as the name of a folder: without slashes; None if nothing is left."""
    return name.strip().strip("/").replace("/", "_") or None


def split_name(path: Path) -> str | None:
    """The split that a file's name, or else its folder's, says: `train-00000-of-00002.parquet`."""
    words = re.split(r"[-_.]", path.stem)
    return next((w for w in (*words, path.parent.name) if splits.is_split(w)), None)
