"""Preflight: compiles a training step for an accelerator from any machine and reports its cost."""

from vit_jax.preflight.batch import as_dict, measure_all
from vit_jax.preflight.formatting import lines, markdown, scaling_table
from vit_jax.preflight.program import Report, Settings, measure, prepare
from vit_jax.preflight.search import fit
from vit_jax.preflight.topologies import Slice, open_slice, parse

__all__ = [
    "Report",
    "Settings",
    "Slice",
    "as_dict",
    "fit",
    "lines",
    "markdown",
    "measure",
    "measure_all",
    "open_slice",
    "parse",
    "prepare",
    "scaling_table",
]
