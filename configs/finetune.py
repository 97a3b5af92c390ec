"""Fine-tuning (Tables 2, 4, 5): finetune/MODEL-PRETRAINED-DATASET; Table 2's ImageNet: -512, -518.

Data sets: imagenet, cifar10, cifar100, pets, flowers. Those from i21k begin with the weights that
Google published; the others were never published and come from a run of yours: init_from.
"""

from typing import NamedTuple

import ml_collections

from vit_jax import catalog, paper
from vit_jax.catalog import Choice, Result
from vit_jax.data.tasks import TASKS


class Run(NamedTuple):
    """One network, what it was pre-trained on, and where it goes; `pixels` only in Table 2."""

    model: str
    pretrained: str
    target: str
    pixels: int | None = None


def _name(run: Run) -> str:
    parts = [run.model.replace("/", "_"), run.pretrained, run.target]
    return "finetune/" + "-".join(parts + ([str(run.pixels)] if run.pixels else []))


RUNS = {
    _name(run): run
    for run in (
        *(Run(*pair, target) for pair in paper.TABLE_5 for target in paper.TABLE_4),
        *(Run(*pair, "imagenet", row.imagenet_pixels) for pair, row in paper.TABLE_2.items()),
    )
}
LR = 0.03


def names() -> tuple[str, ...]:
    """Returns the names this file knows."""
    return tuple(RUNS)


def pixels(model: str) -> int:
    """Returns 384, or the nearest whole number of patches below it."""
    patch = int(model.rpartition("/")[2])
    return paper.FINETUNE_PIXELS // patch * patch


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the run called `name`."""
    run = RUNS[name]
    row, task, side = paper.TABLE_4[run.target], TASKS[run.target], run.pixels or pixels(run.model)
    layers, _ = paper.SIZES[run.model.rpartition("-")[2][0]]
    return ml_collections.ConfigDict(
        {
            "init_from": published(run.model) if run.pretrained == "i21k" else None,
            "model": {
                "variant": run.model,
                "num_classes": task.classes,
                "unroll": layers,
            },
            "data": {
                "source": "tfds",
                "name": task.dataset.tfds,
                "train_split": task.whole,
                "eval_split": task.test,
                "image_size": (side, side),
                "workers": 8,
            },
            "train": {
                "batch_size": paper.FINETUNE_BATCH,
                "duration": f"{row.steps} steps",
                "clip_norm": 1.0,
                "ema": paper.POLYAK if run.pixels else None,
            },
            "optimizer": {"name": "sgd", "lr": LR, "momentum": 0.9, "moment_dtype": "bfloat16"},
            "schedule": {
                "warmup": "500 steps" if row.steps > 500 else "100 steps",
                "decay": "cosine",
            },
        }
    )


def about(name: str) -> catalog.About:
    """Returns where the run called `name` comes from, and what the paper got."""
    run = RUNS[name]
    row, task = paper.TABLE_4[run.target], TASKS[run.target]
    patch = run.model.rpartition("/")[2]
    return catalog.About(
        tables=tuple(_tables(run)),
        row=f"{run.model} from {run.pretrained}, {task.title}",
        dataset=task.title,
        images=task.count(task.whole),
        results=tuple(_results(run)),
        choices=(
            Choice(
                f"lr {LR:g}",
                f"the paper chose on a part of the training images among "
                f"{', '.join(f'{lr:g}' for lr in row.lrs)}; {LR:g} is the released code's",
                "--config.optimizer.lr=LR",
            ),
            *CHOICES,
            *([PATCHES] if patch == "14" and not run.pixels else []),
        ),
        origin=origin(run.model, run.pretrained),
        warning=""
        if run.pretrained == "i21k"
        else f"begins with random weights: those of {origin(run.model, run.pretrained)} were "
        "never published; set --config.init_from to a run of yours",
    )


def published(model: str) -> str:
    """Returns the name of the weights that Google published, pre-trained on ImageNet-21k."""
    return f"imagenet21k/{model.replace('/', '_')}"


def origin(model: str, pretrained: str) -> str:
    """Returns the name of the pre-training that Table 5 fine-tunes."""
    start = f"pretrain/{model.replace('/', '_')}-{pretrained}-"
    epochs = {"imagenet": 300, "i21k": 90, "jft": 14 if model in ("ViT-L/16", "ViT-H/14") else 7}
    return f"{start}{epochs[pretrained]}ep"


def _tables(run: Run) -> list[str]:
    if run.pixels:
        return ["2"]
    printed_twice = (run.model, run.pretrained) in paper.TABLE_2 and run.target != "imagenet"
    return [
        *(["2"] if printed_twice else []),
        "4",
        "5",
        *(["figure 3"] if run.target == "imagenet" else []),
    ]


def _results(run: Run) -> list[Result]:
    measures = {run.target: "top-1"} | ({"real": "ReaL"} if run.target == "imagenet" else {})
    tables, pair, results = _tables(run), (run.model, run.pretrained), []
    for key, what in measures.items():
        if "5" in tables:
            results.append(Result(what, getattr(paper.TABLE_5[pair], key), "5"))
        if "2" in tables:
            mean, std = getattr(paper.TABLE_2[pair], key)
            results.append(Result(f"{what}, 3 runs", mean, "2", std))
    return results


CHOICES = (
    Choice(
        "linear warm-up of 500 steps, 100 of 500",
        "not in the paper; the released code has both",
        "--config.schedule.warmup='N steps'",
    ),
    Choice(
        "data.train_crop=inception",
        "the paper says resize to 448 and crop 384; its authors, that they ran Inception crops",
        "--config.data.train_crop=random --config.data.resize_to=448",
    ),
    Choice(
        "model.dropout=0",
        "not stated; the released code's table has 0 and 0.1, each better somewhere",
        "--config.model.dropout=0.1",
    ),
    Choice(
        "the whole training split",
        "appendix B.1.1's final run; released weights had 98 or 99 % of it, 90 % of Pets, Flowers",
        "--config.data.train_split='train[:98%]' --config.data.eval_split='train[98%:]'",
    ),
    Choice(
        "optimizer.moment_dtype=bfloat16",
        "not in the paper; as in the released code",
        "--config.optimizer.moment_dtype=float32",
    ),
)
PATCHES = Choice(
    "378 pixels for 384",
    "384 is no multiple of 14: the released code leaves the last 6 pixels out, 27 x 27 patches",
    "--config.data.image_size=392",
)
