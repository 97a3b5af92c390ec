"""Big Transfer, a column of Table 2: bit/R152x4-jft-40ep, bit/R152x4-jft-TASK, -vtab-TASK.

BiT-L by its own recipe (the BiT paper, section 3.3), pre-trained on JFT-300M and fine-tuned by
BiT-HyperRule: one setting for each size of a data set, nothing to choose. Tasks are those of
finetune/*; `vtab-` is one of the 19 of VTAB-1k.
"""

import dataclasses
from typing import Any

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice, Result
from vit_jax.data.tasks import TASKS

ORIGIN = "bit/R152x4-jft-40ep"
RECIPE = "pretrain/R152x2-jft-7ep-sgd"  # the same recipe, shortened
TARGETS = {
    **{f"bit/R152x4-jft-{target}": target for target in paper.TABLE_4},
    **{f"bit/R152x4-jft-vtab-{task}": f"vtab/{task}" for task in paper.TABLE_9},
}
# Images of fewer than 96 x 96 pixels.
SMALL = ("cifar10", "cifar100", "vtab/cifar100", "vtab/svhn", "vtab/eurosat",
         "vtab/dsprites-location", "vtab/dsprites-orientation")  # fmt: skip


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return (ORIGIN, *TARGETS)


def _base(target: str) -> str:
    if target.startswith("vtab/"):
        return f"vtab/ViT-L_16-jft-{target.removeprefix('vtab/')}"
    return f"finetune/R152x2-jft7ep-{target}"


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    if name == ORIGIN:
        return _pretraining()
    target = TARGETS[name]
    task, options = TASKS[target], catalog.load(_base(target))
    options["model"] = {
        "variant": paper.BIT_L.model,
        "resnet_version": "v2",
        "num_classes": task.classes,
    }
    whole, side = paper.BIT_SMALL if target in SMALL else paper.BIT_LARGE
    options["data"] |= {
        "image_size": (side, side),
        "resize_to": whole if task.cropped else None,
        "train_crop": "random" if task.cropped else "resize",
    }
    setup = _setup(target)
    options["train"] |= {
        "duration": f"{setup.steps} steps",
        "mixup": setup.mixup,
        "clip_norm": None,
    }
    options["optimizer"] |= {"lr": paper.BIT_LR}
    options["schedule"] = {
        "warmup": "500 steps" if setup.steps > 500 else "100 steps",
        "name": "step",
        "drops": paper.BIT_DROPS,
    }
    return ml_collections.ConfigDict(options)


def _setup(target: str) -> paper.BigTransfer:
    """Returns the settings of BiT-HyperRule for a number of training images."""
    task = TASKS[target]
    images = task.count(task.whole) or 0
    return next(setup for setup in paper.BIT if images < setup.fewer_than)


def _pretraining() -> ml_collections.ConfigDict:
    recipe, options = paper.BIT_L, catalog.load(RECIPE)
    options["model"] |= {"variant": recipe.model, "resnet_version": "v2"}
    options["train"] |= {"duration": f"{recipe.epochs} epochs"}
    options["optimizer"] |= {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    options["schedule"] |= {
        "warmup": f"{recipe.warmup} steps",
        "drops": tuple(epoch / recipe.epochs for epoch in recipe.drops),
    }
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns the provenance of the run `name` and its results in Table 2."""
    if name == ORIGIN:
        return _about_pretraining()
    target = TARGETS[name]
    task, base = TASKS[target], catalog.about(_base(target))
    vtab = target.startswith("vtab/")
    values: dict[str, Any] = paper.TABLE_2_BIT._asdict()
    measures = {"mean of 19, 3 runs": "vtab"} if vtab else {"top-1, 3 runs": target}
    if target == "imagenet":
        measures["ReaL"] = "real"
    return dataclasses.replace(
        base,
        tables=("2", "figure 2") if vtab else ("2",),
        row=f"BiT-L (R152x4), {task.title}",
        exaflops=None,
        results=tuple(
            Result(what, values[key][0], "2", values[key][1]) for what, key in measures.items()
        ),
        choices=(*((_pixels(task.cropped),) if vtab else ()), *FINETUNING),
        origin=ORIGIN,
        warning=f"begins with random weights: those of {ORIGIN} were never published; set "
        "--config.init_from to a run of yours",
        transfer=catalog.TransferSettings(
            task=target, rates=(paper.BIT_LR,), train=task.train, held_out=task.held_out
        ),
    )


def _about_pretraining() -> catalog.About:
    base = catalog.about(RECIPE)
    replaced = ("SGD:", "schedule.drops", "model.resnet_version")
    return dataclasses.replace(
        base,
        tables=("2", "figure 2"),
        row=f"BiT-L (R152x4), {base.dataset}, {paper.BIT_L.epochs} epochs",
        exaflops=None,
        core_days=paper.TABLE_2_BIT.core_days,
        results=(),
        choices=(LENGTH, *(c for c in base.choices if not c.what.startswith(replaced))),
    )


LENGTH = Choice(
    "40 epochs, the rate divided by 10 after 10, 23, 30 and 37",
    "section 3.3 of the BiT paper; appendix D.1 of ViT's speaks of 30 epochs",
    "--config.train.duration='30 epochs'",
)


def _pixels(cropped: bool) -> Choice:
    resized = " --config.data.resize_to=448" if cropped else ""
    return Choice(
        "480 pixels, 128 for images of fewer than 96 x 96",
        "BiT's rule for this network; which sizes its VTAB runs had is not stated for each task",
        f"--config.data.image_size=384{resized}",
    )


FINETUNING = (
    Choice(
        "schedule.drops=0.3,0.6,0.9",
        "the BiT paper; its released code has 0.4, 0.6, 0.8 of the runs of 500 steps",
        "--config.schedule.drops=0.4,0.6,0.8",
    ),
    Choice(
        "linear warm-up of 500 steps, 100 of 500",
        "not in the BiT paper; the released code has both",
        "--config.schedule.warmup='N steps'",
    ),
    Choice(
        "mean and standard deviation of three runs",
        "the BiT paper's same numbers are medians; ReaL has neither deviation nor number of runs",
    ),
    Choice(
        "optimizer.moment_dtype=bfloat16",
        "not in the BiT paper; as in ViT's released code",
        "--config.optimizer.moment_dtype=float32",
    ),
)
