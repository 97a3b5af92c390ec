"""VTAB-1k (Tables 2, 4, 9): vtab/MODEL-PRETRAINED-TASK, 1,000 images a task, 19 tasks.

Labels made by a rule cannot be made yet; `vit_jax show NAME` says so.
"""

import dataclasses

import ml_collections

from vit_jax import catalog, paper
from vit_jax.catalog import Choice, Result

RUNS = {
    f"vtab/{model.replace('/', '_')}-{pretrained}-{task}": (model, pretrained, task)
    for model, pretrained in paper.TABLE_2
    for task in paper.TASKS
}
UNMIRRORED = ("dsprites-orientation", "smallnorb-azimuth", "dsprites-location")  # BiT, appendix F
UNCROPPED = ("clevr-count", "clevr-distance", "dmlab", "kitti-distance", "dsprites-location")
CHOICES = (
    Choice(
        "800 + 200 images: the first of the training split, and of the task's validation images",
        "the benchmark's later protocol; its first one took the first 1,000 of both together",
        "--config.data.train_split=SPLIT",
    ),
    Choice("linear warm-up of 100 steps", "not stated", "--config.schedule.warmup='N steps'"),
    Choice(
        "data.train_crop=random of 7/6 the side; no crop, no mirroring where labels would change",
        "pre-processing as in BiT, which names those tasks",
        "--config.data.train_crop=inception",
    ),
    Choice("model.dropout=0", "not stated", "--config.model.dropout=0.1"),
    Choice(
        "the newest version of the data set",
        "older versions order their images otherwise, so the 1,000 differ",
        "--config.data.name=NAME:VERSION",
    ),
)


def names() -> tuple[str, ...]:
    """Returns the names this file knows."""
    return tuple(RUNS)


def _base(name: str) -> str:
    model, pretrained, _ = RUNS[name]
    return f"finetune/{model.replace('/', '_')}-{pretrained}-cifar100"


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the run called `name`."""
    _, _, key = RUNS[name]
    task, knobs = paper.TASKS[key], catalog.load(_base(name))
    side = knobs["data"]["image_size"][0]
    knobs["model"] |= {"num_classes": task.classes}
    knobs["data"] |= {
        "name": task.tfds,
        "train_split": task.train,
        "eval_split": task.test,
        "train_crop": "resize" if key in UNCROPPED else "random",
        "resize_to": side * 7 // 6,
        "flip": key not in UNMIRRORED,
    }
    knobs["train"] |= {"duration": f"{paper.VTAB_STEPS} steps"}
    knobs["optimizer"] |= {"lr": paper.VTAB_LR}
    knobs["schedule"] |= {"warmup": "100 steps"}
    return ml_collections.ConfigDict(knobs)


def about(name: str) -> catalog.About:
    """Returns where the run called `name` comes from, and what the paper got."""
    model, pretrained, key = RUNS[name]
    task, base = paper.TASKS[key], catalog.about(_base(name))
    score = task.scores[list(paper.TABLE_2).index((model, pretrained))]
    mean, std = paper.TABLE_2[model, pretrained].vtab
    pixels = tuple(choice for choice in base.choices if choice.what.startswith("378"))
    return dataclasses.replace(
        base,
        tables=("2", "4", "9"),
        row=f"{model} from {pretrained}, {task.title}",
        dataset=task.title,
        images=1000,
        results=(Result("top-1", score, "9"), Result("mean of 19, 3 runs", mean, "2", std)),
        choices=(*CHOICES, *pixels),
        needs=f"data.name={task.tfds}: its labels for {task.title} ({task.rule}) cannot be made "
        "yet; try the row with --smoke" * bool(task.rule),
        lifted_by=("data.name", "data.source"),
    )
