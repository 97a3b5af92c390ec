"""Reads the user's files from folders, tars and zips, compressed or not."""

import contextlib
import fnmatch
import functools
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import archives, shards
from vit_jax.data.prepare.archives import PLAIN, FileEntry
from vit_jax.data.source import DataError
from vit_jax.utils import storage

GZIP = b"\x1f\x8b"
CHUNK = 2**20
TARS = (".tgz", ".tar.gz", ".tar")
DEEP = 3  # nesting depth of archives
SMALL = 2**26  # bytes of a file to read at once: a list, labels, a table


class NeedsUnpackingError(Exception):
    """A file unpacks to more than a dry run may write; the message names it."""


class SourceFiles:
    """All files in the given sources; compressed ones are unpacked to `scratch` once.

    Args:
      given: folders and files; archives among them are always opened.
      patterns: names of archives to open inside a folder or another archive.
      scratch: folder for what has to be unpacked.
      unpacked: limit in bytes for the contents of one compressed file.
      limit: a file that unpacks to more bytes than that raises NeedsUnpackingError.
    """

    def __init__(
        self,
        given: Sequence[Path],
        patterns: Sequence[str],
        scratch: Path,
        unpacked: int,
        limit: int | None = None,
    ) -> None:
        self._given, self._patterns = given, tuple(p.lower() for p in patterns)
        self._scratch, self._unpacked, self._limit = scratch, unpacked, limit
        self.named = ", ".join(map(str, given))
        self._read = archives.Reader()

    def close(self) -> None:
        """Closes the files that were read from."""
        self._read.close()

    def __iter__(self) -> Iterator[FileEntry]:
        """Yields every file; the files of an archive are in a folder of its name without suffix.

        Raises DataError for unreadable sources.
        """
        for given in self._given:
            try:
                is_folder, size = given.is_dir(), given.stat().st_size
            except OSError as error:
                raise DataError(f"--from={given}: {archives.io_reason(error)}") from None
            if not is_folder:
                found = FileEntry(given.name, str(given.parent), PLAIN, size)
                yield from self._expanded(found, given=True)
                continue
            for found in archives.list_folder(given):
                yield from self._expanded(found)

    def sort(self, *patterns: str) -> list[dict[str, FileEntry]]:
        """The files that fit each pattern, by its first group; the last of equal ones wins.

        A pattern fits the end of a path, from some folder on. A file goes to the first that fits.
        """
        # People unpack archives with and without their top folder.
        compiled = [re.compile(f"(?:.*/)?{pattern}") for pattern in patterns]
        sorted_ = [dict[str, FileEntry]() for _ in patterns]
        for found in self:
            for pattern, members in zip(compiled, sorted_, strict=True):
                if match := pattern.fullmatch(found.path):
                    members[match[1]] = found
                    break
        return sorted_

    def by_name(self, names: Iterable[str]) -> dict[str, FileEntry]:
        """The files of some names, from any folder."""
        return self.sort(any_of(names))[0]

    def require(self, found: Mapping[str, FileEntry], name: str, shown: str = "") -> FileEntry:
        """The file of a name that others need; raises DataError, which names it as `shown`."""
        if name not in found:
            raise DataError(f"{self.named}: has images, but lacks {shown or name}")
        return found[name]

    def read(self, found: FileEntry, most: int = SMALL) -> bytes:
        """The bytes of a file; raises DataError for more than `most`."""
        if found.size > most:
            raise DataError(f"{found.path}: {found.size:,} bytes; expected at most {most:,}")
        try:
            return self._read(found)
        except BadImage as error:
            raise DataError(f"{found.path}: {error}") from None

    def text(self, found: FileEntry) -> str:
        """The text of a file; raises DataError if it is not UTF-8."""
        try:
            return self.read(found).decode()
        except UnicodeDecodeError:
            raise DataError(f"{found.path}: is not UTF-8 text; download it again") from None

    def alone(self, found: FileEntry) -> Path:
        """A file that contains the bytes of `found` and nothing else."""
        if found.offset == PLAIN:
            return Path(found.container, found.path)
        named = f"{found.path}, of {found.container}"
        return self.spill(named, functools.partial(self._read.chunks, found))

    @contextlib.contextmanager
    def opened(self, found: FileEntry) -> Iterator[tuple[FileEntry, IO[bytes]]]:
        """Opens the same bytes, of a file that is not compressed, with their location there.

        Raises DataError if it cannot be read.
        """
        plain = found  # a member of a tar is as it is in the tar
        if found.offset < 0:
            plain = found._replace(container=str(self.alone(found)), offset=0)
        with (
            storage.errors_as(DataError, f"{found.path}: cannot be read"),
            Path(plain.container).open("rb") as file,
        ):
            file.seek(plain.offset)
            yield plain, file

    def spill(self, named: str, make: Callable[[], Iterator[bytes]], inside: str = "data") -> Path:
        """Writes the chunks of `make` to a file in `scratch`, unless an earlier attempt did.

        `named` identifies the contents. The path of the file ends in `inside`. Raises DataError for
        too many bytes.
        """
        # Names of sources may be longer than a name of a file can be.
        path = self._scratch / hashlib.sha256(os.fsencode(named)).hexdigest()[:32] / inside
        if path.exists():
            return path
        with shards.disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            for leftover in path.parent.glob(".*"):  # of a killed attempt; it may be most of a disk
                leftover.unlink()
            with storage.replacing(path) as part, part.open("wb") as file:
                shown, total = named.partition(", ")[0], 0
                for chunk in make():
                    total += len(chunk)
                    if self._limit is not None and total > self._limit:
                        raise NeedsUnpackingError(shown)
                    if total > self._unpacked:
                        raise DataError(
                            f"{shown}: unpacks to more than {self._unpacked:,} bytes, more than "
                            "any file in this dataset"
                        )
                    file.write(chunk)
        return path

    def _expanded(
        self, found: FileEntry, depth: int = 0, *, given: bool = False
    ) -> Iterator[FileEntry]:
        """Yields a file, or the files in it if it is an archive to open."""
        above, name = found.path.rpartition("/")[::2]
        wanted = any(fnmatch.fnmatch(name.lower(), pattern) for pattern in self._patterns)
        if not wanted and not (given and name.lower().endswith(archives.SUFFIXES)):
            yield found
            return
        if depth == DEEP:
            raise DataError(f"{found.container}: {found.path}: archives nested too deeply")
        path = self.alone(found)
        stem = archives.stem(name)
        inside = f"{above}/{stem}" if above else stem
        # By its first bytes: a name that ends in .gz may be of a file that is unpacked already.
        if _is_compressed(path):
            status = path.stat()
            # Another download under the same path is unpacked again.
            named = f"{path}, {status.st_size} bytes of {status.st_mtime_ns}"
            path = self.spill(named, functools.partial(_gunzipped, path), inside)
            # A single compressed file, such as `y.h5.gz`; the members of a tar follow below.
            if not name.lower().endswith(TARS):
                folder = str(path)[: -len(inside) - 1]
                yield FileEntry(inside, folder, PLAIN, path.stat().st_size)
                return
        for each in archives.list_files(path, f"{inside}/"):
            yield from self._expanded(each, depth + 1)


def any_of(names: Iterable[str]) -> str:
    """A pattern of file names."""
    return f"({'|'.join(map(re.escape, names))})"


def _is_compressed(path: Path) -> bool:
    with storage.errors_as(DataError, f"{path}: cannot be read"), path.open("rb") as file:
        return file.read(2) == GZIP


def _gunzipped(path: Path) -> Iterator[bytes]:
    """Yields the chunks of a compressed file; raises DataError if it is damaged."""
    try:
        with gzip.open(path) as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: is damaged or truncated: {error}; download it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
