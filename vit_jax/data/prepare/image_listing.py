"""Lists images with their locations: in folders, tars and zips, without unpacking, and tables."""

import collections
import contextlib
import io
import itertools
import json
import os
import pathlib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np

from vit_jax.data.folders import SUFFIXES, UNREAD
from vit_jax.data.prepare import archives, arrow, parquet
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.source import DataError
from vit_jax.utils import storage

Path = pathlib.Path

CHUNK = 2**14  # files added to the arrays of a listing at a time
MEMBERS = 64  # files of one example of a webdataset, at most
LABEL = 2**16  # bytes of a label


class Listing:
    """Compact list of images, in arrays and one block of paths: 14 million fit in a gigabyte."""

    def __init__(self) -> None:
        self._paths = bytearray()
        self._ends: list[np.ndarray] = [np.zeros(1, np.int64)]
        self._rows: list[np.ndarray] = []
        self._containers: list[str] = []
        self._number: dict[str, int] = {}
        self._pending: list[FileEntry] = []
        self.ignored: list[str] = []
        self.unread = collections.Counter[str]()  # of these, images of other formats, by suffix
        self.empty_rows = 0  # of tables, without a label or an image
        # Images that share a label with others of their example, by what follows the first dot.
        self.sharing = collections.Counter[str]()

    def add(self, found: FileEntry, *, any_name: bool = False) -> None:
        """Adds an image; a file without an image suffix is recorded as ignored, unless any is."""
        if not any_name and not found.path.lower().endswith(SUFFIXES):
            self.ignored.append(found.path)
            if (suffix := os.path.splitext(found.path)[1].lower()) in UNREAD:  # noqa: PTH122 (fast)
                self.unread[suffix] += 1
            return
        self._pending.append(found)
        if len(self._pending) == CHUNK:
            self._flush()

    def close(self) -> None:
        """Completes the listing."""
        self._flush()
        self._ends = [np.concatenate(self._ends)]
        self._rows = [np.concatenate(self._rows or [np.zeros((0, 3), np.int64)])]

    def _flush(self) -> None:
        if not self._pending:
            return
        paths = [os.fsencode(each.path) for each in self._pending]
        ends = np.cumsum([len(path) for path in paths], dtype=np.int64)
        # Before the paths are added: ends count from the beginning of the block.
        self._ends.append(ends + len(self._paths))
        self._paths += b"".join(paths)
        rows = [(self._container(each.container), *each[2:]) for each in self._pending]
        self._rows.append(np.array(rows, np.int64))
        self._pending = []

    def _container(self, path: str) -> int:
        if path not in self._number:
            self._number[path] = len(self._containers)
            self._containers.append(path)
        return self._number[path]

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def path(self, index: int) -> str:
        """The path of an image in the listing."""
        return os.fsdecode(self.raw_path(index))

    def raw_path(self, index: int) -> bytes:
        """The path of an image in the listing, as bytes."""
        ends = self._ends[0]
        return bytes(self._paths[ends[index] : ends[index + 1]])

    def __getitem__(self, index: int) -> FileEntry:
        container, offset, size = self._rows[0][index].tolist()
        return FileEntry(self.path(index), self._containers[container], offset, size)

    @property
    def rows(self) -> np.ndarray:
        """Number of the container, offset, and size of every image, (N, 3) int64."""
        return self._rows[0]

    @property
    def containers(self) -> tuple[str, ...]:
        """The archives and folders that hold the images."""
        return tuple(self._containers)

    def sizes(self) -> np.ndarray:
        """The bytes of every image (N,), int64."""
        return self._rows[0][:, 2]

    def save(self, path: Path, version: str) -> None:
        """Writes a complete listing without the paths of what was ignored; raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        np.savez(
            file,
            version=np.array(version),
            paths=np.frombuffer(bytes(self._paths), np.uint8),
            ends=self._ends[0],
            rows=self._rows[0],
            empty_rows=np.array(self.empty_rows),
            unread=np.frombuffer(json.dumps(self.unread).encode(), np.uint8),
            sharing=np.frombuffer(json.dumps(self.sharing).encode(), np.uint8),
            containers=np.frombuffer(json.dumps(self._containers).encode(), np.uint8),
        )
        storage.write_atomically(path, file.getvalue())

    @classmethod
    def load(cls, path: Path, version: str) -> "Listing | None":
        """A listing as it was saved; None if there is none of this version, or it is damaged."""
        try:
            # Any damage means no listing: the sources are then listed again.
            with path.open("rb") as opened, np.load(opened) as file:
                if str(file["version"]) != version:
                    return None
                listing = cls()
                listing._paths += file["paths"].tobytes()
                listing._ends, listing._rows = [file["ends"]], [file["rows"]]
                listing.empty_rows = int(file["empty_rows"])
                listing.unread.update(json.loads(file["unread"].tobytes()))
                listing.sharing.update(json.loads(file["sharing"].tobytes()))
                listing._containers = json.loads(file["containers"].tobytes())
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
            return None
        return listing


def scan(
    sources: Sequence[Path],
    *,
    label: str | None = None,
    copy: Path | None = None,
    key: str = "--from",
) -> Listing:
    """The images of folders, tars (nested ones too), zips and tables, in the order found.

    A tar inside a folder or a tar becomes a folder of its name, and so does one of several source
    tars with images at its top level: `n01440764.tar` becomes `n01440764/`. A tar whose images
    have labels beside them (`0.jpg`, `0.cls`; webdataset) has their classes as folders, and its
    images without a label are in none. Hidden files are skipped. Raises DataError for unreadable
    sources, links, devices, paths outside, and tars of both kinds.

    Args:
      sources: folders and files.
      label: the column of labels of tables; None: the only one; `parquet.UNLABELED`: images need no
        label, and those at the top of a tar are in the split that its name says, if any.
      copy: a file to copy the images of tables to, one after another, as tables are compressed and
        a shuffled order needs random access; None: they are listed only.
      key: the option that named the sources, for messages.
    """
    listing, kinds = Listing(), dict[bool, Path]()
    with contextlib.ExitStack() as stack:
        table = _Table(label, copy, stack.enter_context(copy.open("wb")) if copy else None)
        for source in sources:
            try:
                source.stat()
            except OSError as error:
                raise DataError(f"{key}={source}: {archives.io_reason(error)}") from None
            for found in _files(
                source, table, key, kinds, listing.sharing, several=len(sources) > 1
            ):
                listing.add(found)
    if len(kinds) > 1 and label != parquet.UNLABELED:
        # The names of tars would be classes beside those of the labels.
        raise DataError(
            f"{key}: the images of {kinds[False]} have no labels beside them (.cls, or a label in "
            f".json), as those of {kinds[True]} have; add them, or move that tar"
        )
    if label not in (None, parquet.UNLABELED) and not table.read:
        raise DataError(f"--label={label}: is for Parquet and Arrow files, and none is there")
    listing.empty_rows = table.empty_rows
    listing.close()
    return listing


def scan_arrow(paths: Iterable[Path], label: str | None, key: str) -> Listing:
    """The images of Arrow files in order, with arguments as of `scan`; raises DataError."""
    listing = Listing()
    for path in parquet.distinct(paths, key):
        for found in arrow.rows(path, label, "data.labels"):
            if found.size:
                listing.add(found, any_name=True)
            else:
                listing.empty_rows += 1
    listing.close()
    return listing


def _files(
    source: Path,
    table: "_Table",
    key: str,
    kinds: dict[bool, Path],
    sharing: collections.Counter[str],
    *,
    several: bool,
) -> Iterator[FileEntry]:
    if source.is_dir():
        for found in archives.list_folder(source, key):
            path, name = source / found.path, found.path.lower()
            if parquet.table_kind(path.name):
                yield from table.files(path)
            elif name.endswith(".tar"):
                inside = f"{archives.stem(found.path)}/"
                files = archives.list_files(path, inside)
                yield from _labeled(files, path, inside, kinds, sharing, unlabeled=table.unlabeled)
            else:
                yield found
    elif parquet.table_kind(source.name):
        yield from table.files(source)
    elif not source.is_file() or archives.is_zip(source):
        yield from archives.list_files(source)
    else:
        # One tar alone is the dataset; of several, each may be a class.
        folder = f"{archives.stem(source.name)}/" if several else ""
        files = archives.list_files(source)
        yield from _labeled(files, source, "", kinds, sharing, folder, unlabeled=table.unlabeled)


class _Table:
    """Lists the rows of tables as files of one copy, which it writes if there is one."""

    def __init__(self, label: str | None, copy: Path | None, file: IO[bytes] | None) -> None:
        self._label, self._copy, self._file = label, str(copy), file
        self.unlabeled = label == parquet.UNLABELED
        self._end, self.read, self.empty_rows = 0, False, 0
        self._names = dict[str, Path]()

    def files(self, path: Path) -> Iterator[FileEntry]:
        """Yields the images of a table, and counts rows without one; raises DataError."""
        self.read = True
        parquet.check_distinct(path, self._names, "--from")
        if parquet.table_kind(path.name) == "arrow":  # which holds images as they are
            for found in arrow.rows(path, self._label):
                if found.size:
                    yield found
                else:
                    self.empty_rows += 1
            return
        for name, data in parquet.rows(path, self._label):
            if not data:
                self.empty_rows += 1
                continue
            if self._file is not None:
                self._file.write(data)
            # Without a copy, as in a dry run, sizes alone count.
            yield FileEntry(name, self._copy, self._end, len(data))
            self._end += len(data)


def _labeled(
    files: Iterable[FileEntry],
    tar: Path,
    prefix: str,
    kinds: dict[bool, Path],
    sharing: collections.Counter[str],
    folder: str = "",
    *,
    unlabeled: bool,
) -> Iterator[FileEntry]:
    """The files of a tar; an image with a label beside it gets a path `SPLIT/CLASS/...`.

    The files of one example share their name up to the first dot and follow one another, in no
    folder. Those without a label stand in `folder` if the tar has no labels, else in no class.

    Args:
      files: those of the tar.
      tar: its path.
      prefix: with which the paths of its files begin.
      kinds: is given the tar if images lie at its top, by whether they have labels.
      sharing: as of a `Listing`, counted here.
      folder: as above.
      unlabeled: whether labels do not count: then images at the top are in no folder but a split's.
    """

    def key(found: FileEntry) -> str:
        inside = found.path.removeprefix(prefix)
        return found.path if "/" in inside else inside.partition(".")[0]

    split, read = parquet.split_name(tar), archives.Reader()
    labels, alone = False, list[FileEntry]()
    with contextlib.closing(read):
        for _, group in itertools.groupby(files, key):
            # Names such as `img.0001.jpg` would make one group of millions.
            members = list(itertools.islice(group, MEMBERS))
            beside = [text for found in members if (text := _label(found, read)) is not None]
            label, labels = next(filter(None, beside), ""), labels or bool(beside)
            names = [one.path.removeprefix(prefix) for one in members if _is_image(one)]
            if label and len(names) > 1:
                sharing.update(name.partition(".")[2] for name in names)
            # The rest of a group too long to be an example's is passed on unread.
            for found in itertools.chain(members, group):
                name = found.path.removeprefix(prefix)
                image = _is_image(found)
                if image and label:
                    path = "/".join(filter(None, (split, label, f"{tar.stem}-{name}")))
                    yield found._replace(path=path)
                elif image and "/" not in name:  # of which class, the end of the tar says
                    alone.append(found)
                else:
                    yield found
    if labels or alone:
        kinds.setdefault(labels, tar)
    for found in alone:
        path = folder + found.path
        if labels or unlabeled:
            name = f"{tar.stem}-{found.path.removeprefix(prefix)}"
            path = "/".join(filter(None, (split, name)))
        yield found._replace(path=path)


def _is_image(found: FileEntry) -> bool:
    return found.path.lower().endswith(SUFFIXES)


def _label(found: FileEntry, read: archives.Reader) -> str | None:
    """The class in an image's side file: `.cls`, or `label` or `cls` of a `.json`.

    Empty for -1, which says that there is none; None for a file that says nothing.
    """
    suffix = Path(found.path).suffix.lower()
    if suffix not in (".cls", ".json") or found.size > LABEL:
        return None
    text = read(found).decode(errors="replace").strip()
    if suffix == ".json":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        value = value if isinstance(value, dict) else {}
        value = value.get("label", value.get("cls"))
        text = str(value) if isinstance(value, str | int) else ""
    if text == "-1":
        return ""
    return parquet.folder_name(text) if text.isprintable() else None
