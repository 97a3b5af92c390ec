"""Lists the images in folders, tars and zips with their locations, without unpacking."""

import contextlib
import os
import pathlib
import stat
import threading
import zipfile
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.data import decoding, folders
from vit_jax.data.decoding import BadImage
from vit_jax.data.folders import SUFFIXES
from vit_jax.data.prepare import archives
from vit_jax.data.prepare.archives import PLAIN, FileEntry
from vit_jax.data.source import DataError

Path = pathlib.Path

MOST_OPEN = 64  # tars; ImageNet-21k has one per class
CHUNK = 2**14  # files added to the arrays of a listing at a time
STEP = 2**20  # bytes of a member of an archive to read at a time


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

    def found(self, index: int) -> FileEntry:
        """The path and location of an image."""
        container, offset, size = self._rows[0][index].tolist()
        return FileEntry(self.path(index), self._containers[container], offset, size)

    def sizes(self) -> np.ndarray:
        """The bytes of every image (N)."""
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
            status = source.stat()
        except OSError as error:
            raise DataError(f"--from={source}: {archives.io_reason(error)}") from None
        if stat.S_ISDIR(status.st_mode):
            found = _folder(source)
        elif stat.S_ISREG(status.st_mode) and archives.is_zip(source):
            found = archives.list_zip(source)
        else:
            found = archives.list_tar(source, "")
            if len(sources) > 1:
                found = _lifted(found, source.name)
        for each in found:
            listing.add(each)
    listing.close()
    return listing


def _lifted(found: Iterator[FileEntry], name: str) -> Iterator[FileEntry]:
    """Yields the files of a tar; files at its top level get its name as their folder."""
    for each in found:
        yield each if "/" in each.path else each._replace(path=f"{archives.stem(name)}/{each.path}")


def _folder(root: Path) -> Iterator[FileEntry]:
    """Yields the files below a folder, with those in tars."""
    for path, entry in folders.walk(root, "--from"):
        if path.lower().endswith(".tar"):
            yield from archives.list_tar(Path(entry.path), f"{archives.stem(path)}/")
            continue
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            raise DataError(f"--from: {entry.path}: a link to nothing") from None
        yield FileEntry(path, str(root), PLAIN, size)


class Reader:
    """Reads the bytes of images, safe for threads; keeps some tars and all zips open."""

    def __init__(self) -> None:
        self._tars: dict[str, int] = {}
        self._zips: dict[str, tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]] = {}
        self._lock = threading.Lock()

    def __call__(self, found: FileEntry) -> bytes:
        """The bytes of an image.

        Raises BadImage for faults of this image only, and DataError if its source has changed since
        it was listed.
        """
        decoding.check_bytes(found.size)
        try:
            data = self._read(found)
        except PermissionError as error:
            raise BadImage(f"cannot be read: {error.strerror}") from None
        except OSError as error:
            reason = archives.io_reason(error)
            raise DataError(f"{found.path}: {reason}, in {found.container}") from None
        except archives.DAMAGED as error:
            raise DataError(f"{found.container}: is damaged now: {error}") from None
        if len(data) != found.size:
            raise DataError(f"{found.path}: changed while it was packed, in {found.container}")
        return data

    def chunks(self, found: FileEntry) -> Iterator[bytes]:
        """Yields the bytes of a file in an archive, of any size; raises DataError if it cannot.

        The archive stays open: to read the directory of a zip for every member would take time with
        their square.
        """
        left = found.size
        try:
            with self._lock:
                self._open(found.container)
            with contextlib.ExitStack() as closing:
                if found.container in self._zips:
                    file, infos = self._zips[found.container]
                    stream = closing.enter_context(file.open(infos[found.offset]))
                else:
                    stream = closing.enter_context(Path(found.container).open("rb"))
                    stream.seek(found.offset)
                while chunk := stream.read(min(left, STEP)):
                    left -= len(chunk)
                    yield chunk
            if left:
                raise EOFError(f"{left:,} bytes are missing")
        except (OSError, *archives.DAMAGED) as error:
            why = archives.reason(error)
            raise DataError(f"{found.container}: {found.path}: cannot be unpacked: {why}") from None

    def _read(self, found: FileEntry) -> bytes:
        if found.offset == PLAIN:
            return decoding.read_file(Path(found.container, found.path))
        with self._lock:
            self._open(found.container)
            if found.container in self._zips:  # its members share one position
                file, members = self._zips[found.container]
                return archives.read_member(file, members[found.offset])
            return os.pread(self._tars[found.container], found.size, found.offset)

    def _open(self, container: str) -> None:
        if container in self._tars or container in self._zips:
            return
        if archives.is_zip(container):
            file = archives.Zip(container)
            self._zips[container] = file, file.infolist()
        else:
            if len(self._tars) == MOST_OPEN:
                os.close(self._tars.pop(next(iter(self._tars))))
            self._tars[container] = os.open(container, os.O_RDONLY)

    def close(self) -> None:
        """Closes the open files."""
        for descriptor in self._tars.values():
            os.close(descriptor)
        for file, _ in self._zips.values():
            file.close()
        self._tars, self._zips = {}, {}


def members(archive: Path, prefix: str) -> Iterator[FileEntry]:
    """Yields the files of a tar (also of the tars within it) or a zip, paths after `prefix`.

    Raises DataError like `scan`.
    """
    if archives.is_zip(archive):
        for each in archives.list_zip(archive):
            yield each._replace(path=prefix + each.path)
    else:
        yield from archives.list_tar(archive, prefix)
