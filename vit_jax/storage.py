"""Where a run directory is: on a disk, or in a bucket, which knows no appends and no renames."""

import atexit
import contextlib
import logging
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any, cast

from vit_jax.config import ConfigError, UserError

log = logging.getLogger("vit_jax")

BUCKET = "gs://"
KEPT = ("metrics.jsonl", "sessions.json")  # what a resumed run goes on writing
PERIOD = 30.0  # seconds; Google takes one write a second of the same object


class BucketError(OSError):
    """What a bucket or the way to it has refused."""

    def __str__(self) -> str:
        return str(self.strerror)


def as_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a path on a disk, or one that begins with gs://.

    The latter is etils' Path, which has the methods of pathlib's that run directories need.
    """
    text = os.fspath(path)
    if not is_remote(text):
        return pathlib.Path(text)
    import fsspec.config
    from etils import epath

    # gcsfs would remember listings for good: what other hosts and tensorstore write went unseen.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return cast(pathlib.Path, epath.Path(text))


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is in a bucket."""
    return os.fspath(path).startswith(BUCKET)


def reason(error: BaseException) -> str:
    """Returns what an error of another library says, in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextlib.contextmanager
def readable_errors(what: str, kind: type[UserError] = ConfigError) -> Iterator[None]:
    """Turns what a file system that is not local raises into one line that begins with `what`.

    Without gs:// or the like in `what`, everything passes.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # gcsfs passes on what aiohttp and google-auth raise
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
    """Turns what gcsfs raises into OSErrors, as a disk would raise them."""
    try:
        yield
    except (OSError, UserError):
        raise
    except Exception as error:
        raise BucketError(0, reason(error)) from error


def modified(path: pathlib.Path) -> float:
    """Returns when a file was written, in seconds since the epoch."""
    found: Any = path.stat()
    return found.mtime if is_remote(path) else found.st_mtime


class RemoteSync:
    """A folder of this machine that stands for a run directory in a bucket.

    What grows line by line (metrics, TensorBoard events) is written there, and brought into the
    bucket now and then, before every checkpoint, and at the end: objects are replaced as a whole.
    A run directory on a disk is its own folder.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        """Takes over what an earlier process of the run has brought into the bucket."""
        self.folder = self._directory = directory
        self._remote = is_remote(directory)
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
        """Brings what has changed into the bucket, at most every 30 s or `now`; warns if it fails.

        A bucket that cannot be reached for a while costs nothing: the whole is kept here.
        """
        if not self._remote or (not now and time.monotonic() - self._at < PERIOD):
            return
        self._at = time.monotonic()
        try:
            for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
                status = file.stat()
                state = (status.st_size, status.st_mtime_ns)
                if self._done.get(file) != state:
                    (self._directory / file.relative_to(self.folder)).write_bytes(file.read_bytes())
                    self._done[file] = state
            self._failing = False
        except Exception as error:  # whatever gcsfs passes on; a run does not end for a curve
            if not self._failing:
                log.warning("%s: cannot be written now: %s", self._directory, reason(error))
            self._failing = True
