"""Lists images with their locations: in folders, tars and zips, without unpacking, and tables."""

import array
import collections
import contextlib
import io
import itertools
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from vit_jax.data.folders import SUFFIXES, UNREAD
from vit_jax.data.prepare import archives, arrow, parquet, parquet_pages
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.source import DataError
from vit_jax.runtime.logs import log
from vit_jax.utils import storage
from vit_jax.utils.messages import size_text

MEMBERS = 64  # files of one example of a webdataset, at most
LABEL = 2**16  # bytes of a label
LARGE = 2**22  # bytes of a page of which to say what it costs


class Listing:
    """Compact list of images, in arrays and one block of paths: 14 million fit in a gigabyte."""

    def __init__(self) -> None:
        self._paths = bytearray()
        self._ends = array.array("q", [0])  # of paths in that block
        self._rows = array.array("q")
        self._containers: list[str] = []
        self._numbers: dict[str, int] = {}  # of these
        self.ignored: list[str] = []
        self.unread = collections.Counter[str]()  # of these, images of other formats, by suffix
        self.empty_rows = 0  # of tables, without a label or an image
        # Images that share a label with others of their example, by what follows the first dot.
        self.sharing = collections.Counter[str]()

    def add(self, found: FileEntry | None, *, any_name: bool = False) -> None:
        """Adds an image; None: a row of a table that has none, or lacks its label.

        A file without an image suffix is recorded as ignored, unless any name is one.
        """
        if found is None:
            self.empty_rows += 1
            return
        if not any_name and not found.path.lower().endswith(SUFFIXES):
            self.ignored.append(found.path)
            if (suffix := os.path.splitext(found.path)[1].lower()) in UNREAD:  # noqa: PTH122 (fast)
                self.unread[suffix] += 1
            return
        self._paths += os.fsencode(found.path)
        self._ends.append(len(self._paths))
        number = self._numbers.setdefault(found.container, len(self._containers))
        if number == len(self._containers):
            self._containers.append(found.container)
        self._rows.extend((number, found.offset, found.size))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def path(self, index: int) -> str:
        """The path of an image in the listing."""
        return os.fsdecode(self.raw_path(index))

    def raw_path(self, index: int) -> bytes:
        """The path of an image in the listing, as bytes."""
        return bytes(self._paths[self._ends[index] : self._ends[index + 1]])

    def __getitem__(self, index: int) -> FileEntry:
        container, offset, size = (self._rows[3 * index + at] for at in range(3))
        return FileEntry(self.path(index), self._containers[container], offset, size)

    @property
    def rows(self) -> np.ndarray:
        """Number of the container, offset, and size of every image, (N, 3) int64."""
        return np.asarray(self._rows, np.int64).reshape(-1, 3)

    @property
    def containers(self) -> tuple[str, ...]:
        """The archives and folders that hold the images."""
        return tuple(self._containers)

    def sizes(self) -> np.ndarray:
        """The bytes of every image (N,), int64."""
        return self.rows[:, 2]

    def save(self, path: Path, version: str) -> None:
        """Writes a listing without the paths of what was ignored; raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        np.savez(
            file,
            version=np.array(version),
            paths=np.frombuffer(bytes(self._paths), np.uint8),
            ends=np.asarray(self._ends, np.int64),
            rows=self.rows,
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
                listing._ends = array.array("q", file["ends"].tobytes())
                listing._rows = array.array("q", file["rows"].tobytes())
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
    with copy.open("wb") if copy else contextlib.nullcontext() as file:
        found = _Scan(key, label, str(copy), file)
        for source in sources:
            try:
                source.stat()
            except OSError as error:
                raise DataError(f"{key}={source}: {archives.io_reason(error)}") from None
            found.add(source, several=len(sources) > 1)
    tars = found.tars
    if len(tars) > 1 and label != parquet.UNLABELED:
        # The names of tars would be classes beside those of the labels.
        raise DataError(
            f"{key}: the images of {tars[False]} have no labels beside them (.cls, or a label in "
            f".json), as those of {tars[True]} have; add them, or move that tar"
        )
    if label not in (None, parquet.UNLABELED) and not found.tables:
        raise DataError(f"--label={label}: is for Parquet and Arrow files, and none is there")
    return found.listing


def scan_tables(paths: Sequence[Path], kind: str, label: str | None, key: str) -> Listing:
    """The images of tables of one kind in order, where they are; raises DataError.

    `kind` is one of `parquet.KINDS`, `label` as for `scan`, and `key` names the files. The offset
    and size of an image in a Parquet file are as `parquet_pages.Reader` takes them.
    """
    rows = arrow.rows if kind == "arrow" else parquet_pages.rows
    listing, names = Listing(), dict[str, Path]()
    for path in paths:
        parquet.check_distinct(path, names, key)
        for found in rows(path, label, parquet_pages.OPTION):
            listing.add(found, any_name=True)
    if kind == "parquet":
        size = sum(path.stat().st_size for path in paths)
        places = listing.rows[:, :2]  # of one page, images that follow each other have the same
        count = int(np.diff(places, axis=0, prepend=-1).any(axis=1).sum())
        if 0 < LARGE * count < size:
            log.info(
                "%s: an image is read with the %s others of its page, %s; packed ones are read "
                "alone: vit_jax prepare NAME --from=FOLDER",
                *(key, f"{len(listing) // count:,}", size_text(size // count)),
            )
    return listing


class _Scan:
    """Lists sources; writes the images of tables one after another to a copy, if there is one."""

    def __init__(self, key: str, label: str | None, copy: str, file: IO[bytes] | None) -> None:
        self.listing = Listing()
        self.tars: dict[bool, Path] = {}  # with images at the top, by whether these have labels
        self.tables: dict[str, Path] = {}  # by the names of their rows
        self._key, self._label, self._copy, self._file = key, label, copy, file
        self._end = 0  # of the copy

    def add(self, source: Path, *, several: bool) -> None:
        """Adds the images of a source, one of `several` or the only one."""
        if source.is_dir():
            for found in archives.list_folder(source, self._key):
                path = source / found.path
                if parquet.table_kind(path.name):
                    self._add_table(path)
                elif found.path.lower().endswith(".tar"):
                    self._add_tar(path, prefix=f"{archives.stem(found.path)}/")
                else:
                    self.listing.add(found)
        elif parquet.table_kind(source.name):
            self._add_table(source)
        elif not source.is_file() or archives.is_zip(source):
            for found in archives.list_files(source):
                self.listing.add(found)
        else:
            # One tar alone is the dataset; of several, each may be a class.
            self._add_tar(source, folder=f"{archives.stem(source.name)}/" if several else "")

    def _add_table(self, path: Path) -> None:
        parquet.check_distinct(path, self.tables, self._key)
        if parquet.table_kind(path.name) == "arrow":  # which holds images as they are
            for found in arrow.rows(path, self._label):
                self.listing.add(found)
            return
        for row in parquet.rows(path, self._label):
            if row is None:
                self.listing.add(None)
                continue
            name, data = row
            if self._file is not None:
                self._file.write(data)
            # Without a copy, as in a dry run, sizes alone count.
            self.listing.add(FileEntry(name, self._copy, self._end, len(data)))
            self._end += len(data)

    def _add_tar(self, tar: Path, *, prefix: str = "", folder: str = "") -> None:
        """Adds a tar's images, with `prefix` before the paths; labels make them `SPLIT/CLASS/...`.

        The files of one example share their name up to the first dot and follow one another, in no
        folder. Those without a label stand in `folder` if the tar has no labels, else in no class.
        """

        def key(found: FileEntry) -> str:
            inside = found.path.removeprefix(prefix)
            return found.path if "/" in inside else inside.partition(".")[0]

        split, read = parquet.split_name(tar), archives.Reader()
        labels, alone = False, list[FileEntry]()
        with contextlib.closing(read):
            for _, group in itertools.groupby(archives.list_files(tar, prefix), key):
                # Names such as `img.0001.jpg` would make one group of millions.
                members = list(itertools.islice(group, MEMBERS))
                beside = [text for found in members if (text := _label(found, read)) is not None]
                label, labels = next(filter(None, beside), ""), labels or bool(beside)
                names = [one.path.removeprefix(prefix) for one in members if _is_image(one)]
                if label and len(names) > 1:
                    self.listing.sharing.update(name.partition(".")[2] for name in names)
                # The rest of a group too long to be an example's is passed on unread.
                for found in itertools.chain(members, group):
                    name = found.path.removeprefix(prefix)
                    image = _is_image(found)
                    if image and label:
                        path = "/".join(filter(None, (split, label, f"{tar.stem}-{name}")))
                        self.listing.add(found._replace(path=path))
                    elif image and "/" not in name:  # of which class, the end of the tar says
                        alone.append(found)
                    else:
                        self.listing.add(found)
        if labels or alone:
            self.tars.setdefault(labels, tar)
        for found in alone:
            path = folder + found.path
            # In no class; images that need none are in a split if the name of the tar says one.
            if labels or self._label == parquet.UNLABELED:
                name = f"{tar.stem}-{found.path.removeprefix(prefix)}"
                path = "/".join(filter(None, (split, name)))
            self.listing.add(found._replace(path=path))


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
