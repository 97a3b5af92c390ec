"""Runs what of a table can be run on this machine, one step after another."""

import dataclasses
import functools
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from vit_jax import catalog, locking, logs
from vit_jax.reproduce import planning
from vit_jax.reproduce.cells import FEW_SHOT, Step, Table
from vit_jax.reproduce.planning import Planned

PREEMPTED = 75
CPU_FLOPS = 1e11  # per second, about what a few cores of a CPU train at
MOST_DAYS = 7.0  # that a step may take where there is no accelerator
OWN = "fewshot/self/5shot"  # stands for few-shot ImageNet in tiny copies, which have no images


def perform(
    table: Table, workdir: pathlib.Path, overrides: Mapping[str, str], *, smoke: bool
) -> int:
    """Runs the steps that are ready, in order; what they make ready follows.

    Args:
      table: of the paper.
      workdir: the folder of all runs.
      overrides: options of the user's data for runs whose own cannot be had.
      smoke: run tiny copies of all steps, on random pixels.

    Returns the exit code of the last step that failed, else 0: the others still run. A step that
    was asked to stop, and saved, is the last. Raises InUse where another process runs the same
    table in `workdir`; other tables may share it, and a step of both is refused to the second.
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
    """Returns a table as tiny copies can measure it.

    Few-shot cells are of the runs' own images. Of cells by epoch only the last stays, at the end.
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
    """Returns the options of a tiny copy: its start, and few-shot on its own images."""
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
    """Runs a command of this package in a process of its own, and returns its exit code.

    A TPU has one owner: what ran before, or looked for devices here, would keep it from the next.
    """
    process = subprocess.Popen([sys.executable, "-m", "vit_jax", *words], stdout=sys.stderr)
    # A terminal sends Ctrl-C to the process itself, which saves and ends; a scheduler does not.
    interrupt = signal.signal(signal.SIGINT, lambda *_: None)
    terminate = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)


@functools.cache
def _backend() -> str:
    """Returns the kind of devices of this machine, asked in a process of its own likewise."""
    code = "import jax; print(jax.default_backend())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.split()[-1]
