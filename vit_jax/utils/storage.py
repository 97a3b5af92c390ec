"""Files on a disk or in a bucket: paths, durable writes, digests, errors in one line."""

import atexit
import contextlib
import hashlib
import json
import logging
import math
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, cast

from vit_jax.utils import limits, messages
from vit_jax.utils.errors import NO_ROOM, ConfigError, LeaseLost, NotWritten, UserError

log = logging.getLogger("vit_jax")

BUCKET = "gs://"
TRACKING = "tracking.json"  # what a run is called by tracking services
KEPT = ("metrics.jsonl", "sessions.json", TRACKING)  # files that a resumed run goes on with
PERIOD = 30.0  # seconds; GCS allows one write per second to an object


class BucketError(OSError):
    """A bucket request failed."""

    def __str__(self) -> str:
        return str(self.strerror)


def as_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """A local path, or a remote one that begins with gs://.

    A remote path is an etils Path, which provides the pathlib methods that run directories need.
    """
    text = os.fspath(path)
    if not is_remote(text):
        return pathlib.Path(os.path.expanduser(text))  # noqa: PTH111 (an unknown ~user stays)
    import fsspec.config
    from etils import epath

    # gcsfs caches listings forever and would miss files written by other hosts or tensorstore.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs what it raises
    return cast(pathlib.Path, epath.Path(text))


def cache_folder(option: str, folder: str) -> pathlib.Path:
    """The folder of an option or of its default, absolute; raises ConfigError without its home."""
    try:
        return pathlib.Path(folder).expanduser().absolute()
    except RuntimeError as error:  # an unknown ~user, or an account without a home
        raise ConfigError(
            f"{folder}: has no home directory; name another folder with {option}"
        ) from error


def path_text(option: str, path: object) -> str:
    """The text of a path that an option gives; raises ConfigError for what is none."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(f"{option}: must be text or a path, not {type(path).__name__}")
    if "\0" in text:
        raise ConfigError(f"{option}={text!r}: has a null character, which no path has")
    return text


def as_paths(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[str | os.PathLike[str], ...]:
    """One path or several; what is neither counts as one, and is refused where it is used."""
    # A text is iterable too, by letters.
    if isinstance(given, str | os.PathLike) or not isinstance(given, Iterable):
        return (given,)
    return tuple(given)


def given_path(option: str, path: str | os.PathLike[str], *, remote: bool = True) -> pathlib.Path:
    """The path of an option, on a disk or, if `remote`, gs://; raises ConfigError for others."""
    text = path_text(option, path)
    if why := path_problem(text, remote=remote):
        raise ConfigError(f"{option}={text}: {why}")
    return as_path(text)


def given_page(option: str, path: str | os.PathLike[str] | None) -> pathlib.Path | None:
    """The HTML page on a disk that an option names, if any; raises ConfigError for others."""
    if path is None:
        return None
    page = given_path(option, path, remote=False)
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{option}={page}: must end in .html")
    if page.is_dir():
        raise ConfigError(f"{option}={page}: is a folder")
    if not page.exists():
        check_creatable(page, flag=option)
    return page


