"""The hidden folder of an incomplete data set, locked by one command at a time."""

import contextlib
import fcntl
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator

from vit_jax.data.prepare import shards
from vit_jax.data.source import DataError
from vit_jax.utils import storage

Path = pathlib.Path

PLAN, WHOLE = "plan", "whole"
TEMPORARY = re.compile(r"\..+\.\d+")  # of `shards.write_records` and `storage.replacing`


def folder(target: Path) -> Path:
    """Returns the hidden folder for the data set `target`."""
    return target.with_name(f".{target.name}.part")


@contextlib.contextmanager
def alone(part: Path) -> Iterator[None]:
    """Holds a lock, so that a second command does not write the same files."""
    with shards.disk_errors(part):
        (part / WHOLE).mkdir(parents=True, exist_ok=True)
    with (part / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{part}: another command is packing this; wait for it") from None
        yield


@contextlib.contextmanager
def nothing_left(part: Path) -> Iterator[None]:
    """Removes the folder if the sources turn out to be unusable."""
    try:
        yield
    except BaseException:
        if not (part / PLAN).exists():  # nothing is packed yet
            shutil.rmtree(part, ignore_errors=True)
            with contextlib.suppress(OSError):
                part.parent.rmdir()
        raise


def begin(part: Path, fingerprint: str, first: Callable[[], None] | None = None) -> None:
    """Resumes an earlier attempt with the same images and settings, or starts a new one.

    Calls `first` before a new attempt starts. Raises DataError if an earlier attempt used other
    images or settings.
    """
    plan = part / PLAN
    for leftover in [*part.glob(".*"), *(part / WHOLE).glob(".*")]:
        leftover.unlink()
    if plan.exists() and plan.read_text() != fingerprint:
        raise DataError(
            f"{part}: was started with other images or settings; repeat those to resume, or "
            f"remove it to start over: rm -r {part}"
        )
    with shards.disk_errors(part):
        if first is not None and not plan.exists():
            first()
        storage.write_atomically(plan, fingerprint)


def publish(whole: Path, folder: Path) -> None:
    """Gives a finished data set its name, without files that killed processes left in it.

    Workers may outlive a killed command and write until the folder has its new name.
    """
    _remove_temporary(whole)
    whole.replace(folder)
    _remove_temporary(folder)


def _remove_temporary(folder: Path) -> None:
    for path in folder.glob(".*"):
        if TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def check_free(target: Path, needed: int, remedy: str) -> None:
    """Raises PrepareError if `needed` bytes exceed the free space of the disk of `target`."""
    free = free_bytes(target)
    if needed > free:
        raise shards.PrepareError(
            f"{target.parent.parent}: {needed / 1e9:,.1f} GB are needed and {free / 1e9:,.1f} GB "
            f"free; {remedy}"
        )


def free_bytes(target: Path) -> int:
    """Returns the free space of the disk that a file or folder is on, or would be on."""
    return shutil.disk_usage(nearest_existing(target)).free


def nearest_existing(path: Path) -> Path:
    """Returns a path, or the nearest of its parents that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
