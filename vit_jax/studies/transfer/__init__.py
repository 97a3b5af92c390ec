"""The paper's transfer protocol: select a learning rate, train with three seeds, test once each.

A cell is one fine-tuning run in its own directory. The cells of the selection stage differ in
learning rate (ResNets also try Big Transfer's setup) and see no test image. Those of the final
stage repeat the best one on the whole training set, each with a different seed.
"""

from vit_jax.studies.transfer.plan import TransferPlan, create_plan
from vit_jax.studies.transfer.study import Failed, TransferStudy, perform, preview, transfer
from vit_jax.studies.transfer.tables import preview_table, spreads, table, time_left, vtab_means

__all__ = [
    "Failed",
    "TransferPlan",
    "TransferStudy",
    "create_plan",
    "perform",
    "preview",
    "preview_table",
    "spreads",
    "table",
    "time_left",
    "transfer",
    "vtab_means",
]
