"""Lists and reads files in tars and zips without unpacking, with a bound for every declared value.

A damaged archive, or one crafted to exhaust memory or time, raises DataError with one line that
names the archive and the bound.
"""

import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from vit_jax.data import decoding, folders
from vit_jax.data.decoding import BadImage
from vit_jax.data.source import DataError
from vit_jax.utils import storage
from vit_jax.utils.storage import reason

BLOCK = 512  # of a tar
DEEPEST = 4  # nesting depth of tars; ImageNet's official ones are nested once
MOST_HEADERS = 2**20  # bytes of headers before a member of a tar
MOST_SHARED = 1000  # global PAX values of a tar
MOST_DIRECTORY = 2**29  # bytes of a zip's directory, which is read at once; five million files
# Largest compression ratio of a zip's member, and the size up to which any ratio is accepted:
# images barely compress, except black ones.
RATIO, SMALL = 100, 2**24
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # which zipfile unpacks in bounded steps
# Bytes of a zip's member to read at a time: with larger steps, zipfile unpacks more than the
# directory declares before anyone can count it.
STEP = 2**12
CHUNK = 2**20  # bytes of a file to unpack at a time
MOST_OPEN = 64  # files; ImageNet-21k has a tar for each class
SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip", ".gz")
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
LONGEST = 4096  # characters of a name
LARGE = 2**40  # bytes: too large for any image, but sums cannot overflow

# Errors of zipfile for a damaged archive, in addition to OSError.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    RuntimeError,
)

PLAIN = -1  # in place of an offset: a file of its own
MEMBER = -2  # the first member of a zip; the next is MEMBER - 1


class FileEntry(NamedTuple):
    """A file by its path in a listing, and the location of its `size` bytes.

    Those are bytes of the file `container` from `offset` on, member `MEMBER - offset` of the zip
    `container`, or, where `offset` is PLAIN, the file `path` below the folder `container`.
    """

    path: str
    container: str
    offset: int
    size: int


