"""Pre-training (Tables 3, 5, 6, 7): pretrain/MODEL-DATA-EPOCHSep; Table 7's other arm adds -sgd.

Data sets: `jft` (private: any data set of yours takes its place), `i21k`, `imagenet`. Three runs
that Tables 5 and 6 report have no row in Table 3; `vit_jax show NAME` names the substitutes.
"""

from collections.abc import Iterator, Mapping

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice
from vit_jax.data.tasks import TASKS

# What Tables 5 and 6 report, and Table 3 lacks.
UNLISTED = (
    paper.Pretraining(("R152x2", "R200x3"), "jft", (14,), 6e-4, "linear", 0.1, 0.0),
    paper.Pretraining(("ViT-H/14",), "i21k", (90,), 1e-3, "linear", 0.03, 0.1),
)
RUNS = {
    f"pretrain/{model.replace('/', '_')}-{row.dataset}-{epochs}ep": (row, model, epochs)
    for row in (*paper.TABLE_3, *UNLISTED)
    for model in row.models
    for epochs in row.epochs
}
SGD = "-sgd"
SGD_RUNS = ("pretrain/R50x1-jft-7ep-sgd", "pretrain/R152x2-jft-7ep-sgd")


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return (*RUNS, *SGD_RUNS)


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    row, model, epochs = RUNS[name.removesuffix(SGD)]
    task = TASKS[paper.DATASETS[row.dataset]]
    options = {
        "model": {
            "variant": model,
            "num_classes": task.classes,
            "head_bias": -10.0,
            "dropout": row.dropout,
        },
        "data": {
            "source": "tfds",
            "name": task.dataset.tfds,
            "train_split": task.train,
            # What is held out of ImageNet is for choosing settings.
            "eval_split": task.test if row.dataset == "imagenet" else task.held_out,
            "image_size": (paper.PIXELS, paper.PIXELS),
        },
        "train": {
            "batch_size": paper.BATCH,
            "duration": f"{epochs} epochs",
            "clip_norm": paper.CLIP[row.dataset],
        },
        "loss": {"name": "sigmoid"},
        "optimizer": {
            "lr": row.lr,
            "weight_decay": row.weight_decay,
            "moment_dtype": "bfloat16",
        },
        "schedule": {
            "warmup": f"{paper.WARMUP} steps",
            "name": row.decay,
            "end": 1e-5 if row.decay == "linear" else 0.0,
        },
        "checkpoint": {"every": "5000 steps"},
        "evaluation": {"every": "10000 steps"},
    }
    if "ViT" in model:
        _, width = paper.SIZES[model.rpartition("-")[2][0]]
        options["model"] |= {"representation_size": width}
    if name.endswith(SGD):
        options["optimizer"] = {
            "name": "sgd",
            "lr": 0.03 * paper.BATCH / 256,
            "weight_decay": 1e-4,
            "moment_dtype": "bfloat16",
        }
        options["schedule"] = {"warmup": "5000 steps", "name": "step", "drops": (0.3, 0.6, 0.9)}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns the provenance of the run `name` and the results of the paper."""
    row, model, epochs = RUNS[name.removesuffix(SGD)]
    task = TASKS[paper.DATASETS[row.dataset]]
    found = dict(_found(name))
    results: dict[str, catalog.Result] = {}
    for table, scores in found.items():
        for what, value in scores.items():
            results.setdefault(what, catalog.Result(what, value, table))
    return catalog.About(
        tables=tuple(found),
        row=f"{model}, {task.title}, {epochs} epochs{', SGD' * name.endswith(SGD)}",
        dataset=task.title,
        images=task.count(task.train),
        exaflops=paper.TABLE_6[model, epochs].exaflops if "6" in found else None,
        core_days=paper.TABLE_2[model, row.dataset].core_days if "2" in found else None,
        results=tuple(results.values()),
        choices=tuple(_choices(name)),
        needs="data.root=none: JFT-300M is private; set --config.data.root and --config.data.name "
        "to a TFDS data set of yours, or try the row with --smoke" * (row.dataset == "jft"),
        lifted_by=("data.root", "data.name", "data.source"),
    )


def _found(name: str) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yields the tables and figures the run is in, with its results there."""
    row, model, epochs = RUNS[name.removesuffix(SGD)]
    if name.endswith(SGD):
        yield "7", paper.TABLE_7[model, "sgd"]
        return
    if row not in UNLISTED:
        yield "3", {}
    if row.dataset == "jft" and (model, epochs) in paper.TABLE_6:
        yield "6", paper.titled(paper.TABLE_6[model, epochs].scores)
    if row.dataset == "jft" and epochs == 7 and (model, "adam") in paper.TABLE_7:
        yield "7", paper.TABLE_7[model, "adam"]
    # Of two lengths of one network, Tables 2 and 5 have the longer: see the choices.
    if (model, row.dataset) in paper.TABLE_5 and epochs == max(row.epochs):
        if (model, row.dataset) in paper.TABLE_2:
            yield "2", {}
        yield "5", paper.titled(paper.TABLE_5[model, row.dataset])
        yield "figure 3", {}
    if (model, row.dataset) == ("ViT-L/16", "jft"):
        yield "figure 10", {}


