"""The protocol: candidates, choice, final cells; no test image is read before the choice."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from vit_jax.runtime import locking
from vit_jax.studies.transfer import subprocesses, tables
from vit_jax.studies.transfer.devices import Environment
from vit_jax.studies.transfer.live_table import Show
from vit_jax.studies.transfer.plan import Cell, Plan
from vit_jax.studies.transfer.results import Failed, Results, entry


class Run(Protocol):
    """Runs cells, as `subprocesses.run` does."""

    def __call__(
        self,
        cells: Sequence[Cell],
        workdir: pathlib.Path,
        places: Sequence[Environment],
        *,
        started: Callable[[Cell], None],
        ended: Callable[[Cell, float, dict[str, Any]], None],
        look: Callable[[dict[str, str]], None],
    ) -> None:
        """Calls `started` and `ended` with each cell."""
        ...


def sweep(
    plan: Plan,
    workdir: pathlib.Path,
    places: Sequence[Environment] = ({},),
    *,
    run: Run = subprocesses.run,
) -> dict[str, Any]:
    """Runs or resumes a transfer until its end and returns the contents of transfer.json.

    Args:
      plan: the cells to run.
      workdir: receives the cells' run directories, transfer.json and transfer.md.
      places: environment variables that assign devices, one mapping per parallel process.
      run: runs cells.

    Raises Preempted (exit 75), Failed (70) if no candidate or no final cell has a finite result,
    InUse (2) if another process uses `workdir`, or another UserError; the same call then resumes.
    """
    with locking.exclusive(workdir):
        return _sweep(plan, workdir, places, run)


def preview(plan: Plan, workdir: pathlib.Path) -> dict[str, Any]:
    """Returns the cells that `sweep` would run and their state, without writing anything.

    Until a learning rate is chosen, the final cells have none. Raises ConfigError if `workdir`
    contains another transfer, and Failed if every candidate failed.
    """
    results = Results(plan, workdir)
    if not results.left(plan.choosing()):
        results.expect(plan.final(results.choose()))
        return results.as_dict()
    found = results.as_dict()
    final = [entry(cell) | {"lr": None} for cell in plan.final(plan.candidates[0])]
    return found | {"cells": [*found["cells"], *final]}


def _sweep(
    plan: Plan, workdir: pathlib.Path, places: Sequence[Environment], run: Run
) -> dict[str, Any]:
    results = Results(plan, workdir)
    results.write()
    with Show(results) as show:

        def started(cell: Cell) -> None:
            results.update(cell, state="running")
            show.started(cell)

        def ended(cell: Cell, seconds: float, answer: dict[str, Any]) -> None:
            entry = dict(answer)
            results.machine = entry.pop("machine", results.machine)
            entry.pop("exit_code", None)
            if entry["state"] == "stopped":
                entry = {"state": "waiting"}
            seconds = round(results.of(cell)["seconds"] + seconds, 1)
            results.update(cell, seconds=seconds, **entry)
            show.ended(cell)

        def bring_to_end(stage: Sequence[Cell]) -> None:
            left = results.left(stage)
            if left:
                run(left, workdir, places, started=started, ended=ended, look=show.look)

        bring_to_end(plan.choosing())
        final = plan.final(results.choose())
        results.expect(final)
        results.write()
        bring_to_end(final)
        results.write()
    tables.write(plan, results, workdir)
    if results.summary() is None:
        raise Failed(f"transfer: every final run failed; {results.of(final[0]).get('why')}")
    return results.as_dict()
