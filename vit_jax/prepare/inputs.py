"""Images in folders, tars and zips as one listing: where each lies, without unpacking anything."""

import os
import pathlib
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from vit_jax.data import folders
from vit_jax.data.examples import DataError
from vit_jax.data.folders import SUFFIXES
from vit_jax.data.images import BadImage

Path = pathlib.Path

BLOCK = 512  # of a tar
MOST_OPEN = 64  # tars; ImageNet-21k is one for each class
CHUNK = 2**14  # files of which the arrays of a listing are made at a time
COMPRESSED = (
    (b"\x1f\x8b", "gunzip --keep"),
    (b"BZh", "bunzip2 --keep"),
    (b"\xfd7zXZ", "unxz --keep"),
    (b"\x28\xb5\x2f\xfd", "unzstd"),
)
REFUSED = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


PLAIN = -1  # in place of an offset


class Found(NamedTuple):
    """A file by its path in the listing, and where its bytes are.

    Those are `size` bytes of the tar `container` from `offset` on, or the member number `offset` of
    the zip `container`, or the file `path` below the folder `container`, where `offset` is PLAIN.
    """

    path: str
    container: str
    offset: int
    size: int


class Listing:
    """What was found, in arrays and one block of paths: 14 million images fit in a gigabyte."""

    def __init__(self) -> None:
        self._paths = bytearray()
        self._ends: list[np.ndarray] = [np.zeros(1, np.int64)]
        self._rows: list[np.ndarray] = []
        self._containers: list[str] = []
        self._number: dict[str, int] = {}
        self._pending: list[Found] = []
        self.ignored: list[str] = []

    def add(self, found: Found) -> None:
        """Adds an image, or notes a file that is none by its name."""
        if not found.path.lower().endswith(SUFFIXES):
            self.ignored.append(found.path)
            return
        self._pending.append(found)
        if len(self._pending) == CHUNK:
            self._flush()

    def close(self) -> None:
        """Ends adding."""
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
        """Returns the path of an image in the listing."""
        return os.fsdecode(self.raw_path(index))

    def raw_path(self, index: int) -> bytes:
        """Returns the path of an image in the listing, as bytes."""
        ends = self._ends[0]
        return bytes(self._paths[ends[index] : ends[index + 1]])

    def found(self, index: int) -> Found:
        """Returns all that is known of an image."""
        container, offset, size = self._rows[0][index].tolist()
        return Found(self.path(index), self._containers[container], offset, size)

    def sizes(self) -> np.ndarray:
        """Returns the bytes of every image (N)."""
        return self._rows[0][:, 2]


def scan(sources: Sequence[Path]) -> Listing:
    """Returns the images of folders, tars (also of tars) and zips, in the order they are found.

    A tar within a folder or a tar counts as a folder of its name, and so does one of several
    sources that has images at its top: `n01440764.tar` becomes `n01440764/`. Hidden files are
    skipped. Raises DataError for what cannot be read, or holds links, devices or paths outside.
    """
    listing = Listing()
    for source in sources:
        try:
            status = source.stat()
        except OSError as error:
            raise DataError(f"--from={source}: {_reason(error)}") from None
        if stat.S_ISDIR(status.st_mode):
            found = _folder(source)
        elif _is_zip(source):
            found = _zip(source)
        else:
            found = _tar_file(source, "")
            if len(sources) > 1:
                found = _lifted(found, source.name)
        for each in found:
            listing.add(each)
    listing.close()
    return listing


def _lifted(found: Iterator[Found], name: str) -> Iterator[Found]:
    """Yields what a tar holds; files at its top get its name as their folder."""
    for each in found:
        yield each if "/" in each.path else each._replace(path=f"{_stem(name)}/{each.path}")


def _is_zip(path: Path | str) -> bool:
    return zipfile.is_zipfile(path) and not tarfile.is_tarfile(path)  # a tar may end in a zip


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    return f"cannot be read: {error.strerror or error}"


def _stem(name: str) -> str:
    return name[:-4] if name.lower().endswith(".tar") else name


def _folder(root: Path) -> Iterator[Found]:
    """Yields the files below a folder, and those of the tars among them."""
    for path, entry in folders.walk(root, "--from"):
        if path.lower().endswith(".tar"):
            yield from _tar_file(Path(entry.path), f"{_stem(path)}/")
            continue
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            raise DataError(f"--from: {entry.path}: a link to nothing") from None
        yield Found(path, str(root), PLAIN, size)


def _tar_file(path: Path, prefix: str) -> Iterator[Found]:
    try:
        with path.open("rb") as file:
            start = file.read(8)
            for magic, command in COMPRESSED:
                if start.startswith(magic):
                    raise DataError(
                        f"{path}: is compressed, and a shuffled order needs random access; "
                        f"first: {command} {path}"
                    )
            yield from _tar(file, str(path), prefix, 0, path.stat().st_size)
    except OSError as error:
        raise DataError(f"{path}: {_reason(error)}") from None


