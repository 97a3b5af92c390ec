"""Masked autoencoders (He et al. 2022) on ImageNet-1k: mae/ViT-B_16-800ep, and -finetune, -linear.

    vit_jax train mae/ViT-B_16-800ep --workdir=runs/mae
    vit_jax train mae/ViT-B_16-800ep-finetune --config.init_from=runs/mae
    vit_jax train mae/ViT-B_16-800ep-linear --config.init_from=runs/mae
    vit_jax train mae/folder --config.data.root=DIR --config.data.holdout=0.05

ViT-B_16, -L_16 and -H_14, 800 or 1,600 epochs of 1,281,167 images without their labels, as the
paper's table 8 has it; fine-tuned as in table 9, and with a linear layer on frozen features as in
table 10. `mae/folder`, ViT-S/16, is for a folder of your own images without labels, on one
machine, and of no paper. Nothing here was run at this size.
"""

from typing import Any

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice
from vit_jax.data.tasks import TASKS

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation
TASK = TASKS["imagenet"]
SIZES = ("ViT-B_16", "ViT-L_16", "ViT-H_14")
EPOCHS = (800, 1600)
PRETRAINING = {f"mae/{size}-{epochs}ep": (size, epochs) for size in SIZES for epochs in EPOCHS}
FINETUNE, LINEAR, FOLDER = "-finetune", "-linear", "mae/folder"
RUNS = (*PRETRAINING, *(f"{n}{end}" for n in PRETRAINING for end in (FINETUNE, LINEAR)), FOLDER)

# Table 9 and FINETUNE.md: epochs, base learning rate, layer-wise decay, drop path.
FINETUNING = {
    "ViT-B_16": (100, 5e-4, 0.65, 0.1),
    "ViT-L_16": (50, 1e-3, 0.75, 0.2),
    "ViT-H_14": (50, 1e-3, 0.75, 0.3),
}
# After 1,600 epochs: top-1 fine-tuned, and by a linear layer.
PRINTED = {"ViT-B_16": (83.6, 67.8), "ViT-L_16": (85.9, 76.0), "ViT-H_14": (86.9, 77.2)}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    if name == FOLDER:
        return catalog.derive("image_folder", UNLABELED | FOLDER_CHANGES)
    origin = name.removesuffix(FINETUNE).removesuffix(LINEAR)
    size, epochs = PRETRAINING[origin]
    if name == origin:
        changes = UNLABELED | {"train.duration": f"{epochs} epochs"}
    else:
        changes = LABELED | (_finetuning(size) if name.endswith(FINETUNE) else _linear(size))
    return catalog.derive(None, COMMON | changes | {"model.variant": size.replace("_", "/")})


COMMON = {
    "model.gelu": "erf",
    "model.init": "mae",
    "data.source": "tfds",
    "data.name": TASK.dataset.tfds,
    "data.train_split": "train",
    "data.eval_split": TASK.test,
    "data.mean": IMAGENET[0],
    "data.std": IMAGENET[1],
    "data.resampling": "antialiased_bicubic",
    "data.eval_crop": "central",
    "checkpoint.every": "5 epochs",
    "evaluation.every": "5 epochs",
}
UNLABELED = {  # Table 8
    "objective.name": "mae",
    "model.gelu": "erf",
    "model.init": "mae",
    "model.position": "sincos_2d_mae",
    "data.mean": IMAGENET[0],
    "data.std": IMAGENET[1],
    "data.resampling": "antialiased_bicubic",
    "data.crop_area": (0.2, 1.0),
    "train.batch_size": 4096,
    "optimizer.lr": 1.5e-4 * 4096 / 256,
    "optimizer.b2": 0.95,
    "optimizer.weight_decay": 0.05,
    "schedule.warmup": "40 epochs",
}
FOLDER_CHANGES = {
    "objective.decoder_width": 256,
    "objective.decoder_depth": 4,
    "objective.decoder_heads": 8,
    "train.batch_size": 256,
    "train.duration": "400 epochs",
    "train.clip_norm": None,
    "optimizer.lr": 1.5e-4,
    "schedule.warmup": "20 epochs",
    "checkpoint.every": "10 epochs",
    "evaluation.every": "10 epochs",
}
LABELED = {
    "model.num_classes": TASK.classes,
    "model.position": "learned_1d",
    "data.crop_area": (0.08, 1.0),
}


