"""Class token or mean token (appendix D.3, Figure 9): pooling/KIND-LR."""

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

BASE = "pretrain/ViT-B_16-jft-7ep"
RUNS = {
    "pooling/token-8e-4": ("token", 8e-4),
    "pooling/gap-8e-4": ("gap", 8e-4),
    "pooling/gap-3e-4": ("gap", 3e-4),
}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    pooling, lr = RUNS[name]
    changes = {"optimizer.lr": lr, "model.pooling": pooling}
    if pooling == "gap":
        changes["model.representation_size"] = None
    return catalog.derive(BASE, changes)


def about(name: str) -> catalog.About:
    """The provenance of the run `name`."""
    base, (pooling, lr) = catalog.about(BASE), RUNS[name]
    return base.derive(
        tables=("D.3", "figure 9"),
        row=f"{'class token' if pooling == 'token' else 'GAP'}, lr {lr:g}",
        measure=paper.five_shot("figure9"),
        choices=(NETWORK, *([HEAD] if pooling == "gap" else []), *base.choices),
    )


NETWORK = Choice(
    "ViT-B/16, JFT-300M, 7 epochs",
    "the network is not stated; 7 epochs at 8e-4 are Table 3's rows of ViT-B",
    "--config.model.variant=ViT-B/32",
)
HEAD = Choice(
    "model.representation_size=none",
    "D.3 pools and then classifies by a linear layer",
    "--config.model.representation_size=768",
)
