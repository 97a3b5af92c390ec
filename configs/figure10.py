"""Figure 10, the run that no table has: figure10/ViT-L_16-jft-7ep-lr2e-4-wd0.01.

The figure's other two are pretrain/ViT-L_16-jft-7ep and pretrain/ViT-L_16-jft-14ep.
"""

import ml_collections

from vit_jax.config import catalog

RUNS = ("figure10/ViT-L_16-jft-7ep-lr2e-4-wd0.01",)
BASE = "pretrain/ViT-L_16-jft-7ep"


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    return catalog.derive(BASE, {"optimizer.lr": 2e-4, "optimizer.weight_decay": 0.01})


def about(name: str) -> catalog.About:
    """The provenance of the run `name`."""
    row = "ViT-L/16, 7 epochs, lr 2e-4, weight decay 0.01"
    return catalog.about(BASE).derive(tables=("figure 10",), row=row)
