"""Preflight: compiles a training step for an accelerator from any machine and reports its cost."""

from vit_jax.preflight.batch import as_dict, measure_all
from vit_jax.preflight.formatting import lines, markdown, scaling_table
from vit_jax.preflight.program import Report, Settings, measure, prepare_config
from vit_jax.preflight.search import fit_batch
from vit_jax.preflight.topologies import Slice, open_slice, parse_topology

__all__ = [
    "Report",
    "Settings",
    "Slice",
    "as_dict",
    "fit_batch",
    "lines",
    "markdown",
    "measure",
    "measure_all",
    "open_slice",
    "parse_topology",
    "prepare_config",
    "scaling_table",
]
