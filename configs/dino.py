"""DINO, learning without labels (Caron et al. 2021): dino/MODEL-imagenet, and dino/folder.

dino/ViT-S_16-imagenet-ibot (iBOT, Zhou et al. 2022), dino/ViT-L_16-imagenet-v2 (DINOv2's short run,
Oquab et al. 2024) and -v3 (DINOv3's on ImageNet-1k, Siméoni et al. 2025) learn the teacher's
answers to masked patches too.

    vit_jax train dino/folder --workdir=runs/dino --config.data.root=photos
    vit_jax evaluate --checkpoint=runs/dino --config.data.root=labeled \
        --config.data.eval_split=test --config.evaluation.knn=self

`folder` is for any folder of images, labeled or not, and hardware for batches of 64 to 256. Its
prototypes suit 50,000 to 100,000 images: set objective.prototypes=1024 below 20,000, 2048 below
50,000, 16384 below 200,000, 32768 below 500,000. `-300ep` is the longer run of the authors' README.
"""

from typing import Any

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice

SOURCE, IBOT_SOURCE, V2_SOURCE, V3_SOURCE = (
    "facebookresearch/dino README", "bytedance/ibot README", "facebookresearch/dinov2 README",
    "facebookresearch/dinov3 README",
)  # fmt: skip
SMALL, LONG, BASE = (
    "dino/ViT-S_16-imagenet",
    "dino/ViT-S_16-imagenet-300ep",
    "dino/ViT-B_16-imagenet",
)
FOLDER = "dino/folder"
IBOT, V2 = "dino/ViT-S_16-imagenet-ibot", "dino/ViT-L_16-imagenet-v2"
V3 = "dino/ViT-L_16-imagenet-v3"
RUNS = (SMALL, LONG, BASE, IBOT, V2, V3, FOLDER)
BATCHES = {SMALL: 512, LONG: 1024, BASE: 1024, IBOT: 1024, V2: 2048, V3: 2048}  # 64 on each GPU
EPOCHS = {SMALL: 100, LONG: 300, BASE: 100, IBOT: 800}
V2_STEPS = 1250  # that its authors call an epoch, of which there are 100
RESULTS = {  # k-NN and linear, in %
    SMALL: (69.3, 74.0, SOURCE), LONG: (73.3, 76.0, SOURCE), IBOT: (75.2, 77.9, IBOT_SOURCE),
    V2: (81.6, 82.9, V2_SOURCE), V3: (82.0, 83.5, V3_SOURCE),
}  # fmt: skip
IMAGES = 1_281_167


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    batch = BATCHES.get(name, 128)
    changes: dict[str, Any] = {
        "model.variant": {BASE: "ViT-B/16", V2: "ViT-L/16", V3: "ViT-L/16"}.get(name, "ViT-S/16"),
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
        "train.duration": f"{100 * V2_STEPS} steps"
        if name in (V2, V3)
        else f"{EPOCHS[name]} epochs",
        "optimizer.weight_decay_end": 0.4,
        "checkpoint.every": "5000 steps",
        "evaluation.every": None,
    }
    if name in (LONG, IBOT):
        changes |= {
            "objective.norm_last_layer": False,
            "objective.teacher_temperature": 0.07,
            "objective.teacher_temperature_warmup": "30 epochs",
        }
    if name in (IBOT, V2, V3):
        changes["objective.patch_loss"] = 1.0
    if name == IBOT:
        changes |= {
            "objective.prototypes": 8192,
            "objective.global_area": (0.25, 1.0),
            "objective.local_area": (0.05, 0.25),
            "objective.local_views": 10,
        }
    if name in (V2, V3):
        changes |= {
            "model.layer_scale": 1e-5,
            "model.stochastic_depth": 0.3,
            "objective.koleo": 0.1,
            "objective.global_area": (0.32, 1.0),
            "objective.local_area": (0.05, 0.32),
            "objective.momentum": 0.992,
            "objective.teacher_temperature": 0.07,
            "objective.teacher_temperature_warmup": f"{30 * V2_STEPS} steps",
            "objective.freeze_last_layer": f"{V2_STEPS} steps",
            "objective.blur": (0.0, 0.9, 0.5),
            "optimizer.lr": 0.004 * (batch / 1024) ** 0.5,
            "optimizer.layer_decay": 0.9,
            "schedule.warmup": f"{10 * V2_STEPS} steps",
            "train.clip_by": "global",
        }
    if name == V3:
        del changes["model.position_resize"]
        changes |= {
            "model.position": "none",
            "model.rotary": 100.0,
            "objective.centering": "sinkhorn",
            "objective.patch_head": True,
            "objective.norm_last_layer": False,
        }
    # The authors decay all but biases and vectors: these tokens and positions are neither.
    groups: dict[str, Any] = {"cls": {"decay": 1.0}}
    if name in (V2, V3):
        groups["embedding"] = {"lr": 0.2}
    if name in (IBOT, V2, V3):
        groups["objective/mask_token"] = {"decay": 1.0}
    if name != V3:
        groups["position/table"] = {"decay": 1.0}
    return catalog.derive(None, changes | {"optimizer.groups": groups})


