"""Lists the images in folders, tars and zips with their locations, without unpacking."""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from vit_jax.data.folders import SUFFIXES
from vit_jax.data.prepare import archives
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.source import DataError

Path = pathlib.Path

CHUNK = 2**14  # files added to the arrays of a listing at a time


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

    def add(self, found: FileEntry) -> None:
        """Adds an image, or records a file without an image suffix as ignored."""
        if not found.path.lower().endswith(SUFFIXES):
            self.ignored.append(found.path)
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

    def sizes(self) -> np.ndarray:
        """The bytes of every image (N,), int64."""
        return self._rows[0][:, 2]


def scan(sources: Sequence[Path]) -> Listing:
    """The images of folders, tars (nested ones too) and zips, in the order found.

    A tar inside a folder or a tar becomes a folder of its name, and so does one of several source
    tars with images at its top level: `n01440764.tar` becomes `n01440764/`. Hidden files are
    skipped. Raises DataError for unreadable sources, links, devices and paths outside.
    """
    listing = Listing()
    for source in sources:
        try:
            source.stat()
        except OSError as error:
            raise DataError(f"--from={source}: {archives.io_reason(error)}") from None
        if source.is_dir():
            for found in archives.list_folder(source):
                if found.path.lower().endswith(".tar"):
                    path = source / found.path
                    for inner in archives.list_files(path, f"{archives.stem(found.path)}/"):
                        listing.add(inner)
                else:
                    listing.add(found)
            continue
        lifted = len(sources) > 1 and source.is_file() and not archives.is_zip(source)
        for found in archives.list_files(source):
            if lifted and "/" not in found.path:
                found = found._replace(path=f"{archives.stem(source.name)}/{found.path}")
            listing.add(found)
    listing.close()
    return listing