def _tar(file: IO[bytes], container: str, prefix: str, start: int, length: int) -> Iterator[Found]:
    """Yields the files of the tar that lies in `file` at `start`, and those of tars within it."""
    part: Any = _Part(file, start, length)
    named = f"{container}: {prefix[:-1]}.tar" if start else container
    try:
        tar = tarfile.open(fileobj=part, mode="r:")  # noqa: SIM115 (closing it closes nothing)
        while (member := tar.next()) is not None:
            tar.members = []  # pyright: ignore  # it would keep all of them
            if member.isdir() or Path(member.name).name.startswith("."):
                continue
            path = _safe(member, named)
            if member.offset_data + member.size > length:
                raise DataError(f"{named}: is truncated: it ends within {member.name}")
            if path.lower().endswith(".tar"):
                inner = f"{prefix}{_stem(path)}/"
                yield from _tar(file, container, inner, start + member.offset_data, member.size)
            else:
                yield Found(prefix + path, container, start + member.offset_data, member.size)
        # The iteration ends at a damaged header as at the end of the archive.
        part.seek(tar.offset)
        if part.read(BLOCK).strip(b"\0"):
            raise DataError(f"{named}: is damaged at byte {tar.offset}; download it again")
    except tarfile.TarError as error:
        raise DataError(f"{named}: is no tar, or a damaged one: {error}") from None


def _safe(member: tarfile.TarInfo, named: str) -> str:
    """Returns the path of a member, without `./`; refuses what no archive of images holds."""
    kind = REFUSED.get(member.type)
    if kind or not member.isreg():
        raise DataError(f"{named}: {member.name!r} is {kind or 'no file'}; pack it without")
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if member.name.startswith("/") or ".." in parts or not parts:
        raise DataError(f"{named}: {member.name!r} is a path outside of it; pack it without")
    return "/".join(parts)


def _zip(path: Path) -> Iterator[Found]:
    try:
        with zipfile.ZipFile(path) as file:
            for number, info in enumerate(file.infolist()):
                parts = [part for part in info.filename.split("/") if part not in ("", ".")]
                if info.is_dir() or not parts or parts[-1].startswith("."):
                    continue
                if info.filename.startswith("/") or ".." in parts:
                    raise DataError(
                        f"{path}: {info.filename!r} is a path outside of it; pack it without"
                    )
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise DataError(
                        f"{path}: {info.filename!r} is a symbolic link; pack it without"
                    )
                if info.flag_bits & 1:
                    raise DataError(f"{path}: {info.filename!r} is encrypted; unpack it first")
                yield Found("/".join(parts), str(path), number, info.file_size)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: is a damaged zip: {error}") from None


class _Part:
    """A part of a file as a file, for `tarfile`: reading and seeking."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes."""
        left = max(self._length - self._at, 0)
        size = left if size < 0 else min(size, left)
        self._file.seek(self._start + self._at)
        data = self._file.read(size)
        self._at += len(data)
        return data

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = base + position
        return self._at

    def tell(self) -> int:
        """Returns the position."""
        return self._at


class Reader:
    """Reads the bytes of images, from several threads at once; some tars and all zips stay open."""

    def __init__(self) -> None:
        self._tars: dict[str, int] = {}
        self._zips: dict[str, tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]] = {}
        self._lock = threading.Lock()

    def __call__(self, found: Found) -> bytes:
        """Returns the bytes of an image.

        Raises BadImage for what this image alone is to blame for, and DataError where its source is
        not what it was when it was listed.
        """
        try:
            data = self._read(found)
        except PermissionError as error:
            raise BadImage(f"cannot be read: {error.strerror}") from None
        except OSError as error:
            raise DataError(f"{found.path}: {_reason(error)}, in {found.container}") from None
        if len(data) != found.size:
            raise DataError(f"{found.path}: changed while it was packed, in {found.container}")
        return data

    def _read(self, found: Found) -> bytes:
        if found.offset == PLAIN:
            return Path(found.container, found.path).read_bytes()
        with self._lock:
            self._open(found.container)
            if found.container in self._zips:  # its members share one position
                return self._member(found)
            return os.pread(self._tars[found.container], found.size, found.offset)

    def _open(self, container: str) -> None:
        if container in self._tars or container in self._zips:
            return
        if _is_zip(container):
            file = zipfile.ZipFile(container)
            self._zips[container] = file, file.infolist()
        else:
            if len(self._tars) == MOST_OPEN:
                os.close(self._tars.pop(next(iter(self._tars))))
            self._tars[container] = os.open(container, os.O_RDONLY)

    def _member(self, found: Found) -> bytes:
        file, members = self._zips[found.container]
        try:
            return file.read(members[found.offset])
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise BadImage(f"cannot be read from the zip: {error}") from None

    def close(self) -> None:
        """Closes what is open."""
        for descriptor in self._tars.values():
            os.close(descriptor)
        for file, _ in self._zips.values():
            file.close()
        self._tars, self._zips = {}, {}


def is_zip(path: Path | str) -> bool:
    """Returns whether a file is a zip, and no tar that ends in one."""
    return _is_zip(path)


def members(archive: Path, prefix: str) -> Iterator[Found]:
    """Yields the files of a tar (also of the tars within it) or a zip, paths after `prefix`.

    Raises DataError like `scan`.
    """
    if _is_zip(archive):
        for each in _zip(archive):
            yield each._replace(path=prefix + each.path)
    else:
        yield from _tar_file(archive, prefix)
