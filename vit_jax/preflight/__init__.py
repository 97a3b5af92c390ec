"""Preflight: compiles a training step for an accelerator from any machine and reports its cost."""

from vit_jax.preflight.batch import as_dict as as_dict
from vit_jax.preflight.batch import measure_all as measure_all
from vit_jax.preflight.formatting import lines as lines
from vit_jax.preflight.formatting import markdown as markdown
from vit_jax.preflight.formatting import scaling_table as scaling_table
from vit_jax.preflight.program import Report as Report
from vit_jax.preflight.program import Settings as Settings
from vit_jax.preflight.program import measure as measure
from vit_jax.preflight.program import prepare_config as prepare_config
from vit_jax.preflight.search import fit_batch as fit_batch
from vit_jax.preflight.topologies import Slice as Slice
from vit_jax.preflight.topologies import open_slice as open_slice
from vit_jax.preflight.topologies import parse_topology as parse_topology
