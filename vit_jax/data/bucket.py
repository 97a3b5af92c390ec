"""Copies the objects of a bucket to a bounded local cache; an interrupted copy continues.

`s3://`, `gs://` and `hf://` are read through fsspec. A copy takes the place of `data.root`, of a
folder or file of `prepare --from`, or of the images of a command, so that the same code reads both.
"""

import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax import config
from vit_jax.data.source import DataError
from vit_jax.runtime import logs
from vit_jax.utils import limits, messages, storage
from vit_jax.utils.errors import NO_ROOM, NotWritten
from vit_jax.utils.messages import size_text

# The package that reads a scheme, and the extra of vit_jax that installs it.
SCHEMES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "hf": ("huggingface_hub", "hf")}
OBJECTS = 2_000_000  # of a bucket; more belong into tars
LONGEST = 255  # bytes of a name between slashes
LONGEST_PATH = 2048  # bytes of a whole name, which stands below the cache
DEEPEST = 64  # folders of a name, each of which is looked up
LISTING = 2**30  # bytes of the record of a copy
THREADS = 16  # each waits for the network, not for a core
NOTES = 1000  # objects between two lines about the progress
# What says that an object is another one, as far as a file system knows it.
IDENTITY = ("ETag", "etag", "md5Hash", "generation", "blob_id", "LastModified", "mtime", "created")


class CopyError(DataError):
    """A failure after which the same command may succeed."""

    exit_code = 70


class Options(NamedTuple):
    """The user's names for a source, its cache and the cache's size, used in messages.

    Empty: no option sets it.
    """

    source: str
    cache: str = ""
    size: str = ""

    def locate(self, cache: Path) -> str:
        """The folder of copies, after its option."""
        return f"{self.cache}={cache}" if self.cache else str(cache)


PREPARE = Options("--from", "--cache", "--cache-size")
ROOT = Options("data.root", "data.cache", "data.cache_size")


class Object(NamedTuple):
    """An object: its name in the bucket, its size, and a version that changes with its content."""

    name: str
    size: int
    identity: str


def is_bucket(source: str) -> bool:
    """Whether a source is an address that can be copied."""
    scheme, separator, _ = source.partition("://")
    return bool(separator) and scheme in SCHEMES


def describe_copy(source: str, cache: Path) -> str:
    """The line of a dry run about a copy; raises DataError."""
    _, found, _ = _list_objects(source, PREPARE)
    size = size_text(sum(one.size for one in found.values()))
    return f"would copy {source}: {_counted(found)}, {size}, to {_folder(source, cache)}"


def copy(source: str, cache: Path, most: int, options: Options = PREPARE) -> Path:
    """The local copy of an address: a folder, or a file for a single object.

    Objects are downloaded whole before they get their names, so a copy that was stopped goes on,
    and one that has changed since is downloaded again. What comes only in part, or changes while it
    is copied, is an error.

    Args:
      source: an address.
      cache: the folder of all copies; each has a folder of its own in it.
      most: bytes of all copies.
      options: what the user calls these.

    Raises DataError for what cannot be copied, CopyError where the same command may succeed later,
    NotWritten on a full disk.
    """
    system, found, alone = _list_objects(source, options)
    given = f"{options.source}={source}"
    folder = _folder(source, cache)
    files, record = folder / "files", folder / "objects.json"
    with storage.errors_as(DataError, f"{options.locate(cache)}: cannot be written"):
        files.mkdir(parents=True, exist_ok=True)
        _drop_changed(record, files, found)
        # What `_drop_changed` leaves has the recorded version: if the size is right, it is whole.
        missing = {path: one for path, one in found.items() if _size(files / path) != one.size}
        _check_room(given, cache, folder, found, missing, most, options)
        # Before the download: the next attempt keeps the files whose objects are recorded here.
        lines = {path: [one.size, one.identity] for path, one in found.items()}
        storage.write_atomically(record, json.dumps(lines))
    total, needed = (sum(o.size for o in some.values()) for some in (found, missing))
    logs.log.info(
        "%s: %s, %s; %d, %s, to copy to %s",
        *(source, _counted(found), size_text(total), len(missing), size_text(needed), files),
    )
    _download(given, system, missing, files)
    # A slow copy of a bucket that changes would be a mixture; only a second list shows it.
    if missing:
        _, again, _ = _list_objects(source, options)
        if changed := [path for path, one in found.items() if again.get(path) != one]:
            raise CopyError(
                f"{given}: {changed[0]} changed while it was copied; run the same command again"
            )
    return files / next(iter(found)) if alone else files


_READ: dict[Path, tuple[str, int]] = {}  # copies that this process reads: address and lock


