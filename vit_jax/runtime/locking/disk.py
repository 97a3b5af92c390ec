"""A lock file on a disk, locked by the kernel or the file server."""

import contextlib
import errno
import fcntl
import os
import pathlib
import time

from vit_jax.runtime import logs
from vit_jax.runtime.locking.holder import Holder

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
ATTEMPTS = 100  # to create the folder and open the file in it
SETTLE = 2.0  # seconds until a seized lock is checked again

Version = tuple[int, int]  # inode and modification time, which each renewal sets


class DiskLock:
    """A file under `flock`; its content names the holder.

    The file is deleted when the lock is released. A process that locks a file therefore checks that
    its name still exists. On a file system without locks, a warning says that the directory is
    unprotected.
    """

    def __init__(self, path: pathlib.Path, me: Holder) -> None:
        self._path, self._me = path, me
        self._descriptor: int | None = None
        self._made: list[pathlib.Path] = []

    def take(self) -> bool:
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
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._me.dump(), 0)
        return True

    def look(self) -> tuple[Version | None, Holder | None]:
        """Returns the version, which each renewal changes, and the holder; None if missing."""
        try:
            with self._path.open("rb") as file:  # opening avoids stale times
                status = os.fstat(file.fileno())
                return (status.st_ino, status.st_mtime_ns), Holder.parse(file.read(4096))
        except OSError:
            return None, None

    def seize(self, version: Version) -> bool:
        """Takes a lock that has not been renewed since `version`, e.g. from a vanished machine."""
        if self.look()[0] == version:
            with contextlib.suppress(OSError):
                self._path.unlink()
        if not self.take():
            return False
        # Two may have looked before either deleted: of them only the second one's file has a name.
        time.sleep(SETTLE)
        return self.renew()

    def renew(self) -> bool:
        """Renews the lock; returns False if another process holds it."""
        assert self._descriptor is not None
        os.utime(self._descriptor)
        # Without a name it was deleted together with its folder: that is not another's lock.
        return self._inode() in (None, os.fstat(self._descriptor).st_ino)

    def release(self) -> None:
        """Releases the lock and deletes the folders created only for it."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                if self._inode() == os.fstat(self._descriptor).st_ino:
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _open(self) -> int:
        """Opens the file after creating its folder, which another holder may delete meanwhile."""
        attempts = 0
        while True:
            try:
                self._make_folder()
                return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except (FileExistsError, FileNotFoundError):
                attempts += 1
                if attempts == ATTEMPTS:
                    raise

    def _make_folder(self) -> None:
        folder = self._path.parent
        new = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._made = self._made or new

    def _inode(self) -> int | None:
        try:
            return self._path.stat().st_ino
        except OSError:
            return None
