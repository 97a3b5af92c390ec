"""Repeats recorded cells, and says whether the results are what seeds allow."""

import dataclasses
import math
import random
import statistics
from collections.abc import Mapping, Sequence

from research.findings.declaration import FEW_SHOT, TEST, VALIDATION
from research.findings.planning import LOCK, FindingsStudy
from vit_jax import config
from vit_jax.runtime import locking
from vit_jax.studies import processes
from vit_jax.studies.cells import Cell
from vit_jax.studies.devices import Environment
from vit_jax.studies.records import Record
from vit_jax.studies.study import GivenCells
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
    study: FindingsStudy,
    count: int,
    shares: Sequence[Environment] = ({},),
    *,
    run: processes.RunCells = processes.run,
    draw: random.Random | None = None,
) -> list[Repeated]:
    """Repeats cells drawn at random, each with the pre-training that it begins with.

    Repetitions are in the folder `verify` of the study's `workdir`, which is emptied.

    Raises ConfigError if fewer cells are recorded.
    """
    known = comparable_cells(study)
    if len(known) < count:
        raise config.ConfigError(
            f"--verify={count}: {study.records.path} has {len(known)} cells of these findings to "
            f"repeat (finished, and two seeds or more at their learning rate){_remedy(study)}"
        )
    cells = (draw or random.SystemRandom()).sample(known, count)
    folder = study.workdir / FOLDER
    origins = {cell.origin.digest: cell.origin for cell in cells if cell.origin is not None}
    every = (origins | {cell.digest: cell for cell in cells}).values()
    repetition = GivenCells(list(every), folder)
    with locking.exclusive(study.workdir, LOCK):
        locking.clear(folder)
        repetition.perform(shares, run=run)
    return [_compared(study, cell, repetition.records.find(cell)) for cell in cells]


def _remedy(study: FindingsStudy) -> str:
    """The option to set where a file has no record, or only records of other data."""
    recorded = {record["data"] for record in study.known}
    if not recorded:
        return "; name the file of recorded cells with --records=FILE.jsonl"
    declared = {dict(one.options).get("data.name") for f in study.findings for one in f.trainings}
    endings = sorted({name.partition("_")[2] for name in recorded - declared})
    options = [f"--copies={ending}" if ending else "no --copies" for ending in endings]
    return f"; its records are of other data: give {' or '.join(options)}" if options else ""


def comparable_cells(study: FindingsStudy) -> list[Cell]:
    """The finished cells that have another seed beside them."""
    found: dict[str, Cell] = {}
    for finding in study.findings:
        for training in finding.trainings:
            cells = [cell for cell in study.cells(training) if _values(study, [cell])]
            if len(cells) > 1:
                found |= {cell.digest: cell for cell in cells}
    return list(found.values())


def _measure(measures: Mapping[str, float]) -> str | None:
    return next((key for key in (FEW_SHOT, TEST, VALIDATION) if key in measures), None)


def _values(study: FindingsStudy, cells: Sequence[Cell]) -> list[tuple[str, float]]:
    found = []
    for cell in cells:
        measures = study.records.measures(cell) or {}
        if key := _measure(measures):
            found.append((key, float(measures[key])))
    return found


def _compared(study: FindingsStudy, cell: Cell, repeated: Record | None) -> Repeated:
    ((measure, recorded),) = _values(study, [cell])
    values = [value for _, value in _values(study, _seeds(study, cell))]
    half = prediction_half(values)
    mean = statistics.fmean(values)
    return Repeated(
        directory=cell.directory,
        measure=measure,
        recorded=recorded,
        repeated=repeated["measures"].get(measure) if repeated else None,
        low=mean - half,
        high=mean + half,
    )


def _seeds(study: FindingsStudy, cell: Cell) -> list[Cell]:
    """The cells that differ from a cell in nothing but the seed."""
    trainings = (training for finding in study.findings for training in finding.trainings)
    groups = (study.cells(training) for training in trainings)
    return next(group for group in groups if cell.digest in {one.digest for one in group})


def prediction_half(values: Sequence[float]) -> float:
    """Half the width of the 95 % prediction interval of one more value (Student's t)."""
    spread = statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
    return intervals.quantile(len(values) - 1) * spread