def given_path(option: str, path: str | os.PathLike[str]) -> Path:
    """The path of images that a command was given; of an address its copy. Raises a UserError."""
    text = storage.path_text(option, path)
    if not is_bucket(text):
        return storage.given_path(option, text, remote=False)
    return local_copy(text, None, config.Files.cache_size, Options(option))


def shown(path: Path) -> str:
    """A path as the user named it: within a copy, the address that was copied."""
    for copied, (address, _) in _READ.items():
        if path.is_relative_to(copied):
            return f"{address.rstrip('/')}/{path.relative_to(copied).as_posix()}".removesuffix("/.")
    return str(path)


@functools.cache  # a process reads what it found at its start
def local_copy(source: str, cache: str | None, most: float, options: Options) -> Path:
    """The copy of an address, a folder or a file, which nobody changes while this runs.

    Takes and raises as `copy`, but for `most`, in GB, and the cache, by default
    ~/.cache/vit_jax/buckets.
    """
    caches = storage.cache_folder(options.cache or "HOME", cache or "~/.cache/vit_jax/buckets")
    folder = _folder(source, caches)
    _, found, alone = _list_objects(source, options)  # a mistake leaves no folder
    with storage.errors_as(DataError, f"{options.locate(caches)}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        for attempt in range(4):
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits for one that copies
            # What another process copied while this one waited may be newer than the first list.
            if attempt:
                _, found, alone = _list_objects(source, options)
            if _is_whole(found, folder):
                copied = folder / "files" / next(iter(found)) if alone else folder / "files"
                # The lock is shared until this process ends: nobody changes what it reads.
                _READ[copied] = source, lock
                return copied
            try:
                # A conversion drops the shared lock first (flock(2)); a failed one waits above.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # two that started together, or one that reads what has changed since
                # By process, so that two do not meet again.
                time.sleep(attempt + os.getpid() % 10 / 10)
            else:
                copy(source, caches, round(most * 1e9), options)
        remedy = f", or set {options.cache} to another folder" if options.cache else ""
        raise DataError(
            f"{options.source}={source}: has changed, and another process reads its copy, "
            f"{folder}; wait for that{remedy}"
        )
    except BaseException:
        os.close(lock)
        raise


def _counted(found: Mapping[str, Object]) -> str:
    return f"{len(found):,} object{'s' * (len(found) != 1)}"


def _is_whole(found: Mapping[str, Object], folder: Path) -> bool:
    kept = _read_record(folder / "objects.json")
    return kept == {path: [one.size, one.identity] for path, one in found.items()} and all(
        _size(folder / "files" / path) == one.size for path, one in found.items()
    )


def _folder(source: str, cache: Path) -> Path:
    # By a hash: an address has slashes, and may be longer than the name of a folder can be.
    digest = hashlib.sha256(source.rstrip("/").encode(errors="surrogateescape")).hexdigest()[:16]
    return cache / digest


def _list_objects(source: str, options: Options) -> tuple[Any, dict[str, Object], bool]:
    """The file system of an address, its objects by path below it, and whether it is one itself.

    Raises DataError.
    """
    import fsspec

    scheme, given = source.partition("://")[0], f"{options.source}={source}"
    package, extra = SCHEMES[scheme]
    logging.getLogger(package).setLevel(logging.CRITICAL)  # it logs what it raises
    try:
        # fsspec keeps listings, and a kept one would hide changes.
        system, root = fsspec.url_to_fs(source, use_listings_cache=False, skip_instance_cache=True)
        listed: Mapping[str, Any] = system.find(root, detail=True)
    except ImportError:
        raise DataError(f"{given}: needs {package}: pip install 'vit_jax[{extra}]'") from None
    except Exception as error:  # each package has its own
        raise _broken(given, error) from None
    if len(listed) > OBJECTS:
        raise DataError(
            f"{given}: holds {len(listed):,} objects, more than {OBJECTS:,}; pack them in "
            "tars, or name folders one by one"
        )
    found = {}
    for name, about in listed.items():
        # Consoles store an empty object with a slash at its end to show a folder.
        if about.get("type") == "directory" or name.endswith("/"):
            continue
        path = name.removeprefix(root.rstrip("/")).removeprefix("/") or name.rpartition("/")[2]
        if not _is_safe(path):
            raise DataError(f"{given}: {name[:99]!r} cannot be the name of a file here")
        size = about.get("size")
        if not isinstance(size, int) or not 0 <= size < 2**63:
            raise DataError(f"{given}: {name}: its size is not known")
        # File systems of fsspec name the version of an object differently: S3 by its ETag, for one.
        known = [f"{key}={about[key]}" for key in IDENTITY if about.get(key) is not None]
        found[path] = Object(name, size, " ".join(known))
    if not found:
        raise DataError(f"{given}: holds no objects")
    for path in found:
        # Buckets have no folders: `a` and `a/b` can both be objects, which no file system can hold.
        above = path.rpartition("/")[0]
        while above and above not in found:
            above = above.rpartition("/")[0]
        if above:
            raise DataError(f"{given}: {above!r} is an object and the folder of {path!r}")
    # fsspec lists an address that is an object as that object alone.
    return system, found, list(listed) == [root.rstrip("/")]


def _is_safe(path: str) -> bool:
    if "\0" in path or not messages.is_utf8(path) or len(path.encode()) > LONGEST_PATH:
        return False
    parts = path.split("/")
    return len(parts) <= DEEPEST and all(
        part not in ("", ".", "..") and len(part.encode()) <= LONGEST for part in parts
    )


def _broken(what: str, error: BaseException) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{what}: no such object or folder")
    if isinstance(error, PermissionError):
        return DataError(
            f"{what}: no permission to read it; log in with the tools of the bucket "
            f"({storage.reason(error)})"
        )
    return CopyError(
        f"{what}: cannot be read: {storage.reason(error)}; the same command continues from here"
    )


def _drop_changed(record: Path, files: Path, found: Mapping[str, Object]) -> None:
    """Removes the files of objects that are others than when they were copied."""
    before = _read_record(record)
    kept = {path for path, one in found.items() if before.get(path) == [one.size, one.identity]}
    for path in _files(files):
        if path.relative_to(files).as_posix() not in kept:
            path.unlink()


def _read_record(record: Path) -> dict[str, object]:
    """Size and identity of each object of a copy; none of a record that is missing or damaged."""
    try:
        found = limits.read_json(record, LISTING)
    except (OSError, ValueError, limits.LimitError):
        return {}
    return found if isinstance(found, dict) else {}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_dir())


