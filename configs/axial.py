"""Axial attention (appendix D.6, Figure 13): axial/MODEL and the networks compared.

`axial/ViT-B_16`, `axial/ViT-B_32` and `axial/R50x1` are the runs of Table 3 under other names.
"""

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

AXIAL = {
    "axial/AxialViT-B_16": "pretrain/ViT-B_16-jft-7ep",
    "axial/AxialViT-B_32": "pretrain/ViT-B_32-jft-7ep",
    "axial/AxialResNet50": "pretrain/R50x1-jft-7ep",
}
RUNS = AXIAL | {
    "axial/ViT-B_16": "pretrain/ViT-B_16-jft-7ep",
    "axial/ViT-B_32": "pretrain/ViT-B_32-jft-7ep",
    "axial/R50x1": "pretrain/R50x1-jft-7ep",
}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    changes = {"model.variant": _model(name)}
    if "AxialViT" in name:
        changes |= {"model.pooling": "gap", "model.representation_size": None}
    return catalog.derive(RUNS[name], changes)


def _model(name: str) -> str:
    return name.removeprefix("axial/").replace("_", "/")


def about(name: str) -> catalog.About:
    """The provenance of the run `name`."""
    base = catalog.about(RUNS[name])
    return base.derive(
        tables=("D.6", "figure 13") if name in AXIAL else ("figure 13",),
        row=_model(name),
        exaflops=None if name in AXIAL else base.exaflops,
        measure=paper.five_shot("figure13"),
        choices=(LENGTH, *([POOLING] if "AxialViT" in name else []), *base.choices),
    )


LENGTH = Choice(
    "7 epochs of JFT-300M, the hyper-parameters of Table 3",
    "D.6 states JFT alone; Table 3's row of the network it is made from",
    "--config.train.duration='14 epochs'",
)
POOLING = Choice(
    "model.pooling=gap, model.representation_size=none",
    "D.6 does not say what becomes of the class token among tokens kept in rows and columns",
    "--config.model.pooling=map",
)
