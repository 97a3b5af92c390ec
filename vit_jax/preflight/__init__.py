"""Preflight: a training step compiled for an accelerator from any machine, and what it says."""

from vit_jax.preflight.measure import Report, Settings, measure
from vit_jax.preflight.slices import Slice, open_slice, parse
from vit_jax.preflight.fit import fit

__all__ = ["Report", "Settings", "Slice", "fit", "measure", "open_slice", "parse"]
