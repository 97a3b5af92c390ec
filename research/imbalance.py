"""Answers to imbalanced classes, compared on a long-tailed CIFAR-10 with seeds and intervals.

    python -m research.imbalance run --images=cifar10.tar.gz --pretraining=cifar100.tar.gz
    python -m research.imbalance table

The archives hold `train/CLASS/FILE` and `test/CLASS/FILE`. A tenth of the training images of a
class, by the hash of their names, are for validation; the others are in an order drawn by the seed,
and class k of 10 keeps the first 4500 x 100^(-k/9) of them (the profile of Cui et al. 2019 with an
imbalance of 100). The control has as many images in all, equally many of each class. All runs begin
with one network that has learned CIFAR-100 and has seen no label of CIFAR-10. Validation and test
images are balanced, so their top-1 is the balanced accuracy.

The rate of each set is the best of three on validation with seed 0, of the plain loss; the other
answers take that of the plain loss.
"""

import argparse
import csv
import dataclasses
import hashlib
import pathlib
import statistics
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from research.findings import planning
from vit_jax import config
from vit_jax.runtime import locking, logs
from vit_jax.studies.cells import Cell
from vit_jax.studies.records import DONE, Records
from vit_jax.studies.study import Study
from vit_jax.training import run_config
from vit_jax.utils import intervals

RESULTS = pathlib.Path(__file__).parents[1] / "docs" / "records" / "imbalance.jsonl"
SEEDS, RATES = (0, 1, 2), (3e-4, 1e-3, 3e-3)
CLASSES, LARGEST, IMBALANCE = 10, 4500, 100  # images of the largest class; largest / smallest
PLAIN, BALANCED = "plain loss", "plain loss, balanced images"
ARMS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "class weights, balanced": {"train.class_weights": ("balanced",)},
    "class weights, effective": {"train.class_weights": ("effective",)},
    "sampling, balanced": {"data.sampling": "balanced"},
    "sampling, square root": {"data.sampling": "sqrt"},
    "focal loss": {"loss.name": "focal"},
    "logit adjustment": {"loss.name": "logit_adjusted"},
    BALANCED: {},
}
# Sixteen patches an image: a cell is a minute of one core.
NETWORK: dict[str, Any] = {
    "model.patch_size": (8, 8),
    "model.width": 96,
    "model.depth": 4,
    "model.mlp_dim": 384,
    "model.heads": 3,
    "model.pooling": "gap",
}
OPTIONS: dict[str, Any] = NETWORK | {
    "data.source": "csv",
    "data.eval_split": "validation",
    "data.image_size": (32, 32),
    "data.crop_area": (0.5, 1.0),
    "data.workers": 0,
    "train.batch_size": 128,
    "train.clip_norm": 1.0,
    "optimizer.weight_decay": 0.05,
    "checkpoint.every": None,
    "checkpoint.keep": 1,
    "checkpoint.best": None,
    "evaluation.every": None,
    "logging.tensorboard": False,
}
PRETRAINING: dict[str, Any] = {"train.duration": "1500 steps", "schedule.warmup": "100 steps"}
FINETUNING: dict[str, Any] = {
    "train.duration": "350 steps",  # 4 epochs
    "schedule.warmup": "20 steps",
    "data.test_split": "test",
}


def sizes() -> list[int]:
    """Images of each class of the long-tailed set, the largest class first."""
    return [round(LARGEST * IMBALANCE ** (-k / (CLASSES - 1))) for k in range(CLASSES)]


def balanced_sizes() -> list[int]:
    """As many images in all, equally many of each class."""
    each, more = divmod(sum(sizes()), CLASSES)
    return [each + (k < more) for k in range(CLASSES)]


