"""Reads the user's files from folders, tars and zips, compressed or not."""

import contextlib
import fnmatch
import functools
import gzip
import hashlib
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

from vit_jax.data import folders
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import archives, image_listing, shards
from vit_jax.data.prepare.image_listing import FileEntry
from vit_jax.data.source import DataError
from vit_jax.utils import storage

Path = pathlib.Path

GZIP = b"\x1f\x8b"
CHUNK = 2**20
TARS = (".tgz", ".tar.gz", ".tar")
SUFFIXES = (*TARS, ".zip", ".gz")
DEEP = 3  # nesting depth of archives
SMALL = 2**26  # bytes of a file to read at once: a list, labels, a table


class NeedsUnpackingError(Exception):
    """A file unpacks to more than a dry run may write; the message names it."""


class Archives:
    """All files in the given sources; compressed ones are unpacked to `scratch` once.

    `looked_into` are name patterns of archives to open inside a folder or another archive; archives
    given directly are always opened. `unpacked` limits the contents of one compressed file, in
    bytes. With a `limit`, a file that unpacks to more bytes than
    that raises NeedsUnpackingError.
    """

    def __init__(
        self,
        given: Sequence[Path],
        looked_into: Sequence[str],
        scratch: Path,
        unpacked: int,
        limit: int | None = None,
    ) -> None:
        self._given, self._patterns = given, tuple(p.lower() for p in looked_into)
        self._scratch, self._unpacked, self._limit = scratch, unpacked, limit
        self.named = ", ".join(map(str, given))
        self._read = image_listing.Reader()

    def close(self) -> None:
        """Closes the files that were read from."""
        self._read.close()

    def files(self) -> Iterator[FileEntry]:
        """Yields every file; the files of an archive are in a folder of its name without suffix.

        Raises DataError for unreadable sources.
        """
        for given in self._given:
            try:
                is_folder, size = given.is_dir(), given.stat().st_size
            except OSError as error:
                what = "no such file or folder" if not given.exists() else error.strerror
                raise DataError(f"--from={given}: {what}") from None
            if not is_folder:
                found = FileEntry(given.name, str(given.parent), image_listing.PLAIN, size)
                yield from self._expanded(found, given, given=True)
                continue
            for path, entry in folders.walk(given, "--from"):
                with storage.errors_as(DataError, f"--from: {entry.path}"):
                    size = entry.stat().st_size
                found = FileEntry(path, str(given), image_listing.PLAIN, size)
                yield from self._expanded(found, Path(entry.path))

    def sort(self, *patterns: str) -> list[dict[str, FileEntry]]:
        """The files that fit each pattern, by its first group; the last of equal ones wins.

        A pattern fits the end of a path, from some folder on. A file goes to the first that fits.
        """
        compiled = [re.compile(f"(?:.*/)?{pattern}") for pattern in patterns]
        sorted_ = [dict[str, FileEntry]() for _ in patterns]
        for found in self.files():
            for pattern, members in zip(compiled, sorted_, strict=True):
                if match := pattern.fullmatch(found.path):
                    members[match[1]] = found
                    break
        return sorted_

    def by_name(self, names: Iterable[str]) -> dict[str, FileEntry]:
        """The files of some names, from any folder."""
        return self.sort(f"({'|'.join(map(re.escape, names))})")[0]

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

    def plain(self, found: FileEntry) -> tuple[Path, int]:
        """A file that contains the bytes of `found` uncompressed, and their offset."""
        if found.offset != image_listing.PLAIN and not archives.is_zip(found.container):
            return Path(found.container), found.offset
        return self.alone(found), 0

    def alone(self, found: FileEntry) -> Path:
        """A file that contains the bytes of `found` and nothing else."""
        if found.offset == image_listing.PLAIN:
            return Path(found.container, found.path)
        named = f"{found.path}, of {found.container}"
        return self.spill(named, functools.partial(self._read.chunks, found))

    @contextlib.contextmanager
    def opened(self, found: FileEntry) -> Iterator[tuple[Path, int, IO[bytes]]]:
        """Opens what `plain` returns, at that offset; raises DataError if it cannot be read."""
        path, start = self.plain(found)
        with storage.errors_as(DataError, f"{found.path}: cannot be read"), path.open("rb") as file:
            file.seek(start)
            yield path, start, file

    def spill(self, named: str, make: Callable[[], Iterator[bytes]], inside: str = "data") -> Path:
        """A file in `scratch` with the chunks of `make`, or that of an earlier attempt.

        `named` identifies the contents. The path of the file ends in `inside`. Raises DataError for
        too many bytes.
        """
        folder = self._scratch / hashlib.sha256(os.fsencode(named)).hexdigest()[:32]
        path, part = folder / inside, folder / ".part"
        if path.exists():
            return path
        with shards.disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = part.open("wb")
        total = 0
        with file:
            for chunk in make():
                total += len(chunk)
                if self._limit is not None and total > self._limit:
                    raise NeedsUnpackingError(named.partition(", ")[0])
                if total > self._unpacked:
                    raise DataError(
                        f"{named.partition(', ')[0]}: unpacks to more than {self._unpacked:,} "
                        "bytes, more than any file in this dataset"
                    )
                with shards.disk_errors(path):
                    file.write(chunk)
        with shards.disk_errors(path):
            part.replace(path)
        return path

    def _expanded(
        self, found: FileEntry, path: Path | None, depth: int = 0, given: bool = False
    ) -> Iterator[FileEntry]:
        """Yields a file, or the files in it; `path` is its location unless it is in an archive."""
        above, name = found.path.rpartition("/")[::2]
        wanted = any(fnmatch.fnmatch(name.lower(), pattern) for pattern in self._patterns)
        if not wanted and not (given and name.lower().endswith(SUFFIXES)):
            yield found
            return
        if depth == DEEP:
            raise DataError(f"{found.container}: {found.path}: archives nested too deeply")
        if path is None:
            path = self.alone(found)
        inside = f"{above}/{_stem(name)}" if above else _stem(name)
        if _is_compressed(path):
            status = path.stat()
            named = f"{path}, {status.st_size} bytes of {status.st_mtime_ns}"
            path = self.spill(named, functools.partial(_gunzipped, path), inside)
            if not name.lower().endswith(TARS):
                folder = str(path)[: -len(inside) - 1]
                yield FileEntry(inside, folder, image_listing.PLAIN, path.stat().st_size)
                return
        for each in image_listing.members(path, f"{inside}/"):
            yield from self._expanded(each, None, depth + 1)


def _is_compressed(path: Path) -> bool:
    with storage.errors_as(DataError, f"{path}: cannot be read"), path.open("rb") as file:
        return file.read(2) == GZIP


def _stem(name: str) -> str:
    suffix = next((each for each in SUFFIXES if name.lower().endswith(each)), "")
    return name[: len(name) - len(suffix)]


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
