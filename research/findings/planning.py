"""The cells of findings: which are needed next, at which rate, and what they cost."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from research.findings.arms import forward_flops
from research.findings.declaration import VALIDATION, Finding, Training
from research.findings.records import DONE, Records
from research.findings.scales import Scale
from vit_jax import config, run_config

STARTUP = 25.0  # seconds to import, compile and open the data, roughly
MEASURED_IMAGES = 15_000  # held-out and test images, each at a third of a training image's cost


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A training with one learning rate and one seed.

    Attributes:
      training: what it repeats.
      rate: the peak learning rate.
      seed: of the run.
      origin: the cell whose weights it begins with.
      overrides: options of this machine, such as `data.root`.
    """

    training: Training
    rate: float
    seed: int
    origin: "Cell | None" = None
    overrides: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        """16 hex digits of everything that determines its result."""
        looks = [dataclasses.asdict(look) for look in self.training.looks]
        origin = self.origin.digest if self.origin else None
        what = [config.fingerprint(self._without_origin), origin, looks]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def directory(self) -> str:
        """The run directory, below the folder of all cells."""
        label = "".join(c if c.isalnum() else "-" for c in self.training.label.lower())
        return f"cells/{label}/lr{self.rate:g}-seed{self.seed}-{self.digest[:8]}"

    def configured(self, workdir: pathlib.Path) -> config.Config:
        """Returns the config of its run."""
        if self.origin is None:
            return self._without_origin
        start = str(workdir / self.origin.directory)
        return dataclasses.replace(self._without_origin, init_from=start)

    @functools.cached_property
    def _without_origin(self) -> config.Config:
        options = dict(self.training.options) | {
            "name": f"findings/{self.training.label}",
            "optimizer.lr": self.rate,
            "seed": self.seed,
        }
        return run_config.config_from_values(config.override({}, options), dict(self.overrides))

    @property
    def flops(self) -> float:
        """Floating-point operations of training and evaluation."""
        train = self._without_origin.train
        images = train.duration.steps(train.batch_size, 1) * train.batch_size
        return forward_flops(self.training) * (3 * images + MEASURED_IMAGES)


class Study:
    """Findings at a scale: their cells, and which rate was chosen for each training."""

    def __init__(
        self,
        size: Scale,
        findings: Sequence[Finding],
        records: Records,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        """Checks the overrides: raises ConfigError for one that would change a result."""
        self.size, self.findings, self.records = size, findings, records
        self.overrides = tuple(sorted((overrides or {}).items()))
        self._cells: dict[tuple[Training, float, int, Cell | None], Cell] = {}
        free = {key for key, field, _ in config.fields() if field.metadata["free"]}
        for key, value in self.overrides:
            if key not in free:
                raise config.ConfigError(
                    f"--config.{key}={value}: would change what the findings declare; only options "
                    "of the machine can be set, such as --config.data.root=DIR"
                )

    def cell(self, training: Training, rate: float, seed: int) -> Cell | None:
        """Returns a cell; None while the rate of its origin is not chosen, or where that failed."""
        origin = None
        if training.origin is not None:
            chosen = self.rate(training.origin)
            origin = None if chosen is None else self.cell(training.origin, chosen, seed)
            if origin is None or self.records.failed(origin.digest):
                return None
        key = training, rate, seed, origin
        if key not in self._cells:  # whose digests take a config each
            self._cells[key] = Cell(
                training=training, rate=rate, seed=seed, origin=origin, overrides=self.overrides
            )
        return self._cells[key]

    def rate(self, training: Training) -> float | None:
        """Returns the rate with the best mean held-out top-1; None while a cell of it is missing.

        Equal means go to the lower rate. A rate that diverged with any seed is excluded; where all
        have, the lowest is taken.
        """
        if len(training.rates) == 1:
            return training.rates[0]
        means: dict[float, float] = {}
        for rate in sorted(training.rates):
            values = []
            for seed in self.size.choose_seeds:
                cell = self.cell(training, rate, seed)
                record = cell and self.records.of(cell.digest)
                if record is None:
                    return None
                values.append(
                    record["measures"].get(VALIDATION) if record["state"] == DONE else None
                )
            if None not in values:
                means[rate] = statistics.fmean(values)
        return max(means, key=lambda rate: means[rate]) if means else min(training.rates)

    def cells(self, training: Training) -> list[Cell]:
        """Returns the cells of the measurements: each seed at the chosen rate, as far as known."""
        rate = self.rate(training)
        if rate is None:
            return []
        found = (self.cell(training, rate, seed) for seed in self.size.seeds)
        return [cell for cell in found if cell is not None]

    def waiting(self, trainings: Iterable[Training]) -> list[Cell]:
        """Returns the cells without a record that can run once their origins have."""
        found: dict[str, Cell] = {}
        for training in trainings:
            rate = self.rate(training)
            pairs = (
                [(rate, seed) for seed in self.size.seeds]
                if rate is not None
                else [(rate, seed) for seed in self.size.choose_seeds for rate in training.rates]
            )
            for one, seed in pairs:
                cell = self.cell(training, one, seed)
                if cell is not None and self.records.of(cell.digest) is None:
                    found.setdefault(cell.digest, cell)
        return list(found.values())

    def planned(
        self, finding: Finding
    ) -> Iterator[tuple[Training, float | None, int, Cell | None]]:
        """Yields training, rate, seed and cell of a finding; None where not yet known."""
        for training in finding.trainings:
            choose = self.size.choose_seeds if len(training.rates) > 1 else ()
            tried = [(rate, seed) for seed in choose for rate in training.rates]
            chosen = self.rate(training)
            rest = [seed for seed in self.size.seeds if seed not in choose]
            for rate, seed in [*tried, *((chosen, seed) for seed in rest)]:
                cell = None if rate is None else self.cell(training, rate, seed)
                yield training, rate, seed, cell

    def seconds(self, training: Training) -> float:
        """Returns the estimated duration of a cell.

        It is the start-up time plus FLOPs over the median FLOP/s of the recorded cells of this
        scale, or over the scale's own number while there are none.
        """
        first = Cell(training=training, rate=training.rates[0], seed=0, overrides=self.overrides)
        return STARTUP + first.flops / self.speed

    @property
    def speed(self) -> float:
        """FLOP/s of a process."""
        known = [
            record["flops"] / max(record["seconds"] - STARTUP, 1.0)
            for record in self.records.of_scale(self.size.name)
            if record["state"] == DONE and record["seconds"] > STARTUP
        ]
        return statistics.median(known) if known else self.size.flops


def as_values(cell: Cell) -> dict[str, Any]:
    """The part of a record that is known before a cell has run.

    `options` are those of its config that determine the result and differ from the defaults,
    besides the learning rate and the seed.
    """
    cfg = cell.configured(pathlib.Path())
    free = {key for key, field, _ in config.fields() if field.metadata["free"]}
    subset = re.search(r"\[:(\d+)\]", cfg.data.train_split or "")
    return {
        "cell": cell.directory,
        "digest": cell.digest,
        "label": cell.training.label,
        "rate": cell.rate,
        "seed": cell.seed,
        "origin": cell.origin.digest if cell.origin else None,
        "data": cfg.data.name or cfg.data.source,
        "images": int(subset[1]) if subset else None,
        "steps": cfg.train.duration.steps(cfg.train.batch_size, 1),
        "options": {key: value for key, value in cell.training.options if key not in free},
        "flops": cell.flops,
    }
