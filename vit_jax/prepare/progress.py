"""Progress of long commands: a bar with the time left on a terminal, else occasional lines."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from vit_jax import logs


class Progress:
    """Shows how many of `total` items are done, and the time left."""

    QUIET_SECONDS = 10.0

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._start = self._said = time.monotonic()
        self._first: int | None = None
        self._bar: Bar | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=self._total, rate="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int) -> None:
        """Shows the number of items done; the speed ignores those before the first call."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._start = done, now
        rate = (done - self._first) / max(now - self._start, 1e-9)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, rate=f"{rate:,.0f}/s")
        elif now - self._said > self.QUIET_SECONDS:
            self._said = now
            left = f", {logs.duration((self._total - done) / rate)} left" if rate else ""
            logs.log.info(f"{self._what}: {done:,} of {self._total:,}, {rate:,.0f}/s{left}")