def _size(path: Path) -> int | None:
    """The bytes of a regular file, None if there is none."""
    with contextlib.suppress(OSError):
        # A link is no copy: what it leads to may change.
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return status.st_size
    return None


def _check_room(
    given: str,
    cache: Path,
    folder: Path,
    found: Mapping[str, Object],
    missing: Mapping[str, Object],
    most: int,
    options: Options,
) -> None:
    """Raises DataError if the cache would hold too much, CopyError if the disk is too full."""
    total = sum(one.size for one in found.values())
    others = [each for each in cache.iterdir() if each != folder]
    held = sum(_size(path) or 0 for each in others for path in _files(each / "files"))
    if total + held > most:
        rest = f", and {cache} holds {size_text(held)} of others" if held else ""
        remedy = f"remove some (rm -r {cache}/*), or " if held else ""
        raise DataError(
            f"{given}: has {size_text(total)}{rest}; the cache may hold "
            f"{size_text(most)}; {remedy}"
            f"{f'set {options.size}=GB' if options.size else 'copy what you need to a disk'}"
        )
    if short := storage.shortage(folder, sum(one.size for one in missing.values())):
        raise CopyError(
            f"{cache}: {short}; free some space"
            f"{f', or choose another {options.cache}' if options.cache else ''}"
        )


def _download(given: str, system: Any, missing: Mapping[str, Object], files: Path) -> None:
    def one(path: str) -> None:
        wanted, target = missing[path], files / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # By a hash: an object's own name may be as long as a file's can be.
        part = target.with_name(f".{hashlib.sha256(path.encode()).hexdigest()[:32]}.part")
        try:
            system.get_file(wanted.name, str(part))
            if (size := _size(part)) != wanted.size:
                raise CopyError(
                    f"{given}: {path} came only in part, {size or 0:,} of "
                    f"{wanted.size:,} bytes; the same command continues from here"
                )
            part.replace(target)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise NotWritten(f"{target}: {error.strerror}") from None
            raise
        finally:
            part.unlink(missing_ok=True)

    pool = concurrent.futures.ThreadPoolExecutor(THREADS)
    try:
        works = {pool.submit(one, path): path for path in missing}
        for done, work in enumerate(concurrent.futures.as_completed(works), start=1):
            try:
                work.result()
            except (DataError, NotWritten):
                raise
            except Exception as error:  # each package has its own
                raise _broken(f"{given}: {works[work]}", error) from None
            if done % NOTES == 0:
                logs.log.info("%s: %d of %d objects copied", given, done, len(missing))
    finally:
        # After an error too, objects in flight are waited for: they are whole for the next try.
        pool.shutdown(cancel_futures=True)


def remove_copy(source: str, cache: Path) -> None:
    """Removes a copy, once it is packed."""
    shutil.rmtree(_folder(source, cache), ignore_errors=True)
