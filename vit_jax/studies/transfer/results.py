"""Results of the cells of a transfer: `transfer.json`, rewritten after each cell."""

import datetime
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.studies.transfer.plan import CHOSEN_BY, Cell, Plan
from vit_jax.utils import intervals, limits, storage

FILE = "transfer.json"
SETTLED = ("done", "failed")  # not repeated: a run that diverged would diverge again
ROUNDING = 1e-9  # tolerance of equal means

Entry = dict[str, Any]


class Failed(config.UserError):
    """No cell of a stage has a finite result."""

    exit_code = 70


class Candidate(NamedTuple):
    """Results of a candidate in the selection stage.

    Attributes:
      cell: the candidate, from the plan.
      values: held-out top-1 of each seed that finished.
      why: why a seed failed; such a candidate is not chosen.
    """

    cell: Cell
    values: list[float]
    why: str

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)


class Results:
    """State and results of every cell; resumes those of an interrupted transfer."""

    def __init__(self, plan: Plan, workdir: pathlib.Path) -> None:
        """Reads the results in `workdir`; raises ConfigError if it belongs to another transfer."""
        self._plan, self._file = plan, workdir / FILE
        stored = self._read()
        self.entries: list[Entry] = [entry(cell) for cell in plan.choosing()]
        self.machine: dict[str, Any] | None = stored.get("machine")
        self.chosen: Cell | None = None
        self._stored: dict[str, Entry] = {
            entry["directory"]: entry for entry in stored.get("cells", [])
        }
        self._take_stored()

    def expect(self, cells: Sequence[Cell]) -> None:
        """Adds the cells of another stage."""
        self.entries += [entry(cell) for cell in cells]
        self._take_stored()

    def of(self, cell: Cell) -> Entry:
        """Returns the entry of a cell."""
        return next(entry for entry in self.entries if entry["directory"] == cell.directory)

    def left(self, cells: Sequence[Cell]) -> list[Cell]:
        """Returns the cells that still have to run or finish."""
        return [cell for cell in cells if self.of(cell)["state"] not in SETTLED]

    def update(self, cell: Cell, **values: Any) -> None:
        """Updates the entry of a cell and writes the file."""
        self.of(cell).update(values)
        self.write()

    def candidates(self) -> list[Candidate]:
        """Returns the results of every candidate, in the order of the plan."""
        found = []
        for candidate in self._plan.candidates:
            cells = [self._plan.with_seed(candidate, seed) for seed in self._plan.choose_seeds]
            each = [self.of(cell) for cell in cells]
            values = [one["results"][CHOSEN_BY] for one in each if one["state"] == "done"]
            failed = [one for one in each if one["state"] == "failed"]
            why = f"{failed[0]['directory']}: {failed[0]['why']}" if failed else ""
            found.append(Candidate(candidate, values, why))
        return found

    def choose(self) -> Cell:
        """Selects and records the candidate with the best mean held-out top-1 over its seeds.

        With several seeds, candidates within one standard error of the best mean tie. Ties go to
        the lower learning rate, then to the config's own setup. A candidate that failed with any
        seed is excluded. Raises Failed if none is left.
        """
        if len(self._plan.candidates) == 1:
            (self.chosen,) = self._plan.candidates
            return self.chosen
        every = self.candidates()
        sound = [one for one in every if not one.why]
        if not sound:
            raise Failed(f"transfer: every candidate failed, so none is chosen: {every[0].why}")
        best = max(sound, key=lambda one: one.mean)
        error = intervals.standard_error(best.values) if len(best.values) > 1 else 0.0
        least = best.mean - error - ROUNDING
        equal = [one.cell for one in sound if one.mean >= least]
        self.chosen = min(equal, key=lambda cell: cell.lr)
        return self.chosen

    def as_dict(self) -> dict[str, Any]:
        """Returns the contents of the file."""
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
            "choose_seeds": list(self._plan.choose_seeds),
            "config": config.to_dict(self._plan.base),
        }

    def summary(self) -> dict[str, dict[str, Any]] | None:
        """Returns the `spread` of every measure over the final cells.

        None until all of them have ended, or if all have failed.
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
        with storage.writing("--workdir", self._file.parent):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            storage.write_atomically(self._file, json.dumps(self.as_dict(), indent=1) + "\n")

    def _read(self) -> Mapping[str, Any]:
        if not self._file.exists():
            return {}
        where = f"--workdir={self._file.parent}"
        try:
            stored = limits.read_json(self._file, limits.TABLE)
            old, tried = config.build(stored["config"]), stored["candidates"]
            seeds = list(stored.get("choose_seeds", [old.seed]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{where}: {FILE} is unreadable: {error}") from error
        changed = config.differences(old, self._plan.base)
        ours = [[cell.setup, cell.lr] for cell in self._plan.candidates]
        if sorted(tried) != sorted(ours):
            changed["rates"] = _rates(tried), _rates(ours)
        if seeds != list(self._plan.choose_seeds) and len(ours) > 1:
            changed["choose_seeds"] = _listed(seeds), _listed(self._plan.choose_seeds)
        if changed:
            listed = ", ".join(f"{key}: {a} -> {b}" for key, (a, b) in changed.items())
            raise ConfigError(
                f"{where}: holds another transfer ({listed}); go on without these changes, or "
                "choose another --workdir"
            )
        return stored

    def _take_stored(self) -> None:
        """Restores the results of an interrupted transfer; cells that were running wait again."""
        for entry in self.entries:
            entry.update(self._stored.pop(entry["directory"], {}))
            if entry["state"] == "running":
                entry["state"] = "waiting"


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns the values with their mean, sample standard deviation and 95 % interval.

    `ci95` is half the width of the confidence interval of the mean; it and `std` are None for a
    single value.
    """
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "ci95": intervals.half_width(values),
        "values": list(values),
    }


def entry(cell: Cell) -> Entry:
    """Returns the entry of a cell that has not run."""
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


def _listed(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))


def _rates(pairs: Sequence[Sequence[Any]]) -> str:
    return ",".join(f"{'' if setup == 'vit' else setup + ' '}{lr:g}" for setup, lr in pairs)
