"""Beyond the paper, DeiT (arXiv 2012.12877): deit/MODEL-imagenet-300ep, without distillation.

deit3-jax trained the same rows on a TPU v4-64; `vit_jax show NAME` has both results and its hours.
"""

from typing import Any

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice, Result
from vit_jax.data.tasks import TASKS

# Top-1 in %: DeiT's README, deit3-jax's README, and deit3-jax's training hours.
ROWS = {
    "ViT-Ti/16": (72.2, 73.1, "2 h 40 min"),
    "ViT-S/16": (79.8, 79.68, "2 h 43 min"),
    "ViT-B/16": (81.8, 81.46, "4 h 40 min"),
}
RUNS = {f"deit/{model.replace('/', '_')}-imagenet-300ep": model for model in ROWS}
# What DeiT and DeiT III have in common.
SHARED: dict[str, Any] = {
    "model.num_classes": TASKS["imagenet"].classes,
    "model.gelu": "erf",
    "model.init": "deit",
    "data.source": "tfds",
    "data.name": TASKS["imagenet"].dataset.tfds,
    "data.train_split": TASKS["imagenet"].whole,
    "data.eval_split": TASKS["imagenet"].test,
    "data.mean": (0.485, 0.456, 0.406),
    "data.std": (0.229, 0.224, 0.225),
    "data.resampling": "antialiased_bicubic",
    "data.crop_area": (0.08, 1.0),
    "data.eval_crop": "central",
    "data.crop_rounding": "even",
    "train.mixup": 0.8,
    "train.cutmix": 1.0,
    "schedule.name": "cosine",
    "schedule.warmup": "5 epochs",
    "schedule.end": 1e-5,
    "checkpoint.every": "5000 steps",
    "evaluation.every": "10000 steps",
}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    return catalog.derive(
        None,
        {
            **SHARED,
            "model.variant": RUNS[name],
            "model.stochastic_depth": 0.1,
            "data.crop_pct": 0.875,
            "data.randaugment": (2, 9),
            "data.erase": 0.25,
            "data.repeats": 3,
            "train.batch_size": 1024,
            "train.duration": "300 epochs",
            "train.label_smoothing": 0.1,
            "optimizer.name": "adam",
            "optimizer.lr": 1e-3,
            "optimizer.weight_decay": 0.05,
        },
    )


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of its authors."""
    task, model = TASKS["imagenet"], RUNS[name]
    authors, jax, hours = ROWS[model]
    return catalog.About(
        tables=("deit",),
        row=f"{model}, {task.title}, 300 epochs",
        dataset=task.title,
        images=task.count(task.whole),
        results=(
            Result("top-1", authors, "DeiT"),
            Result(f"top-1, {hours} on 32 TPU v4", jax, "deit3-jax"),
        ),
        choices=CHOICES,
    )


CHOICES = (
    Choice(
        "data.randaugment=2,9",
        "big_vision's operations at a magnitude of 9 of 10; timm's rand-m9-mstd0.5-inc1 draws a "
        "magnitude around 9 for each operation, and more of it always changes more",
        "--config.data.randaugment=2,10",
    ),
    Choice(
        "model.stochastic_depth=0.1",
        "as published; deit3-jax has 0, and 0.05 for ViT-B/16",
        "--config.model.stochastic_depth=0.05",
    ),
    Choice(
        "no average of parameters",
        "the authors' code evaluates the parameters themselves, unless told otherwise",
        "--config.train.ema=0.99996",
    ),
)
