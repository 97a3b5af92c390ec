"""Weights of other projects, in and out, with neither TensorFlow nor PyTorch."""

from vit_jax.weights.adapt import fit, numerics
from vit_jax.weights.files import WeightsError
from vit_jax.weights.layout import Facts, Report
from vit_jax.weights.sources import Weights, load, look
from vit_jax.weights.targets import KINDS, save
from vit_jax.weights.zoo import find, resolve

__all__ = [
    "KINDS",
    "Facts",
    "Report",
    "Weights",
    "WeightsError",
    "find",
    "fit",
    "load",
    "look",
    "numerics",
    "resolve",
    "save",
]
