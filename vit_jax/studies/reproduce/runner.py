"""Runs the steps of a table that can run on this machine, one after another."""

import dataclasses
import functools
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from vit_jax.config import catalog
from vit_jax.runtime import backend, locking, logs, signals
from vit_jax.studies.reproduce import planning
from vit_jax.studies.reproduce.cells import FEW_SHOT, Step, Table
from vit_jax.studies.reproduce.planning import Planned

PREEMPTED = 75
CPU_FLOPS = 1e11  # per second, roughly the training speed of a few CPU cores
MOST_DAYS = 7.0  # limit for a step without an accelerator
OWN = "fewshot/self/5shot"  # replaces few-shot ImageNet in tiny copies, which have no images


def perform(
    table: Table, workdir: pathlib.Path, overrides: Mapping[str, str], *, smoke: bool
) -> int:
    """Runs the steps that are ready in order, then those that they make ready.

    Args:
      table: a table or figure of the paper.
      workdir: the folder of all runs.
      overrides: options of the user's data, for runs whose own data is unavailable.
      smoke: run tiny copies of all steps on random pixels.

    Returns the exit code of the last step that failed, else 0; a failure does not stop the other
    steps, but a preempted step does. Raises InUse if another process runs the same table in
    `workdir`. Other tables may share `workdir`; only one of them runs a common step.
    """
    with locking.exclusive(workdir, f"reproduce-{table.name}.lock"):
        return _perform(table, workdir, overrides, smoke=smoke)


def _perform(
    table: Table, workdir: pathlib.Path, overrides: Mapping[str, str], *, smoke: bool
) -> int:
    code = 0
    for step in table.steps:
        planned, found = planning.plan(table, workdir, overrides)
        one = next(p for p in planned if p.step.directory == step.directory)
        reason = "" if smoke else _left_out(one)
        if one.state == planning.DONE or reason:
            logs.log.info("%s: %s", step.directory, reason or "done")
            continue
        options = planning.options(step, workdir, overrides, found)
        if smoke:
            words = [*planning.words(step, workdir, _tiny_options(options)), *_tiny_flags(step)]
        else:
            words = planning.words(step, workdir, options)
        logs.log.info("%s", planning.spelled(words))
        failed = _call(words)
        if failed == PREEMPTED:
            return failed
        code = failed or code
    return code


def tiny(table: Table) -> Table:
    """Returns a table that tiny copies can measure.

    Few-shot cells use the runs' own images. Of cells by epoch only the last remains.
    """
    last = max((cell.epoch or 0 for cell in table.cells), default=0)
    cells = tuple(
        dataclasses.replace(cell, measure=OWN, epoch=None) if cell.measure == FEW_SHOT else cell
        for cell in table.cells
        if cell.epoch in (None, last)
    )
    return dataclasses.replace(table, cells=cells)


def _left_out(one: Planned) -> str:
    """Returns why a step is left out, or nothing."""
    if one.state in (planning.WAITS, planning.LACKS):
        return f"left out: {one.state} {one.why}"
    days = (one.exaflops or 0.0) * 1e18 / CPU_FLOPS / 86_400
    if days <= MOST_DAYS or _backend() != "cpu":
        return ""
    return f"left out: no accelerator here, and a CPU would take some {days:,.0f} days"


def _tiny_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a tiny copy: initial weights, and few-shot on its own images."""
    kept = {key: value for key, value in options.items() if key == "init_from"}
    if "evaluation.fewshot" in options:
        kept |= {"evaluation.fewshot": "self", "evaluation.shots": options["evaluation.shots"]}
    return kept


def _tiny_flags(step: Step) -> list[str]:
    protocol = catalog.about(step.name).transfer
    if step.kind == "train" or protocol is None:
        return ["--smoke"]
    rates = ",".join(f"{lr:g}" for lr in protocol.rates[:2])
    return ["--smoke", "--seeds=0,1", f"--rates={rates}"]


def _call(words: Sequence[str]) -> int:
    """Runs a command of this package in its own process and returns its exit code.

    A TPU has one owner: a process that used or looked for devices would block the next run.
    """
    process = subprocess.Popen([sys.executable, "-m", "vit_jax", *words], stdout=sys.stderr)
    with _PassedOn(process) as stop:
        code = process.wait()
    return code if stop.signal is None else PREEMPTED  # whatever the child made of it


class _PassedOn(signals.Stop):
    """Signals for a child, which saves, says so, and ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(says="")
        self._process = process

    def noted(self, number: int) -> None:
        self._process.terminate()


@functools.cache
def _backend() -> str:
    """Returns the platform of this machine's devices, queried in another process."""
    return backend.ask("import jax; print(jax.default_backend())")[-1]
