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

from typing import Any

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice

TIMM = "https://huggingface.co/timm"
MODELS = {  # weights, size, and MAE's decay of rates by layer, whose smallest model is B
    "ViT-S_16": ("augreg/ViT-S_16", "ViT-S/16", 0.65),
    "ViT-B_16": ("augreg/ViT-B_16", "ViT-B/16", 0.65),
    "ViT-L_16": ("augreg/ViT-L_16", "ViT-L/16", 0.75),
    "DINOv2-S_14": (f"{TIMM}/vit_small_patch14_dinov2.lvd142m", "ViT-S/14", 0.65),
    "DINOv2-B_14": (f"{TIMM}/vit_base_patch14_dinov2.lvd142m", "ViT-B/14", 0.65),
    "DINOv2-L_14": (f"{TIMM}/vit_large_patch14_dinov2.lvd142m", "ViT-L/14", 0.75),
}
METHODS: dict[str, tuple[str, tuple[float, float, float], dict[str, Any]]] = {
    # what trains, rates to choose among, and what differs besides
    "probe": ("the head alone", (1e-3, 3e-3, 1e-2), {"optimizer.only": ("head",)}),
    "lora": (
        "low-rank adapters",
        (3e-4, 1e-3, 3e-3),
        {"lora.rank": 8, "train.batch_size": 16, "train.duration": "4 epochs"},
    ),
    "llrd": (
        "layer-wise rates",
        (1e-4, 3e-4, 1e-3),
        {"optimizer.weight_decay": 0.05, "model.stochastic_depth": 0.1},
    ),
    "full": ("all at one rate", (1e-5, 3e-5, 1e-4), {"optimizer.weight_decay": 0.05}),
}
RUNS = {f"adapt/{model}-{method}": (model, method) for model in MODELS for method in METHODS}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    model, method = RUNS[name]
    weights, variant, layer_decay = MODELS[model]
    _, rates, changes = METHODS[method]
    common = {
        "init_from": weights,
        "model.variant": variant,
        "train.batch_size": 64,
        "train.duration": "20 epochs",
        "optimizer.lr": rates[1],
        "optimizer.weight_decay": 0.0,
        "optimizer.layer_decay": layer_decay if method == "llrd" else None,
        "schedule.warmup": "1 epochs",
    }
    return catalog.derive("image_folder", common | changes)


def about(name: str) -> catalog.About:
    """The choices of the recipe, and the rates that `transfer` tries."""
    model, method = RUNS[name]
    what, rates, _ = METHODS[method]
    return catalog.About(
        row=f"{model}, {what}",
        choices=(COMMON, *([CHOICES[method]] if method in CHOICES else [])),
        transfer=catalog.TransferSettings(rates=rates, seeds=(0,)),
    )


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
