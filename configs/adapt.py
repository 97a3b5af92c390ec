"""Published weights adapted to your own folder of images: adapt/MODEL-METHOD.

    vit_jax transfer adapt/ViT-S_16-lora --config.data.root=DIR
    vit_jax train adapt/DINOv2-B_14-probe --config.data.root=DIR --config.optimizer.lr=0.003

DIR is as for `image_folder`. Models: ViT-S_16, ViT-B_16 and ViT-L_16 of AugReg (ImageNet-21k), and
DINOv2-S_14, -B_14 and -L_14 as timm publishes them (no labels). Methods, from the cheapest: `probe`
trains the head alone; `lora` adapters of rank 8 on every matrix of the encoder, and the head;
`llrd` all parameters, with layer-wise learning rates; `full` all of them at one rate. `vit_jax
transfer` chooses among the rates of the method and trains once with the best; a run by itself takes
the middle one. Of `lora`, epochs are as many as two CPU cores do in an hour on a thousand images.
"""

from typing import Any, NamedTuple

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice


class Weights(NamedTuple):
    """Published weights: their address, and the size of the model."""

    init_from: str
    variant: str


HUB = "https://huggingface.co/timm"
MODELS = {
    **{
        f"ViT-{size}_16": Weights(f"augreg/ViT-{size}_16", f"ViT-{size}/16")
        for size in ("S", "B", "L")
    },
    **{
        f"DINOv2-{size}_14": Weights(f"{HUB}/vit_{long}_patch14_dinov2.lvd142m", f"ViT-{size}/14")
        for size, long in (("S", "small"), ("B", "base"), ("L", "large"))
    },
}
# Rates to choose among, for Adam, and the options of each method.
RATES = {
    "probe": (1e-3, 3e-3, 1e-2),
    "lora": (3e-4, 1e-3, 3e-3),
    "llrd": (1e-4, 3e-4, 1e-3),
    "full": (1e-5, 3e-5, 1e-4),
}
METHODS: dict[str, dict[str, Any]] = {
    "probe": {"optimizer": {"only": ("head",)}},
    "lora": {
        "lora": {"rank": 8, "alpha": 16.0},
        "train": {"batch_size": 16, "duration": "4 epochs"},
    },
    "llrd": {"optimizer": {"weight_decay": 0.05}, "model": {"stochastic_depth": 0.1}},
    "full": {"optimizer": {"weight_decay": 0.05}},
}
LAYER_DECAY = {"S": 0.65, "B": 0.65, "L": 0.75}  # MAE's; its smallest model is B

COMMON = Choice(
    "the rates, 20 epochs of batches of 64 (lora: 4, of 16)",
    "common practice for some thousand images; the best rate depends on the images",
    "--config.optimizer.lr=LR --config.train.duration='N epochs' --config.train.batch_size=N",
)
CHOICES = {
    "lora": Choice(
        "lora.rank=8 on every matrix of the encoder",
        "the paper of LoRA adapts queries and values only; all matrices learn more at equal rank",
        "--config.lora.where=encoder/attention/query,encoder/attention/value",
    ),
    "llrd": Choice(
        "optimizer.layer_decay=0.65, 0.75 for L",
        "as MAE fine-tunes B and L; for S it is B's",
        "--config.optimizer.layer_decay=0.75",
    ),
}


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return tuple(f"adapt/{model}-{method}" for model in MODELS for method in METHODS)


def _parts(name: str) -> tuple[str, str]:
    model, _, method = name.removeprefix("adapt/").rpartition("-")
    return model, method


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    model, method = _parts(name)
    weights, size = MODELS[model], model.rpartition("-")[2][0]
    options = catalog.load("image_folder")
    own = METHODS[method]
    decay = {"layer_decay": LAYER_DECAY[size]} if method == "llrd" else {}
    options |= {
        "init_from": weights.init_from,
        "model": {"variant": weights.variant} | own.get("model", {}),
        "train": {"batch_size": 64, "duration": "20 epochs", "clip_norm": 1.0}
        | own.get("train", {}),
        "optimizer": {"lr": RATES[method][1]} | decay | own.get("optimizer", {}),
        "lora": own.get("lora", {}),
        "schedule": {"warmup": "1 epochs", "name": "cosine"},
    }
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns the choices of the recipe, and the rates that `transfer` tries."""
    model, method = _parts(name)
    row = {
        "probe": "the head alone",
        "lora": "low-rank adapters",
        "llrd": "layer-wise rates",
        "full": "all at one rate",
    }
    return catalog.About(
        row=f"{model}, {row[method]}",
        choices=(COMMON, *([CHOICES[method]] if method in CHOICES else [])),
        transfer=catalog.TransferSettings(rates=RATES[method], seeds=(0,)),
    )