def _linear(size: str) -> dict[str, Any]:  # Table 10
    return {
        "optimizer.only": ("head",),
        "optimizer.name": "lars",
        "optimizer.lr": 0.1 * 16384 / 256,
        "train.batch_size": 16384,
        "train.duration": f"{90 if size == 'ViT-B_16' else 50} epochs",
        "schedule.warmup": "10 epochs",
    }


def _finetuning(size: str) -> dict[str, Any]:
    epochs, rate, decay, paths = FINETUNING[size]
    return {
        "model.pooling": "gap",
        "model.class_token": True,
        "model.norm_place": "pooled",
        "model.stochastic_depth": paths,
        "data.randaugment": (2, 9),
        "data.erase": 0.25,
        "train.batch_size": 1024,
        "train.duration": f"{epochs} epochs",
        "train.mixup": 0.8,
        "train.cutmix": 1.0,
        "train.label_smoothing": 0.1,
        "optimizer.lr": rate * 1024 / 256,
        "optimizer.weight_decay": 0.05,
        "optimizer.layer_decay": decay,
        "schedule.warmup": "5 epochs",
        "schedule.end": 1e-6,
    }


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of its authors."""
    if name == FOLDER:
        return catalog.About(row="ViT-S/16, a folder without labels", choices=(SMALL,))
    origin = name.removesuffix(FINETUNE).removesuffix(LINEAR)
    size, epochs = PRETRAINING[origin]
    row = f"{size.replace('_', '/')}, {TASK.title}, masked autoencoder, {epochs:,} epochs"
    about = catalog.About(tables=("mae",), dataset=TASK.title, images=TASK.count("train"))
    if name == origin:
        return about.derive(row=row, choices=(DECAYED,))
    tuned = name.endswith(FINETUNE)
    printed = PRINTED[size][0 if tuned else 1] if epochs == 1600 else None
    return about.derive(
        row=f"{row}, {'fine-tuned' if tuned else 'a linear layer'}",
        results=() if printed is None else (catalog.Result("top-1", printed, "MAE"),),
        choices=TUNED if tuned else PROBED,
        origin=origin,
        warning=f"begins with random weights; set --config.init_from to your run of {origin}, or "
        "to published weights (timm/vit_base_patch16_224.mae, under CC-BY-NC-4.0)",
    )


SMALL = Choice(
    "the learning rate by the paper's rule, 400 epochs in batches of 256, a decoder of 256 x 4",
    "of no paper, and not tuned: few images need many epochs",
    "--config.optimizer.lr=LR --config.train.duration='N epochs'",
)
DECAYED = Choice(
    "class token and mask token do not decay",
    "in the authors' code they do: all that has more than one axis",
)
FROM_CODE = Choice(
    "crops of 8 to 100 % of the image",
    "not stated; torchvision's, as the authors' code takes them",
    "--config.data.crop_area=SHARES",
)
TUNED = (
    FROM_CODE,
    Choice(
        "RandAugment (2, 9) as big_vision's, one erased rectangle",
        "the authors take timm's, whose magnitudes vary by a deviation of 0.5",
        "--config.data.randaugment=2,9",
    ),
    Choice(
        "the norm of pooled tokens begins as the encoder's last one",
        "the authors draw a new one",
    ),
)
PROBED = (
    FROM_CODE,
    Choice(
        "no BatchNorm before the layer",
        "the authors' code has one without parameters, there is none here: not confirmed that "
        "their results follow without",
        "--config.optimizer.lr=LR",
    ),
)
