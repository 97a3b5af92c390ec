"""The paper's transfer protocol: select a learning rate, train with three seeds, test once each.

A cell is one fine-tuning run in its own directory. The cells of the selection stage differ in
learning rate (ResNets also try Big Transfer's setup) and see no test image. Those of the final
stage repeat the best one on the whole training set, each with a different seed.
"""

from vit_jax.studies.transfer.plan import TransferPlan as TransferPlan
from vit_jax.studies.transfer.plan import create_plan as create_plan
from vit_jax.studies.transfer.study import Failed as Failed
from vit_jax.studies.transfer.study import TransferStudy as TransferStudy
from vit_jax.studies.transfer.study import perform as perform
from vit_jax.studies.transfer.study import preview as preview
from vit_jax.studies.transfer.study import transfer as transfer
from vit_jax.studies.transfer.tables import preview_table as preview_table
from vit_jax.studies.transfer.tables import spreads as spreads
from vit_jax.studies.transfer.tables import table as table
from vit_jax.studies.transfer.tables import time_left as time_left
from vit_jax.studies.transfer.tables import vtab_means as vtab_means
