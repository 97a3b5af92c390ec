"""Ends a process that is stuck, and says where: collectives and reads have no time-out."""

import contextlib
import faulthandler
import os
import platform
import threading
from collections.abc import Callable, Mapping

from vit_jax.runtime import logs
from vit_jax.runtime.phase_timer import PhaseTimer

EXIT_CODE = 70  # worth a retry
STDERR = 2  # a capture of sys.stderr has no file
GRACE = 30.0  # seconds until the process is ended without this thread


class Watchdog:
    """Watches phases in a thread, between entering and leaving a `with` statement.

    A phase that does not get on within its limit is named, with the stacks of all threads, and the
    process ends with code 70. Where some code holds the interpreter's lock, so that no other thread
    runs, a timer of `faulthandler` that needs no lock prints the stacks and ends it with code 1.
    """

    def __init__(
        self,
        phases: PhaseTimer,
        limits: Mapping[str, float | None],
        *,
        poll: float = 1.0,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Takes the limits in seconds by phase; phases without one may take any time."""
        self._phases, self._limits, self._poll, self._end = phases, limits, poll, end
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(faulthandler.cancel_dump_traceback_later)
            while not self._done.wait(self._poll):
                phase, idle = self._phases.now
                limit = self._limits.get(phase)
                if limit is None:
                    faulthandler.cancel_dump_traceback_later()
                    continue
                if idle > limit:
                    self._say(phase, idle, limit)
                    self._end(EXIT_CODE)
                    return
                left = limit - idle + GRACE + self._poll
                faulthandler.dump_traceback_later(left, exit=True, file=STDERR)

    def _say(self, phase: str, idle: float, limit: float) -> None:
        logs.log.error(
            "stuck: %s has not got on for %.0f s on host %s (watchdog.%s=%g); raise that if it "
            "was only slow; the stacks of all threads:",
            phase,
            idle,
            platform.node(),
            phase,
            limit,
        )
        faulthandler.dump_traceback(file=STDERR)
