"""Reproduces the paper's tables from runs and compares the numbers.

A table or figure is data (`tables`, `figures`, made of `exhibit`): each score names its runs, its
measure and the paper's number. A `TablePlan` has every run's state, cost and missing requirements;
`runner` runs those that can run; `measurements` reads their results; `document` prints both sides
next to each other.
"""

from vit_jax.studies.reproduce.document import as_dict, blocks, write_document
from vit_jax.studies.reproduce.planning import TablePlan
from vit_jax.studies.reproduce.runner import perform, tiny
from vit_jax.studies.reproduce.tables import NAMES, table

__all__ = ["NAMES", "TablePlan", "as_dict", "blocks", "perform", "table", "tiny", "write_document"]
