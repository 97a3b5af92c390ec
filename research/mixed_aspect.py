"""Photos at their own aspect ratio (NaFlex) against squares, at equal compute, with seeds.

    python -m research.mixed_aspect run --images=imagenet_samples.tar
    python -m research.mixed_aspect table

The archive holds photos of ImageNet's classes, called WNID_NAME.JPEG: the first 398 classes are
animals, the question of both arms. A seed draws the photos to train on, and the order; the others
are for testing. Both arms start from cifar10/ViT-6_4 and see as many tokens an image and images a
step, padding included: 8 x 8 patches of a photo squeezed to a square, or at most 64 of it whole.
"""

import argparse
import csv
import pathlib
import statistics
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from research.findings import planning
from vit_jax import config
from vit_jax.data import class_matching
from vit_jax.runtime import locking, logs
from vit_jax.studies.cells import Cell
from vit_jax.studies.records import DONE, Records
from vit_jax.studies.study import Study
from vit_jax.training import build, run_config
from vit_jax.utils import intervals

RESULTS = pathlib.Path(__file__).parents[1] / "docs" / "records" / "mixed_aspect.jsonl"
SEEDS = (0, 1, 2)
SQUARE, NATIVE = "square", "native"
ARMS: dict[str, dict[str, Any]] = {
    SQUARE: {},
    NATIVE: {"data.aspect": "native", "data.lengths": (64,)},
}
ANIMALS = 398  # of ImageNet's classes, which come first
TRAINED = 0.6  # the share of the photos
OPTIONS: dict[str, Any] = {
    "init_from": "cifar10/ViT-6_4",
    "model.patch_size": (4, 4),
    "model.width": 192,
    "model.depth": 6,
    "model.mlp_dim": 768,
    "model.heads": 3,
    "model.num_classes": 2,
    "model.pooling": "gap",
    "data.source": "csv",
    "data.image_size": (32, 32),
    "data.resampling": "antialiased_bilinear",
    "data.crop_area": (0.35, 1.0),
    "data.workers": 0,
    "train.batch_size": 16,
    "train.clip_norm": 1.0,
    "train.duration": "200 steps",
    "schedule.warmup": "20 steps",
    "optimizer.lr": 3e-4,
    "optimizer.weight_decay": 0.1,
    "checkpoint.every": None,
    "checkpoint.keep": 1,
    "checkpoint.best": None,
    "evaluation.every": None,
    "logging.tensorboard": False,
}


def prepare(archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpacks the photos, unless that was done, and lists those of each seed and split as CSV."""
    if (folder / f"test{SEEDS[-1]}.csv").exists():
        return
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    with class_matching.TABLE.open(newline="") as opened:
        animals = {row["wnid"] for row in list(csv.DictReader(opened))[:ANIMALS]}
    photos = sorted(path.relative_to(folder) for path in folder.rglob("*.JPEG"))
    rows = [
        (one.as_posix(), "animal" if one.name.partition("_")[0] in animals else "other")
        for one in photos
    ]
    trained = round(TRAINED * len(rows))
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(rows))
        for split, index in (("train", order[:trained]), ("test", order[trained:])):
            with (folder / f"{split}{seed}.csv").open("w", newline="") as opened:
                listed = [rows[i] for i in sorted(index)]
                csv.writer(opened).writerows([("image", "class"), *listed])


class AspectStudy(Study):
    """The cells of both arms and all seeds."""

    lock = None  # `main` holds one, while it unpacks too

    def __init__(self, workdir: pathlib.Path, records: Records) -> None:
        self.records, self.workdir = records, workdir
        self._cells = [self._create(arm, seed) for seed in SEEDS for arm in ARMS]

    def _create(self, arm: str, seed: int) -> Cell:
        own = ARMS[arm] | {"seed": seed, "data.train_split": f"train{seed}"}
        options = OPTIONS | own | {"data.eval_split": f"test{seed}"}
        named = {"data.root": str(self.workdir / "photos"), "name": f"{arm}{seed}"}
        cfg = run_config.config_from_values(config.override({}, options | named), {})
        flops = build.build(cfg, examples=1).flops_per_image
        facts = {"arm": arm, "seed": seed, "options": options}
        facts |= {"flops": flops and flops * cfg.train.batch_size}
        return Cell(directory=f"cells/{arm}-seed{seed}", cfg=cfg, facts=facts)

    def ready(self) -> list[Cell]:
        """The cells without a record."""
        return [cell for cell in self._cells if self.records.find(cell) is None]


def table(records: Sequence[Any]) -> Iterator[str]:
    """Yields the rows of the table: test top-1 in %, and the difference by seed with 95 %."""
    found: dict[str, dict[int, float]] = {arm: {} for arm in ARMS}
    flops = {}
    for one in records:
        if one["state"] == DONE:
            found[one["arm"]][one["seed"]] = 100 * one["measures"]["top1"]
            flops[one["arm"]] = one["flops"]
    for arm, values in found.items():
        if values:
            shown = ", ".join(f"{values[seed]:.0f}" for seed in sorted(values))
            mean = statistics.fmean(values.values())
            yield f"| {arm} | {flops[arm]:.4g} | {mean:.1f} | {shown} |"
    ahead = [value - found[SQUARE][seed] for seed, value in found[NATIVE].items()
             if seed in found[SQUARE]]  # fmt: skip
    if (half := intervals.half_width(ahead)) is not None:
        yield f"native - square: {statistics.fmean(ahead):+.1f} ± {half:.1f}"


def main() -> None:
    """Runs what is not recorded, or prints the table."""
    parser = argparse.ArgumentParser(prog="python -m research.mixed_aspect")
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--images", type=pathlib.Path, help="archive of photos")
    parser.add_argument(
        "--workdir", type=pathlib.Path, default=pathlib.Path("runs", "mixed_aspect")
    )
    parser.add_argument("--records", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    records = Records(args.records)
    if args.command == "run":
        if args.images is None:
            parser.error("run: needs --images")
        logs.setup()
        workdir = args.workdir.absolute()
        with locking.exclusive(workdir, "mixed_aspect.lock"):
            prepare(args.images, workdir / "photos")
            AspectStudy(workdir, records).perform([planning.ONE_CORE])
    for row in table(list(records)):
        print(row)


if __name__ == "__main__":
    main()
