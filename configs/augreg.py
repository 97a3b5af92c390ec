"""Beyond the paper, "How to train your ViT": augreg/MODEL-i21k, the weights its authors recommend.

And augreg/MODEL-imagenet, the same networks on ImageNet. 300 epochs at 224 pixels, both.
"""

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice
from vit_jax.data.tasks import TASKS

RUNS = {
    f"augreg/{model.replace('/', '_')}-{dataset}": (model, dataset)
    for dataset in ("i21k", "imagenet")
    for model in paper.AUGREG
}
BASES = {
    "i21k": "pretrain/ViT-B_16-i21k-90ep",
    "imagenet": "pretrain/ViT-B_16-imagenet-300ep",
}
# Hybrids on ImageNet: the level of the ViT they are nearest to.
LIKE = {"R+ViT-Ti/16": "ViT-Ti/16", "R26+ViT-S/32": "ViT-S/32", "R50+ViT-L/32": "ViT-L/16"}
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


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return tuple(RUNS)


def _level(model: str, dataset: str) -> str:
    if dataset == "i21k":
        return paper.AUGREG[model].level
    return paper.AUGREG_IMAGENET[LIKE.get(model, model)]


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    model, dataset = RUNS[name]
    row, upstream = paper.AUGREG[model], dataset == "i21k"
    mixup, randaugment = paper.LEVELS[_level(model, dataset)]
    options = catalog.load(BASES[dataset])
    options["model"] = {
        "variant": model,
        "num_classes": TASKS[paper.DATASETS[dataset]].classes,
        "head_bias": -10.0 if upstream else -6.9,
        "dropout": row.dropout if upstream else 0.0,
        "stochastic_depth": row.stochastic_depth if upstream else 0.0,
    }
    # Evaluated as in big_vision's configs of these runs: resize_small(256), central_crop(224).
    view = {"eval_crop": "central", "eval_resampling": "area"}
    options["data"] |= {"randaugment": randaugment, **view}
    options["train"] |= {"duration": "300 epochs", "mixup": mixup, "clip_norm": 1.0}
    options["optimizer"] |= {"lr": 1e-3, "weight_decay": row.weight_decay if upstream else 0.1}
    options["schedule"] |= {"name": "cosine", "end": 0.0}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns the provenance of the run `name` and the results of its authors."""
    model, dataset = RUNS[name]
    task, upstream = TASKS[paper.DATASETS[dataset]], dataset == "i21k"
    level = _level(model, dataset)
    augmented = RANDAUGMENT if paper.LEVELS[level][1] is not None else ()
    score = catalog.Result("ImageNet 384", paper.AUGREG[model].imagenet_384, "README")
    return catalog.About(
        tables=("augreg",),
        row=f"{model}, {task.title}, level {level}",
        dataset=task.title,
        images=task.count(task.train),
        results=(score,) if upstream else (),
        choices=(*CHOICES, *augmented, *(() if upstream else IMAGENET)),
    )
