"""Accuracy on CIFAR-10 against the number of labels, after learning without labels or with others.

    python -m research.label_efficiency plan
    python -m research.label_efficiency run --images=cifar10.tar.gz --others=cifar100.tar.gz
    python -m research.label_efficiency table --figure=docs/pictures/label-efficiency.png

The archives hold `train/CLASS/FILE` and `test/CLASS/FILE`. A small ViT begins with random weights,
with those that a masked autoencoder or DINO has learned from all 50,000 images without labels, or
with those learned from CIFAR-100 and its labels, the control: if that does not help, nothing can be
said of the others. It is then fine-tuned on 50, 500, 5,000 and 50,000 labeled images, as many of
each class, which the seed draws; the rest of the recipe is the same for all.

Learning rates are chosen for each beginning and number of labels with seed 0, on 5,000 images that
are no others' (`research.imbalance` holds them out): three at first, then the next one of LADDER as
long as the best is at an end of those tried. With all labels they are chosen on the 45,000 others,
in a fifth of the steps. Test images are measured once, at the end of each run.

There is one pre-training of each kind, so intervals are of images, order and new layers alone. Its
weights are kept in float16 beside the records, and fine-tuning begins with those: a clone that has
the records goes on where another was stopped. `run --most=1` ends after one cell.

`--budget=small` takes a network of an eighth of the size, fewer steps and at most 5,000 labels:
four hours of two slow cores instead of four days. `--budget=tiny` takes few steps, which say
nothing: with archives of 60 training images of each of ten classes it tries all of it within an
hour.
"""

import argparse
import dataclasses
import math
import pathlib
import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from research import imbalance
from research.findings import planning, verdicts
from research.label_neighbors import read_list
from vit_jax import config
from vit_jax.inference import conversion
from vit_jax.pages.charts import Chart, Series
from vit_jax.runtime import locking, logs
from vit_jax.studies import devices
from vit_jax.studies.cells import Cell
from vit_jax.studies.records import DONE, Records
from vit_jax.studies.study import Study
from vit_jax.training import run_config
from vit_jax.utils import intervals

RESULTS = pathlib.Path(__file__).parents[1] / "docs" / "records" / "label_efficiency.jsonl"
WORKER = "research.label_neighbors"
CLASSES, ALL = 10, 50_000
SEEDS = (0, 1, 2)
LADDER = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
FIRST = (3e-4, 1e-3, 3e-3)  # rates of it that are always tried
SCRATCH, MAE, DINO, CONTROL = "random weights", "MAE", "DINO", "CIFAR-100, labels"
ARMS = (SCRATCH, MAE, DINO, CONTROL)
UNTRAINED = "untrained"

OPTIONS: dict[str, Any] = {
    "model.patch_size": (4, 4),
    "model.heads": 3,
    "model.pooling": "gap",
    "data.source": "csv",
    "data.image_size": (32, 32),
    "data.crop_area": (0.35, 1.0),
    "data.eval_split": "validation",
    "data.workers": 0,
    "train.batch_size": 128,
    "train.clip_norm": 1.0,
    "optimizer.weight_decay": 0.05,
    "checkpoint.minutes": 10.0,
    "checkpoint.every": None,
    "checkpoint.keep": 1,
    "checkpoint.best": None,
    "evaluation.every": None,
    "logging.tensorboard": False,
}
PRETRAINING: dict[str, dict[str, Any]] = {
    MAE: {
        "objective.name": "mae",
        "objective.decoder_depth": 2,
        "objective.decoder_heads": 3,
        "data.crop_area": (0.2, 1.0),
        "train.batch_size": 256,
        "optimizer.b2": 0.95,
    },
    DINO: {
        "objective.name": "dino",
        "objective.prototypes": 2048,
        "objective.head_hidden": 512,
        "objective.local_views": 4,
        "train.clip_norm": 3.0,
        "train.clip_by": "parameter",
    },
    CONTROL: {"train.label_smoothing": 0.1},
}
TUNING: dict[str, Any] = {"train.label_smoothing": 0.1, "data.test_split": "test"}


