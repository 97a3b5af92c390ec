"""Figure 10, the run that no table has: figure10/ViT-L_16-jft-7ep-lr2e-4-wd0.01.

The figure's other two are pretrain/ViT-L_16-jft-7ep and pretrain/ViT-L_16-jft-14ep.
"""

import dataclasses

import ml_collections

from vit_jax.config import catalog, paper

NAME = "figure10/ViT-L_16-jft-7ep-lr2e-4-wd0.01"
BASE = "pretrain/ViT-L_16-jft-7ep"


def names() -> tuple[str, ...]:
    """Returns the name this file knows."""
    return (NAME,)


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    _, lr, weight_decay = paper.FIGURE_10[0]
    options = catalog.load(BASE)
    options["optimizer"] |= {"lr": lr, "weight_decay": weight_decay}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns where the run called `name` comes from."""
    return dataclasses.replace(
        catalog.about(BASE),
        tables=("figure 10",),
        row="ViT-L/16, 7 epochs, lr 2e-4, weight decay 0.01",
        exaflops=None,
        results=(),
    )
