"""The paper's tables from runs: which runs they take, what is there, and the numbers beside.

A table or figure is data (`tables`, `figures`, made of `cells`): each cell says which runs it is
measured on, by which measure, and what the paper printed. `planning` says of every run whether it
is here, what it costs and what it lacks; `running` runs what can be run; `numbers` reads what they
came to; `page` puts it side by side.
"""

from vit_jax.reproduce.document import as_dict, blocks, write
from vit_jax.reproduce.planning import plan
from vit_jax.reproduce.runner import perform, tiny
from vit_jax.reproduce.tables import NAMES, table

__all__ = ["NAMES", "as_dict", "blocks", "perform", "plan", "table", "tiny", "write"]
