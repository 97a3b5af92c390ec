"""An exclusive lock on a run directory, so that two processes do not destroy each other's saves.

On a disk the lock is a file under `flock`, which the kernel frees as soon as the holder ends, for
any reason. In a bucket it is a lease object. In both cases the holder renews it every `RENEW`
seconds. A waiting process takes over a lock that it has not seen renewed for `LEASE` seconds: a
machine that vanished releases neither a lease nor, on NFS 3, a file lock.

Only commands that write runs take the lock; `evaluate`, `predict`, `report` and the like do not.
"""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import json
import os
import pathlib
import platform
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from vit_jax import config
from vit_jax.runtime import logs
from vit_jax.utils import errors, limits, storage

NAME = "run.lock"
RENEW = 15.0  # seconds between renewals
LEASE = 90.0  # seconds without renewal, six of them missed, after which a lock is taken over
NEAR = 3.0  # seconds to wait for a process on this machine to end, e.g. after its parent was killed
POLL = 0.2  # seconds between attempts
SETTLE = 2.0  # seconds until a lock file that was taken over is checked again
ATTEMPTS = 100  # to create the folder and open the file in it

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
ABSENT = 0  # generation of an object that does not exist
PROC = pathlib.Path("/proc")

Version = object  # changes with each renewal: a file's inode and time, an object's generation


class InUse(config.ConfigError):
    """Another process holds the lock."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that holds a lock.

    Attributes:
      host: host name.
      pid: process ID on that host.
      began: when it took the lock, in seconds since the epoch by its own clock.
      machine: boot ID and process namespace of `pid`; empty if unknown.
      started: when the process was started, in ticks since that boot; a number alone is reused.
      token: random, different each time a lock is taken.
    """

    host: str
    pid: int
    began: float
    machine: str
    started: int
    token: str

    @classmethod
    def current(cls) -> "Holder":
        """This process, with a new token."""
        return cls(
            host=platform.node(),
            pid=os.getpid(),
            began=time.time(),
            machine=machine_id(),
            started=_started(os.getpid()) or 0,
            token=secrets.token_hex(8),
        )

    @classmethod
    def parse(cls, content: bytes) -> "Holder | None":
        """Parses the output of `dump`; None for other or incomplete text."""
        fields = dataclasses.fields(cls)
        try:
            # A file may be read while its holder writes it, or come from another program.
            values = limits.load_json(content)
            found = cls(**{one.name: values[one.name] for one in fields})
        except (ValueError, TypeError, KeyError):
            return None
        kinds: dict[str, Any] = {one.name: one.type for one in fields} | {"began": int | float}
        typed = all(isinstance(getattr(found, name), kind) for name, kind in kinds.items())
        return found if typed else None

    def dump(self) -> bytes:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    def is_local(self) -> bool:
        """Whether its process ID is valid on this machine."""
        return bool(self.machine) and self.machine == machine_id()

    def has_ended(self) -> bool:
        """Whether it is known to have ended; False if it is elsewhere."""
        return self.is_local() and _started(self.pid) != self.started


class Lease:
    """A lock that this process has taken, and renews in a thread every `RENEW` seconds.

    Another process takes it over when this one has been suspended or disconnected for longer than
    `LEASE`. This process then ends at once: otherwise both would write the same files.
    """

    def __init__(
        self,
        lock: "DiskLock | BucketLock",
        workdir: pathlib.Path,
        *,
        end: Callable[[int], None] | None = None,
    ) -> None:
        self._lock, self._workdir, self._end = lock, workdir, end or os._exit
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lock", daemon=True)

    def __enter__(self) -> "Lease":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def ensure_held(self) -> None:
        """Renews the lock; raises LeaseLost if another process has taken it over.

        Call it before anything is committed: a process that was suspended cannot tell how long.
        Raises OSError if the storage does not answer.
        """
        # The inode alone does not decide: a file server may give a new file the old one's number.
        renewed, (_, holder) = self._lock.renew(), self._lock.read()
        if not renewed or (holder is not None and holder.token != self._lock.me.token):
            raise errors.LeaseLost(
                f"--workdir={self._workdir}: taken over by {_name(holder)}, so this process saves "
                "nothing more"
            )

    def _renew(self) -> None:
        while not self._done.wait(RENEW):
            try:
                self.ensure_held()
            except OSError:
                continue  # the bucket or server is temporarily unreachable
            except errors.LeaseLost as lost:
                logs.log.error("%s", lost)
                # By `os._exit`: an exception would end this thread only.
                self._end(lost.exit_code)
                return


