"""Scaling a ViT (appendix D.2, Figure 8): scaling/base, and one size or all sizes of it changed."""

import dataclasses

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

BASE = "pretrain/ViT-L_32-jft-7ep"
VALUES = {
    "depth": (2, 4, 16, 32, 64),
    "width": (256, 512, 2048, 4096),
    "mlp_dim": (512, 1024, 4096, 8192),
    "patch": (56, 28, 16, 8),
}
TOGETHER = {
    "scaling/all-half": {"depth": 4, "width": 512, "mlp_dim": 1024, "patch": 56},
    "scaling/all-double": {"depth": 16, "width": 2048, "mlp_dim": 4096, "patch": 16},
}
SHAPES = {
    "scaling/base": paper.D2,
    **{
        f"scaling/{size.removesuffix('_dim')}-{value}": paper.D2 | {size: value}
        for size, values in VALUES.items()
        for value in values
    },
    **TOGETHER,
}
CHOICES = (
    Choice(
        "the values of depth, width, MLP width and patch size",
        "D.2 prints the base and 64 layers, Figure 8 is a picture; factors of about two from there",
        "--config.model.depth=N --config.model.width=N --config.model.mlp_dim=N",
    ),
    Choice("heads of width 64", "not stated; as in ViT-B and ViT-L", "--config.model.heads=N"),
    Choice(
        "JFT-300M, 7 epochs, lr 6e-4",
        "not stated; Table 3's row of ViT-L/32, which has the base's width and patches",
        "--config.optimizer.lr=LR --config.train.duration='N epochs'",
    ),
)


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return tuple(SHAPES)


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    shape = SHAPES[name]
    options = catalog.load(BASE)
    options["model"] |= {
        "variant": None,
        "patch_size": (shape["patch"], shape["patch"]),
        "width": shape["width"],
        "depth": shape["depth"],
        "mlp_dim": shape["mlp_dim"],
        "heads": shape["width"] // 64,
        "representation_size": shape["width"],
    }
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns where the run called `name` comes from."""
    base, shape = catalog.about(BASE), SHAPES[name]
    return dataclasses.replace(
        base,
        tables=("D.2", "figure 8"),
        row=", ".join(f"{size.removesuffix('_dim')} {value}" for size, value in shape.items()),
        exaflops=None,
        results=(),
        measure=paper.five_shot("figure8"),
        choices=(*CHOICES, *base.choices),
    )