def prepare(archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpacks an archive, unless that was done, and lists its images by split as CSV."""
    if (folder / "test.csv").exists():
        return
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    held, rest = {}, {}
    for name, files in _images(folder, "train").items():
        files.sort(key=lambda file: hashlib.sha256(file.rpartition("/")[2].encode()).digest())
        few = len(files) // 10
        held[name], rest[name] = files[:few], files[few:]
    write_list(folder / "train.csv", rest)
    write_list(folder / "validation.csv", held)
    if len(rest) == CLASSES:
        for seed in SEEDS:
            random = np.random.default_rng(seed)
            drawn = {
                n: [ones[i] for i in random.permutation(len(ones))] for n, ones in rest.items()
            }
            for kind, counts in (("tail", sizes()), ("balanced", balanced_sizes())):
                kept = {n: drawn[n][:c] for n, c in zip(drawn, counts, strict=True)}
                write_list(folder / f"{kind}{seed}.csv", kept)
    write_list(folder / "test.csv", _images(folder, "test"))


def _images(folder: pathlib.Path, split: str) -> dict[str, list[str]]:
    return {
        one.name: sorted(file.relative_to(folder).as_posix() for file in one.iterdir())
        for one in sorted((folder / split).iterdir())
    }


def write_list(path: pathlib.Path, images: Mapping[str, Sequence[str]]) -> None:
    """Writes the images of each class as CSV."""
    rows = [(image, name) for name, ones in images.items() for image in ones]
    with path.open("w", newline="") as opened:
        csv.writer(opened).writerows([("image", "class"), *rows])


class ImbalanceStudy(Study):
    """The cells of all arms and seeds, and the rates that validation chose."""

    lock = None  # `main` holds one, while it unpacks too

    def __init__(self, workdir: pathlib.Path, records: Records) -> None:
        self.records, self.workdir = records, workdir
        self._made: dict[tuple[str, float, int], Cell] = {}
        small = {"checkpoint.every": "500 steps", "optimizer.lr": 1e-3}
        self.origin = self._create("pretraining", "cifar100", "train", PRETRAINING | small)

    def _create(
        self, name: str, data: str, split: str, options: dict[str, Any], **facts: Any
    ) -> Cell:
        own = {"data.root": str(self.workdir / data), "data.train_split": split, "name": name}
        cfg = run_config.config_from_values(config.override({}, OPTIONS | own | options), {})
        shown = {k: v for k, v in (OPTIONS | options).items() if not k.startswith("checkpoint")}
        facts = {"arm": name, "set": split, "options": shown} | facts
        directory = f"cells/{name.replace(' ', '-').replace(',', '')}"
        directory += f"/lr{cfg.optimizer.lr:g}-seed{cfg.seed}"
        return Cell(directory=directory, cfg=cfg, facts=facts)

    def cell(self, arm: str, rate: float, seed: int) -> Cell:
        """The cell of an answer."""
        key = arm, rate, seed
        if key not in self._made:
            split = f"{'balanced' if arm == BALANCED else 'tail'}{seed}"
            options = FINETUNING | ARMS[arm] | {"optimizer.lr": rate, "seed": seed}
            made = self._create(arm, "cifar10", split, options, origin=self.origin.digest)
            self._made[key] = dataclasses.replace(made, origin=self.origin)
        return self._made[key]

    def rate(self, arm: str) -> float | None:
        """The rate that validation chose for the images of an answer; None while it is open."""
        control = BALANCED if arm == BALANCED else PLAIN
        tried = {rate: [self.cell(control, rate, 0)] for rate in RATES}
        scores = self.records.scores(tried, "top1") or {}
        return max(scores, key=lambda rate: scores[rate], default=None)

    def ready(self) -> list[Cell]:
        """The cells without a record: pre-training, then rates, then answers seed by seed."""
        if self.records.find(self.origin) is None:
            return [self.origin]
        wanted = [self.cell(PLAIN, rate, 0) for rate in RATES]
        wanted += [self.cell(BALANCED, rate, 0) for rate in RATES]
        for seed in SEEDS:
            rates = {arm: self.rate(arm) for arm in ARMS}
            wanted += [self.cell(arm, rate, seed) for arm, rate in rates.items() if rate]
        return [cell for cell in wanted if self.records.find(cell) is None]


def test_top1(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Test top-1 in % of each answer by seed, at the rate that validation chose."""
    done = [one for one in records if one["state"] == DONE and one["arm"] in ARMS]
    found: dict[str, dict[int, float]] = {}
    for arm in ARMS:
        control = BALANCED if arm == BALANCED else PLAIN
        tried = [one for one in done if one["arm"] == control and one["seed"] == 0]
        if tried:
            rate = max(tried, key=lambda one: one["measures"]["top1"])["rate"]
            own = [one for one in done if one["arm"] == arm and one["rate"] == rate]
            found[arm] = {one["seed"]: 100 * one["measures"]["test/top1"] for one in own}
    return {arm: values for arm, values in found.items() if values}


def table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the rows of the table: mean, and paired difference to the plain loss, with 95 %."""
    found = test_top1(records)
    for arm, values in found.items():
        mean, half = statistics.fmean(values.values()), intervals.half_width([*values.values()])
        shown = f"{mean:.1f}" + (f" ± {half:.1f}" if half is not None else "")
        ahead = [values[s] - found[PLAIN][s] for s in values if s in found[PLAIN]]
        lead = ""
        if arm != PLAIN and (wide := intervals.half_width(ahead)) is not None:
            lead = f"{statistics.fmean(ahead):+.1f} ± {wide:.1f}"
        yield f"| {arm} | {len(values)} | {shown} | {lead} |"


def main() -> None:
    """Runs what is not recorded, or prints the table."""
    parser = argparse.ArgumentParser(prog="python -m research.imbalance")
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--images", type=pathlib.Path, help="archive of CIFAR-10")
    parser.add_argument("--pretraining", type=pathlib.Path, help="archive of CIFAR-100")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs", "imbalance"))
    parser.add_argument("--records", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    records = Records(args.records)
    if args.command == "run":
        if args.images is None or args.pretraining is None:
            parser.error("run: needs --images and --pretraining")
        logs.setup()
        workdir = args.workdir.absolute()
        with locking.exclusive(workdir, "imbalance.lock"):
            prepare(args.images, workdir / "cifar10")
            prepare(args.pretraining, workdir / "cifar100")
            ImbalanceStudy(workdir, records).perform([planning.ONE_CORE])
    for row in table(list(records)):
        print(row)


if __name__ == "__main__":
    main()
