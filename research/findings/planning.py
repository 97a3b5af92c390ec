"""The cells of findings: which are needed next, at which rate, and what they cost."""

import dataclasses
import pathlib
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from research.findings.arms import forward_flops
from research.findings.declaration import VALIDATION, Finding, Training
from research.findings.scales import Scale
from vit_jax import config
from vit_jax.data import availability
from vit_jax.runtime import logs
from vit_jax.studies.cells import Cell
from vit_jax.studies.devices import Environment
from vit_jax.studies.records import DONE, Record, Records
from vit_jax.studies.study import Study
from vit_jax.training import run_config

EXTENSIONS = 3  # of a grid of learning rates whose best is at its end
STARTUP = 25.0  # seconds to import, compile and open the data, roughly
MEASURED_IMAGES = 15_000  # held-out and test images, each at a third of a training image's cost
# Several processes on one CPU take a core each: threads of one would wait for those of another.
ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}
FINISHED = "finished"  # a file in the run directory of a cell whose final weights are there
LOCK = "findings.lock"
WORKER = "research.findings.measures"
KEYS = {  # what their records have besides those of every study
    "scale": str,
    "label": str,
    "data": str,
    "images": (int, type(None)),
    "steps": int,
    "options": dict,
    "flops": float,
}


def open_records(path: pathlib.Path) -> Records:
    """The records of findings in a file; raises ConfigError for a line that is none."""
    return Records(path, keys=KEYS)


