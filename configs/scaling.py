"""Scaling a ViT (appendix D.2, Figure 8): scaling/base, and one size or all sizes of it changed."""

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

BASE = "pretrain/ViT-L_32-jft-7ep"
SHAPE = {"depth": 8, "width": 1024, "mlp_dim": 2048, "patch": 32}
VALUES = {
    "depth": (2, 4, 16, 32, 64),
    "width": (256, 512, 2048, 4096),
    "mlp_dim": (512, 1024, 4096, 8192),
    "patch": (56, 28, 16, 8),
}
RUNS = {
    "scaling/base": SHAPE,
    **{
        f"scaling/{size.removesuffix('_dim')}-{value}": SHAPE | {size: value}
        for size, values in VALUES.items()
        for value in values
    },
    "scaling/all-half": {"depth": 4, "width": 512, "mlp_dim": 1024, "patch": 56},
    "scaling/all-double": {"depth": 16, "width": 2048, "mlp_dim": 4096, "patch": 16},
}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    depth, width, mlp_dim, patch = RUNS[name].values()
    changes = {
        "model.variant": None,
        "model.depth": depth,
        "model.width": width,
        "model.mlp_dim": mlp_dim,
        "model.patch_size": (patch, patch),
        "model.heads": width // 64,
        "model.representation_size": width,
    }
    return catalog.derive(BASE, changes)


def about(name: str) -> catalog.About:
    """The provenance of the run `name`."""
    base, shape = catalog.about(BASE), RUNS[name].items()
    return base.derive(
        tables=("D.2", "figure 8"),
        row=", ".join(f"{size.removesuffix('_dim')} {value}" for size, value in shape),
        measure=paper.five_shot("figure8"),
        choices=(*CHOICES, *base.choices),
    )


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