def is_zip(path: Path) -> bool:
    """Whether a file is a zip, not a tar that ends in one."""
    try:
        if not zipfile.is_zipfile(path):
            return False
    except DAMAGED:  # an end record that declares several disks
        return True
    with path.open("rb") as file:
        # zipfile finds an end record in the last 64 KiB, which a tar that ends in a zip has, too.
        first = file.read(BLOCK)
    try:
        tarfile.TarInfo.frombuf(first, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return True
    return False


def io_reason(error: OSError) -> str:
    """The reason of an OSError in words."""
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    return f"cannot be read: {error.strerror or error}"


def stem(name: str) -> str:
    """The name of an archive without its suffix, used as the folder of its members."""
    suffix = next((each for each in SUFFIXES if name.lower().endswith(each)), "")
    return name[: len(name) - len(suffix)]


def list_folder(root: Path, key: str = "--from") -> Iterator[FileEntry]:
    """Yields the files below a folder that `key` names; raises DataError if one cannot be read."""
    for path, entry in folders.walk(root, key):
        with storage.errors_as(DataError, f"{key}: {entry.path}"):
            size = entry.stat().st_size
        yield FileEntry(path, str(root), PLAIN, size)


def list_files(path: Path, prefix: str = "") -> Iterator[FileEntry]:
    """Yields the files of a zip, or of a tar and the tars within it; `prefix` precedes their paths.

    Raises DataError for compressed or damaged archives, exceeded bounds, and members that are not
    plain files inside the archive.
    """
    try:
        if not path.is_file():
            raise DataError(f"{path}: is not a regular file")
        if is_zip(path):
            yield from _zip(path, prefix)
            return
        with path.open("rb") as file:
            start = file.read(8)
            for magic, command in COMPRESSED:
                if start.startswith(magic):
                    raise DataError(
                        f"{path}: is compressed, and a shuffled order needs random access; "
                        f"first: {command} {path}"
                    )
            yield from _tar(_Part(file, 0, path.stat().st_size), str(path), prefix)
    except OSError as error:
        raise DataError(f"{path}: {io_reason(error)}") from None


def _tar(part: "_Part", container: str, prefix: str, depth: int = 0) -> Iterator[FileEntry]:
    """Yields the files of a tar that is part of a file, and of tars inside it."""
    named = f"{container}: {prefix[:-1]}.tar" if depth else container
    for member in _members(part, named):
        if member.isdir() or _is_hidden(member.name):
            continue
        # Sparse files of PAX have the type of regular ones, and their bytes are in pieces.
        kind = "a sparse file" if member.issparse() else REFUSED.get(member.type)
        kind = kind or (None if member.isreg() else "no file")
        path, offset = _safe_path(member.name, named, kind), part.start + member.offset_data
        if not path.lower().endswith(".tar"):
            yield FileEntry(prefix + path, container, offset, member.size)
        elif depth == DEEPEST:
            raise DataError(f"{container}: has tars within tars, more than {DEEPEST} deep")
        else:
            inner = _Part(part.file, offset, member.size)
            yield from _tar(inner, container, f"{prefix}{stem(path)}/", depth + 1)


def _members(part: "_Part", named: str) -> Iterator[tarfile.TarInfo]:
    """Yields the members of a tar after checking that they are inside it and in order."""
    source: Any = part
    end = 0
    try:
        # `r:` accepts no compression: offsets would count unpacked bytes. Opening reads the first
        # header, so the allowance starts over.
        tar = tarfile.open(fileobj=source, mode="r:")  # noqa: SIM115 (closing it closes nothing)
        part.allow()
        while (member := tar.next()) is not None:
            tar.members = []  # pyright: ignore  # it would keep all of them
            # A negative size, which a tar can state, would move back and list members forever.
            if member.size < 0 or member.offset_data < end or tar.offset < member.offset_data:
                raise DataError(f"{named}: is damaged: {member.name} has {member.size} bytes")
            if not member.isdir() and member.offset_data + member.size > part.length:
                raise DataError(f"{named}: is truncated: it ends within {member.name}")
            # tarfile copies the global values for every member: many of both take quadratic time.
            if len(tar.pax_headers) > MOST_SHARED:
                raise DataError(f"{named}: has more than {MOST_SHARED:,} values for all members")
            end = member.offset_data
            yield member
            part.allow()
        # The iteration ends at a damaged header as at the end of the archive.
        part.seek(tar.offset)
        if part.read(BLOCK).strip(b"\0"):
            raise DataError(f"{named}: is damaged at byte {tar.offset}; download it again")
    except RecursionError:  # tarfile takes headers that belong to one member one within another
        raise DataError(f"{named}: is damaged: hundreds of headers of one member") from None
    except (tarfile.TarError, ValueError, OverflowError) as error:  # the last two of sparse files
        raise DataError(f"{named}: is not a tar, or is damaged: {reason(error)}") from None


def _is_hidden(name: str) -> bool:
    """Whether a member, or a folder above it, is hidden, as in a folder of images."""
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _safe_path(name: str, archive: str, refused: str | None = None) -> str:
    """The path of a member without `./`.

    Raises DataError for one that leads outside, is too long, or is `refused`: no plain file.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if refused is None and (name.startswith("/") or ".." in parts or not parts):
        refused = "a path outside of it"
    if refused is not None:
        raise DataError(f"{archive}: {name!r} is {refused}; pack it without")
    if len(name) > LONGEST:
        raise DataError(f"{archive}: {name[:40]!r}...: a name of more than {LONGEST:,} characters")
    return "/".join(parts)


def _zip(path: Path, prefix: str) -> Iterator[FileEntry]:
    try:
        with Zip(path) as file:
            # By position, not by name: a zip may hold a name twice. Skipped entries count, too.
            for number, info in enumerate(file.infolist()):
                parts = [part for part in info.filename.split("/") if part not in ("", ".")]
                if not parts or info.is_dir() or _is_hidden(info.filename):
                    continue
                # Zips of Unix programs have the file's mode in the upper half; a link's contents
                # are a path.
                link = stat.S_ISLNK(info.external_attr >> 16)
                name = _safe_path(info.filename, str(path), "a symbolic link" if link else None)
                if info.flag_bits & 1:
                    raise DataError(f"{path}: {info.filename!r} is encrypted; unpack it first")
                if info.compress_type not in METHODS:
                    raise DataError(
                        f"{path}: {info.filename!r} is compressed by method {info.compress_type}, "
                        "of which 4 KiB may unpack to gigabytes; unpack it first"
                    )
                size = min(info.file_size, LARGE)
                yield FileEntry(prefix + name, str(path), MEMBER - number, size)
    except _TooLarge:
        raise DataError(
            f"{path}: its directory has more than {MOST_DIRECTORY:,} bytes; unpack it first"
        ) from None
    except DAMAGED as error:
        raise DataError(f"{path}: is a damaged zip: {reason(error)}") from None


class _TooLarge(ValueError):
    """A single read of implausibly many bytes."""


class _Bounded(io.BufferedReader):
    """A file for `zipfile`, which asks for the whole directory of an archive at once."""

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes; raises _TooLarge for an implausible size."""
        if size is not None and size > MOST_DIRECTORY:
            raise _TooLarge
        return super().read(size)


class Zip(zipfile.ZipFile):
    """A zip for reading, with a bounded directory; raises OSError or one of DAMAGED."""

    # `__del__` of zipfile also closes a zip whose file could not be opened.
    _opened: _Bounded | None = None

    def __init__(self, path: Path | str) -> None:
        self._opened = _Bounded(io.FileIO(path))
        super().__init__(self._opened)

    def close(self) -> None:
        """Closes the file, too."""
        super().close()
        # zipfile does not close a file that it was given.
        if self._opened is not None:
            self._opened.close()


class _Part:
    """A part of a file as a file, for `tarfile`: seeking, and reading so much as is allowed."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self.file, self.start, self.length, self._at = file, start, length, 0
        self.allow()

    def allow(self) -> None:
        """Allows as many bytes to be read from now on as headers of a member may have."""
        self._allowed = MOST_HEADERS

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; raises ValueError for a size that is not allowed."""
        # Counts what is requested, not what is there: a header may declare more than memory holds.
        self._allowed -= size
        if size < 0 or self._allowed < 0:
            raise ValueError(f"headers of one member have more than {MOST_HEADERS:,} bytes")
        self.file.seek(self.start + self._at)
        data = self.file.read(min(size, max(self.length - self._at, 0)))
        self._at += len(data)
        return data

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        self._at = max(base + position, 0)
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at


class Reader:
    """Reads listed files; keeps `most_open` tars and all zips open until it is dropped."""

    _close = staticmethod(os.close)  # `os` is gone for one that is dropped at exit

    def __init__(self, most_open: int = MOST_OPEN) -> None:
        self._most_open = most_open
        self._files: dict[str, int] = {}
        self._zips: dict[str, tuple[Zip, list[zipfile.ZipInfo]]] = {}

    def __call__(self, found: FileEntry) -> bytes:
        """The bytes of an image or a label file.

        Raises BadImage for faults of this file only, and DataError if its source has changed since
        it was listed.
        """
        decoding.check_bytes(found.size)
        try:
            if found.offset == PLAIN:
                data = decoding.read_file(Path(found.container, found.path))
            elif found.offset < PLAIN:
                data = _read_member(*self._member(found))
            else:
                # pread moves no shared position, so the order of reads does not matter.
                data = os.pread(self._descriptor(found.container), found.size, found.offset)
        except PermissionError as error:
            # A fault of this file; other errors of the disk concern the whole source.
            raise BadImage(f"cannot be read: {error.strerror}") from None
        except OSError as error:
            raise DataError(f"{found.path}: {io_reason(error)}, in {found.container}") from None
        except (*DAMAGED, IndexError) as error:
            raise DataError(f"{found.container}: is damaged now: {error}") from None
        if len(data) != found.size:
            raise DataError(f"{found.path}: changed since it was listed, in {found.container}")
        return data

    def chunks(self, found: FileEntry) -> Iterator[bytes]:
        """Yields the bytes of a file in an archive, of any size; raises DataError if it cannot.

        The archive stays open: reading a zip's directory again for each member takes quadratic
        time.
        """
        left = found.size
        try:
            if found.offset < PLAIN:
                file, info = self._member(found)
                stream = file.open(info)
            else:
                stream = Path(found.container).open("rb")  # noqa: SIM115 (closed below)
            with stream:
                if found.offset >= 0:
                    stream.seek(found.offset)
                while chunk := stream.read(min(left, CHUNK)):
                    left -= len(chunk)
                    yield chunk
            if left:
                raise EOFError(f"{left:,} bytes are missing")
        except (OSError, IndexError, *DAMAGED) as error:
            why = reason(error)
            raise DataError(f"{found.container}: {found.path}: cannot be unpacked: {why}") from None

    def _member(self, found: FileEntry) -> tuple[Zip, zipfile.ZipInfo]:
        if found.container not in self._zips:
            file = Zip(found.container)
            self._zips[found.container] = file, file.infolist()
        file, members = self._zips[found.container]
        return file, members[MEMBER - found.offset]

    def _descriptor(self, path: str) -> int:
        if path not in self._files:
            if len(self._files) == self._most_open:
                # The one opened first: in a shuffled order, none is likelier to be read next.
                os.close(self._files.pop(next(iter(self._files))))
            self._files[path] = os.open(path, os.O_RDONLY)
        return self._files[path]

    def close(self) -> None:
        """Closes the open files."""
        for descriptor in self._files.values():
            self._close(descriptor)
        for file, _ in self._zips.values():
            file.close()
        self._files, self._zips = {}, {}

    def __del__(self) -> None:
        self.close()


def _read_member(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a zip member; unpacks no more than it declares.

    Raises BadImage for a damaged one, or one that unpacks to much more than it takes.
    """
    if info.file_size > max(RATIO * info.compress_size, SMALL):
        raise BadImage(
            f"unpacks to {info.file_size:,} bytes, more than {RATIO} times as many as in the zip"
        )
    data = bytearray()
    try:
        with file.open(info) as stream:
            # To the end, where zipfile compares the checksum.
            while chunk := stream.read(STEP):
                data += chunk
    except DAMAGED as error:
        raise BadImage(f"cannot be read from the zip: {reason(error)}") from None
    return bytes(data)
