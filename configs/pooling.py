"""Class token or mean token (appendix D.3, Figure 9): pooling/KIND-LR."""

import dataclasses

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

BASE = "pretrain/ViT-B_16-jft-7ep"
RUNS = {f"pooling/{kind}-{lr:.0e}".replace("e-0", "e-"): (kind, lr) for kind, lr in paper.D3}
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


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return tuple(RUNS)


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    kind, lr = RUNS[name]
    options = catalog.load(BASE)
    options["optimizer"] |= {"lr": lr}
    if kind == "gap":
        options["model"] |= {"pooling": "gap", "representation_size": None}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns where the run called `name` comes from."""
    base, (kind, lr) = catalog.about(BASE), RUNS[name]
    return dataclasses.replace(
        base,
        tables=("D.3", "figure 9"),
        row=f"{'class token' if kind == 'token' else 'GAP'}, lr {lr:g}",
        exaflops=None,
        results=(),
        measure=paper.five_shot("figure9"),
        choices=(NETWORK, *([HEAD] if kind == "gap" else []), *base.choices),
    )
