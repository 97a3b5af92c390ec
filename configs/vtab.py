"""VTAB-1k (Tables 2, 4, 9): vtab/MODEL-PRETRAINED-TASK, 1,000 images a task, 19 tasks.

The run is the final one, on all 1,000 images. To choose settings as the protocol says, train on
the first 800 and look at the other 200: `vit_jax show NAME` has both splits among its choices.
"""

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice, Result
from vit_jax.data.tasks import TASKS

RUNS = {
    f"vtab/{model.replace('/', '_')}-{pretrained}-{task}": (model, pretrained, task)
    for model, pretrained in paper.TABLE_2
    for task in paper.TABLE_9
}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    _, _, key = RUNS[name]
    task, base = TASKS[f"vtab/{key}"], _base(name)
    side = catalog.load_values(base)["data"]["image_size"][0]
    return catalog.derive(
        base,
        {
            "model.num_classes": task.classes,
            "data.name": task.dataset.name,
            "data.labels": task.labels,
            "data.train_split": task.whole,
            "data.eval_split": task.test,
            "data.train_crop": "random" if task.cropped else "resize",
            "data.resize_to": side * 7 // 6 if task.cropped else None,
            "data.flip": task.mirrored,
            "train.duration": f"{paper.VTAB_STEPS} steps",
            "optimizer.lr": paper.VTAB_LR,
            "schedule.warmup": "100 steps",
        },
    )


def _base(name: str) -> str:
    model, pretrained, _ = RUNS[name]
    return f"finetune/{model.replace('/', '_')}-{pretrained}-cifar100"


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of the paper."""
    model, pretrained, key = RUNS[name]
    task, base = TASKS[f"vtab/{key}"], catalog.about(_base(name))
    score = paper.TABLE_9[key][list(paper.TABLE_2).index((model, pretrained))]
    mean, std = paper.TABLE_2[model, pretrained].vtab
    tuning = Choice(
        "all 1,000 images",
        "the final run; settings are chosen on the last 200, trained on the first 800",
        f"--config.data.train_split='{task.train}' --config.data.eval_split='{task.held_out}'",
    )
    pixels = tuple(choice for choice in base.choices if choice.what.startswith("378"))
    return base.derive(
        tables=("2", "4", "9", *(["figure 2"] if model == "ViT-H/14" else [])),
        row=f"{model} from {pretrained}, {task.title}",
        dataset=task.title,
        images=task.count(task.whole),
        results=(Result("top-1", score, "9"), Result("mean of 19, 3 runs", mean, "2", std)),
        choices=(tuning, *CHOICES, *([PETS] if key == "pets" else []), *pixels),
        # A single rate: chosen by the paper once for all tasks, so there is nothing to choose.
        transfer=catalog.TransferSettings(
            task=task.name, rates=(paper.VTAB_LR,), train=task.train, held_out=task.held_out
        ),
    )


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
        "the dataset in the major version that the benchmark's code names",
        "another one may order its images otherwise, so that the 1,000 differ",
        "--config.data.name=NAME:VERSION",
    ),
)
PETS = Choice(
    "data.name=oxford_iiit_pet:4.*.*",
    "the benchmark's code names 3.*.*, which TFDS no longer has",
    "--config.data.name=oxford_iiit_pet:3.2.0",
)
