"""Images listed in CSV files as a source: `root/SPLIT.csv`, with classes or numbers."""

import codecs
import csv
import io
import pathlib
import re
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import config
from vit_jax.data import class_matching, decoding, splits
from vit_jax.data.folders import (
    SUFFIXES,
    FileNames,
    hash64,
    local_root,
    remaining,
    remedy,
    shown,
    warn_of_substitute,
)
from vit_jax.data.source import UNKNOWN, DataError, Record
from vit_jax.data.splits import Split
from vit_jax.runtime.logs import log
from vit_jax.utils import limits, messages, storage
from vit_jax.utils.digests import digest

SEPARATOR = ";"  # between the classes of an image
SUFFIX = ".csv"
INVISIBLE = "\u200b\u2060\ufeff"
INDEX = ("", "Unnamed: 0")  # how pandas calls the column of its numbers
# What programs write for 0 and 1 in the column of a class.
BITS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
LARGEST = 1e30  # of a number: its square is within float64, it within float32


class CsvRow(NamedTuple):
    """A line of a CSV file: its number, the image's path below root, classes or numbers."""

    line: int
    image: str
    classes: tuple[str, ...]
    numbers: tuple[float, ...] = ()


class CsvImages:
    """Images that `root/SPLIT.csv` lists, their paths relative to root; the first line is a header.

    With two columns, image and classes, the second has names of classes separated by `;`. With
    more, there is a column for each class, with 0 or 1. The classes are those of
    `data.train_split`, sorted, or in the order of its columns. With `data.multilabel` a label is a
    tuple of any number of classes; without it, every image has one. With `data.targets` a label is
    the numbers of these columns, in their order, and no other is read. Without `labels` only the
    first column is read, and may be the only one.

    `targets` are the numbers of all images, (N, K) float64, or None; `labels` the classes, (N,)
    int32, or None where an image has any number; `named` the classes of all images, one image after
    another.

    Examples are in the order of the file; slices are those of `folders.Folder`. Images of
    `exclude`, paths below root with the lists to leave them out of (none: all), are left out last.
    """

    def __init__(
        self,
        data: config.Data,
        split: str,
        key: str,
        *,
        labels: bool = True,
        exclude: Mapping[str, Collection[str]] = types.MappingProxyType({}),
    ) -> None:
        """Raises DataError for files that are missing or malformed, in one line."""
        root, self._multilabel = local_root(data), data.multilabel
        if not root.is_dir():
            what = "not a folder, such as that of train.csv"
            what = what if root.exists() else "no such folder"
            raise DataError(f"data.root={root}: {what}")
        requested = Split.parse(split, key)
        train = Split.parse(data.train_split, "data.train_split").name
        path = _file(root, requested.name, key)
        columns = data.targets if labels else ()
        header, rows = read_table(path, labels=labels, columns=columns)
        self.classes = columns
        if labels and not columns:
            if requested.name == train:
                self.classes = _classes(header, {row.classes for row in rows})
            else:
                self.classes = read_classes(_file(root, train, "data.train_split"))
            if len(self.classes) < 2:
                raise DataError(f"data.root={root}: {train}{SUFFIX} has {len(self.classes)} "
                                "classes; at least 2 are needed")  # fmt: skip
            if len(header) > 2 and set(header[1:]) != set(self.classes):
                odd = min(set(header[1:]) ^ set(self.classes))
                raise DataError(
                    f"{path}: its columns are not the classes of the training split: {odd}"
                )
        if requested.low or requested.high:
            part = requested.select(len(rows), key)
            rows = sorted(sorted(rows, key=lambda row: hash64(row.image))[part.start : part.stop])
        if gone := {image for image, only in exclude.items() if not only or path.stem in only}:
            listed = [row.image for row in rows]
            rows = [rows[at] for at in remaining(listed, gone, data, f"{key}={split}")]
        if labels and data.multilabel and len(header) == 2:
            _warn_of_other_separators(path, header[1], rows)
        places = {name: place for place, name in enumerate(self.classes)}
        known = labels and not columns
        found: list[tuple[int, ...]] = [(UNKNOWN,)] * len(rows)
        if known:
            # A million lines have few kinds of labels.
            kinds = dict[tuple[str, ...], tuple[int, ...]]()
            for at, row in enumerate(rows):
                if row.classes not in kinds:
                    kinds[row.classes] = self._label(path, row, places)
                found[at] = kinds[row.classes]
        self._files = FileNames(root, [row.image for row in rows])
        # float64, little-endian: the bytes are part of the fingerprint.
        self.targets = np.array([row.numbers for row in rows], "<f8") if columns else None
        self.named = np.array([place for label in found for place in label], "<i4")
        # Known without reading an image, if each has one.
        self.labels = self.named if known and not self._multilabel else None
        # Any number of classes each: image k has those from end k to end k + 1 of `named`.
        self._label_ends = np.cumsum([0, *map(len, found)], dtype="<i8")

    def _label(self, path: pathlib.Path, row: CsvRow, places: dict[str, int]) -> tuple[int, ...]:
        for name in row.classes:
            if name not in places:
                raise DataError(
                    f"{path}, line {row.line}: class {name} is not in the training split"
                    + (
                        class_matching.other_form([name], self.classes)
                        or config.suggest(name, self.classes)
                    )
                )
        if not self._multilabel and len(row.classes) != 1:
            found = f"{len(row.classes)} classes" if row.classes else "no class; remove the line"
            raise DataError(
                f"{path}, line {row.line}: {found}; for images of any number set "
                "data.multilabel=true and loss.name=sigmoid"
            )
        return tuple(sorted(places[name] for name in row.classes))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Record:
        if self.targets is not None:
            return Record(decoding.read_file(self.name(index)), tuple(self.targets[index].tolist()))
        label = self.named[self._label_ends[index] : self._label_ends[index + 1]].tolist()
        return Record(
            decoding.read_file(self.name(index)), tuple(label) if self._multilabel else label[0]
        )

    def name(self, index: int) -> str:
        """The path of the file."""
        return self._files[index]

    def paths(self) -> Iterator[str]:
        """The paths below root."""
        return map(self._files.below, range(len(self)))

    def fingerprint(self) -> str:
        """Covers classes, paths, labels, and the sizes of 1,000 files spread evenly."""
        labels = self.named if self.targets is None else self.targets
        return digest(
            "\n".join(self.classes).encode(),
            self._files.block,
            self._files.ends.tobytes(),
            labels.tobytes(),
            self._label_ends.tobytes(),
            self._files.sizes(),
        )


