"""Axial attention (appendix D.6, Figure 13): axial/MODEL and the networks compared.

`axial/ViT-B_16`, `axial/ViT-B_32` and `axial/R50x1` are the runs of Table 3 under other names.
"""

import dataclasses

import ml_collections

from vit_jax.config import catalog, paper
from vit_jax.config.catalog import Choice

RUNS = {f"axial/{model.replace('/', '_')}": model for model in (*paper.D6, *paper.FIGURE_13_BASES)}
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


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return tuple(RUNS)


def _base(name: str) -> str:
    model = RUNS[name].removeprefix("Axial").replace("/", "_").replace("ResNet50", "R50x1")
    return f"pretrain/{model}-jft-7ep"


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    options = catalog.load(_base(name))
    options["model"] |= {"variant": RUNS[name]}
    if "AxialViT" in name:
        options["model"] |= {"pooling": "gap", "representation_size": None}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns where the run called `name` comes from."""
    base = catalog.about(_base(name))
    axial = RUNS[name] in paper.D6
    return dataclasses.replace(
        base,
        tables=("D.6", "figure 13") if axial else ("figure 13",),
        row=RUNS[name],
        exaflops=None if axial else base.exaflops,
        results=(),
        measure=paper.five_shot("figure13"),
        choices=(LENGTH, *([POOLING] if "AxialViT" in name else []), *base.choices),
    )
