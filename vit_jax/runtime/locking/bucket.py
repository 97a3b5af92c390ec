"""A lease object in a bucket: every write is conditional on the generation last seen."""

import contextlib
import pathlib
from typing import Any

from vit_jax.runtime.locking.holder import Holder
from vit_jax.utils import storage

Version = int  # Google's generation of the object, a new one with every write
ABSENT = 0


class BucketLock:
    """An object that names its holder, which rewrites it every `RENEW` seconds."""

    def __init__(self, path: pathlib.Path, me: Holder) -> None:
        import fsspec

        self._fs: Any = fsspec.filesystem("gcs")  # the instance that etils' paths have
        self._path, self._me = path, me
        self._bucket, _, self._name = str(path).removeprefix(storage.BUCKET).partition("/")
        self._generation: Version = ABSENT

    def take(self) -> bool:
        """Takes the lease if none exists."""
        return self._write(ABSENT)

    def look(self) -> tuple[Version | None, Holder | None]:
        """Returns the version, which each renewal changes, and the holder; None if missing."""
        try:
            with storage.os_errors():
                about = self._fs.call("GET", "b/{}/o/{}", self._bucket, self._name, json_out=True)
                return int(about["generation"]), Holder.parse(self._path.read_bytes())
        except FileNotFoundError:
            return None, None

    def seize(self, version: Version) -> bool:
        """Takes a lease that has not been renewed since `version`."""
        return self._write(version)

    def renew(self) -> bool:
        """Renews the lease; returns False if another process holds it."""
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
        """Writes the object if unchanged since seen; returns whether this process now owns it."""
        try:
            with storage.os_errors():
                about = self._fs.call(
                    "POST",
                    self._fs.base.replace("/storage/", "/upload/storage/") + "b/{}/o",
                    self._bucket,
                    uploadType="media",
                    name=self._name,
                    ifGenerationMatch=str(expected),
                    data=self._me.dump(),
                    json_out=True,
                )
            self._generation = int(about["generation"])
            return True
        except OSError as error:
            if not _is_precondition(error):
                raise
        # After a lost response gcsfs retries: the object found then may be our own.
        found, holder = self.look()
        if found is None or holder is None or holder.token != self._me.token:
            return False
        self._generation = found
        return True


def _is_precondition(error: OSError) -> bool:
    """Returns whether GCS rejected the write because the object changed (HTTP 412)."""
    cause = error.__cause__  # HttpError with a code, in releases of gcsfs before 2026
    return isinstance(error, FileExistsError) or str(getattr(cause, "code", "")) == "412"
