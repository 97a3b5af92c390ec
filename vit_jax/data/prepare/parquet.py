"""Images and labels in Parquet files, as Hugging Face stores datasets."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from vit_jax.data import splits
from vit_jax.data.prepare import parquet_headers
from vit_jax.data.source import WITHOUT_LABELS, DataError
from vit_jax.utils.storage import reason

KINDS = ("parquet", "arrow")  # of files with rows of images, by what their names end in
CACHE = "cache-"  # the start of the names of files that `datasets` keeps beside saved ones
ROWS = 64  # in memory at a time
MEMORY = 2**30  # bytes of these, if their values are no larger than a column
STARTS = {
    b"\xff\xd8": ".jpg",
    b"\x89PNG": ".png",
    b"RIFF": ".webp",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
LONGEST = 255  # bytes of the name of a class, which is a folder's
UNLABELED = ""  # in place of a column of labels: every image is wanted, and of no class
START = 4  # bytes of an image that say its suffix


class Columns(NamedTuple):
    """The columns of images and labels, and the names of integer labels, if the file has them."""

    image: str
    label: str | None
    names: tuple[str, ...] | None = None

    @property
    def read(self) -> list[str]:
        """The names of the columns to read."""
        return [self.image] if self.label is None else [self.image, self.label]


def rows(path: Path, label: str | None = None) -> Iterator[tuple[str, bytes] | None]:
    """Yields each row's path `SPLIT/CLASS/FILE-ROW.SUFFIX` and encoded image, in order.

    None for a row without a wanted label, or without bytes. `label` names the column where several
    could be meant; UNLABELED reads images alone. Raises DataError for a damaged file, and for one
    without columns of images and labels.
    """
    with opened(path, label) as (file, table, columns):
        size = batch_rows(parquet_headers.largest_column(table, file, path, columns.read))
        named, number = row_names(path), 0
        for batch in table.iter_batches(size, columns=columns.read):
            for image, *labels in zip(*batch.columns, strict=True):
                image = image.as_py()
                data = image["bytes"] if isinstance(image, dict) else image
                kind = class_name(labels[0].as_py(), columns, str(path)) if labels else None
                if (labels and kind is None) or not data:
                    yield None
                else:
                    yield f"{named(number, kind)}{image_suffix(data)}", data
                number += 1


@contextlib.contextmanager
def opened(
    path: Path, label: str | None, option: str = "--label"
) -> Iterator[tuple[pa.NativeFile, pyarrow.parquet.ParquetFile, Columns]]:
    """A file, mapped into memory, with its table and columns, of which `option` names the labels.

    Raises DataError, also for what goes wrong while it is open.
    """
    try:
        with pa.memory_map(str(path)) as file:
            table = pyarrow.parquet.ParquetFile(file)
            yield file, table, find_columns(table.schema_arrow, str(path), label, option)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: is damaged, or no Parquet file: {reason(error)}") from None


def batch_rows(largest: int) -> int:
    """Rows to read at a time, of columns that unpack to at most `largest` bytes.

    A value that a dictionary holds once may be that of every row, and as large as its column.
    """
    return max(1, min(ROWS, MEMORY // max(1, largest)))


def find_columns(
    schema: pa.Schema, path: str, label: str | None, option: str = "--label"
) -> Columns:
    """The columns to read, by Hugging Face's description of the file, else by their types.

    `label` is the column of labels, UNLABELED for none; None: the only one. Raises DataError if
    there is no such column, or more than one.
    """
    known = _described(schema)
    images = [field.name for field in schema if _holds_bytes(field.type)]
    # Where the file says which columns are images and labels, others of such types do not count.
    images = [n for n in images if known.get(n, {}).get("_type") == "Image"] or images
    labels = [n for n in schema.names if known.get(n, {}).get("_type") == "ClassLabel"] or [
        field.name for field in schema if pa.types.is_integer(field.type) or _is_text(field.type)
    ]
    if len(images) != 1:
        raise DataError(f"{path}: {_counted('column of images', images, schema)}")
    if label == UNLABELED:
        return Columns(images[0], None)
    if label is not None:
        labels = [label] if label in schema.names else []
    if len(labels) != 1:
        what, remedy = "column of labels", without_labels(option)
        if labels:
            remedy = f"; name one: {option}=COLUMN"
        elif label is not None:
            what, remedy = f"column {label} of labels", ""
        raise DataError(f"{path}: {_counted(what, labels, schema)}{remedy}")
    kind = schema.field(labels[0]).type
    if not (pa.types.is_integer(kind) or _is_text(kind)):
        raise DataError(
            f"{path}: column {labels[0]}: must be whole numbers or texts, and is {kind}"
        )
    names = known.get(labels[0], {}).get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = None
    # Classes become folders: names that differ in slashes or outer spaces alone would be one.
    by_folder = dict[str | None, str]()
    for name in names or ():
        if (other := by_folder.setdefault(folder_name(name), name)) != name:
            raise DataError(
                f"{path}: {labels[0]}: {other!r} and {name!r} would be one class, "
                f"{folder_name(name)}; rename one of them"
            )
    return Columns(images[0], labels[0], None if names is None else tuple(names))


def without_labels(option: str) -> str:
    """The remedy for images without labels, by the option that names them or their labels."""
    return "; --no-labels packs images without" if option.startswith("--") else WITHOUT_LABELS


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
    # Hugging Face stores an image as a struct of its bytes and its path.
    if pa.types.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        return "bytes" in names and _holds_bytes(kind.field(names.index("bytes")).type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def image_suffix(data: bytes) -> str:
    """The suffix of an image by its first bytes; empty for another file."""
    return next((suffix for start, suffix in STARTS.items() if data.startswith(start)), "")


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
    name = folder_name(str(value))
    if name is None and columns.names is not None:
        raise DataError(f"{path}: {columns.label} has a class without a name, {value!r}; name it")
    if name is not None and (size := len(name.encode())) > LONGEST:
        raise DataError(
            f"{path}: {columns.label} has a name of {size:,} bytes; at most {LONGEST} are allowed"
        )
    return name


def folder_name(name: str) -> str | None:
    """A class name as the name of a folder: without slashes; None if nothing is left."""
    return name.strip().strip("/").replace("/", "_") or None


def row_names(path: Path) -> Callable[..., str]:
    """What names a row of a file by its number and its class, if any: `SPLIT/CLASS/FILE-ROW`."""
    split, stem = split_name(path), path.stem

    def name(number: int, kind: str | None = None) -> str:
        return "/".join(filter(None, (split, kind, f"{stem}-{number:08d}")))

    return name


def table_kind(name: str) -> str | None:
    """The one of KINDS that a file is by its name, or None."""
    kind = Path(name.lower()).suffix[1:]
    if kind not in KINDS or (kind == "arrow" and name.startswith(CACHE)):
        return None
    return kind


def check_distinct(path: Path, files: dict[str, Path], key: str) -> None:
    """Adds a file to `files`, by the names of its rows; raises DataError if another has them."""
    if (other := files.setdefault(row_names(path)(0), path)) is not path:
        raise DataError(same_name(key, str(other), str(path)))


def same_name(key: str, one: str, other: str) -> str:
    """Two files of one name, whose images would have the same paths, and the remedy."""
    remedy = "rename one"
    if key.startswith("data.root"):
        remedy += ", or set data.root to the folder of one"
    return f"{key}: {one} and {other} have the same name, and so have their images; {remedy}"


def split_name(path: Path) -> str | None:
    """The split that a file's name, or else its folder's, says: `train-00000-of-00002.parquet`."""
    words = re.split(r"[-_.]", path.stem)
    return next((w for w in (*words, path.parent.name) if splits.is_split(w)), None)
