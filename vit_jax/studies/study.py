"""A study: many runs for one answer. Transfers, tables of the paper and findings all run here.

A study plans its cells; each that ends adds a record; which cells come next follows from the
records. A page is made from those too, so that the same call continues after any stop.
"""

import contextlib
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vit_jax.runtime import goodput, locking, logs
from vit_jax.studies import processes
from vit_jax.studies.cells import Cell
from vit_jax.studies.devices import Environment
from vit_jax.studies.records import DONE, FAILED, Record, Records


class Study:
    """The cells to run next, given the records so far.

    Attributes:
      lock: the lock file in `workdir`; None where the caller holds one.
      workdir: receives the run directories of the cells.
      records: the results so far.
    """

    lock: ClassVar[str | None] = locking.NAME
    workdir: pathlib.Path
    records: Records

    def ready(self) -> Sequence[Cell]:
        """The cells that can run now and have no result; none: the study is at its end."""
        raise NotImplementedError

    def begin(self) -> None:
        """Called before the first cell; the lock is held."""

    def recorded(self, cell: Cell) -> None:
        """Called after a cell has been recorded."""

    def finish(self) -> None:
        """Called after the last cell; the lock is held."""

    def perform(
        self, shares: Sequence[Environment] = ({},), *, run: processes.RunCells = processes.run
    ) -> None:
        """Runs or resumes every cell until the study is at its end.

        `shares` are environment variables that assign devices, one mapping per parallel process.

        Raises Preempted (exit 75), InUse (2) if another process holds the lock, or another
        UserError; the same call then resumes.
        """
        held = locking.exclusive(self.workdir, self.lock) if self.lock else contextlib.nullcontext()
        with held, LiveTable() as table:
            self.records.check_writable()
            self.records.reload()  # another process may have held the lock since they were read
            self.begin()
            before: dict[str, float] = {}  # seconds of earlier processes of cells, by directory

            def ended(cell: Cell, seconds: float, answer: Mapping[str, Any]) -> None:
                if answer["state"] in (DONE, FAILED):
                    seconds += before[cell.directory]
                    table.ended(cell, self.records.add(cell, seconds, answer))
                    self.recorded(cell)
                else:
                    table.stopped(cell)

            # This ends: `run` raises where a cell stops without a result, and would be ready again.
            while cells := self.ready():
                table.expect(cells)
                # Now, as the process of a cell that was trained to its end adds no session.
                for cell in cells:
                    before[cell.directory] = goodput.seconds_so_far(self.workdir / cell.directory)
                run(cells, self.workdir, shares, started=table.started, ended=ended,
                    watch=table.show)  # fmt: skip
            self.finish()


class GivenCells(Study):
    """A study of some cells, each after its origin, whose records stay in memory."""

    lock = None

    def __init__(self, cells: Sequence[Cell], workdir: pathlib.Path) -> None:
        self.workdir, self.records, self._cells = workdir, Records(None), cells

    def ready(self) -> list[Cell]:
        """The cells that have not run, but their origins have."""
        waiting = [cell for cell in self._cells if self.records.find(cell) is None]
        return [c for c in waiting if c.origin is None or self.records.find(c.origin)]


class LiveTable:
    """Progress of the cells: a live table on a terminal, log lines elsewhere."""

    HEADER = ("cell", "lr", "seed", "state", "result", "time", "now")

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, ...]] = {}
        self._news: Mapping[str, str] = {}
        self._live: Any = None

    def __enter__(self) -> "LiveTable":
        if sys.stderr.isatty():
            from rich.console import Console  # slow to import
            from rich.live import Live

            # A name in brackets is text here, not markup.
            self._live = Live(console=Console(stderr=True, markup=False), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._draw({})
            self._live.stop()

    def expect(self, cells: Sequence[Cell]) -> None:
        """Adds cells that are about to run."""
        for cell in cells:
            self._set(cell, "waiting")

    def started(self, cell: Cell) -> None:
        """Shows that a cell has started."""
        self._set(cell, "running")
        if self._live is None:
            waiting = sum(row[3] == "waiting" for row in self._rows.values())
            logs.log.info(
                "%s: lr %g, seed %d, %d to go", cell.directory, cell.lr, cell.cfg.seed, waiting
            )

    def ended(self, cell: Cell, record: Record) -> None:
        """Shows the result of a cell."""
        found = [
            f"{key} {value:.4f}"
            for key, value in record["measures"].items()
            # Counts are no results, and the column has the first one.
            if not key.endswith(("count", "/step"))
        ] or [record.get("why", "")]
        state, seconds = record["state"], logs.duration(record["seconds"])
        self._set(cell, state, found[0], seconds)  # a line has room for all, a column for one
        if self._live is None:
            logs.log.info("%s: %s  %s  %s", cell.directory, state, ", ".join(found), seconds)

    def stopped(self, cell: Cell) -> None:
        """Shows that a cell waits to be resumed."""
        self._set(cell, "waiting")

    def show(self, news: Mapping[str, str]) -> None:
        """Shows the newest line of every running cell, by directory."""
        # Drawn only where something changed: cells are polled ten times a second.
        if self._live is not None and news != self._news:
            self._draw(news)

    def _set(self, cell: Cell, state: str, result: str = "", seconds: str = "") -> None:
        row = (f"{cell.lr:g}", f"{cell.cfg.seed}", state, result, seconds)
        self._rows[cell.directory] = (cell.directory, *row)

    def _draw(self, news: Mapping[str, str]) -> None:
        from rich import box
        from rich.table import Table

        self._news = news
        table = Table(*self.HEADER, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for directory, row in self._rows.items():
            table.add_row(*row, news.get(directory, ""))
        self._live.update(table)
