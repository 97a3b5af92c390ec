"""Progress: live lines and bars on a terminal, periodic log lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Columns
from rich.spinner import Spinner
from rich.text import Text

from vit_jax.runtime import logs
from vit_jax.utils.messages import rounded

BAR = 24  # cells


class Field(NamedTuple):
    """A part of the status line.

    Attributes:
      rank: drop order if the line is too long, highest rank first; rank 0 is never dropped.
      text: displayed text.
    """

    rank: int
    text: str


def fit_line(fields: Sequence[Field], width: int) -> str:
    """Joins the fields into a line of at most `width` cells, dropping those that do not fit."""
    kept = list(fields)

    def line() -> str:
        return "  ".join(field.text for field in kept)

    # In cells, not characters: those of East Asian scripts take two.
    while cell_len(line()) > width and any(field.rank for field in kept):
        kept.remove(max(kept, key=lambda field: field.rank))
    text = Text(line())
    text.truncate(width, overflow="ellipsis")
    return text.plain


class Progress:
    """Shows the current activity of a run from its start.

    A terminal gets one live line; printed and logged lines scroll above it. A log gets a line for
    each slow activity and for the periodic state of the run.
    """

    # How often the state of the run is shown: on a terminal, and at least and at most elsewhere.
    LIVE_SECONDS, LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0, 10.0
    SLOW = 2.0  # seconds after which a log line names the activity

    def __init__(self, what: str = "starting", *, active: bool = True) -> None:
        """Shows an activity, unless another process owns the display."""
        self.active = active
        self.total = 0
        self._doing, self._since = what, time.monotonic()
        self._reached = 0
        self._step, self._fields, self._updated = 0, tuple[Field, ...](), self._since
        self._shown: float | None = None
        self._late: threading.Timer | None = None
        self._live: Live | None = None
        if not (active and sys.stderr.isatty()):
            return
        console = Console(stderr=True)
        if console.is_interactive:  # not a dumb terminal
            self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line")
            # Redirected prints go to this console, on standard error: a pipe would miss them.
            self._live = Live(
                self, console=console, refresh_per_second=4, redirect_stdout=sys.stdout.isatty()
            )
            self._live.start(refresh=True)

    def doing(self, what: str, *, slow: float = SLOW) -> None:
        """Shows an activity and its duration until the next activity or step.

        Logs a line once the activity takes `slow` seconds. An empty string means training.
        """
        self._quiet()
        self._doing, self._since = what, time.monotonic()
        if not (what and self.active) or self._live is not None:
            return
        if not slow:
            logs.log.info("%s ...", what)
        else:
            self._late = threading.Timer(slow, logs.log.info, ("%s ...", what))
            # A pending log line must not delay the exit of the process.
            self._late.daemon = True
            self._late.start()

    @property
    def activity(self) -> str:
        """The activity that `doing` shows; empty while training."""
        return self._doing

    def begin(self, total: int, step: int = 0) -> None:
        """Starts showing the steps of a run of `total` steps, after `step`."""
        self.doing("")
        self.total, self._reached = total, step

    def due(self, step: int) -> bool:
        """Whether to show the state of the run at `step`, the newest one.

        True for the first step, then periodically.
        """
        self._reached = step
        if not self.active:
            return False
        seconds = self.LEAST_SECONDS if self._live is None else self.LIVE_SECONDS
        return self._shown is None or time.monotonic() - self._shown > seconds

    def update(self, step: int, fields: Sequence[Field], *, final: bool = False) -> None:
        """Shows the state of the run at `step`."""
        if not self.active:
            return
        self.doing("")
        now = time.monotonic()
        self._reached = self._step = step
        self._fields, self._updated = tuple(fields), now
        if self._live is None:
            if not final and self._shown is not None and now - self._shown < self.MOST_SECONDS:
                return
            texts = (field.text for field in fields)
            logs.log.info("  ".join((f"step {step}/{self.total}", *texts)))
        elif self._shown is None:
            self._live.refresh()  # immediately: more steps may finish before the next frame
        self._shown = now

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        if not self.active:
            return
        if self._live is not None:
            # Leave wrapping to the terminal, so that copied text stays one line.
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            logs.log.info(text)

    def close(self) -> None:
        """Restores the terminal; the line of the last step stays."""
        self._quiet()
        if self._live is not None:
            self._doing, self._updated = "", time.monotonic()
            self._live.transient = not self._step
            self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Renders the current line at the width of the terminal."""
        yield Text(
            fit_line(self._line(ascii_only=options.ascii_only), options.max_width), no_wrap=True
        )

    def _line(self, *, ascii_only: bool) -> list[Field]:
        now = time.monotonic()
        doing, since = self._doing, self._since
        if self.total and not self._step:
            doing = doing or "first step"
        # The fields are those of the last `update`; an activity goes with the newest step.
        step = self._reached if doing else self._step
        fields: list[Field] = []
        if self.total:
            done = round(BAR * step / self.total)
            full, empty = "#-" if ascii_only else "━╌"
            fields = [
                Field(3, full * done + empty * (BAR - done)),
                Field(0, f"step {step}/{self.total}"),
            ]
        if doing:
            frame = self._spinner.render(now)
            assert isinstance(frame, Text)
            return [*fields, Field(0, f"{frame.plain} {doing} {logs.duration(now - since)}")]
        idle = now - self._updated
        late = [Field(1, f"{logs.duration(idle)} ago")] if idle > self.MOST_SECONDS else []
        return [*fields, *self._fields, *late]

    def _quiet(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            late.cancel()


class Bar:
    """Shows how many of `total` images, or bytes, are done, and when the rest will be."""

    QUIET_SECONDS = 10.0

    def __init__(self, what: str, total: int | None = None, *, bytes_: bool = False) -> None:
        self._what, self._total, self._bytes = what, total, bytes_
        self._start = self._said = time.monotonic()
        self._first: int | None = None
        self._shown: Columns | None = None

    def __enter__(self) -> Self:
        console = Console(stderr=True)
        if console.is_terminal:
            self._shown = Columns(
                # Names of files may hold brackets, which are markup to rich.
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(binary_units=True) if self._bytes else MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=console,
                transient=not self._bytes,
            )
            self._shown.add_task(self._what, total=self._total, rate="")
            self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def update(self, done: int, total: int | None = None) -> None:
        """Shows that `done` are done; those done before the first call took no time."""
        now, total = time.monotonic(), total or self._total
        if self._first is None:
            self._first, self._start = done, now
        speed = (done - self._first) / max(now - self._start, 1e-9)
        rate = f"{speed / 1e6:,.1f} MB/s" if self._bytes else f"{rounded(speed)}/s"
        if self._shown is not None:
            task = self._shown.task_ids[0]
            self._shown.update(task, completed=done, total=total, rate=rate)
        elif now - self._said > self.QUIET_SECONDS and total:
            self._said = now
            left = f", {logs.duration((total - done) / speed)} left" if speed else ""
            unit = " bytes" if self._bytes else ""
            logs.log.info(f"{self._what}: {done:,} of {total:,}{unit}, {rate}{left}")


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Shows an activity until the `with` statement ends, on a terminal only."""
    shown = Progress(what, active=sys.stderr.isatty())
    try:
        yield
    finally:
        shown.close()
