"""Trains the runs of a table that this machine can run, one after another."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping

from vit_jax import config
from vit_jax.config import catalog
from vit_jax.runs.directory import reconcile
from vit_jax.runtime import backend, locking, logs
from vit_jax.runtime.preemption import Preempted
from vit_jax.studies import processes, transfer
from vit_jax.studies.cells import Cell
from vit_jax.studies.reproduce import planning
from vit_jax.studies.reproduce.exhibit import FEW_SHOT, Exhibit, TableRun
from vit_jax.studies.reproduce.planning import Planned, TablePlan
from vit_jax.studies.study import GivenCells, Study
from vit_jax.training import run_config

CPU_FLOPS = 1e11  # per second, roughly the training speed of a few CPU cores
MOST_DAYS = 7.0  # limit for a run without an accelerator
OWN = "fewshot/self/5shot"  # replaces few-shot ImageNet in tiny copies, which have no images


def perform(
    table: Exhibit,
    workdir: pathlib.Path,
    overrides: Mapping[str, str],
    *,
    smoke: bool,
    run: processes.RunCells = processes.run,
) -> int:
    """Trains every run of a table that is ready, in order, then those it makes ready.

    `overrides` are options of the user's data, for runs whose own data is unavailable; `smoke`
    trains tiny copies on random pixels.

    Returns the exit code of the last run that failed, else 0; a failure does not stop the others.
    Raises Preempted, and InUse if another process trains the same table in `workdir`. Other tables
    may share `workdir`; only one of them trains a common run.
    """
    code = 0
    with locking.exclusive(workdir, f"reproduce-{table.name}.lock"):
        for table_run in table.runs:
            # Anew: the last one may make it ready.
            plan = TablePlan(table, workdir, overrides, smoke=smoke)
            one = plan.planned[table_run.directory]
            reason = "" if smoke else _left_out(one)
            if one.state == planning.DONE or reason:
                done = f"{one.state} {one.why}".strip()
                logs.log.info("%s: %s", table_run.directory, reason or done)
                continue
            options = plan.options(table_run)
            logs.log.info("%s", one.command or table_run.directory)
            try:
                _study(table_run, workdir, options, smoke=smoke).perform(run=run)
            # A UserError, too, but one that ends the loop: it is no failure of this run.
            except Preempted:
                raise
            except config.UserError as error:
                logs.log.error("%s: %s", table_run.directory, error)
                code = error.exit_code
    return code


class _Training(GivenCells):
    """One training run, which has to succeed."""

    def finish(self) -> None:
        for record in self.records:
            if "why" in record:
                raise transfer.Failed(record["why"])


def _study(
    table_run: TableRun, workdir: pathlib.Path, options: Mapping[str, str], *, smoke: bool
) -> Study:
    options = _tiny_options(options) if smoke else options
    directory = workdir / table_run.directory
    if table_run.kind != "transfer":
        cfg, _ = run_config.start(table_run.name, options, directory, tiny=smoke)
        cfg = reconcile(directory, cfg, options)
        return _Training([Cell(directory=table_run.directory, cfg=cfg)], workdir)
    if not smoke:
        run_config.start(table_run.name, options, directory)  # raises where data are missing
        return transfer.TransferStudy(transfer.create_plan(table_run.name, options), directory)
    protocol = catalog.about(table_run.name).transfer or catalog.TransferSettings()
    # Two of each are the least that a choice and an interval need.
    rates, seeds = protocol.rates[:2], (0, 1)
    plan = transfer.create_plan(table_run.name, options, rates=rates, seeds=seeds, tiny=True)
    return transfer.TransferStudy(plan, directory)


def tiny(table: Exhibit) -> Exhibit:
    """A table that tiny copies can measure.

    Few-shot scores use the runs' own images. Of scores by epoch only the last remains.
    """
    last = max((score.epoch or 0 for score in table.scores), default=0)
    scores = tuple(
        dataclasses.replace(score, measure=OWN, epoch=None) if score.measure == FEW_SHOT else score
        for score in table.scores
        if score.epoch in (None, last)
    )
    return dataclasses.replace(table, scores=scores)


def _left_out(one: Planned) -> str:
    """Why a run is left out; empty if it is not."""
    if one.state in (planning.WAITS, planning.LACKS):
        return f"left out: {one.state} {one.why}"
    days = (one.exaflops or 0.0) * 1e18 / CPU_FLOPS / 86_400
    # The platform last: asking for it starts a process.
    if days <= MOST_DAYS or find_platform() != "cpu":
        return ""
    return f"left out: no accelerator here, and a CPU would take some {days:,.0f} days"


def _tiny_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a tiny copy: initial weights, and few-shot on its own images."""
    kept = {key: value for key, value in options.items() if key == "init_from"}
    if "evaluation.fewshot" in options:
        kept |= {"evaluation.fewshot": "self", "evaluation.shots": options["evaluation.shots"]}
    return kept


@functools.cache
def find_platform() -> str:
    """The platform of this machine's devices, queried in another process.

    A TPU has one owner: a process that looked for devices would keep the cells from theirs.
    """
    return backend.ask("import jax; print(jax.default_backend())")[-1]