class Budget(NamedTuple):
    """The network and the lengths of trainings.

    Attributes:
      network: options of the network; the width of MAE's decoder is half of its width.
      pretraining: steps of each kind, and its rate.
      tuning: batch and steps by the number of labels.
      choosing: steps in which the rate for all labels is chosen.
    """

    network: Mapping[str, Any]
    pretraining: Mapping[str, tuple[int, float]]
    tuning: Mapping[int, tuple[int, int]]
    choosing: int


NETWORK = {"model.width": 192, "model.depth": 6, "model.mlp_dim": 768}  # of cifar10/ViT-6_4
BUDGETS = {
    # For what 150 minutes of two cores with AMX allow: 100, 10 and 30 epochs.
    "full": Budget(
        NETWORK | {"model.dtype": "bfloat16_matmul"},
        {MAE: (19_500, 1e-3), DINO: (3900, 5e-4), CONTROL: (11_700, 1e-3)},
        {50: (50, 300), 500: (100, 1000), 5000: (128, 2000), ALL: (128, 8000)},
        1600,
    ),
    # That of cifar10/ViT-3_4 for half an hour of two slow cores: 13, 4 and 6 epochs.
    "small": Budget(
        {"model.width": 96, "model.depth": 3, "model.mlp_dim": 384},
        {MAE: (2500, 1e-3), DINO: (1500, 5e-4), CONTROL: (2400, 1e-3)},
        {50: (50, 100), 500: (100, 300), 5000: (128, 500)},
        0,
    ),
    "tiny": Budget(
        NETWORK,
        {MAE: (4, 1e-3), DINO: (4, 5e-4), CONTROL: (4, 1e-3)},
        {50: (50, 4), ALL: (64, 4)},
        2,
    ),
}


