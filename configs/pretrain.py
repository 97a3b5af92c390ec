"""Pre-training (Tables 3, 5, 6, 7): pretrain/MODEL-DATA-EPOCHSep; Table 7's other arm adds -sgd.

Datasets: `jft` (private: any dataset of yours takes its place), `i21k`, `imagenet`. Three runs
that Tables 5 and 6 report have no row in Table 3; `vit_jax show NAME` names the substitutes.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice
from vit_jax.data.tasks import TASKS


class Row(NamedTuple):
    """A row of Table 3, with its braces expanded."""

    models: tuple[str, ...]
    dataset: str
    epochs: tuple[int, ...]
    lr: float
    decay: str
    weight_decay: float
    dropout: float


TABLE_3 = (
    # networks, data, epochs, learning rate, its decay, weight decay, dropout
    Row(("ViT-B/16", "ViT-B/32"), "jft", (7,), 8e-4, "linear", 0.1, 0.0),
    Row(("ViT-L/32",), "jft", (7,), 6e-4, "linear", 0.1, 0.0),
    Row(("ViT-L/16",), "jft", (7, 14), 4e-4, "linear", 0.1, 0.0),
    Row(("ViT-H/14",), "jft", (14,), 3e-4, "linear", 0.1, 0.0),
    Row(("R50x1", "R50x2"), "jft", (7,), 1e-3, "linear", 0.1, 0.0),
    Row(("R101x1",), "jft", (7,), 8e-4, "linear", 0.1, 0.0),
    Row(("R152x1", "R152x2"), "jft", (7,), 6e-4, "linear", 0.1, 0.0),
    Row(("R50+ViT-B/16", "R50+ViT-B/32"), "jft", (7,), 8e-4, "linear", 0.1, 0.0),
    Row(("R50+ViT-L/32",), "jft", (7,), 2e-4, "linear", 0.1, 0.0),
    Row(("R50+ViT-L/16",), "jft", (7, 14), 4e-4, "linear", 0.1, 0.0),
    Row(("ViT-B/16", "ViT-B/32"), "i21k", (90,), 1e-3, "linear", 0.03, 0.1),
    Row(("ViT-L/16", "ViT-L/32"), "i21k", (30, 90), 1e-3, "linear", 0.03, 0.1),
    # Printed as ViT-*: the four of Table 5.
    Row(
        ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32"),
        "imagenet", (300,), 3e-3, "cosine", 0.3, 0.1,
    ),
)  # fmt: skip
# What Tables 5 and 6 report, and Table 3 lacks.
UNLISTED = (
    Row(("R152x2", "R200x3"), "jft", (14,), 6e-4, "linear", 0.1, 0.0),
    Row(("ViT-H/14",), "i21k", (90,), 1e-3, "linear", 0.03, 0.1),
)
SGD = "-sgd"
ROWS = {
    f"pretrain/{model.replace('/', '_')}-{row.dataset}-{epochs}ep": (row, model, epochs)
    for row in (*TABLE_3, *UNLISTED)
    for model in row.models
    for epochs in row.epochs
}
RUNS = (*ROWS, "pretrain/R50x1-jft-7ep-sgd", "pretrain/R152x2-jft-7ep-sgd")
DATASETS = {"jft": "jft", "i21k": "imagenet21k", "imagenet": "imagenet"}  # section 4.1
WIDTHS = {"B": 768, "L": 1024, "H": 1280}  # Table 1


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    row, model, epochs = ROWS[name.removesuffix(SGD)]
    task, on_imagenet = TASKS[DATASETS[row.dataset]], row.dataset == "imagenet"
    values = {
        "model.variant": model,
        "model.num_classes": task.classes,
        "model.head_bias": -10.0,
        "model.dropout": row.dropout,
        "model.representation_size": WIDTHS[model.rpartition("-")[2][0]]
        if "ViT" in model
        else None,
        "data.source": "tfds",
        "data.name": task.dataset.tfds,
        "data.train_split": task.train,
        # What is held out of ImageNet is for choosing settings.
        "data.eval_split": task.test if on_imagenet else task.held_out,
        "data.image_size": (224, 224),
        "train.batch_size": 4096,
        "train.duration": f"{epochs} epochs",
        "train.clip_norm": 1.0 if on_imagenet else None,
        "loss.name": "sigmoid",
        "optimizer.name": "adam",
        "optimizer.lr": row.lr,
        "optimizer.weight_decay": row.weight_decay,
        "optimizer.moment_dtype": "bfloat16",
        "schedule.name": row.decay,
        "schedule.warmup": "10000 steps",
        "schedule.end": 1e-5 if row.decay == "linear" else 0.0,
        "checkpoint.every": "5000 steps",
        "evaluation.every": "10000 steps",
    }
    if name.endswith(SGD):
        del values["schedule.end"]
        values |= {
            "optimizer.name": "sgd",
            "optimizer.lr": 0.03 * 4096 / 256,
            "optimizer.weight_decay": 1e-4,
            "schedule.name": "step",
            "schedule.warmup": "5000 steps",
            "schedule.drops": (0.3, 0.6, 0.9),
        }
    return catalog.derive(None, values)


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of the paper."""
    row, model, epochs = ROWS[name.removesuffix(SGD)]
    task = TASKS[DATASETS[row.dataset]]
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
        "to a TFDS dataset of yours, or try the row with --smoke" * (row.dataset == "jft"),
        lifted_by=("data.root", "data.name", "data.source"),
    )


def _found(name: str) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yields the tables and figures the run is in, with its results there."""
    row, model, epochs = ROWS[name.removesuffix(SGD)]
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
    row, model, _ = ROWS[name.removesuffix(SGD)]
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
