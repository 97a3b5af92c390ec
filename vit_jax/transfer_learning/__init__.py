"""The paper's transfer protocol: choose on held-out images, train on all, test once, three times.

A cell is one fine-tuning run in a directory of its own. The cells of the choosing stage differ in
learning rate (ResNets try Big Transfer's setup besides) and see no test image; those of the final
stage repeat the best of them on the whole training set, each with another seed.
"""

from vit_jax.transfer_learning.devices import shares
from vit_jax.transfer_learning.plan import Cell, Plan, create
from vit_jax.transfer_learning.protocol import preview, sweep
from vit_jax.transfer_learning.tables import preview_table, spreads, table, time_left
from vit_jax.transfer_learning.vtab import vtab_means

__all__ = [
    "Cell",
    "Plan",
    "create",
    "preview",
    "preview_table",
    "shares",
    "spreads",
    "sweep",
    "table",
    "time_left",
    "vtab_means",
]
