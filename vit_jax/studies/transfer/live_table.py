"""The cells of a transfer while they run: a live table on a terminal, lines elsewhere."""

import sys
from typing import Any

from vit_jax.runtime import logs
from vit_jax.studies.transfer.plan import CHOSEN_BY, Cell
from vit_jax.studies.transfer.results import Entry, Results

HEADER = ("cell", "lr", "seed", "state", CHOSEN_BY, "time", "now")


class Show:
    """Shows `results` as they change."""

    def __init__(self, results: Results) -> None:
        self._results, self._news = results, dict[str, str]()
        self._live: Any = None

    def __enter__(self) -> "Show":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True, markup=False), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self.look({})
            self._live.stop()

    def started(self, cell: Cell) -> None:
        """Shows that a cell started."""
        if self._live is None:
            logs.log.info("%s: lr %g, seed %d", cell.directory, cell.lr, cell.cfg.seed)

    def ended(self, cell: Cell) -> None:
        """Shows the result of a cell."""
        if self._live is None:
            state, measured, seconds = _state(self._results.of(cell))
            logs.log.info("%s: %s", cell.directory, f"{state}  {measured}  {seconds}".strip())

    def look(self, news: dict[str, str]) -> None:
        """Shows the newest line of every running cell, by directory."""
        if self._live is None or (news and news == self._news):
            return
        from rich import box
        from rich.table import Table

        self._news = news
        table = Table(*HEADER, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for entry in self._results.entries:
            now = news.get(entry["directory"], "")
            name, lr, seed = entry["directory"], f"{entry['lr']:g}", str(entry["seed"])
            table.add_row(name, lr, seed, *_state(entry), now)
        self._live.update(table)


def _state(entry: Entry) -> tuple[str, str, str]:
    measured = entry["results"] and f"{entry['results'][CHOSEN_BY]:.4f}"
    seconds = logs.duration(entry["seconds"]) if entry["seconds"] else ""
    return entry["state"], measured or entry.get("why", ""), seconds
