"""Beyond the paper, "Better plain ViT baselines for ImageNet-1k": baseline/ViT-S_16-imagenet-90ep.

And the same in 150 and 300 epochs. Small enough for one machine of eight accelerators.
"""

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice
from vit_jax.data.tasks import TASKS

RUNS = {f"baseline/ViT-S_16-imagenet-{epochs}ep": epochs for epochs in (90, 150, 300)}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    task = TASKS["imagenet"]
    return ml_collections.ConfigDict(
        {
            "model": {
                "variant": "ViT-S/16",
                "num_classes": task.classes,
                "pooling": "gap",
                "position": "sincos_2d",
                "representation_size": 384,
            },
            "data": {
                "source": "tfds",
                "name": task.dataset.tfds,
                "train_split": task.train,
                "eval_split": task.test,
                "randaugment": (2, 10),
                "eval_crop": "central",
                "eval_resampling": "area",
            },
            "train": {
                "batch_size": 1024,
                "duration": f"{RUNS[name]} epochs",
                "mixup": 0.2,
                "clip_norm": 1.0,
            },
            "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "moment_dtype": "bfloat16"},
            "schedule": {"warmup": "10000 steps", "name": "cosine"},
            "checkpoint": {"every": "5000 steps"},
            "evaluation": {"every": "5000 steps"},
        }
    )


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of its authors."""
    task = TASKS["imagenet"]
    printed = (catalog.Result("top-1", 76.5, "big_vision"),) if RUNS[name] == 90 else ()
    return catalog.About(
        tables=("baseline",),
        row=f"ViT-S/16, {task.title}, {RUNS[name]} epochs",
        dataset=task.title,
        images=task.count(task.train),
        results=printed,
        choices=CHOICES,
    )


CHOICES = (
    Choice(
        "optimizer.weight_decay=0.1",
        "printed as 1e-4, not multiplied by the learning rate of 1e-3; ours is",
        "--config.optimizer.weight_decay=WD",
    ),
    Choice(
        "model.representation_size=384",
        "its config in big_vision keeps the tanh layer before the head",
        "--config.model.representation_size=none",
    ),
    Choice(
        "RandAugment's Solarize inverts all of an image, Contrast blends with 196",
        "as in big_vision at magnitude 10: a threshold that wraps at 256, and height x width / 256 "
        "for the mean",
    ),
)
