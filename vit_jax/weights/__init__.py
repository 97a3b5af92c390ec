"""Imports and exports weights of other projects, without TensorFlow or PyTorch."""

from vit_jax.weights.exporting import KINDS, save
from vit_jax.weights.finetune_init import fit, numerics
from vit_jax.weights.importing import Weights, assumptions, load, look
from vit_jax.weights.mapping import Facts, Report
from vit_jax.weights.readers import WeightsError
from vit_jax.weights.zoo import find, resolve

__all__ = [
    "KINDS",
    "Facts",
    "Report",
    "Weights",
    "WeightsError",
    "assumptions",
    "find",
    "fit",
    "load",
    "look",
    "numerics",
    "resolve",
    "save",
]
