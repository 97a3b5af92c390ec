"""Acquires, renews and releases a lock on any storage."""

import contextlib
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from vit_jax import config
from vit_jax.runtime import logs
from vit_jax.runtime.locking.bucket import BucketLock
from vit_jax.runtime.locking.disk import DiskLock
from vit_jax.runtime.locking.holder import Holder
from vit_jax.utils import errors, storage

NAME = "run.lock"
RENEW = 15.0  # seconds between renewals
LEASE = 90.0  # seconds without renewal after which a lock is taken over
NEAR = 3.0  # seconds to wait for a process on this machine to end, e.g. after its parent was killed
LOOK = 0.2  # seconds between attempts

Lock = BucketLock | DiskLock
Check = Callable[[], None]


class InUse(config.ConfigError):
    """Another process holds the lock."""


class Lease:
    """A lock that this process has taken, and others may take over while it does not run."""

    def __init__(self, lock: Lock, me: Holder, workdir: pathlib.Path) -> None:
        self._lock, self._me, self._workdir = lock, me, workdir

    def check(self) -> None:
        """Renews the lock; raises LeaseLost if another process has taken it over.

        To call before anything is committed: a process that was suspended cannot know for how long.
        Raises OSError if the storage does not answer.
        """
        renewed, (_, holder) = self._lock.renew(), self._lock.look()
        if not renewed or (holder is not None and holder.token != self._me.token):
            raise errors.LeaseLost(
                f"--workdir={self._workdir}: taken over by {_name(holder)}, so this process saves "
                "nothing more"
            )


@contextlib.contextmanager
def exclusive(workdir: pathlib.Path, name: str = NAME) -> Iterator[Lease]:
    """Holds the lock on a directory; raises InUse if another process holds it.

    Args:
      workdir: the directory, on a disk or in a bucket; one on a disk is created if missing.
      name: file or object name in it.

    Waits `NEAR` seconds for a live holder on this machine, and for one elsewhere until its first
    renewal, at most `LEASE` seconds.
    """
    me = Holder.me()
    lock: Lock = (BucketLock if storage.is_remote(workdir) else DiskLock)(workdir / name, me)
    lease = Lease(lock, me, workdir)
    try:
        with storage.readable_errors(f"--workdir={workdir}"):
            _take(lock, workdir)
        with _Renewal(lease):
            yield lease
    finally:
        lock.release()


@contextlib.contextmanager
def attempt(workdir: pathlib.Path, *, wanted: bool) -> Iterator[tuple[str | None, Check]]:
    """Holds the lock if available; otherwise reports the reason instead of raising.

    In a multi-process run the first process takes the lock for all (`wanted`), and tells the
    others once they have joined. Returns the reason, and `Lease.check`, which passes in the others.
    """
    with contextlib.ExitStack() as held:
        refusal, check = None, lambda: None
        if wanted:
            try:
                check = held.enter_context(exclusive(workdir)).check
            except InUse as error:
                refusal = str(error)
        yield refusal, check


def clear(workdir: pathlib.Path) -> None:
    """Deletes the contents of a directory on a disk; raises InUse if a run is active there."""
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
    first: Any = None  # first version seen, and when
    since, told = began, False
    while not _try(lock.take, workdir):
        time.sleep(LOOK)
        now = time.monotonic()
        version: Any
        version, holder = lock.look()
        if version is None:  # released just now
            continue
        if holder is None and now - began <= NEAR:  # just taken: holder not written yet
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
        # The holder died on this machine: on a disk the kernel frees its lock in a moment.
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
    if storage.is_remote(workdir):
        return take()
    with storage.writing("--workdir", workdir):
        return take()


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
    """A thread that renews a lock every `RENEW` seconds.

    If another process took the lock because this one was suspended or disconnected for longer than
    the lease, this process ends at once: otherwise both would write the same files.
    """

    def __init__(self, lease: Lease, *, end: Callable[[int], None] | None = None) -> None:
        self._lease, self._end = lease, end or os._exit
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
                self._lease.check()
            except OSError:
                continue  # the bucket or server is temporarily unreachable
            except errors.LeaseLost as lost:
                logs.log.error("%s", lost)
                self._end(lost.exit_code)
                return
