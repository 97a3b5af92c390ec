"""The holder of a lock, as recorded in the file or lease object."""

import dataclasses
import functools
import json
import os
import pathlib
import platform
import secrets
import time

from vit_jax.utils import limits

PROC = pathlib.Path("/proc")


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
    def me(cls) -> "Holder":
        """Returns this process, with a new token."""
        return cls(
            host=platform.node(),
            pid=os.getpid(),
            began=time.time(),
            machine=machine(),
            started=_started(os.getpid()) or 0,
            token=secrets.token_hex(8),
        )

    @classmethod
    def parse(cls, content: bytes) -> "Holder | None":
        """Parses the output of `dump`; returns None for other or incomplete text."""
        try:
            values = limits.load_json(content)
            found = cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
            sound = (
                all(isinstance(text, str) for text in (found.host, found.machine, found.token))
                and all(isinstance(number, int) for number in (found.pid, found.started))
                and isinstance(found.began, int | float)
            )
        except (ValueError, TypeError, KeyError):
            return None
        return found if sound else None

    def dump(self) -> bytes:
        """Returns one line of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    def here(self) -> bool:
        """Returns whether its process ID is valid on this machine."""
        return bool(self.machine) and self.machine == machine()

    def ended(self) -> bool:
        """Returns whether it is known to have ended; False if it is elsewhere."""
        return self.here() and _started(self.pid) != self.started


@functools.cache
def machine() -> str:
    """Returns a unique ID of this boot and process namespace; empty if unknown.

    A host name is not unique: containers often share one.
    """
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Returns the start time of a process; None if it does not exist or is a zombie."""
    try:
        # The name, in parentheses, may contain any character; the state and numbers follow it.
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