@contextlib.contextmanager
def exclusive(workdir: pathlib.Path, name: str = NAME) -> Iterator[Lease]:
    """Holds the lock on a directory; raises InUse if another process holds it.

    A directory on a disk is created if missing.

    Waits `NEAR` seconds for a live holder on this machine, and for one elsewhere until its first
    renewal, at most `LEASE` seconds.
    """
    remote = storage.is_remote(workdir)
    lock = (BucketLock if remote else DiskLock)(workdir / name, Holder.current())
    flag = f"--workdir={workdir}"
    try:
        with storage.readable_errors(flag) if remote else storage.writing("--workdir", workdir):
            _wait(lock, workdir)
        # Joins the renewing thread before the release below: a late renewal would undo it.
        with Lease(lock, workdir) as lease:
            yield lease
    finally:
        lock.release()


@contextlib.contextmanager
def attempt(
    workdir: pathlib.Path, *, wanted: bool
) -> Iterator[tuple[str | None, Callable[[], None]]]:
    """Holds the lock if it is free; reports why not instead of raising.

    In a multi-process run the first process takes the lock for all (`wanted`), and tells the
    others once they have joined. Yields the reason, and `Lease.ensure_held`, which passes in the
    others.
    """
    with contextlib.ExitStack() as held:
        refusal, check = None, lambda: None
        if wanted:
            try:
                check = held.enter_context(exclusive(workdir)).ensure_held
            except InUse as error:
                refusal = str(error)
        yield refusal, check


def clear(workdir: pathlib.Path) -> None:
    """Deletes the contents of a directory on a disk; raises InUse if a run is active there."""
    if not workdir.is_dir():
        return
    with exclusive(workdir):
        # The lock file stays until the lock is released.
        for path in workdir.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != NAME:
                path.unlink(missing_ok=True)


def _wait(lock: "DiskLock | BucketLock", workdir: pathlib.Path) -> None:
    """Waits until the lock is this process's, or raises InUse."""
    began = since = time.monotonic()
    seen: Version | None = None  # the first version of a holder elsewhere, since when
    logged = False
    while not lock.acquire():
        time.sleep(POLL)
        now = time.monotonic()
        version, holder = lock.read()
        if version is None or (holder is None and now - began <= NEAR):
            continue  # released just now, or taken: its holder is not written yet
        ended = holder is not None and holder.has_ended()
        if holder is not None and holder.is_local() and not ended:
            if now - began > NEAR:
                raise _refusal(workdir, holder)
            continue
        if seen is None:
            # Its age is measured by this machine's clock: those of two hosts may differ.
            seen, since = version, now
        # It was renewed, so its holder is alive.
        elif version != seen and not ended:
            raise _refusal(workdir, holder)
        # The holder died on this machine: on a disk the kernel frees its lock at once.
        if now - since > LEASE or (ended and storage.is_remote(workdir)):
            # Another waiting process may have been faster.
            if not lock.take_over(version):
                raise _refusal(workdir, lock.read()[1])
            if not ended:
                text = "%s: taken over: %s has not shown for %.0f s that it is alive"
                logs.log.warning(text, workdir, _name(holder), LEASE)
            return
        if now - began > NEAR and not logged:
            logged = True
            text = "%s: locked by %s; waiting for its end or a sign of life, %.0f s at most"
            logs.log.warning(text, workdir, _name(holder), LEASE)


def _name(holder: Holder | None) -> str:
    if holder is None:
        return "another process"
    age = logs.duration(max(time.time() - holder.began, 0))
    return f"process {holder.pid} on {holder.host} for {age}"


def _refusal(workdir: pathlib.Path, holder: Holder | None) -> InUse:
    return InUse(
        f"--workdir={workdir}: in use by {_name(holder)}; wait for its end, stop it, or choose "
        "another --workdir"
    )


