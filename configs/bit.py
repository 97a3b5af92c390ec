"""Big Transfer, a column of Table 2: bit/R152x4-jft-40ep, bit/R152x4-jft-TASK, -vtab-TASK.

BiT-L by its own recipe (the BiT paper, section 3.3), pre-trained on JFT-300M and fine-tuned by
BiT-HyperRule: one setting for each size of a dataset, nothing to choose. Tasks are those of
finetune/*; `vtab-` is one of the 19 of VTAB-1k.
"""

from typing import Any

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice, Result
from vit_jax.data.tasks import TASKS

ORIGIN = "bit/R152x4-jft-40ep"
RECIPE = "pretrain/R152x2-jft-7ep-sgd"  # the same recipe, shortened
RUNS = {ORIGIN: ""} | {
    **{f"bit/R152x4-jft-{target}": target for target in paper.TABLE_4},
    **{f"bit/R152x4-jft-vtab-{task}": f"vtab/{task}" for task in paper.TABLE_9},
}
# Images of fewer than 96 x 96 pixels.
SMALL = ("cifar10", "cifar100", "vtab/cifar100", "vtab/svhn", "vtab/eurosat",
         "vtab/dsprites-location", "vtab/dsprites-orientation")  # fmt: skip


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    common = {"model.variant": "R152x4", "model.resnet_version": "v2"}
    if name == ORIGIN:
        changes = {
            "train.duration": "40 epochs",
            "schedule.drops": tuple(epoch / 40 for epoch in (10, 23, 30, 37)),
        }
        return catalog.derive(RECIPE, common | changes)
    target = RUNS[name]
    task = TASKS[target]
    setup = paper.big_transfer(task.count(task.whole) or 0)
    resized, side = (160, 128) if target in SMALL else (512, 480)  # before and after the crop
    changes = {
        "data.image_size": (side, side),
        "data.resize_to": resized if task.cropped else None,
        "data.train_crop": "random" if task.cropped else "resize",
        "train.duration": f"{setup.steps} steps",
        "train.mixup": setup.mixup,
        "train.clip_norm": None,
        "optimizer.lr": paper.BIT_LR,
        "schedule.name": "step",
        "schedule.warmup": "500 steps" if setup.steps > 500 else "100 steps",
        "schedule.drops": paper.BIT_DROPS,
    }
    return catalog.derive(_base(target), common | changes)


def _base(target: str) -> str:
    if target.startswith("vtab/"):
        return f"vtab/ViT-L_16-jft-{target.removeprefix('vtab/')}"
    return f"finetune/R152x2-jft7ep-{target}"


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and its results in Table 2."""
    if name == ORIGIN:
        return _about_pretraining()
    target = RUNS[name]
    task, base = TASKS[target], catalog.about(_base(target))
    vtab = target.startswith("vtab/")
    values: dict[str, Any] = paper.TABLE_2_BIT._asdict()
    measures = {"mean of 19, 3 runs": "vtab"} if vtab else {"top-1, 3 runs": target}
    if target == "imagenet":
        measures["ReaL"] = "real"
    return base.derive(
        tables=("2", "figure 2") if vtab else ("2",),
        row=f"BiT-L (R152x4), {task.title}",
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
    return base.derive(
        tables=("2", "figure 2"),
        row=f"BiT-L (R152x4), {base.dataset}, 40 epochs",
        core_days=paper.TABLE_2_BIT.core_days,
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