class FindingsStudy(Study):
    """Findings at a scale: their cells, and which rate was chosen for each training."""

    lock = LOCK

    def __init__(
        self,
        size: Scale,
        findings: Sequence[Finding],
        records: Records,
        workdir: pathlib.Path,
        overrides: Mapping[str, str] | None = None,
        *,
        only: Sequence[str] | None = None,
    ) -> None:
        """Checks the overrides: raises ConfigError for one that would change a result.

        `findings` are all that are declared at the scale, `only` the names of those to run and
        show; `overrides` are options of the machine.
        """
        self.size, self.declared, self.records, self.workdir = size, findings, records, workdir
        self.findings = [one for one in findings if only is None or one.name in only]
        self.overrides = tuple(sorted((overrides or {}).items()))
        self._cells: dict[tuple[Training, float, int, str | None], Cell] = {}
        for key, value in self.overrides:
            if key not in _machine_options():
                raise config.ConfigError(
                    f"--config.{key}={value}: would change what the findings declare; only options "
                    "of the machine can be set, such as --config.data.root=DIR"
                )

    def ready(self) -> list[Cell]:
        """The cells of the first finding that has some left, origins that are missing first."""
        for finding in self.findings:
            found: dict[str, Cell] = {}
            for cell in self.waiting(finding.trainings):
                origin = cell.origin
                if origin is None or self._has_weights(origin):
                    found.setdefault(cell.digest, cell)
                elif self.records.find(origin) is not None:
                    found.setdefault(origin.digest, origin)  # recorded elsewhere, or removed since
            if found:
                cells = list(found.values())
                seconds = sum(self.seconds_of(cell.facts["flops"]) for cell in cells)
                each = logs.duration(seconds / len(cells))
                logs.log.info("%s: %s", finding.name, finding.statement)
                logs.log.info("%d cells, about %s each", len(cells), each)
                return cells
        return []

    def recorded(self, cell: Cell) -> None:
        """Marks that the weights of a cell are there."""
        (self.workdir / cell.directory / FINISHED).touch()

    def _has_weights(self, cell: Cell) -> bool:
        return (self.workdir / cell.directory / FINISHED).is_file()

    def cell(self, training: Training, rate: float, seed: int) -> Cell | None:
        """A cell; None while the rate of its origin is not chosen, or where that failed."""
        origin = None
        if training.origin is not None:
            best = self.rate(training.origin)
            origin = None if best is None else self.cell(training.origin, best, seed)
            if origin is None or self.records.failed(origin):
                return None
        key = training, rate, seed, origin and origin.digest
        if key not in self._cells:  # whose digests take a config each
            self._cells[key] = self._make(training, rate, seed, origin)
        return self._cells[key]

    def _make(self, training: Training, rate: float, seed: int, origin: Cell | None) -> Cell:
        named = {"name": f"findings/{training.label}", "optimizer.lr": rate, "seed": seed}
        values = config.override({}, dict(training.options) | named)
        cfg = run_config.config_from_values(values, dict(self.overrides))
        subset = re.search(r"\[:(\d+)\]", cfg.data.train_split or "")
        steps = cfg.train.duration.steps(cfg.train.batch_size, 1)
        facts = {
            "label": training.label,
            "origin": origin.digest if origin else None,
            "data": cfg.data.name or cfg.data.source,
            "images": int(subset[1]) if subset else None,
            "steps": steps,
            # Those that determine the result, besides the learning rate and the seed.
            "options": {k: v for k, v in training.options if k not in _machine_options()},
            "flops": self._flops(training),
            "scale": self.size.name,
        }
        measurements = tuple(dataclasses.asdict(one) for one in training.measurements)
        cell = Cell(
            directory="", cfg=cfg, facts=facts, origin=origin, worker=WORKER,
            measurements=measurements,
        )  # fmt: skip
        label = "".join(c if c.isalnum() else "-" for c in training.label.lower())
        directory = f"cells/{label}/lr{rate:g}-seed{seed}-{cell.digest[:8]}"
        return dataclasses.replace(cell, directory=directory)

    @staticmethod
    def _flops(training: Training) -> float:
        options = dict(training.options)
        steps = int(options["train.duration"].split()[0])
        images = steps * options["train.batch_size"]
        return forward_flops(training) * (3 * images + MEASURED_IMAGES)

    def rate(self, training: Training) -> float | None:
        """The best learning rate so far; None while a cell of the declared ones is missing."""
        return self.search(training)[0]

    def search(self, training: Training) -> tuple[float | None, list[float], bool]:
        """The best learning rate so far, all that are tried, and whether the search has ended.

        While the best is the lowest or the highest, the next one on that side is tried too, up to
        `EXTENSIONS` times. A training with a single declared rate is not searched.
        """
        rates = sorted(training.rates)
        best = self._best(training, rates)
        if len(rates) == 1:
            return best, rates, True
        ratio = rates[1] / rates[0]
        for _ in range(EXTENSIONS):
            if best is None or rates[0] < best < rates[-1]:
                break
            low, high = (float(f"{x:.3g}") for x in (rates[0] / ratio, rates[-1] * ratio))
            wider = [low, *rates] if best == rates[0] else [*rates, high]
            better = self._best(training, wider)
            if better is None:
                return best, wider, False
            best, rates = better, wider
        return best, rates, best is not None

    def at_an_end(self, training: Training) -> Training | None:
        """The first of a training and its origins whose best rate has none tried on both sides."""
        best, rates, ended = self.search(training)
        if best is None or not ended or not rates[0] < best < rates[-1]:
            return training
        return self.at_an_end(training.origin) if training.origin else None

    def _ended(self, training: Training | None) -> bool:
        return training is None or (self.search(training)[2] and self._ended(training.origin))

    def _best(self, training: Training, rates: Sequence[float]) -> float | None:
        """The rate with the best mean held-out top-1; None while a cell of it is missing.

        Equal means go to the lower rate. A rate that diverged with any seed is excluded; where all
        have, the lowest is taken.
        """
        if len(rates) == 1:
            return rates[0]
        tried: dict[float, list[Cell]] = {}
        for rate in rates:
            cells = [self.cell(training, rate, seed) for seed in self.size.choose_seeds]
            tried[rate] = [cell for cell in cells if cell is not None]
            if len(tried[rate]) < len(cells):
                return None
        scores = self.records.scores(tried, VALIDATION)
        if scores is None:
            return None
        return max(scores, key=lambda rate: statistics.fmean(scores[rate]), default=rates[0])

    def cells(self, training: Training) -> list[Cell]:
        """The cells of the measurements: each seed at the best rate, as far as known."""
        rate = self.rate(training)
        if rate is None:
            return []
        found = (self.cell(training, rate, seed) for seed in self.size.seeds)
        return [cell for cell in found if cell is not None]

    def waiting(self, trainings: Iterable[Training]) -> list[Cell]:
        """The cells without a record that can run once their origins have."""
        found: dict[str, Cell] = {}
        for training in trainings:
            if not self._ended(training.origin):
                continue  # a better rate of the origin would make other weights
            rate, rates, ended = self.search(training)
            pairs = (
                [(rate, seed) for seed in self.size.seeds]
                if rate is not None and ended
                else [(rate, seed) for seed in self.size.choose_seeds for rate in rates]
            )
            for one, seed in pairs:
                cell = self.cell(training, one, seed)
                if cell is not None and self.records.find(cell) is None:
                    found.setdefault(cell.digest, cell)
        return list(found.values())

    def planned(
        self, finding: Finding
    ) -> Iterator[tuple[Training, float | None, int, Cell | None]]:
        """Yields training, rate, seed and cell of a finding; None where not yet known."""
        for training in finding.trainings:
            best, rates, ended = self.search(training)
            choose = self.size.choose_seeds if len(rates) > 1 else ()
            tried = [(rate, seed) for seed in choose for rate in rates]
            best = best if ended else None
            rest = [seed for seed in self.size.seeds if seed not in choose]
            for rate, seed in [*tried, *((best, seed) for seed in rest)]:
                cell = None if rate is None else self.cell(training, rate, seed)
                yield training, rate, seed, cell

    def seconds(self, training: Training) -> float:
        """The estimated duration of a cell.

        It is the start-up time plus FLOPs over the median FLOP/s of the recorded cells of this
        scale, or over the scale's own number while there are none.
        """
        return self.seconds_of(self._flops(training))

    def seconds_of(self, flops: float) -> float:
        """The estimated duration of a cell with so many FLOPs."""
        return STARTUP + flops / self.speed

    @property
    def known(self) -> list[Record]:
        """The records of this scale."""
        return [record for record in self.records if record["scale"] == self.size.name]

    @property
    def speed(self) -> float:
        """FLOP/s of a process."""
        known = [
            record["flops"] / max(record["seconds"] - STARTUP, 1.0)
            for record in self.known
            if record["state"] == DONE and record["seconds"] > STARTUP
        ]
        return statistics.median(known) if known else self.size.flops


def one_core_each(shares: Sequence[Environment]) -> list[Environment]:
    """The variables of parallel processes; several on one CPU get a core each."""
    on_cpu = len(shares) > 1 and not any(shares)
    return [{**share, **(ONE_CORE if on_cpu else {})} for share in shares]


def check_data(study: FindingsStudy) -> None:
    """Raises ConfigError if a dataset is missing, with the command that provides it."""
    names = {}
    for finding in study.findings:
        for training in finding.trainings:
            options = dict(training.options)
            measured = [dict(m.options).get("data.name") for m in training.measurements]
            for name in (options.get("data.name"), *measured):
                if name and options["data.source"] == "tfds":
                    names[name] = None
    root = dict(study.overrides).get("data.root")
    for name in names:
        if availability.known_dataset(name) is not None:
            availability.check_prepared(name, root)
        elif not availability.labeled_splits(name, root):
            raise config.ConfigError(
                f"--copies: {name} is not in {availability.directory(root)}; run `vit_jax prepare "
                f"{name} --from=FOLDER_OR_TAR{f' --data-dir={root}' if root else ''}`"
            )


def _machine_options() -> set[str]:
    return {key for key, field, _ in config.declared() if field.metadata["free"]}
