"""A transfer: candidates, choice, final cells; no test image is read before the choice.

`cells.jsonl` has a line for each cell that has ended, and decides what is not run again.
`transfer.json` says the same for readers, with the plan, the choice and the means.
"""

import json
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.inference import loading
from vit_jax.runtime import logs
from vit_jax.studies import processes, report
from vit_jax.studies.cells import Cell
from vit_jax.studies.devices import Environment, shares
from vit_jax.studies.records import DONE, FAILED, Records, sealed, unsealed
from vit_jax.studies.study import Study
from vit_jax.studies.transfer.plan import SELECTED_BY, Candidate, TransferPlan, create_plan
from vit_jax.training import run_config
from vit_jax.utils import intervals, limits, storage

FILE, CELLS, PAGE = "transfer.json", "cells.jsonl", "transfer.html"
ROUNDING = 1e-9  # means of equal accuracies may differ in their last bits
MACHINE = ("device", "devices", "host", "versions")  # what a record says of it

CellEntry = dict[str, Any]  # a cell in transfer.json


class Failed(config.UserError):
    """No cell of a stage has a finite result."""

    exit_code = 70


def transfer(
    name_or_plan: str | os.PathLike[str] | TransferPlan,
    workdir: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    rates: Sequence[float] = (),
    search: Mapping[str, Sequence[object]] | None = None,
    draws: int | None = None,
    choose_seeds: Sequence[int] = (),
    seeds: Sequence[int] = (),
    parallel: int = 1,
    smoke: bool = False,
) -> dict[str, Any]:
    """Fine-tunes by the paper's protocol; the result is the content of `transfer.json`.

    Args:
      name_or_plan: a config name, or a plan; the options below are for names.
      workdir: directory of the runs; the same call continues there.
      overrides: options of every run, as in `get_config`.
      rates: learning rates to choose among; (): the config's.
      search: values of further options to choose among, by dotted name.
      draws: how many of their combinations to try, drawn by seed; None: all.
      choose_seeds: seeds to try each learning rate with; (): the config's.
      seeds: seeds of the final runs; (): the config's.
      parallel: runs at a time, each on its share of the devices.
      smoke: tiny copies on random pixels.

    Raises a UserError.

    Examples:
        >>> import vit_jax
        >>> vit_jax.transfer("digits", "transfer")
        Traceback (most recent call last):
        vit_jax.utils.errors.ConfigError: transfer: digits names no learning rates to try; set \
--rates=0.003,0.01,0.03
    """
    plan, folder = name_or_plan, storage.given_path("workdir", workdir)
    if not isinstance(plan, TransferPlan):
        plan, given = storage.path_text("name_or_plan", plan), overrides or {}
        run_config.start(plan, given, folder, tiny=smoke)  # says and refuses what training would
        plan = create_plan(
            plan,
            given,
            rates=rates,
            search=search,
            draws=draws,
            choose_seeds=choose_seeds,
            seeds=seeds,
            tiny=smoke,
        )
    with logs.shown():
        return perform(plan, folder, shares(parallel))


def perform(
    plan: TransferPlan,
    workdir: pathlib.Path,
    shares: Sequence[Environment] = ({},),
    *,
    run: processes.RunCells = processes.run,
) -> dict[str, Any]:
    """Runs or resumes a transfer until its end and returns the contents of transfer.json.

    `workdir` receives the cells' run directories, cells.jsonl, transfer.json, and its page as
    transfer.html and transfer.md.

    Raises Preempted (exit 75), Failed (70) if no candidate or no final cell has a finite result,
    InUse (2) if another process uses `workdir`, or another UserError; the same call then resumes.
    """
    study = TransferStudy(plan, workdir)
    study.perform(shares, run=run)
    return study.as_dict()


def preview(plan: TransferPlan, workdir: pathlib.Path) -> dict[str, Any]:
    """The cells that `perform` would run and their state; writes nothing.

    Until a learning rate is chosen, the final cells have none. Raises ConfigError if `workdir`
    contains another transfer, and Failed if every candidate failed.
    """
    study = TransferStudy(plan, workdir)
    found = study.as_dict()
    if study.selected is None:
        # Any candidate tells how many final runs there are; its rate is not the chosen one yet.
        final = [study.entry(cell) | {"lr": None} for cell in plan.final(plan.candidates[0])]
        found["cells"] += final
    return found


