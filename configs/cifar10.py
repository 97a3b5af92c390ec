"""CIFAR-10 from random weights on two CPU cores, by plain ViTs with patches of 4 x 4 pixels.

    vit_jax prepare cifar10
    vit_jax train cifar10/ViT-6_4 --workdir=runs/cifar10

`ViT-6_4` has six layers as wide as ViT-Ti's: 2.7 million parameters, 64 patches an image. Its
learning rate is constant until the cooldown, so that a longer run begins as this one does.
`ViT-6_4-continued` begins with its weights, which come with the package, and makes the three
hours full. `ViT-3_4` is a small one for a minute, `ViT-3_4-distilled` the same taught by
`ViT-6_4`.
"""

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice

LARGE, CONTINUED = "cifar10/ViT-6_4", "cifar10/ViT-6_4-continued"
SMALL, TAUGHT = "cifar10/ViT-3_4", "cifar10/ViT-3_4-distilled"
ROWS = {
    LARGE: "a plain ViT in 80 minutes of two CPU cores",
    CONTINUED: "the same with 95 minutes more",
    SMALL: "a small plain ViT",
    TAUGHT: "the small one, taught by cifar10/ViT-6_4",
}
SIZES = {
    LARGE: {"width": 192, "depth": 6, "mlp_dim": 768, "heads": 3},
    SMALL: {"width": 96, "depth": 3, "mlp_dim": 384, "heads": 3},
}
STEPS = {  # all, cooldown, warm-up
    LARGE: (6000, 1500, 200),
    CONTINUED: (2750, 2650, 100),
    SMALL: (100, 40, 10),
}
CHOICES = (
    Choice(
        "optimizer.name=muon, optimizer.consistent_rms=0.2",
        "ahead of Adam from the first steps: training loss after 140 steps of 128 images 1.64, "
        "Adam's 1.94 (means of the batch logged)",
        "--config.optimizer.name=adam --config.optimizer.lr=1e-3",
    ),
    Choice(
        "schedule.name=constant, schedule.cooldown",
        "the rate falls linearly at the end; train.duration changes nothing before",
        "--config.schedule.name=cosine",
    ),
)


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return tuple(ROWS)


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    size = {TAUGHT: SMALL, CONTINUED: LARGE}.get(name, name)
    steps, cooldown, warmup = STEPS[SMALL if name == TAUGHT else name]
    options = {
        "model": {"patch_size": (4, 4), "pooling": "gap", "num_classes": 10} | SIZES[size],
        "data": {
            "source": "tfds",
            "name": "cifar10",
            "image_size": (32, 32),
            "crop_area": (0.35, 1.0),
            "crop_aspect": (0.8, 1.25),
        },
        "train": {
            "batch_size": 128,
            "duration": f"{steps} steps",
            "label_smoothing": 0.1,
            "clip_norm": 1.0,
        },
        "optimizer": {"name": "muon", "consistent_rms": 0.2, "lr": 2e-3, "weight_decay": 0.1},
        "schedule": {
            "warmup": f"{warmup} steps",
            "name": "constant",
            "cooldown": f"{cooldown} steps",
        },
        "checkpoint": {"every": "500 steps"},
        "evaluation": {"every": "2000 steps"},
    }
    if name == CONTINUED:
        options |= {"init_from": LARGE, "init_head": "keep", "seed": 1}  # other crops than LARGE's
        options["optimizer"]["lr"] = 1.5e-3
    if name == TAUGHT:
        options["distill"] = {"teacher": LARGE, "temperature": 2.0}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns where the run called `name` comes from."""
    return catalog.About(row=ROWS[name], dataset="CIFAR-10", images=50_000, choices=CHOICES)