class DiskLock:
    """A file under `flock`; its content names the holder.

    The file is deleted when the lock is released. A process that locks a file therefore checks that
    its name still exists. On a file system without locks, a warning says that the directory is
    unprotected.
    """

    def __init__(self, path: pathlib.Path, me: Holder) -> None:
        self._path, self.me = path, me
        self._descriptor: int | None = None
        self._made: list[pathlib.Path] = []

    def acquire(self) -> bool:
        """Takes the lock if it is free; raises OSError if the file cannot be created."""
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                if isinstance(error, BlockingIOError):
                    return False
                raise
            logs.log.warning(
                "%s: this file system has no locks (%s): nothing keeps a second process out",
                self._path.parent,
                error.strerror,
            )
        if self._inode() != os.fstat(descriptor).st_ino:  # its holder has just deleted it
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk: the lock holds, without a name
            # Emptied only now: until the lock is taken, the name in it is the holder's.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self.me.dump(), 0)
        return True

    def read(self) -> tuple[Version | None, Holder | None]:
        """Version and holder; None if missing."""
        try:
            with self._path.open("rb") as file:  # opening avoids stale times
                status = os.fstat(file.fileno())
                return (status.st_ino, status.st_mtime_ns), Holder.parse(file.read(4096))
        except OSError:
            return None, None

    def take_over(self, version: Version) -> bool:
        """Takes a lock that has not been renewed since `version`, e.g. from a vanished machine."""
        if self.read()[0] == version:
            with contextlib.suppress(OSError):
                # The server may still hold the vanished machine's lock on the old file.
                self._path.unlink()
        if not self.acquire():
            return False
        # Of two that read the version before either deleted, only the second one's file has a name.
        time.sleep(SETTLE)
        return self.renew()

    def renew(self) -> bool:
        """Renews the lock; False if another process holds it."""
        assert self._descriptor is not None
        # By descriptor: after a takeover, the path would renew another process's lock.
        os.utime(self._descriptor)
        # Without a name it was deleted together with its folder: that is not another's lock.
        return self._inode() in (None, os.fstat(self._descriptor).st_ino)

    def release(self) -> None:
        """Releases the lock and deletes the folders created only for it."""
        # The name goes before the lock, or it would be taken from the next holder.
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                # After a takeover the name is another process's file.
                if self._inode() == os.fstat(self._descriptor).st_ino:
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None
        for folder in self._made:
            with contextlib.suppress(OSError):
                # The innermost first; one that is not empty stays.
                folder.rmdir()

    def _open(self) -> int:
        """Opens the file after creating its folder, which another holder may delete meanwhile."""
        folder = self._path.parent
        for left in reversed(range(ATTEMPTS)):
            try:
                new = [one for one in (folder, *folder.parents) if not one.exists()]
                folder.mkdir(parents=True, exist_ok=True)
                # An earlier attempt may have made more of them.
                self._made = self._made or new
                # O_CLOEXEC: a child that outlives this process must not keep the lock.
                return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            # mkdir raises FileExistsError if the folder vanishes before it checks `is_dir`.
            except (FileExistsError, FileNotFoundError):
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _inode(self) -> int | None:
        try:
            return self._path.stat().st_ino
        except OSError:
            return None


class BucketLock:
    """An object that names its holder, which rewrites it every `RENEW` seconds."""

    def __init__(self, path: pathlib.Path, me: Holder) -> None:
        import fsspec

        self._fs: Any = fsspec.filesystem("gcs")  # the instance that etils' paths have
        self._path, self.me = path, me
        self._bucket, _, self._name = str(path).removeprefix(storage.BUCKET).partition("/")
        self._generation = ABSENT

    def acquire(self) -> bool:
        """Takes the lease if none exists."""
        return self._write(ABSENT)

    def read(self) -> tuple[Version | None, Holder | None]:
        """Version and holder; None if missing."""
        try:
            with storage.os_errors():
                about = self._fs.call("GET", "b/{}/o/{}", self._bucket, self._name, json_out=True)
                return int(about["generation"]), Holder.parse(self._path.read_bytes())
        except FileNotFoundError:
            return None, None

    def take_over(self, version: Version) -> bool:
        """Takes a lease that has not been renewed since `version`."""
        return self._write(version)

    def renew(self) -> bool:
        """Renews the lease; False if another process holds it."""
        return self._write(self._generation)

    def release(self) -> None:
        """Releases the lease; if deletion fails, the lease expires."""
        if self._generation == ABSENT:
            return
        only = {"ifGenerationMatch": str(self._generation)}
        with contextlib.suppress(OSError), storage.os_errors():
            self._fs.call("DELETE", "b/{}/o/{}", self._bucket, self._name, **only)
        self._generation = ABSENT

    def _write(self, expected: Version) -> bool:
        """Writes the object if unchanged since seen; whether this process now owns it."""
        try:
            with storage.os_errors():
                about = self._fs.call(
                    "POST",
                    self._fs.base.replace("/storage/", "/upload/storage/") + "b/{}/o",
                    self._bucket,
                    uploadType="media",
                    name=self._name,
                    # 0, `ABSENT`: GCS writes the object only if none exists.
                    ifGenerationMatch=str(expected),
                    data=self.me.dump(),
                    json_out=True,
                )
            self._generation = int(about["generation"])
            return True
        except OSError as error:
            if not _is_precondition(error):
                raise
        # After a lost response gcsfs retries: the object found then may be our own.
        found, holder = self.read()
        if found is None or holder is None or holder.token != self.me.token:
            return False
        self._generation = found
        return True


def _is_precondition(error: OSError) -> bool:
    """Whether GCS rejected the write because the object changed (HTTP 412)."""
    cause = error.__cause__  # HttpError with a code, in releases of gcsfs before 2026
    return isinstance(error, FileExistsError) or str(getattr(cause, "code", "")) == "412"


@functools.cache
def machine_id() -> str:
    """A unique ID of this boot and process namespace; empty if unknown.

    A host name is not unique: containers often share one.
    """
    try:
        # Containers on one machine share the boot, and number their processes each from 1.
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Start time of a process; None if it does not exist or is a zombie."""
    try:
        # The name, in parentheses, may contain any character; the state and numbers follow it.
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        # `starttime` is field 22 in proc(5), and these begin with field 3.
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
