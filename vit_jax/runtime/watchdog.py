"""Times the phases of a process, and ends one that is stuck: collectives have no time-out."""

import collections
import contextlib
import faulthandler
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from vit_jax.runtime import logs

EXIT_CODE = 70  # worth a retry
STDERR = 2  # sys.stderr may be captured, and then has no file
GRACE = 30.0  # seconds until the process is ended without this thread


class PhaseTimer:
    """Tracks time per phase and the last sign of progress; time goes to the innermost phase.

    Attributes:
      seconds: spent in each phase, up to the last change or beat.
    """

    def __init__(self, first: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._names, self._since = clock, [first], clock()
        self.seconds: dict[str, float] = collections.defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Enters a phase until the `with` statement ends."""
        self.beat()
        self._names.append(name)
        try:
            yield
        finally:
            self.beat()
            self._names.pop()

    def beat(self) -> None:
        """Notes progress: a step, a batch of an evaluation."""
        now = self._clock()
        self.seconds[self._names[-1]] += now - self._since
        self._since = now

    @property
    def now(self) -> tuple[str, float]:
        """The phase, and the seconds since its last progress."""
        return self._names[-1], self._clock() - self._since


class Watchdog:
    """Watches phases in a thread, between entering and leaving a `with` statement.

    A phase without progress for its limit is logged, with the stacks of all threads, and the
    process ends with code 70. Where some code holds the GIL, so that this thread cannot run, a
    timer of `faulthandler`, which needs no GIL, prints the stacks and ends the process with code 1.
    """

    def __init__(
        self,
        phases: PhaseTimer,
        limits: Mapping[str, float | None],
        *,
        poll: float = 1.0,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """`limits` are seconds by phase; a phase without one may take any time."""
        self._phases, self._limits, self._poll, self._end = phases, limits, poll, end
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            # Otherwise the timer would fire after the watchdog has stopped.
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
                # Set anew at every look, so it fires only if this thread cannot run.
                left = limit - idle + GRACE + self._poll
                faulthandler.dump_traceback_later(left, exit=True, file=STDERR)

    def _say(self, phase: str, idle: float, limit: float) -> None:
        logs.log.error(
            "watchdog: no progress in %s for %.0f s on host %s (watchdog.%s=%g); raise that if it "
            "was only slow; the stacks of all threads:",
            phase,
            idle,
            platform.node(),
            phase,
            limit,
        )
        faulthandler.dump_traceback(file=STDERR)