def prepare(archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpacks an archive and lists its images, unless that was done.

    Besides the lists of `imbalance.prepare`, `whole.csv` has all training images, and of CIFAR-10
    `labelsN-seedS.csv` the first N of an order drawn by the seed, as many of each class.
    """
    imbalance.prepare(archive, folder)
    if (folder / "whole.csv").exists():
        return
    by_class: dict[str, list[str]] = {}
    for row in [*read_list(folder / "train.csv"), *read_list(folder / "validation.csv")]:
        by_class.setdefault(row["class"], []).append(row["image"])
    held = {row["image"] for row in read_list(folder / "validation.csv")}
    if len(by_class) == CLASSES:
        for seed in SEEDS:
            random = np.random.default_rng(seed)
            rest = {
                name: [one for one in ones if one not in held] for name, ones in by_class.items()
            }
            drawn = {name: random.permutation(ones) for name, ones in rest.items()}
            for labels in sorted({n for one in BUDGETS.values() for n in one.tuning} - {ALL}):
                few = {name: list(ones[: labels // CLASSES]) for name, ones in drawn.items()}
                imbalance.write_list(folder / f"{_split(labels, seed)}.csv", few)
    imbalance.write_list(folder / "whole.csv", by_class)


def _split(labels: int, seed: int) -> str:
    return "whole" if labels == ALL else f"labels{labels}-seed{seed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedCell(Cell):
    """A fine-tuning that begins with the weights kept of its origin."""

    kept: pathlib.Path

    def in_workdir(self, workdir: pathlib.Path) -> config.Config:
        """The config to run."""
        return dataclasses.replace(self.cfg, init_from=str(self.kept))


class LabelStudy(Study):
    """The pre-trainings, the rates of every beginning and number of labels, and their seeds."""

    lock = None  # `main` holds one, while it unpacks too

    def __init__(
        self,
        workdir: pathlib.Path,
        records: Records,
        weights: pathlib.Path,
        budget: str = "full",
        most: int | None = None,
    ) -> None:
        """Takes the folder of the weights kept, and how many cells to run at most."""
        self.records, self.workdir, self.weights = records, workdir, weights
        self.budget, self.lengths, self._left = budget, BUDGETS[budget], most
        self._made: dict[tuple[Any, ...], Cell] = {}

    def origin(self, arm: str) -> Cell | None:
        """The pre-training of a beginning; None of random weights."""
        if arm == SCRATCH:
            return None
        if (arm,) not in self._made:
            steps, rate = self.lengths.pretraining[arm]
            options = PRETRAINING[arm] | {
                "train.duration": f"{steps} steps",
                "schedule.warmup": f"{steps // 10} steps",
                "optimizer.lr": rate,
                "data.eval_split": "test",
            }
            data = "cifar100" if arm == CONTROL else "cifar10"
            self._made[(arm,)] = self._create(
                arm, data, "whole", options, measurements=({"kind": "knn"},)
            )
        return self._made[(arm,)]

    def untrained(self, seed: int) -> Cell:
        """One step that changes nothing: neighbors by random features and by pixels."""
        options = {"train.duration": "1 steps", "optimizer.lr": 1e-8, "seed": seed}
        options |= {"schedule.warmup": "0 steps"}
        measured = ({"kind": "knn"}, *([{"kind": "pixels"}] if seed == 0 else []))
        return self._create(
            UNTRAINED, "cifar10", _split(min(self.lengths.tuning), seed), options,
            measurements=measured,
        )  # fmt: skip

    def cell(self, arm: str, labels: int, rate: float, seed: int, *, choosing: bool) -> Cell:
        """A fine-tuning; with all labels, one for `choosing` a rate leaves the validation out."""
        choosing = choosing and labels == ALL
        key = arm, labels, rate, seed, choosing
        if key not in self._made:
            batch, steps = self.lengths.tuning[labels]
            steps = self.lengths.choosing if choosing else steps
            options = TUNING | {
                "train.batch_size": batch,
                "train.duration": f"{steps} steps",
                "schedule.warmup": f"{steps // 10} steps",
                "optimizer.lr": rate,
                "seed": seed,
            }
            if choosing:
                options["data.test_split"] = None
            split = "train" if choosing else _split(labels, seed)
            if labels == ALL and not choosing:  # the validation images are learned here
                options |= {"data.eval_split": "test", "data.test_split": None}
            self._made[key] = self._create(
                arm, "cifar10", split, options, origin=self.origin(arm), labels=labels
            )
        return self._made[key]

    def _create(
        self,
        arm: str,
        data: str,
        split: str,
        options: dict[str, Any],
        *,
        origin: Cell | None = None,
        labels: int | None = None,
        measurements: tuple[Mapping[str, Any], ...] = (),
    ) -> Cell:
        options = {**options, **self.lengths.network}
        if arm == MAE and origin is None:
            options["objective.decoder_width"] = options["model.width"] // 2
        own = {"data.root": str(self.workdir / data), "data.train_split": split}
        own["name"] = "label_efficiency"
        cfg = run_config.config_from_values(config.override({}, OPTIONS | own | options), {})
        steps = cfg.train.duration.steps(cfg.train.batch_size, 1)
        facts = {
            "arm": arm,
            "labels": labels,
            "set": f"{data}/{split}",
            "budget": self.budget,
            "images": steps * cfg.train.batch_size,
            "options": {k: v for k, v in (OPTIONS | options).items() if "checkpoint" not in k},
            "origin": origin and origin.digest,
        }
        label = "".join(c if c.isalnum() else "-" for c in f"{arm}-{split}".lower())
        directory = f"cells/{label}/steps{steps}-lr{cfg.optimizer.lr:g}-seed{cfg.seed}"
        if origin is None:
            return Cell(
                directory=directory, cfg=cfg, facts=facts, worker=WORKER, measurements=measurements
            )
        return TunedCell(
            directory=directory, cfg=cfg, facts=facts, origin=origin, kept=self.kept(arm)
        )

    def kept(self, arm: str) -> pathlib.Path:
        """The folder of the weights of a pre-training."""
        return self.weights / ("cifar100" if arm == CONTROL else arm.lower())

    def recorded(self, cell: Cell) -> None:
        """Keeps the weights of a pre-training."""
        if cell.facts["arm"] in PRETRAINING and cell is self.origin(cell.facts["arm"]):
            self._keep_weights(cell)
        if self._left is not None:
            self._left -= 1

    def tried(self, arm: str, labels: int) -> list[Cell]:
        """The cells with which a rate is chosen, as far as is known which are needed."""
        rates = list(FIRST)
        while True:
            cells = {r: [self.cell(arm, labels, r, 0, choosing=True)] for r in sorted(rates)}
            scores = self.records.scores(cells, "top1")
            if not scores:
                break
            place = LADDER.index(max(scores, key=scores.__getitem__))
            near = LADDER[max(place - 1, 0) : place + 2]
            if not (new := [rate for rate in near if rate not in rates]):
                break
            rates += new
        return [cells[rate][0] for rate in sorted(rates)]

    def rate(self, arm: str, labels: int) -> float | None:
        """The rate that validation chose; None while it is open."""
        cells = {cell.lr: [cell] for cell in self.tried(arm, labels)}
        scores = self.records.scores(cells, "top1") or {}
        return max(scores, key=scores.__getitem__, default=None)

    def measured(self, arm: str, labels: int) -> dict[int, Cell]:
        """The cells of the table by seed; none while the rate is open."""
        rate = self.rate(arm, labels)
        if rate is None:
            return {}
        return {seed: self.cell(arm, labels, rate, seed, choosing=False) for seed in SEEDS}

    def wanted(self) -> Iterator[Cell]:
        """The cells without a record, few labels first, as far as is known which are needed."""
        cells: list[Cell] = [self.untrained(seed) for seed in SEEDS]
        for arm in ARMS:
            cells += filter(None, [self.origin(arm)])
        for labels in self.lengths.tuning:
            for arm in ARMS:
                cells += [*self.tried(arm, labels), *self.measured(arm, labels).values()]
        seen = set()
        for cell in cells:
            if self.records.find(cell) is None and cell.digest not in seen:
                seen.add(cell.digest)
                yield cell

    def ready(self) -> list[Cell]:
        """The cells whose weights are there: the longest pre-training first, as others wait."""

        def turn(cell: Cell) -> int:
            pretraining = cell.facts["arm"] in PRETRAINING and cell.origin is None
            return -cell.facts["images"] if pretraining else cell.facts["images"]

        cells = sorted(self.wanted(), key=turn)
        return [c for c in cells if c.origin is None or self._has_weights(c)][: self._left]

    def _keep_weights(self, origin: Cell) -> None:
        run, folder = self.workdir / origin.directory, self.kept(origin.facts["arm"])
        if self.records.measures(origin) is not None and (run / "checkpoints").is_dir():
            self.weights.mkdir(parents=True, exist_ok=True)
            conversion.convert(run, "timm", folder, dtype="float16")

    def _has_weights(self, cell: Cell) -> bool:
        assert cell.origin is not None
        if self.records.measures(cell.origin) is None:
            return False
        folder = self.kept(cell.facts["arm"])
        if not folder.is_dir():  # it was stopped between its record and them
            self._keep_weights(cell.origin)
        if not folder.is_dir():
            raise config.ConfigError(
                f"{folder}: the weights of a recorded pre-training are missing; restore them, or "
                f"remove its line ({cell.origin.digest}) from {self.records.path}"
            )
        return True


def test_top1(study: LabelStudy, arm: str, labels: int) -> dict[int, float]:
    """Test top-1 of a beginning by seed, as far as measured, at the chosen rate."""
    found = {}
    for seed, cell in study.measured(arm, labels).items():
        measures = study.records.measures(cell)
        if measures is not None:
            found[seed] = measures["top1" if labels == ALL else "test/top1"]
    return found


def table(study: LabelStudy) -> Iterator[str]:
    """Yields a row for each beginning and number of labels: %, n, and its lead with 95 %."""
    for labels in study.lengths.tuning:
        for arm in ARMS:
            values = test_top1(study, arm, labels)
            if not values:
                continue
            mean, half = statistics.fmean(values.values()), intervals.half_width([*values.values()])
            shown = f"{100 * mean:.1f}" + (f" ± {100 * half:.1f}" if half is not None else "")
            ahead = leads(study, arm, labels)
            lead, wide = "", intervals.half_width(ahead)
            if arm != SCRATCH and wide is not None:
                lead = f"{100 * statistics.fmean(ahead):+.1f} ± {100 * wide:.1f}"
            rate = study.rate(arm, labels)
            yield f"| {labels:,} | {arm} | {rate:g} | {len(values)} | {shown} | {lead} |"


def leads(study: LabelStudy, arm: str, labels: int) -> list[float]:
    """By how much a beginning is ahead of random weights with each seed that both have."""
    plain, values = (test_top1(study, one, labels) for one in (SCRATCH, arm))
    return [values[seed] - plain[seed] for seed in values if seed in plain]


def p_values(study: LabelStudy) -> dict[tuple[str, int], float]:
    """Holm's p-values of all leads of MAE and DINO, two-sided by Student's t; 1: not all seeds."""
    found = dict[tuple[str, int], float]()
    for labels in study.lengths.tuning:
        for arm in (MAE, DINO):
            values = leads(study, arm, labels)
            found[arm, labels] = 1.0
            if len(values) == len(SEEDS):
                mean, error = abs(statistics.fmean(values)), intervals.standard_error(values)
                ratio = mean / error if error else math.inf
                found[arm, labels] = 2 * float(stats.t(len(values) - 1).sf(ratio))
    return dict(zip(found, verdicts.holm(list(found.values())), strict=True))


def verdict(study: LabelStudy, arm: str, labels: int) -> str:
    """Whether a beginning is ahead of random weights, or why nothing can be said yet.

    For the control its own 95 % interval decides, for the others Holm's correction.
    """
    seeds = {one: test_top1(study, one, labels) for one in (SCRATCH, CONTROL, arm)}
    missing = [f"{one} has {len(v)} of {len(SEEDS)} seeds" for one, v in seeds.items()
               if len(v) < len(SEEDS)]  # fmt: skip
    if missing:
        return "no verdict: " + ", ".join(missing)
    control, own = (leads(study, one, labels) for one in (CONTROL, arm))
    if statistics.fmean(control) <= (intervals.half_width(control) or 0.0):
        return "no verdict: the control itself is not ahead"
    if arm == CONTROL:
        return "ahead"
    p = p_values(study)[arm, labels]
    decided = "ahead" if statistics.fmean(own) > 0 else "behind"
    return f"{decided if p < 1 - intervals.LEVEL else 'undecided'} (p {p:.3f} by Holm)"


def chart(study: LabelStudy) -> Chart:
    """The figure: test top-1 against labels, with 95 % intervals."""
    series = []
    for color, arm in enumerate(ARMS):
        known = {n: list(test_top1(study, arm, n).values()) for n in study.lengths.tuning}
        known = {n: values for n, values in known.items() if values}
        series.append(
            Series(
                name=arm,
                points=[(n, statistics.fmean(values)) for n, values in known.items()],
                errors=[intervals.half_width(values) for values in known.values()],
                color=color,
                marks=True,
            )
        )
    return Chart(
        title="test top-1", x="labeled images", log_x=True, percent=True, series=series,
        ticks=[(n, f"{n:,}") for n in study.lengths.tuning],
    )  # fmt: skip


def neighbors(study: LabelStudy) -> Iterator[str]:
    """Yields a row for each beginning: 20-NN of features, in %, by seed."""
    known = [r for r in study.records if r["state"] == DONE and r["budget"] == study.budget]
    for arm in (UNTRAINED, *PRETRAINING):
        done = [r["measures"] for r in known if r["arm"] == arm]
        for kind, label in (("knn/20nn/top1", arm), ("pixels/20nn/top1", "pixels")):
            values = [one[kind] for one in done if kind in one]
            if values:
                yield f"| {label} | {', '.join(f'{100 * value:.1f}' for value in values)} |"


def plan(study: LabelStudy) -> Iterator[str]:
    """Yields the missing cells, with minutes by the speed of recorded ones of their kind."""
    known = [r for r in study.records if r["state"] == DONE and r["budget"] == study.budget]
    cells = sorted(study.wanted(), key=lambda one: one.facts["images"])
    for cell in cells:
        kind = cell.facts["arm"] if cell.facts["labels"] is None else "tuning"
        same = [r for r in known if (r["arm"] if r["labels"] is None else "tuning") == kind]
        speeds = [r["images"] / r["seconds"] for r in same if r["images"] > 10_000]
        minutes = ""
        if speeds:
            minutes = f", {cell.facts['images'] / statistics.median(speeds) / 60:.0f} minutes"
        waits = (
            "" if cell.origin is None or study.records.find(cell.origin) else ", after its origin"
        )
        yield f"{cell.directory}: {cell.facts['images']:,} images{minutes}{waits}"
    open_rates = sum(study.rate(a, n) is None for a in ARMS for n in study.lengths.tuning)
    yield (
        f"{len(cells)} cells missing; {open_rates} rates are open, whose further seeds "
        f"({open_rates * (len(SEEDS) - 1)} cells or more) are not listed yet"
    )


def main() -> None:
    """Prints what is missing, runs it, or shows what there is."""
    parser = argparse.ArgumentParser(prog="python -m research.label_efficiency")
    parser.add_argument("command", choices=("plan", "run", "table"))
    parser.add_argument("--images", type=pathlib.Path, help="archive of CIFAR-10")
    parser.add_argument("--others", type=pathlib.Path, help="archive of CIFAR-100")
    parser.add_argument("--most", type=int, metavar="N", help="run N cells at most")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="run N cells at once")
    parser.add_argument("--budget", choices=tuple(BUDGETS), default="full")
    parser.add_argument("--figure", type=pathlib.Path, metavar="PNG", help="draw it")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs", "labels"))
    parser.add_argument("--records", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    for name in ("most", "parallel"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name}={getattr(args, name)}: must be at least 1")
    records, workdir = Records(args.records), args.workdir.absolute()
    weights = args.records.with_suffix("").absolute() / args.budget
    study = LabelStudy(workdir, records, weights, args.budget, args.most)
    if args.command == "run":
        if args.images is None or args.others is None:
            parser.error("run: needs --images and --others")
        logs.setup()
        with locking.exclusive(workdir, "labels.lock"):
            prepare(args.images, workdir / "cifar10")
            prepare(args.others, workdir / "cifar100")
            study.perform(planning.one_core_each(devices.shares(args.parallel)))
    if args.command == "plan":
        print("\n".join(plan(study)))
        return
    for row in (*table(study), *neighbors(study)):
        print(row)
    for labels in study.lengths.tuning:
        for arm in (MAE, DINO, CONTROL):
            print(f"{arm}, {labels:,} labels: {verdict(study, arm, labels)}")
    if args.figure is not None:
        from research import chart_files  # matplotlib is slow to import

        if not any(one.points for one in chart(study).series):
            parser.error("--figure: no cell of it is recorded")
        chart_files.draw_chart(chart(study), args.figure)


if __name__ == "__main__":
    try:
        main()
    except config.UserError as error:
        print(f"label_efficiency: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
