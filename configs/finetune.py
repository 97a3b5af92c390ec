"""Fine-tuning (Tables 2, 4, 5, 6): finetune/MODEL-FROM-DATASET; Table 2's ImageNet: -512, -518.

Datasets: imagenet, cifar10, cifar100, pets, flowers. Runs from i21k start with the weights that
Google published; the others were never published and come from a run of yours: init_from. Runs that
only Table 6 has say how long JFT-300M was trained on, such as jft7ep. A name is one run at one rate
on the whole training set; `vit_jax transfer NAME` is the protocol that chooses the rate.
"""

from typing import Any, NamedTuple

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice, Result
from vit_jax.data.tasks import TASKS


class Run(NamedTuple):
    """A fine-tuning run: network, pre-training data, target.

    `pixels` is set if Table 2 has its own, `epochs` of JFT-300M if the run is only in Table 6.
    """

    model: str
    pretrained: str
    target: str
    pixels: int | None = None
    epochs: int | None = None


def _name(run: Run) -> str:
    pretrained = run.pretrained + (f"{run.epochs}ep" if run.epochs else "")
    parts = [run.model.replace("/", "_"), pretrained, run.target]
    return "finetune/" + "-".join(parts + ([str(run.pixels)] if run.pixels else []))


EPOCHS = {"imagenet": 300, "i21k": 90, "jft": 7}
LONGER = {("ViT-L/16", "jft"): 14, ("ViT-H/14", "jft"): 14}


def _epochs(model: str, pretrained: str) -> int:
    """The length of the pre-training that Table 5 fine-tunes."""
    return LONGER.get((model, pretrained), EPOCHS[pretrained])


ONLY_TABLE_6 = [
    (model, epochs)
    for model, epochs in paper.TABLE_6
    if (model, "jft") not in paper.TABLE_5 or epochs != _epochs(model, "jft")
]
RUNS = {
    _name(run): run
    for run in (
        *(Run(*pair, target) for pair in paper.TABLE_5 for target in paper.TABLE_4),
        *(Run(*pair, "imagenet", row.imagenet_pixels) for pair, row in paper.TABLE_2.items()),
        *(
            Run(model, "jft", target, epochs=epochs)
            for model, epochs in ONLY_TABLE_6
            for target in paper.TABLE_4
        ),
    )
}
LR = 0.03


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    run = RUNS[name]
    row, task, side = paper.TABLE_4[run.target], TASKS[run.target], run.pixels or pixels(run.model)
    return catalog.derive(
        None,
        {
            "init_from": published(run.model) if run.pretrained == "i21k" else None,
            "model.variant": run.model,
            "model.num_classes": task.classes,
            "data.source": "tfds",
            "data.name": task.dataset.tfds,
            "data.train_split": task.whole,
            "data.eval_split": task.test,
            "data.image_size": (side, side),
            "train.batch_size": 512,
            "train.duration": f"{row.steps} steps",
            "train.clip_norm": 1.0,
            "train.ema": paper.POLYAK if run.pixels else None,
            "optimizer.name": "sgd",
            "optimizer.lr": LR,
            "optimizer.momentum": 0.9,
            "optimizer.moment_dtype": "bfloat16",
            "schedule.name": "cosine",
            "schedule.warmup": "500 steps" if row.steps > 500 else "100 steps",
            "evaluation.tasks": ("imagenet-real",) if run.target == "imagenet" else (),
        },
    )


def pixels(model: str) -> int:
    """384, or the nearest whole number of patches below it."""
    patch = int(model.rpartition("/")[2]) if "/" in model else 1
    return 384 // patch * patch


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of the paper."""
    run = RUNS[name]
    row, task = paper.TABLE_4[run.target], TASKS[run.target]
    patch = run.model.rpartition("/")[2]
    start = origin(run.model, run.pretrained, run.epochs)
    pretrained = run.pretrained + (f" for {run.epochs} epochs" if run.epochs else "")
    return catalog.About(
        tables=tuple(_tables(run)),
        row=f"{run.model} from {pretrained}, {task.title}",
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
        origin=start,
        warning=""
        if run.pretrained == "i21k"
        else f"begins with random weights: those of {start} were never published; set "
        "--config.init_from to a run of yours",
        transfer=catalog.TransferSettings(
            task=run.target,
            rates=row.lrs,
            train=task.train,
            held_out=task.held_out,
            setups={} if "ViT" in run.model else {"bit": bit(task.count(task.whole) or 0)},
        ),
    )


def bit(images: int) -> dict[str, Any]:
    """The options of Big Transfer's setup for so many training images."""
    setup = paper.big_transfer(images)
    return {
        "optimizer.lr": paper.BIT_LR,
        "train.duration": f"{setup.steps} steps",
        "train.mixup": setup.mixup,
        "train.clip_norm": None,
        "schedule.name": "step",
        "schedule.drops": paper.BIT_DROPS,
    }


def published(model: str) -> str:
    """The name of the weights that Google published, pre-trained on ImageNet-21k."""
    return f"imagenet21k/{model.replace('/', '_')}"


def origin(model: str, pretrained: str, epochs: int | None = None) -> str:
    """The name of the pre-training: that of so many epochs, or that of Table 5."""
    epochs = epochs or _epochs(model, pretrained)
    return f"pretrain/{model.replace('/', '_')}-{pretrained}-{epochs}ep"


def _tables(run: Run) -> list[str]:
    if run.pixels:
        return ["2"]
    if run.epochs:
        return ["4", "6"]
    printed_twice = (run.model, run.pretrained) in paper.TABLE_2 and run.target != "imagenet"
    return [
        *(["2"] if printed_twice else []),
        "4",
        "5",
        *(["6"] if run.pretrained == "jft" else []),
        *(["figure 3"] if run.target == "imagenet" else []),
    ]


def _results(run: Run) -> list[Result]:
    measures = {run.target: "top-1"} | ({"real": "ReaL"} if run.target == "imagenet" else {})
    tables, pair, results = _tables(run), (run.model, run.pretrained), []
    for key, what in measures.items():
        if "5" in tables:
            results.append(Result(what, getattr(paper.TABLE_5[pair], key), "5"))
        if "6" in tables:
            epochs = run.epochs or _epochs(*pair)
            results.append(Result(what, getattr(paper.TABLE_6[run.model, epochs].scores, key), "6"))
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
