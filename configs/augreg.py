"""Beyond the paper, "How to train your ViT": augreg/MODEL-i21k, the weights its authors recommend.

And augreg/MODEL-imagenet, the same networks on ImageNet. 300 epochs at 224 pixels, both.
"""

from typing import NamedTuple

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice


class Row(NamedTuple):
    """A recommended checkpoint, and the level of augmentation of the same network on ImageNet."""

    level: str
    weight_decay: float
    dropout: float
    stochastic_depth: float
    imagenet_384: float  # top-1 in %, as the README of vision_transformer has it
    on_imagenet: str


ROWS = {  # 300 epochs of ImageNet-21k, learning rate 1e-3; settings as in the file names
    "ViT-Ti/16": Row("none", 0.03, 0.0, 0.0, 78.22, "light1"),
    "ViT-S/32": Row("none", 0.1, 0.0, 0.0, 79.58, "light2"),
    "ViT-S/16": Row("light1", 0.03, 0.0, 0.0, 83.73, "medium2"),
    "ViT-B/32": Row("light1", 0.1, 0.0, 0.0, 83.59, "medium2"),
    "ViT-B/16": Row("medium1", 0.1, 0.0, 0.0, 85.49, "medium2"),
    "ViT-L/16": Row("strong1", 0.1, 0.0, 0.0, 85.59, "medium2"),
    # Hybrids on ImageNet: the level of the ViT they are nearest to.
    "R+ViT-Ti/16": Row("none", 0.03, 0.0, 0.0, 75.40, "light1"),
    "R26+ViT-S/32": Row("light1", 0.1, 0.0, 0.0, 83.85, "light2"),
    "R50+ViT-L/32": Row("medium1", 0.1, 0.1, 0.1, 85.99, "medium2"),
}
LEVELS = {  # mixup; RandAugment's operations and magnitude
    "none": (0.0, None),
    "light1": (0.0, (2, 0)),
    "light2": (0.2, (2, 10)),
    "medium1": (0.2, (2, 15)),
    "medium2": (0.5, (2, 15)),
    "strong1": (0.5, (2, 20)),
    "strong2": (0.8, (2, 20)),
}
RUNS = {
    f"augreg/{model.replace('/', '_')}-{dataset}": (model, dataset)
    for dataset in ("i21k", "imagenet")
    for model in ROWS
}
BASES = {
    "i21k": "pretrain/ViT-B_16-i21k-90ep",
    "imagenet": "pretrain/ViT-B_16-imagenet-300ep",
}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    model, dataset = RUNS[name]
    row, upstream = ROWS[model], dataset == "i21k"
    mixup, randaugment = LEVELS[row.level if upstream else row.on_imagenet]
    return catalog.derive(
        BASES[dataset],
        {
            "model.variant": model,
            "model.head_bias": -10.0 if upstream else -6.9,
            "model.representation_size": None,
            "model.dropout": row.dropout if upstream else 0.0,
            "model.stochastic_depth": row.stochastic_depth if upstream else 0.0,
            "data.randaugment": randaugment,
            # As in big_vision's configs of these runs: resize_small(256), central_crop(224).
            "data.eval_crop": "central",
            "data.eval_resampling": "area",
            "train.duration": "300 epochs",
            "train.mixup": mixup,
            "train.clip_norm": 1.0,
            "optimizer.lr": 1e-3,
            "optimizer.weight_decay": row.weight_decay if upstream else 0.1,
            "schedule.name": "cosine",
        },
    )


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the result of its authors."""
    model, dataset = RUNS[name]
    row, upstream = ROWS[model], dataset == "i21k"
    level = row.level if upstream else row.on_imagenet
    base = catalog.about(BASES[dataset])
    augmented = RANDAUGMENT if level != "none" else ()
    return catalog.About(
        tables=("augreg",),
        row=f"{model}, {base.dataset}, level {level}",
        dataset=base.dataset,
        images=base.images,
        results=(catalog.Result("ImageNet 384", row.imagenet_384, "README"),) if upstream else (),
        choices=(*CHOICES, *augmented, *(() if upstream else IMAGENET)),
    )


CHOICES = (
    Choice(
        "weight decay times the learning rate, kernels only; cosine to 0; clipping at norm 1",
        "the released names give the number; its form and the rest are as in big_vision",
        "--config.optimizer.decayed=all",
    ),
    Choice(
        "no RandAugment at level none; two operations of magnitude 0 at light1",
        "big_vision's table of levels; magnitude 0 still changes some images",
        "--config.data.randaugment=2,10 --config.train.mixup=0.2",
    ),
)
RANDAUGMENT = (
    Choice(
        "RandAugment's Solarize inverts all of an image at magnitudes 10 and 20, Contrast blends "
        "with 196",
        "as in big_vision, with which the weights were trained: a threshold that wraps at 256, and "
        "height x width / 256 for the mean",
    ),
    Choice(
        "RandAugment's Translate and Cutout are shares of a side, Sharpness rounds exactly",
        "big_vision's pixels at 224; its Sharpness is 1 to 3 of 255 off in 1 % of the pixels, by "
        "the processor; Color may be off by 1 in a few of 100,000; all else is equal to the bit",
    ),
)
IMAGENET = (
    Choice(
        "the level of augmentation on ImageNet, for hybrids that of the nearest ViT",
        "big_vision's compromise between 30 and 300 epochs; it has no hybrids",
        "--config.data.randaugment=2,15 --config.train.mixup=0.2",
    ),
    Choice(
        "weight decay 0.1, dropout and stochastic depth 0",
        "the recommendation is for ImageNet-21k; big_vision's ImageNet config has these",
        "--config.model.dropout=0.1 --config.model.stochastic_depth=0.1",
    ),
    Choice(
        "loss.name=sigmoid, model.head_bias=-6.9",
        "as the authors trained at the time; big_vision's later config has softmax",
        "--config.loss.name=softmax --config.model.head_bias=0",
    ),
)
