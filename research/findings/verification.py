"""Repeats recorded cells, and says whether the results are what seeds allow."""

import dataclasses
import math
import pathlib
import random
import statistics
from collections.abc import Sequence
from typing import Any

from research.findings.declaration import FEW_SHOT, TEST, VALIDATION
from research.findings.jobs import Job
from research.findings.planning import Cell, Study
from research.findings.protocol import Run
from research.findings.records import DONE
from vit_jax import config
from vit_jax.runtime import locking
from vit_jax.studies.transfer import subprocesses
from vit_jax.studies.transfer.devices import Environment
from vit_jax.utils import intervals

FOLDER = "verify"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repeated:
    """A cell that was repeated.

    Attributes:
      directory: of the cell.
      measure: the compared number.
      recorded, repeated: its values; `repeated` is None if the repetition diverged.
      low, high: the interval in which 95 of 100 more seeds lie, from the recorded ones.
    """

    directory: str
    measure: str
    recorded: float
    repeated: float | None
    low: float
    high: float

    @property
    def good(self) -> bool:
        """Whether the repetition is within what seeds allow."""
        return self.repeated is not None and self.low <= self.repeated <= self.high


def verify(
    study: Study,
    workdir: pathlib.Path,
    count: int,
    places: Sequence[Environment] = ({},),
    *,
    run: Run = subprocesses.run,
    draw: random.Random | None = None,
) -> list[Repeated]:
    """Repeats cells drawn at random, each with the pre-training that it begins with.

    Args:
      study: findings at a scale.
      workdir: of the findings; repetitions are in its folder `verify`, which is emptied.
      count: how many cells.
      places: as in `perform`.
      run: runs jobs.
      draw: draws the cells.

    Raises ConfigError if fewer cells are recorded.
    """
    known = _comparable(study)
    if len(known) < count:
        raise config.ConfigError(
            f"--verify={count}: {study.records.path} has {len(known)} cells of these findings to "
            f"repeat (finished, and two seeds or more at their learning rate){_remedy(study)}"
        )
    chosen = (draw or random.SystemRandom()).sample(known, count)
    folder = workdir / FOLDER
    with locking.exclusive(workdir, "findings.lock"):
        locking.clear(folder)
        answers: dict[str, dict[str, Any]] = {}

        def ended(job: Job, seconds: float, answer: dict[str, Any]) -> None:
            answers[job.cell.digest] = answer

        for wave in _waves(chosen):
            jobs = [Job(cell=cell, cfg=cell.configured(folder)) for cell in wave]
            run(jobs, folder, places, started=lambda job: None, ended=ended, look=lambda news: None)
    return [_compared(study, cell, answers[cell.digest]) for cell in chosen]


def _remedy(study: Study) -> str:
    """The option to set where a file has no record, or only records of other data."""
    recorded = {record["data"] for record in study.records.of_scale(study.size.name)}
    if not recorded:
        return "; name the file of recorded cells with --records=FILE.jsonl"
    declared = {dict(one.options).get("data.name") for f in study.findings for one in f.trainings}
    endings = sorted({name.partition("_")[2] for name in recorded - declared})
    options = [f"--copies={ending}" if ending else "no --copies" for ending in endings]
    return f"; its records are of other data: give {' or '.join(options)}" if options else ""


def _comparable(study: Study) -> list[Cell]:
    """Returns the finished cells of the measurements that have another seed beside them."""
    found: dict[str, Cell] = {}
    for finding in study.findings:
        for training in finding.trainings:
            cells = [cell for cell in study.cells(training) if _values(study, [cell])]
            if len(cells) > 1:
                found |= {cell.digest: cell for cell in cells}
    return list(found.values())


def _waves(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Returns the cells with their origins, which come before them."""
    origins = {cell.origin.digest: cell.origin for cell in cells if cell.origin is not None}
    first = origins | {cell.digest: cell for cell in cells if cell.origin is None}
    rest = [cell for cell in cells if cell.origin is not None]
    return [wave for wave in (list(first.values()), rest) if wave]


def _measure(measures: dict[str, Any]) -> str | None:
    return next((key for key in (FEW_SHOT, TEST, VALIDATION) if key in measures), None)


def _values(study: Study, cells: Sequence[Cell]) -> list[tuple[str, float]]:
    found = []
    for cell in cells:
        record = study.records.of(cell.digest)
        if record is not None and record["state"] == DONE and (key := _measure(record["measures"])):
            found.append((key, float(record["measures"][key])))
    return found


def _compared(study: Study, cell: Cell, answer: dict[str, Any]) -> Repeated:
    ((measure, recorded),) = _values(study, [cell])
    values = [value for _, value in _values(study, study.cells(cell.training))]
    half = prediction_half(values)
    mean = statistics.fmean(values)
    results = answer.get("results") or {}
    return Repeated(
        directory=cell.directory,
        measure=measure,
        recorded=recorded,
        repeated=results.get(measure),
        low=mean - half,
        high=mean + half,
    )


def prediction_half(values: Sequence[float]) -> float:
    """Returns half the width of the 95 % prediction interval of one more value (Student's t)."""
    spread = statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
    return intervals.quantile(len(values) - 1) * spread
