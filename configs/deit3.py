"""Beyond the paper, DeiT III (arXiv 2204.07118): deit3/MODEL-imagenet-EPOCHSep, and -to-224 after.

ViT-S/16 is trained at 224 pixels; larger ones at fewer, and -to-224 fine-tunes them for 20 epochs.
deit3-jax trained the same rows on a TPU v4-64; `vit_jax show NAME` has both results and its hours.
"""

from typing import NamedTuple

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice, Result
from vit_jax.data.tasks import TASKS


class Row(NamedTuple):
    """A row of DeiT III on ImageNet; top-1 in % at 224 pixels."""

    image_size: int
    lr: float
    stochastic_depth: float
    weight_decay: float
    authors: float
    jax: float  # deit3-jax's
    hours: str  # of its both stages


ROWS = {
    ("ViT-S/16", 400): Row(224, 4e-3, 0.0, 0.02, 80.4, 80.7, "2 h 38 min"),
    ("ViT-S/16", 800): Row(224, 4e-3, 0.05, 0.05, 81.4, 81.44, "5 h 19 min"),
    ("ViT-B/16", 400): Row(192, 3e-3, 0.1, 0.02, 83.5, 83.6, "4 h 42 min"),
    ("ViT-B/16", 800): Row(192, 3e-3, 0.2, 0.05, 83.8, 83.91, "9 h 28 min"),
    ("ViT-L/16", 400): Row(192, 3e-3, 0.4, 0.02, 84.5, 84.62, "14 h 10 min"),
    ("ViT-H/14", 400): Row(154, 3e-3, 0.5, 0.02, 85.1, 85.12, "19 h 10 min"),
}
TUNED = "-to-224"
PRETRAINING = {
    f"deit3/{model.replace('/', '_')}-imagenet-{epochs}ep": (model, epochs)
    for model, epochs in ROWS
}
RUNS = (
    *PRETRAINING,
    *(name + TUNED for name, key in PRETRAINING.items() if ROWS[key].image_size != 224),
)
CLASSES = TASKS["imagenet"].classes


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    model, epochs = PRETRAINING[name.removesuffix(TUNED)]
    row = ROWS[model, epochs]
    values = {
        "model.variant": model,
        "model.class_position": False,
        "model.layer_scale": 1e-4,
        "model.stochastic_depth": row.stochastic_depth,
        "data.crop_pct": 1.0,
        "data.erase": 0.0,
    }
    if name.endswith(TUNED):
        values |= {
            "train.batch_size": 512,
            "train.duration": "20 epochs",
            "data.repeats": 1,
            "optimizer.lr": 1e-5,
            "optimizer.weight_decay": 0.1,
            "schedule.end": 1e-6,
        }
    else:
        values |= {
            "data.image_size": (row.image_size, row.image_size),
            "data.randaugment": None,
            "data.transforms": ({"name": "three_augment", "jitter": 0.3},),
            "train.batch_size": 2048,
            "train.duration": f"{epochs} epochs",
            "train.clip_norm": float(CLASSES or 1),
            "train.label_smoothing": 0.0,
            "loss.name": "sigmoid",
            "optimizer.name": "lamb",
            "optimizer.lr": row.lr,
            "optimizer.weight_decay": row.weight_decay,
            "optimizer.eps": 1e-8 * (CLASSES or 1),
        }
    return catalog.derive("deit/ViT-B_16-imagenet-300ep", values)


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of its authors."""
    task = TASKS["imagenet"]
    before = name.removesuffix(TUNED)
    model, epochs = PRETRAINING[before]
    row = ROWS[model, epochs]
    last = name.endswith(TUNED) or row.image_size == 224
    stages = "" if row.image_size == 224 else ", both stages"
    results = (
        Result("top-1 at 224", row.authors, "DeiT III"),
        Result(f"top-1 at 224, {row.hours} on 32 TPU v4{stages}", row.jax, "deit3-jax"),
    )
    how = f"fine-tuned at 224 pixels after {epochs}" if before != name else f"{epochs}"
    return catalog.About(
        tables=("deit3",),
        row=f"{model}, {task.title}, {how} epochs",
        dataset=task.title,
        images=task.count(task.whole),
        results=results if last else (),
        choices=TUNING if name.endswith(TUNED) else TRAINING,
        origin=before if name.endswith(TUNED) else "",
        warning="begins with random weights; set --config.init_head=keep and --config.init_from to "
        f"a run of {before}"
        if name.endswith(TUNED)
        else "",
    )


TRAINING = (
    Choice(
        f"train.clip_norm={CLASSES}, optimizer.eps=1e-5",
        "1 and 1e-8 where the loss is the mean over 1,000 classes; loss.name=sigmoid is their sum",
        "--config.train.clip_norm=1 --config.optimizer.eps=1e-8",
    ),
    Choice(
        "mixed labels stay soft",
        "the authors' BCE counts every class that is in an image, however little of it",
        "--config.train.mixup=0 --config.train.cutmix=0",
    ),
    Choice(
        "optimizer.name=lamb, each layer and each of query, key and value by itself",
        "as deit3-jax; the authors' code scales query, key and value as one matrix",
    ),
)
TUNING = (
    Choice(
        "schedule.end=1e-6, data.randaugment=2,9",
        "unconfirmed: deit3-jax ends at its peak of 1e-5, and draws timm's rand-m9-mstd0.5-inc1",
        "--config.schedule.end=1e-5",
    ),
)
