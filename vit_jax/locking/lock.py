"""Taking, keeping and releasing a lock, wherever it is."""

import contextlib
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from vit_jax import config, logs, storage
from vit_jax.locking.bucket import BucketLock
from vit_jax.locking.disk import DiskLock
from vit_jax.locking.holder import Holder

NAME = "run.lock"
RENEW = 15.0  # seconds between signs of life
LEASE = 90.0  # seconds without one after which a lock is taken over
NEAR = 3.0  # seconds that a process of this machine may take to end, as one whose parent was killed
LOOK = 0.2  # seconds between two tries
LOST = 70  # exit code of a process whose lock another one has taken over


class InUse(config.ConfigError):
    """Another process holds the lock."""


class Lock(Protocol):
    """A lock in one kind of storage; `disk.DiskLock` says what the methods do."""

    def take(self) -> bool:
        """Takes the lock if it is free."""
        ...

    def look(self) -> tuple[Any, Holder | None]:
        """Returns what changes with each renewal, and the holder."""
        ...

    def seize(self, version: Any) -> bool:
        """Takes a lock that has not been renewed since `version`."""
        ...

    def renew(self) -> bool:
        """Shows that the holder is alive; False: another process has the lock."""
        ...

    def release(self) -> None:
        """Gives the lock back."""
        ...


@contextlib.contextmanager
def exclusive(workdir: pathlib.Path, name: str = NAME) -> Iterator[None]:
    """Holds the lock of a directory; raises InUse where another process holds it.

    Args:
      workdir: the directory, on a disk or in a bucket; one on a disk is made if need be.
      name: of the file or object in it.

    A holder on this machine that lives is waited for `NEAR` seconds; one elsewhere until it shows
    that it is alive, at most `LEASE` seconds.
    """
    lock: Lock = (BucketLock if storage.is_remote(workdir) else DiskLock)(
        workdir / name, Holder.me()
    )
    try:
        with storage.readable_errors(f"--workdir={workdir}"):
            _take(lock, workdir)
        with _Renewal(lock, workdir):
            yield
    finally:
        lock.release()


@contextlib.contextmanager
def attempt(workdir: pathlib.Path, *, wanted: bool) -> Iterator[str | None]:
    """Holds the lock where it can be had, and says why not instead of raising it.

    Of several processes of a run the first one takes the lock for all (`wanted`), and tells the
    others once they have joined.
    """
    with contextlib.ExitStack() as held:
        refusal = None
        if wanted:
            try:
                held.enter_context(exclusive(workdir))
            except InUse as error:
                refusal = str(error)
        yield refusal


def clear(workdir: pathlib.Path) -> None:
    """Deletes all that is in a directory on a disk; raises InUse where a run is going on there."""
    if not workdir.is_dir():
        return
    with exclusive(workdir):
        for path in workdir.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != NAME:
                path.unlink(missing_ok=True)


def _take(lock: Lock, workdir: pathlib.Path) -> None:
    """Waits until the lock is this process's, or raises InUse."""
    began = time.monotonic()
    first: Any = None  # as which the lock was first seen, and when
    since, told = began, False
    while not _try(lock.take, workdir):
        time.sleep(LOOK)
        now = time.monotonic()
        version, holder = lock.look()
        if version is None:  # released just now
            continue
        if holder is None and now - began <= NEAR:  # just taken: it has no name yet
            continue
        if holder is not None and holder.here() and not holder.ended():
            if now - began > NEAR:
                raise _in_use(workdir, holder)
            continue
        ended = holder is not None and holder.ended()
        if first is None:
            first, since = version, now
        elif version != first and not ended:
            raise _in_use(workdir, holder)
        # The lock of a dead process of this machine: on a disk the kernel frees it in a moment.
        if now - since > LEASE or (ended and storage.is_remote(workdir)):
            if not _try(partial(lock.seize, version), workdir):
                raise _in_use(workdir, lock.look()[1])
            if not ended:
                text = "%s: taken over: %s has not shown for %.0f s that it is alive"
                logs.log.warning(text, workdir, _name(holder), LEASE)
            return
        if now - began > NEAR and not told:
            told = True
            text = "%s: locked by %s; waiting for its end or a sign of life, %.0f s at most"
            logs.log.warning(text, workdir, _name(holder), LEASE)


def _try(take: Callable[[], bool], workdir: pathlib.Path) -> bool:
    try:
        return take()
    except OSError as error:
        if storage.is_remote(workdir):
            raise
        kind = logs.NotWritten if error.errno in config.NO_ROOM else config.ConfigError
        raise kind(f"--workdir={workdir}: cannot be written: {error.strerror}") from error


def _name(holder: Holder | None) -> str:
    if holder is None:
        return "another process"
    age = logs.duration(max(time.time() - holder.began, 0))
    return f"process {holder.pid} on {holder.host} for {age}"


def _in_use(workdir: pathlib.Path, holder: Holder | None) -> InUse:
    return InUse(
        f"--workdir={workdir}: in use by {_name(holder)}; wait for its end, stop it, or choose "
        "another --workdir"
    )


class _Renewal:
    """A thread that shows every `RENEW` seconds that the holder of a lock is alive.

    Where another process has taken the lock over, as this one was suspended or cut off for longer
    than the lease, this process ends at once: both would write the same files.
    """

    def __init__(
        self, lock: Lock, workdir: pathlib.Path, *, end: Callable[[int], None] | None = None
    ) -> None:
        self._lock, self._workdir, self._end = lock, workdir, end or os._exit
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lock", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._done.wait(RENEW):
            try:
                if self._lock.renew():
                    continue
                holder = self._lock.look()[1]
            except OSError:
                continue  # a bucket or server that does not answer now
            text = "--workdir=%s: taken over by %s, so this process ends"
            logs.log.error(text, self._workdir, _name(holder))
            self._end(LOST)
            return