LOSS = Choice(
    "loss.name=sigmoid, model.head_bias=-10",
    "the paper names no loss; its authors confirmed both for ImageNet-21k, and the loss for JFT",
    "--config.loss.name=softmax --config.model.head_bias=0",
)
LOSS_IMAGENET = Choice(
    "loss.name=sigmoid, model.head_bias=-10, no label smoothing",
    "not stated; as in the ImageNet config of Scenic, by the same authors; smoothing was tuned, "
    "to a value that is not printed",
    "--config.loss.name=softmax --config.model.head_bias=0 --config.train.label_smoothing=1e-4",
)
DECAYED = Choice(
    "optimizer.decayed=kernels",
    "not stated; the authors' later code decays kernels only, flax.optim.Adam of 2020 decayed all",
    "--config.optimizer.decayed=all",
)
MOMENT = Choice(
    "optimizer.moment_dtype=bfloat16",
    "not stated; halves the first moment, as the authors' later code does",
    "--config.optimizer.moment_dtype=float32",
)
LINEAR = Choice(
    "schedule.end=1e-5",
    "printed as linear only; 1e-5 is where the released checkpoints' schedule ended",
    "--config.schedule.end=0",
)
SPLITS = {
    "jft": Choice(
        "data.name=jft_300m, one label an image",
        "JFT-300M is private, 1.26 labels an image; its duplicates of test images were removed",
        "--config.data.root=DIR --config.data.name=NAME --config.model.num_classes=none",
    ),
    "i21k": Choice(
        "data.name=imagenet21k, train full[51200:], one label an image",
        "the split is big_vision's; TFDS has no recipe for it: prepare it under this name; "
        "its duplicates of test images are not removed",
        "--config.data.root=DIR --config.data.name=NAME --config.data.train_split=SPLIT",
    ),
    "imagenet": Choice(
        "data.train_split=train[:99%]",
        "not stated; big_vision keeps 1 % of the training images for choosing",
        "--config.data.train_split=train",
    ),
}
RESNET = Choice(
    "model.resnet_version=v1",
    "not stated; the paper cites the post-activation ResNet, and its hybrid is one; BiT is v2",
    "--config.model.resnet_version=v2",
)
BIT = (
    Choice(
        "SGD: lr 0.03 x batch / 256 = 0.48, 5,000 steps of warm-up, weight decay 1e-4",
        "the paper says BiT's setting; these are its numbers at batch 4096",
        "--config.optimizer.lr=LR",
    ),
    Choice(
        "schedule.drops=0.3,0.6,0.9",
        "where BiT's rate falls within 7 epochs is not stated; these shares are its fine-tuning's",
        "--config.schedule.drops=SHARES",
    ),
    Choice(
        "weight decay outside the momentum",
        "whether BiT's was inside is not stated; ours is multiplied by the learning rate alone",
        "--config.optimizer.weight_decay=1e-3, about 1e-4 inside a momentum of 0.9",
    ),
)
AMBIGUOUS = {
    "pretrain/R152x2-jft-14ep": Choice(
        "lr 6e-4",
        "Table 3 has R152x2 at 7 epochs only; the same values",
        "--config.optimizer.lr=LR",
    ),
    "pretrain/R200x3-jft-14ep": Choice(
        "lr 6e-4", "Table 3 has no R200x3; the values of R152x2", "--config.optimizer.lr=LR"
    ),
    "pretrain/ViT-H_14-i21k-90ep": Choice(
        "lr 1e-3, weight decay 0.03, dropout 0.1, 90 epochs",
        "Table 3 has no such row, Table 5 its results; the values of ViT-L",
        "--config.optimizer.lr=LR",
    ),
    "pretrain/R50+ViT-L_16-jft-7ep": Choice(
        "printed 859 exaFLOPs",
        "not half of the 1668 printed for 14 epochs; the count here agrees with the 1668",
    ),
    "pretrain/ViT-H_14-jft-14ep": Choice(
        "results of Table 6",
        "Table 5 differs in the same run: 88.04, 90.33, 99.50, 94.55, 97.56, 99.68",
    ),
    "pretrain/ViT-L_16-jft-14ep": Choice(
        "the 0.68k core-days of Table 2 are this run's",
        "not stated; ImageNet-21k's 0.23k is in proportion to 14 epochs here, not to 7",
    ),
}
LENGTHS = Choice(
    "Tables 2 and 5 are the run of 90 epochs",
    "which of 30 and 90 is not stated; 0.23k core-days fit 90, and so do the released weights",
    "vit_jax train pretrain/ViT-L_16-i21k-30ep",
)


def _choices(name: str) -> Iterator[Choice]:
    row, model, _ = RUNS[name.removesuffix(SGD)]
    yield SPLITS[row.dataset]
    yield LOSS_IMAGENET if row.dataset == "imagenet" else LOSS
    if name.endswith(SGD):
        yield from BIT
    elif row.decay == "linear":
        yield LINEAR
    yield DECAYED
    yield MOMENT
    if "ViT" not in model:
        yield RESNET
    if name in AMBIGUOUS:
        yield AMBIGUOUS[name]
    if row.dataset == "i21k" and model.startswith("ViT-L"):
        yield LENGTHS
