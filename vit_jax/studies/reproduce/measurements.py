"""Reads the numbers of a table from run directories."""

import pathlib
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from vit_jax import config
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting, run_data
from vit_jax.studies.report.run_data import StoredRun, StoredTransfer
from vit_jax.studies.reproduce.exhibit import CORE_DAYS, EXAFLOPS, HELD_OUT, Score, TableRun
from vit_jax.utils import intervals

# The stored runs of a table, by directory.
Found = Mapping[str, StoredRun | StoredTransfer | None]


class Number(NamedTuple):
    """A measured number over seeds; fractions are in %.

    Attributes:
      mean: over seeds.
      std: the sample standard deviation; None for one seed.
      seeds: how many.
      ci95: half the 95 % confidence interval of the mean; None for one seed.
    """

    mean: float
    std: float | None
    seeds: int
    ci95: float | None = None


def read_stored(run: TableRun, workdir: pathlib.Path) -> StoredRun | StoredTransfer | None:
    """The stored results of a run or transfer; None if it has not started."""
    directory = workdir / run.directory
    if run.kind == "transfer":
        found = (directory / run_data.TRANSFER).is_file()
        return run_data.read_transfer(directory) if found else None
    return run_data.read_run(directory) if (directory / "config.json").is_file() else None


def finished(found: StoredRun | StoredTransfer | None) -> bool:
    """Whether a run or transfer is finished."""
    if isinstance(found, StoredTransfer):
        return bool(found.results)
    return found is not None and found.finished


def number(score: Score, found: Found, exaflops: float | None) -> Number | None:
    """The measured number; None while any of its runs, which took `exaflops`, is missing.

    Also None for a mean over runs of unequal numbers of seeds, as of `counts`.
    """
    if score.measure == EXAFLOPS:
        return None if exaflops is None else Number(exaflops, None, 1)
    each = [_values(score, found.get(run.directory)) for run in score.runs]
    # Means of pairs of seeds need equally many seeds of each run.
    if not all(each) or len({len(values) for values in each}) != 1:
        return None
    scale = 100 if score.share else 1
    # Seed by seed: the interval is that of the mean over runs, not of single runs.
    seeds = [scale * statistics.fmean(one) for one in zip(*each, strict=True)]
    std = statistics.stdev(seeds) if len(seeds) > 1 else None
    return Number(statistics.fmean(seeds), std, len(seeds), intervals.half_width(seeds))


def counts(score: Score, found: Found) -> set[int]:
    """The numbers of seeds that its runs were measured with; 0 for one that was not."""
    return {len(_values(score, found.get(run.directory))) for run in score.runs}


def _values(score: Score, found: StoredRun | StoredTransfer | None) -> list[float]:
    """The value of each seed; empty if the run has not been measured."""
    if isinstance(found, StoredTransfer):
        if score.measure.startswith(HELD_OUT):
            return _held_out(found, score.measure.removeprefix(HELD_OUT))
        return list((found.results.get(score.measure) or {}).get("values", ()))
    if found is None or not found.finished:
        return []
    if score.measure == CORE_DAYS:
        # JAX counts each core of a TPU v2 or v3 as a device.
        cores = formatting.devices(found.record)
        return [] if found.seconds is None else [found.seconds * cores / 86_400]
    if score.epoch is not None:
        results = _after(found, score.epoch)
    else:
        results = found.best if score.best else found.last  # the paper reports the end
    return [results[score.measure]] if score.measure in results else []


def _after(found: StoredRun, epoch: int) -> dict[str, float]:
    """The results of the evaluation after an epoch; empty without such an evaluation."""
    examples = found.record.get("examples")
    if found.cfg is None or examples is None:
        return {}
    ends = config.Duration(epoch, "epochs").steps(found.cfg.train.batch_size, examples)
    # Evaluations follow each epoch, rounded up to steps, and never come after the last step.
    steps = range(ends, min(ends + epoch, found.steps or ends) + 1)
    return next(filter(None, map(found.results_of, steps)), {})


def _held_out(found: StoredTransfer, rate: str) -> list[float]:
    """The held-out results of a learning rate with the config's own setup."""
    return [
        cell["results"]["top1"]
        for cell in found.cells("choose")
        if f"{cell['lr']:g}" == rate and cell["setup"] == "vit" and cell.get("results")
    ]


def where(run: TableRun, found: StoredRun | StoredTransfer) -> dict[str, str | int]:
    """Where and when a finished run or transfer was run, and its result, as a row of a table."""
    if isinstance(found, StoredRun):
        record, date, seconds = found.record, found.date, found.seconds
        top1, seeds = found.results.get("top1"), 1
    else:
        record, date = found.values.get("machine") or {}, str(found.values.get("date", ""))
        seconds = sum(cell.get("seconds") or 0 for cell in found.values.get("cells", ()))
        spread = found.results.get("top1") or {}
        top1, seeds = spread.get("mean"), len(spread.get("values", ()))
    return {
        "directory": run.directory,
        "result": formatting.percent(top1),
        "seeds": seeds,
        "machine": formatting.machine(record),
        "date": date,
        "time": "" if seconds is None else logs.duration(seconds),
    }