def list_splits(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """The CSV files in a folder by their splits' names; raises DataError if it cannot be read."""
    with storage.errors_as(DataError, f"data.root={root}"):
        there = sorted(root.iterdir())
    found: dict[str, pathlib.Path] = {}
    for path in there:
        if path.suffix.lower() == SUFFIX and found.setdefault(path.stem, path) != path:
            both = f"{found[path.stem].name} and {path.name}"
            raise DataError(f"data.root={root}: {both} are lists of one split; remove one")
    return found


def _file(root: pathlib.Path, name: str, key: str) -> pathlib.Path:
    """The file of a split, or of the only one with a synonym of its name."""
    there = list_splits(root)
    found = splits.find_folder(name, list(there))
    if found is not None:
        warn_of_substitute(key, name, found)
        return there[found]
    listed = ", ".join(shown(path.name) for path in list(there.values())[:10]) or "none"
    raise DataError(
        f"{key}={name}: no {name}{SUFFIX} in data.root={root}; CSV files there: {listed}"
        + (f"; {remedy(key, list(there))}" if any(map(splits.is_split, there)) else "")
    )


def read_table(
    path: pathlib.Path, *, labels: bool = True, empty: bool = False, columns: Sequence[str] = ()
) -> tuple[list[str], list[CsvRow]]:
    """Reads header and rows; raises DataError for the first malformed line.

    With `columns`, rows have their numbers in place of classes. Without `labels` only the first
    column is read. Unless `empty`, there must be a row.
    """
    header, lines = _read_lines(path, labels=labels, columns=columns)
    rows: list[CsvRow] = []
    seen: dict[str, int] = {}
    kinds = dict[tuple[str, ...], tuple[str, ...]]()  # classes by their cells
    for line, cells in lines:
        where = f"{path}, line {line}"
        image = _image(where, cells[0])
        earlier = seen.setdefault(image, line)
        if earlier != line:
            joined = "class;class" if len(header) == 2 else "1,1"
            several = f", with several classes image,{joined}" * (labels and not columns)
            raise DataError(
                f"{where}: {shown(image)} is listed in line {earlier} too; an image has one "
                f"line{several}"
            )
        if columns:
            named = dict(zip(header, cells, strict=True))
            numbers = tuple(_number(where, name, named[name]) for name in columns)
            rows.append(CsvRow(line, image, (), numbers))
            continue
        # A million lines have few kinds of cells: each is checked once.
        kind = tuple(cells[1:]) if labels else ()
        if kind not in kinds:
            kinds[kind] = _names(where, kind, header) if labels else ()
        rows.append(CsvRow(line, image, kinds[kind]))
    if not rows and not empty:
        raise DataError(f"{path}: lists no image")
    return header, rows


def read_paths(path: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """The images of a list, each with the names in its column `split`; raises DataError."""
    header, rows = read_table(path, labels=False, empty=True)
    at = header.index("split") if "split" in header[1:] else None
    _, lines = _read_lines(path, labels=False, columns=())
    named = [() if at is None else _separate(cells[at]) for _, cells in lines]
    return {row.image: names for row, names in zip(rows, named, strict=True)}


def _separate(cell: str) -> tuple[str, ...]:
    return tuple(name for part in cell.split(SEPARATOR) if (name := part.strip()))


def read_classes(path: pathlib.Path) -> tuple[str, ...]:
    """The classes of a list, sorted, or in the order of its columns; raises DataError."""
    header, lines = _read_lines(path, labels=True, columns=())
    kinds = {tuple(cells[1:]): f"{path}, line {line}" for line, cells in lines}
    return _classes(header, [_names(where, kind, header) for kind, where in kinds.items()])


def _classes(header: list[str], labels: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    if len(header) > 2:
        return tuple(header[1:])
    return tuple(sorted({name for label in labels for name in label}))


def _read_lines(
    path: pathlib.Path, *, labels: bool, columns: Sequence[str]
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header, and of each other line its number and cells.

    Raises DataError for a malformed header, and later for a line with another number of cells.
    """
    with storage.errors_as(DataError, f"{path}: cannot be read"):
        try:
            data = limits.read_file(path, limits.EXAMPLES)
            wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # Excel's
            # Both drop the byte order mark, which utf-16 also obeys.
            text = data.decode("utf-16" if wide else "utf-8-sig")
        except limits.LimitError as error:
            raise DataError(f"{path}: {error}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: byte {error.start} is not {error.encoding.upper()}") from None
    # Without its mark, UTF-16 of ASCII is valid UTF-8, with a NUL before or behind each letter.
    if "\0" in text[:2]:
        raise DataError(f"{path}: is text of another encoding; save it as UTF-8")
    first = text.partition("\n")[0]
    tabs = "\t" in first and "," not in first  # a spreadsheet's "Unicode text"
    # strict: otherwise a quote that is not closed makes one cell of the rest of the file.
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter="\t" if tabs else ",",
        strict=True,
        skipinitialspace=not tabs,
    )
    least, strip = 2 if labels else 1, str.strip
    if any(mark in text for mark in INVISIBLE):
        strip = _strip_marks
    try:
        header = [strip(name) for name in next(filter(None, reader), [])]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    # Excel's own line about the separator.
    if header and header[0].lower().startswith("sep="):
        raise DataError(f"{path}: begins with {shown(header[0])}; remove that line")
    # pandas writes its row numbers as a first column, unless told not to.
    skipped = int(len(header) > least and header[0] in INDEX)
    kept = slice(skipped, None)
    if len(header) > 2 and not header[-1]:  # every line ends in a separator
        kept = slice(skipped, -1)
    width, header = len(header), header[kept]
    if len(header) < least:
        wanted = "a column, image"
        if labels:
            what = "numbers" if columns else "classes"
            wanted = f"at least 2 columns with commas between, image and {what}"
            wanted += "; it has semicolons" * (";" in first)
        raise DataError(f"{path}: needs a header and {wanted}")
    if pathlib.PurePosixPath(header[0].lower()).suffix in SUFFIXES:
        raise DataError(f"{path}: begins with an image, not with a header: image,class")
    for name in columns:
        if name not in header[1:]:
            raise DataError(
                f"{path}: has no column {shown(name)}{config.suggest(name, header[1:])}"
            )
    if labels:
        for name in columns or header[1:]:
            _check_name(f"{path}, line 1", name)
        if len(set(header[1:])) < len(header) - 1:
            raise DataError(f"{path}: two columns have the same name")

    def lines() -> Iterator[tuple[int, list[str]]]:
        try:
            for cells in reader:
                if not cells:
                    continue
                where = f"{path}, line {reader.line_num}"
                if len(cells) != width:
                    raise DataError(f"{where}: {len(cells)} columns; the header has {width}")
                # Only where the header ends in a separator, too.
                if kept.stop and cells[-1].strip():
                    raise DataError(f"{where}: {shown(cells[-1])}: its column has no name")
                yield reader.line_num, [strip(cell) for cell in cells[kept]]
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: {error}") from None

    return header, lines()


def _strip_marks(cell: str) -> str:
    """A cell without white space around it, nor the marks of width 0 of copied text."""
    return cell.strip().strip(INVISIBLE).strip()


def _image(where: str, image: str) -> str:
    """A path below root in its one spelling: `./a//b.png` is `a/b.png`; raises DataError."""
    if image[:1] in (".", "/") or image[-1:] == "/" or "//" in image or "/." in image:
        image = str(pathlib.PurePosixPath(image))  # which takes its time
    parts = image.split("/")
    if parts[0] in ("", ".") or ".." in parts or "\0" in image:
        raise DataError(f"{where}: {shown(image) or 'no image'}: must be a path below data.root")
    # Windows separates folders by it; on POSIX it is a character of a name.
    if "\\" in image:
        raise DataError(f"{where}: {shown(image)}: write / between folders")
    return image


def _names(where: str, cells: tuple[str, ...], header: list[str]) -> tuple[str, ...]:
    """The classes of a line, from its cells but the first."""
    if len(header) == 2:
        names = _separate(cells[0])
        if cells[0].lower().endswith(SUFFIXES):
            raise DataError(f"{where}: class {shown(cells[0])}: the first column is the image")
        for name in names:
            _check_name(where, name)
            # Some lists separate classes by it; here it would be part of a name.
            if "|" in name:
                raise DataError(f"{where}: class {shown(name)}: write ; between classes, not |")
        if len(set(names)) < len(names):
            raise DataError(f"{where}: a class is named twice")
        return names
    for name, cell in zip(header[1:], cells, strict=True):
        if cell.lower() not in BITS:
            raise DataError(
                f"{where}: {shown(name)} is {shown(cell)}; with more than two columns each is a "
                "class, 0 or 1; keep image and class, or name columns of numbers in data.targets "
                "(doctor: --no-labels)"
            )
    return tuple(n for n, cell in zip(header[1:], cells, strict=True) if BITS[cell.lower()])


def _number(where: str, name: str, cell: str) -> float:
    """A finite number in the column `name`."""
    if not cell:
        raise DataError(f"{where}: {shown(name)} is empty; fill it in, or remove the line")
    # float alone accepts nan, inf, 1_000 and digits of other scripts.
    if not NUMBER.fullmatch(cell) or not abs(found := float(cell)) < LARGEST:
        raise DataError(
            f"{where}: {shown(name)} is {shown(cell)}; must be a number such as 3.5, below "
            f"{LARGEST:g}"
        )
    return found


def _check_name(where: str, name: str) -> None:
    """Raises DataError for a name of a class that reports or terminals cannot show unchanged."""
    if not name or messages.printable(name) != name:
        raise DataError(f"{where}: class {shown(name)!r}: is empty, or cannot be shown; rename it")


def _warn_of_other_separators(path: pathlib.Path, column: str, rows: list[CsvRow]) -> None:
    found = {name for row in rows for name in row.classes}
    if found and all(name.lower() in BITS for name in found):
        log.warning(
            "%s: %s of column %s are taken for names of classes; for these alone, set "
            "data.multilabel=false and loss.name=softmax",
            *(path, " and ".join(sorted(found)), shown(column)),
        )
    elif max(len(row.classes) for row in rows) < 2:
        example = next((shown(row.classes[0]) for row in rows if row.classes), "")
        log.warning(
            "%s: no image has several classes, such as %s; `%s` separates them, no space",
            path, example, SEPARATOR,
        )  # fmt: skip