def about(name: str) -> catalog.About:
    """The provenance of the run `name` and the results of its authors."""
    if name == FOLDER:
        return catalog.About(row="ViT-S/16, any folder of images", choices=FOLDER_CHOICES)
    model = name.split("/")[1].partition("-imagenet")[0].replace("_", "/")
    knn, linear, source = RESULTS.get(name, (None, None, ""))
    results = (
        catalog.Result("20-NN", knn, source), catalog.Result("linear", linear, source)
    ) if knn is not None and linear is not None else ()  # fmt: skip
    more = {BASE: (NO_RESULT,), IBOT: IBOT_CHOICES, V2: V2_CHOICES, V3: V3_CHOICES}.get(name, ())
    title = {IBOT: "iBOT", V2: "DINOv2", V3: "DINOv3"}.get(name, "DINO")
    length = f"{EPOCHS[name]} epochs" if name in EPOCHS else f"{100 * V2_STEPS:,} steps"
    return catalog.About(
        tables=("dino",),
        row=f"{title} {model}, ImageNet, {length}",
        dataset="ImageNet",
        images=IMAGES,
        results=results,
        measure="vit_jax evaluate --config.evaluation.knn=self --config.evaluation.probe=self",
        choices=(*more, *CHOICES),
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
IBOT_CHOICES = (
    Choice(
        "masked patches share the schedule of the teacher's temperature with views",
        "so they do in the authors' commands",
    ),
)
SHARED_CHOICES = (
    *IBOT_CHOICES,
    Choice(
        "gradients are clipped by the norm of all of them",
        "the authors clip those of the network and of each head apart",
    ),
    Choice(
        "drop path rises from 0 to 0.3 over the layers",
        "the authors' is 0.3 in all of them",
        "--config.model.stochastic_depth=0.15",
    ),
    Choice(
        "each large view is masked with probability 0.5, in blocks as iBOT draws them",
        "the authors mask half of the views of a batch, in blocks from 4 patches on",
    ),
    Choice(
        "blur with probability 0, 0.9, 0.5",
        "what the authors' code does: it passes 1 - p of the 1, 0.1, 0.5 in its options",
        "--config.objective.blur=1,0.1,0.5",
    ),
)
V2_CHOICES = (
    *SHARED_CHOICES,
    Choice(
        "patches are centered by the mean over all patches, as in iBOT",
        "the authors average over the masked patches only",
    ),
)
V3_CHOICES = (
    *SHARED_CHOICES,
    Choice(
        "prototypes are directions with lengths that train",
        "the authors' are the rows of a linear layer: the same functions, which an optimizer moves "
        "otherwise",
    ),
    Choice(
        "rotary positions without jitter, shifts or rescaling",
        "those of the authors' larger runs; not confirmed for this one",
    ),
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
