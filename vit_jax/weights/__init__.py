"""Imports and exports weights of other projects, without TensorFlow or PyTorch."""

from vit_jax.weights.adapting import fit_params, numerics
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.exporting import KINDS, save
from vit_jax.weights.family import Family, register
from vit_jax.weights.importing import Weights, assumptions, load, read_spec
from vit_jax.weights.mapping import MappingReport, ModelSpec
from vit_jax.weights.zoo import find_published, resolve

__all__ = [
    "KINDS",
    "Family",
    "MappingReport",
    "ModelSpec",
    "Weights",
    "WeightsError",
    "assumptions",
    "find_published",
    "fit_params",
    "load",
    "numerics",
    "read_spec",
    "register",
    "resolve",
    "save",
]