class TransferStudy(Study):
    """A study of two stages: candidates on held-out images, then final runs of the best one."""

    def __init__(self, plan: TransferPlan, workdir: pathlib.Path) -> None:
        """Reads the results in `workdir`, and chooses if that stage is done.

        Raises ConfigError if `workdir` belongs to another transfer, and Failed as `choose` does.
        """
        self._plan, self.workdir, self._file = plan, workdir, workdir / FILE
        self._began_with: dict[str, int] = {}  # steps of the runs that cells begin with
        self._check_same_plan()
        keys = {"stage": str, "setup": str}
        self.records = Records(workdir / CELLS, flag="--workdir", keys=keys)
        self.selected: Candidate | None = None
        if not self.left(plan.choosing()):
            self.choose()

    def ready(self) -> list[Cell]:
        """The cells of the first stage that has some left; chooses between the stages."""
        left = self.left(self._plan.choosing())
        if not left:
            if self.selected is None:
                self.choose()
                self.write()
            left = self.left(self.final)
        if left:
            self._check_sources()
        return left

    def begin(self) -> None:
        """Writes transfer.json, unless another transfer has written its own meanwhile."""
        self._check_same_plan()
        self._check_sources()
        self.write()

    def recorded(self, cell: Cell) -> None:
        """Rewrites transfer.json."""
        self.write()
        # After the last cell it does not matter whether the source goes on.
        if self.left(self._plan.choosing()) or self.left(self.final):
            self._check_sources()

    def finish(self) -> None:
        """Writes the page; raises Failed if no final cell has a result."""
        self.write()
        # Before the error: the page says which runs failed, and why.
        report.write_report([self.workdir], self.workdir / PAGE, images=0)
        if self._summary() is None:
            why = next(record["why"] for record in map(self.records.find, self.final) if record)
            raise Failed(f"transfer: every final run failed; {why}")

    @property
    def final(self) -> tuple[Cell, ...]:
        """The cells of the final stage; none before the choice."""
        return () if self.selected is None else self._plan.final(self.selected)

    def left(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells without a result."""
        return [cell for cell in cells if self.records.find(cell) is None]

    def choose(self) -> None:
        """Chooses the candidate with the best mean held-out top-1 over its seeds.

        With several seeds, candidates within one standard error of the best mean tie. Ties go to
        the lower learning rate, then to the config's own setup. A candidate that failed with any
        seed is excluded. Raises Failed if none is left.
        """
        plan = self._plan
        if len(plan.candidates) == 1:
            (self.selected,) = plan.candidates
            return
        tried = {
            number: [plan.choosing_cell(candidate, seed) for seed in plan.choose_seeds]
            for number, candidate in enumerate(plan.candidates)
        }
        scores = self.records.scores(tried, SELECTED_BY)
        if not scores:
            failed = next(record for record in self.records if record["state"] == FAILED)
            raise Failed(
                "transfer: every candidate failed, so none is chosen: "
                f"{failed['cell']}: {failed['why']}"
            )
        best = max(scores.values(), key=statistics.fmean)
        error = intervals.standard_error(best) if len(best) > 1 else 0.0
        least = statistics.fmean(best) - error - ROUNDING
        # In the plan's order, so that `min` prefers the config's own setup at equal rates.
        equal = [plan.candidates[n] for n in scores if statistics.fmean(scores[n]) >= least]
        self.selected = min(equal, key=lambda candidate: candidate.lr)

    def entry(self, cell: Cell) -> CellEntry:
        """A cell with its state and results, as transfer.json has it."""
        record = self.records.find(cell) or {"state": "waiting"}
        return {
            **cell.facts,
            "lr": cell.lr,
            "seed": cell.cfg.seed,
            "directory": cell.directory,
            "state": record["state"],
            **({"why": record["why"]} if "why" in record else {}),
            "steps": record.get("steps"),
            "seconds": record.get("seconds", 0.0),
            "results": record.get("measures") or None,
        }

    def as_dict(self) -> dict[str, Any]:
        """The contents of transfer.json."""
        records = [r for c in (*self._plan.choosing(), *self.final) if (r := self.records.find(c))]
        last = records[-1] if records else {}
        values = {
            "name": self._plan.name,
            "task": self._plan.task,
            "measure": SELECTED_BY,
            "cells": [self.entry(cell) for cell in (*self._plan.choosing(), *self.final)],
            "selected": self.selected and {"setup": self.selected.setup, "lr": self.selected.lr},
            "results": self._summary(),
            "machine": {key: last.get(key) for key in MACHINE} if last else None,
            "date": last.get("date", ""),
            "candidates": [[one.setup, one.lr] for one in self._plan.candidates],
            "choose_seeds": list(self._plan.choose_seeds),
            "began_with": self._began_with,
            "config": config.to_dict(self._plan.base),
        }
        # Through JSON first: the digest must be that of what the file will hold (lists, not
        # tuples).
        return sealed(json.loads(json.dumps(values)))

    def _summary(self) -> dict[str, dict[str, Any]] | None:
        """The `intervals.spread` of every measure over the final cells.

        None until all of them have ended, or if all have failed.
        """
        records = [self.records.find(cell) for cell in self.final]
        done = [one["measures"] for one in records if one and one["state"] == DONE]
        if not done or None in records:
            return None
        return {
            key: intervals.spread([measures[key] for measures in done])
            for key in done[0]
            if not key.endswith("count")
        }

    def write(self) -> None:
        """Writes transfer.json, whole or not at all."""
        found = self.as_dict()
        with storage.writing("--workdir", self._file.parent):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            storage.write_atomically(self._file, json.dumps(found, indent=1) + "\n")

    def _check_sources(self) -> None:
        """Notes the step of each run of `init_from`; raises ConfigError if it has gone on."""
        tried = {cell.cfg.init_from for cell in self._plan.choosing()}
        for name in sorted(filter(None, {self._plan.base.init_from, *tried})):
            step = _newest_step(name)
            # A run of `init_from` that trains on would give later cells other weights.
            began = self._began_with.setdefault(name, step) if step is not None else None
            if step != began:
                raise ConfigError(
                    f"init_from={name}: is at step {step:,} now, and runs in {self.workdir} began "
                    f"with step {began:,}; choose another --workdir when it is done, or name one "
                    f"checkpoint, {name.removesuffix('/checkpoints')}/checkpoints/{step:08d}"
                )

    def _check_same_plan(self) -> None:
        if not self._file.exists():
            return
        where = f"--workdir={self._file.parent}"
        try:
            stored = unsealed(limits.read_json(self._file, limits.TABLE))
            old, tried = config.build(stored["config"]), stored["candidates"]
            seeds = list(stored["choose_seeds"])
            self._began_with = dict(stored.get("began_with", {}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{where}: {FILE} is unreadable: {error}; restore it, or choose another --workdir"
            ) from error
        changed = config.differences(old, self._plan.base)
        given = [[one.setup, one.lr] for one in self._plan.candidates]
        # Runs of a search have the numbers of its setups, in order; the order of rates is free.
        setups = [list(dict.fromkeys(setup for setup, _ in pairs)) for pairs in (tried, given)]
        if sorted(tried) != sorted(given) or setups[0] != setups[1]:
            changed["rates"] = _rates(tried), _rates(given)
        if seeds != list(self._plan.choose_seeds) and len(given) > 1:
            changed["choose_seeds"] = _listed(seeds), _listed(self._plan.choose_seeds)
        if changed:
            raise ConfigError(
                f"{where}: holds another transfer ({config.listed(changed)}); go on without these "
                "changes, or choose another --workdir"
            )


def _newest_step(name: str) -> int | None:
    """The step that `init_from` loads of a run directory; None for other weights."""
    try:
        with storage.os_errors():
            return loading.find_checkpoint(name)[1] if loading.is_run(name) else None
    except (config.UserError, OSError):  # reported by the cell
        return None


def _listed(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))


def _rates(pairs: Sequence[Sequence[Any]]) -> str:
    return ",".join(f"{'' if setup == 'vit' else setup + ' '}{lr:g}" for setup, lr in pairs)