def check_creatable(path: pathlib.Path, *files: pathlib.Path, flag: str = "--output") -> None:
    """Raises ConfigError unless `flag`=`path`, of these local files, can be created."""
    for file in files or (path,):
        if file.exists():
            raise ConfigError(f"{flag}={path}: {file} exists; remove it or name another")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag}={path}: no such folder as {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{flag}={path}: {path.parent} cannot be written to")


def check_folder(path: pathlib.Path) -> None:
    """Raises ConfigError unless the folder --output=`path` is there or can be made.

    In a bucket, only writing tells.
    """
    if is_remote(path):
        return
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ConfigError(f"--output={path}: {there} is no folder")
    if not os.access(there, os.W_OK):
        raise ConfigError(f"--output={path}: {there} cannot be written to")


def path_problem(text: str, *, remote: bool) -> str:
    """Why a text is no path on a disk or, if `remote`, gs://, and the remedy; empty if it is."""
    if not text:  # as of a variable of the shell that is not set
        return "is empty; name a path, or . for the current folder"
    if "://" not in text or (remote and is_remote(text)):
        return ""
    if text.startswith("file://"):
        return f"is an address; write the path, {text.removeprefix('file://')}"
    if remote:
        return "cannot be opened; copy it to a disk, or to a gs:// bucket"
    if text.startswith(("http://", "https://")):
        return "is a web address; name a path on a disk, such as that of its download"
    return "must be on a disk; copy it there, or mount the bucket (gcsfuse)"


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is in a bucket."""
    return os.fspath(path).startswith(BUCKET)


def reason(error: BaseException) -> str:
    """A library error's message as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextlib.contextmanager
def errors_as(kind: type[UserError], what: str) -> Iterator[None]:
    """Turns an OSError into a one-line error: `what`, then the reason.

    On a full disk it is NotWritten, whose exit code says that a retry may succeed.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:  # which pyarrow tells in a text of its own
            raise NotWritten(f"{what}: {os.strerror(error.errno)}") from error
        raise kind(f"{what}: {error.strerror or error}") from error


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
    """Adds the file's name to an OSError: writes and flushes raise it without one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def writing(flag: str, path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Turns an OSError into a ConfigError (NotWritten) that names the flag and its path."""
    return errors_as(ConfigError, f"{flag}={path}: cannot be written")


@contextlib.contextmanager
def readable_errors(what: str, kind: type[UserError] = ConfigError) -> Iterator[None]:
    """Turns remote file system errors into a one-line error that begins with `what`.

    Errors pass unchanged if `what` contains no remote scheme such as gs://.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # gcsfs propagates aiohttp and google-auth errors
        if "://" not in what:
            raise
        if isinstance(error, ImportError):
            raise kind(f"{what}: needs gcsfs: pip install 'vit_jax[gcs]'") from None
        raise kind(
            f"{what}: cannot be read: {reason(error)}; for a private bucket first: "
            "gcloud auth application-default login"
        ) from None


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Turns gcsfs errors into OSErrors, as a local disk would raise."""
    try:
        yield
    except (OSError, UserError):
        raise
    except Exception as error:
        raise BucketError(0, reason(error)) from error


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a hidden path next to `path` for a file or folder, then renames that to `path`.

    The final name never holds partial content: everything is on the disk before the rename, and
    nothing is left after an error. Raises OSError.
    """
    # In the same folder: a rename is atomic within one file system only. By process, as another one
    # may be writing the same file.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        # A rename may reach the disk before the contents do; after a crash the file would be empty.
        for one in (*part.rglob("*"), part):
            sync(one)
        part.replace(path)
    except OSError as error:
        if error.filename is None or str(error.filename).startswith(str(part)):
            error.filename = str(path)  # not its hidden name
        raise
    finally:  # free the space on a full disk
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file atomically: the final name never holds partial content; raises OSError."""
    # A name of a file that is no UTF-8 holds lone surrogates, which cannot be encoded.
    content = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    if is_remote(path):  # object writes are atomic
        with os_errors():
            path.write_bytes(content)
        return
    with replacing(path) as part:
        part.write_bytes(content)


def append_line(path: pathlib.Path, values: Mapping[str, object]) -> None:
    """Adds a line of JSON to a local file, which is on the disk on return; raises OSError.

    The file and its folders are created if they are missing.
    """
    # First: values that are no JSON create neither folder nor file.
    line = as_line(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), open_lines(path) as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def open_lines(path: pathlib.Path) -> IO[bytes]:
    """Opens a file of JSON lines to add to; raises OSError.

    A line that a killed process, or a full disk, cut short stays what it is: the next one starts
    after it, and `read_lines` passes over it.
    """
    file = path.open("a+b")
    # A file opened to append is at its end: 0 means empty.
    if file.tell():
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")  # at the end, wherever the file was read
    return file


def as_line(values: Mapping[str, object]) -> bytes:
    """One line of JSON; numbers that are not finite become null, as JSON has none."""
    try:
        text = json.dumps(values, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(values), allow_nan=False)
    return f"{text}\n".encode()


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(
    path: pathlib.Path, most: int, say: Callable[[str], None] = lambda line: None
) -> Iterator[tuple[int, Any]]:
    """Yields the number and the values of each line of a file of JSON lines.

    `say` is called about the lines that are no JSON, which are passed over: a process was killed,
    or the disk was full, while it wrote one.

    Raises OSError, or LimitError for a file that is too large.
    """
    torn = []
    for number, line in enumerate(limits.read_file(path, most).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            values = limits.load_json(line)
        except ValueError:
            torn.append(number)
            continue
        yield number, values
    if torn:
        where = f"line {torn[0]}{messages.more(torn)}"
        say(f"{path}: {where} is not JSON (cut short or damaged); passed over")


def fill(source: Any, buffer: memoryview) -> None:
    """Reads until a buffer of bytes is full, 1 MiB at a time; raises EOFError if the file ends."""
    start = 0
    while start < len(buffer):
        # In pieces, as the readinto of a zip archive's member allocates all that it reads.
        count = source.readinto(buffer[start : start + 2**20])
        if not count:
            raise EOFError(f"{start} bytes of {len(buffer)}")
        start += count


def sync(path: str | os.PathLike[str]) -> None:
    """Flushes a file or folder to the disk."""
    # A folder opens for reading only, and fsync needs no more.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(pathlib.Path(path)):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: pathlib.Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shortage(path: pathlib.Path, needed: int) -> str:
    """`2.0 GB are needed and 1.0 GB free` where a disk has too little room; empty where it has."""
    free = free_bytes(path)
    if needed <= free:
        return ""
    return f"{messages.size_text(needed)} are needed and {messages.size_text(free)} free"


def free_bytes(path: pathlib.Path) -> int:
    """The free space of the disk that a file or folder is on, or would be on."""
    return shutil.disk_usage(nearest_existing(path)).free


def nearest_existing(path: pathlib.Path) -> pathlib.Path:
    """A path, or the nearest of its parents that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def modified(path: pathlib.Path) -> float:
    """A file's modification time in seconds since the epoch."""
    # etils calls it mtime.
    found: Any = path.stat()
    return found.mtime if is_remote(path) else found.st_mtime


class RemoteSync:
    """A local folder that mirrors a run directory in a bucket.

    Append-only files (metrics, TensorBoard events) are written locally and uploaded
    periodically, before every checkpoint, and at the end, because objects can only be replaced
    whole. A local run directory needs no mirror and serves as its own folder.
    """

    def __init__(
        self, directory: pathlib.Path, check_lease: Callable[[], None] = lambda: None
    ) -> None:
        """Downloads the files that an earlier process of the run uploaded.

        `check_lease` is called before an upload, and raises LeaseLost.
        """
        self.folder = self._directory = directory
        self._remote, self._check = is_remote(directory), check_lease
        if not self._remote:
            return
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="vit_jax_"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._done: dict[pathlib.Path, tuple[int, int]] = {}
        self._at, self._failing = time.monotonic(), False
        for name in KEPT:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / name).write_bytes((directory / name).read_bytes())

    def bring(self, *, now: bool = False) -> None:
        """Uploads changed files, at most every 30 s or immediately if `now`; warns on failure.

        A temporary outage loses nothing: the local folder keeps the complete files.
        """
        if not self._remote or (not now and time.monotonic() - self._at < PERIOD):
            return
        self._at = time.monotonic()
        try:
            self._check()
            for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
                status = file.stat()
                # Taken before reading: what is added meanwhile counts as a change.
                state = (status.st_size, status.st_mtime_ns)
                if self._done.get(file) != state:
                    (self._directory / file.relative_to(self.folder)).write_bytes(file.read_bytes())
                    # After the upload: one that fails is repeated.
                    self._done[file] = state
            self._failing = False
        except LeaseLost:
            raise
        except Exception as error:  # any gcsfs error; a failed metrics upload must not end the run
            if not self._failing:
                log.warning("%s: cannot be written now: %s", self._directory, reason(error))
            self._failing = True
