"""DINO, learning without labels (Caron et al. 2021): dino/MODEL-imagenet, and dino/folder.

    vit_jax train dino/folder --workdir=runs/dino --config.data.root=photos \
        --config.data.holdout=0.05
    vit_jax evaluate --checkpoint=runs/dino --config.data.root=labeled --config.data.holdout=0 \
        --config.data.eval_split=test --config.evaluation.knn=self

`folder` is for any folder of images, labeled or not, and hardware for batches of 64 to 256. Its
prototypes suit 50,000 to 100,000 images: set objective.prototypes=1024 below 20,000, 2048 below
50,000, 16384 below 200,000, 32768 below 500,000. `-300ep` is the longer run of the authors' README.
"""

from typing import Any

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice

SOURCE = "facebookresearch/dino README"
SMALL, LONG, BASE = (
    "dino/ViT-S_16-imagenet",
    "dino/ViT-S_16-imagenet-300ep",
    "dino/ViT-B_16-imagenet",
)
FOLDER = "dino/folder"
RUNS = (SMALL, LONG, BASE, FOLDER)
BATCHES = {SMALL: 512, LONG: 1024, BASE: 1024}  # 64 on each of 8 or 16 GPUs
EPOCHS = {SMALL: 100, LONG: 300, BASE: 100}
RESULTS = {SMALL: (69.3, 74.0), LONG: (73.3, 76.0)}  # k-NN and linear, in %
IMAGES = 1_281_167


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    batch = BATCHES.get(name, 128)
    changes: dict[str, Any] = {
        "model.variant": "ViT-B/16" if name == BASE else "ViT-S/16",
        "model.gelu": "erf",
        "model.norm_epsilon": 1e-6,
        "model.init": "deit",
        "model.position_resize": "bicubic_offset",
        "model.stochastic_depth": 0.1,
        "data.mean": (0.485, 0.456, 0.406),
        "data.std": (0.229, 0.224, 0.225),
        "data.resampling": "antialiased_bicubic",
        "objective.name": "dino",
        "train.batch_size": batch,
        "train.clip_norm": 3.0,
        "train.clip_by": "parameter",
        "optimizer.lr": 5e-4 * batch / 256,
        "optimizer.weight_decay": 0.04,
        "schedule.name": "cosine",
        "schedule.end": 1e-6,
        "schedule.warmup": "10 epochs",
    }
    if name == FOLDER:
        changes |= {
            "train.duration": "300 epochs",
            "objective.prototypes": 4096,
            "objective.freeze_last_layer": "1250 steps",
            "checkpoint.minutes": 15.0,
        }
        return catalog.derive("image_folder", changes)
    changes |= {
        "data.source": "tfds",
        "data.name": "imagenet2012",
        "data.eval_split": "validation",
        "train.duration": f"{EPOCHS[name]} epochs",
        "optimizer.weight_decay_end": 0.4,
        # The authors decay all but biases and vectors: these two are neither.
        "optimizer.groups": {"cls": {"decay": 1.0}, "position/table": {"decay": 1.0}},
        "checkpoint.every": "5000 steps",
        "evaluation.every": None,
    }
    if name == LONG:
        changes |= {
            "objective.norm_last_layer": False,
            "objective.teacher_temperature": 0.07,
            "objective.teacher_temperature_warmup": "30 epochs",
        }
    return catalog.derive(None, changes)


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of its authors."""
    if name == FOLDER:
        return catalog.About(row="ViT-S/16, any folder of images", choices=FOLDER_CHOICES)
    model = name.split("/")[1].partition("-imagenet")[0].replace("_", "/")
    knn, linear = RESULTS.get(name, (None, None))
    results = (
        catalog.Result("20-NN", knn, SOURCE), catalog.Result("linear", linear, SOURCE)
    ) if knn is not None and linear is not None else ()  # fmt: skip
    unconfirmed = (NO_RESULT,) if name == BASE else ()
    return catalog.About(
        tables=("dino",),
        row=f"DINO {model}, ImageNet, {EPOCHS[name]} epochs",
        dataset="ImageNet",
        images=IMAGES,
        results=results,
        measure="vit_jax evaluate --config.evaluation.knn=self --config.evaluation.probe=self",
        choices=(*unconfirmed, *CHOICES),
    )


CHOICES = (
    Choice(
        "areas of crops are drawn as TensorFlow draws them",
        "the authors' are torchvision's: uniform in area, here about uniform in its square root",
    ),
    Choice(
        "teacher temperature rises with every step",
        "in the authors' code with every epoch; DINOv2's does so with every step",
        "--config.objective.teacher_temperature_warmup='N epochs'",
    ),
    Choice(
        "lengths of prototypes that train do not decay",
        "in the authors' code they do, as they are no vector there",
    ),
    Choice(
        "bfloat16 on TPU and GPU, float32 elsewhere; logits always float32",
        "the authors' float16 needs its loss scaled",
        "--config.model.dtype=float32",
    ),
)
NO_RESULT = Choice(
    "the command of the README for ViT-B/16",
    "no result is published for it: the released ViT-B/16 (76.1 % k-NN) has other arguments, which "
    "were not read",
)
FOLDER_CHOICES = (
    Choice(
        "objective.prototypes=4096, objective.freeze_last_layer=1250 steps, constant weight decay",
        "rules of others for 50,000 to 100,000 images, not measured here",
        "--config.objective.prototypes=N",
    ),
    Choice(
        "objective.momentum=0.996",
        "the authors advise 0.9995 for batches of 256",
        "--config.objective.momentum=0.9995",
    ),
)
