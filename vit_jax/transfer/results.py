"""What the cells of a transfer came to: `transfer.json`, written anew after each."""

import datetime
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import config, logs
from vit_jax.config import ConfigError
from vit_jax.transfer.plan import CHOSEN_BY, Cell, Plan

FILE = "transfer.json"
SETTLED = ("done", "failed")  # not to be run again: a run that diverged would do so again

Entry = dict[str, Any]


class Failed(config.UserError):
    """No cell of a stage has a finite result."""

    exit_code = 70


class Results:
    """The state and the numbers of every cell; what a killed transfer had is read back."""

    def __init__(self, plan: Plan, workdir: pathlib.Path) -> None:
        """Reads what `workdir` holds; raises ConfigError where that is another transfer."""
        self._plan, self._file = plan, workdir / FILE
        stored = self._read()
        self.entries: list[Entry] = [_entry(cell) for cell in plan.choosing()]
        self.machine: dict[str, Any] | None = stored.get("machine")
        self.chosen: Cell | None = None
        self._stored: dict[str, Entry] = {
            entry["directory"]: entry for entry in stored.get("cells", [])
        }
        self._take_stored()

    def expect(self, cells: Sequence[Cell]) -> None:
        """Adds the cells of another stage."""
        self.entries += [_entry(cell) for cell in cells]
        self._take_stored()

    def of(self, cell: Cell) -> Entry:
        """Returns what is known of a cell."""
        return next(entry for entry in self.entries if entry["directory"] == cell.directory)

    def left(self, cells: Sequence[Cell]) -> list[Cell]:
        """Returns the cells that are still to be run, or to be finished."""
        return [cell for cell in cells if self.of(cell)["state"] not in SETTLED]

    def update(self, cell: Cell, **values: Any) -> None:
        """Puts values into the entry of a cell, and writes the file."""
        self.of(cell).update(values)
        self.write()

    def choose(self) -> Cell:
        """Returns the candidate that did best on the held-out images, and keeps it.

        Of equal ones that of the lower learning rate, then the config's own setup. Raises Failed
        where none has a finite result.
        """
        if len(self._plan.candidates) == 1:
            (self.chosen,) = self._plan.candidates
            return self.chosen
        done = [cell for cell in self._plan.candidates if self.of(cell)["state"] == "done"]
        if not done:
            why = f"{self.entries[0]['directory']}: {self.entries[0]['why']}"
            raise Failed(f"transfer: every candidate failed, so none is chosen: {why}")
        self.chosen = min(done, key=lambda cell: (-self.of(cell)["results"][CHOSEN_BY], cell.lr))
        return self.chosen

    def as_dict(self) -> dict[str, Any]:
        """Returns what the file holds."""
        chosen = self.chosen and {"setup": self.chosen.setup, "lr": self.chosen.lr}
        return {
            "name": self._plan.name,
            "task": self._plan.task,
            "measure": CHOSEN_BY,
            "cells": self.entries,
            "chosen": chosen,
            "results": self.summary(),
            "machine": self.machine,
            "date": datetime.date.today().isoformat(),
            "candidates": [[cell.setup, cell.lr] for cell in self._plan.candidates],
            "config": config.to_dict(self._plan.base),
        }

    def summary(self) -> dict[str, dict[str, Any]] | None:
        """Returns mean, sample standard deviation and values of every measure of the final cells.

        None until all of them are settled, or where all have failed.
        """
        final = [entry for entry in self.entries if entry["stage"] == "final"]
        done = [entry["results"] for entry in final if entry["state"] == "done"]
        if not done or any(entry["state"] not in SETTLED for entry in final):
            return None
        return {
            key: spread([results[key] for results in done])
            for key in done[0]
            if not key.endswith("count")
        }

    def write(self) -> None:
        """Writes the file, whole or not at all."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            logs.write_atomically(self._file, json.dumps(self.as_dict(), indent=1) + "\n")
        except OSError as error:
            raise ConfigError(
                f"--workdir={self._file.parent}: cannot be written: {error.strerror}"
            ) from error

    def _read(self) -> Mapping[str, Any]:
        if not self._file.exists():
            return {}
        where = f"--workdir={self._file.parent}"
        try:
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            old, tried = config.build(stored["config"]), stored["candidates"]
        except (OSError, ValueError, KeyError, RecursionError) as error:
            raise ConfigError(f"{where}: {FILE} is unreadable: {error}") from error
        changed = config.differences(old, self._plan.base)
        ours = [[cell.setup, cell.lr] for cell in self._plan.candidates]
        if sorted(tried) != sorted(ours):
            changed["rates"] = _rates(tried), _rates(ours)
        if changed:
            listed = ", ".join(f"{key}: {a} -> {b}" for key, (a, b) in changed.items())
            raise ConfigError(
                f"{where}: holds another transfer ({listed}); go on without these changes, or "
                "choose another --workdir"
            )
        return stored

    def _take_stored(self) -> None:
        """Fills in what a transfer that was stopped had come to; what was running waits again."""
        for entry in self.entries:
            entry.update(self._stored.pop(entry["directory"], {}))
            if entry["state"] == "running":
                entry["state"] = "waiting"


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns mean, sample standard deviation (None of a single value) and the values."""
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }


def _entry(cell: Cell) -> Entry:
    return {
        "stage": cell.stage,
        "setup": cell.setup,
        "lr": cell.lr,
        "seed": cell.cfg.seed,
        "directory": cell.directory,
        "state": "waiting",
        "steps": None,
        "seconds": 0.0,
        "results": None,
    }


def _rates(pairs: Sequence[Sequence[Any]]) -> str:
    return ",".join(f"{'' if setup == 'vit' else setup + ' '}{lr:g}" for setup, lr in pairs)
