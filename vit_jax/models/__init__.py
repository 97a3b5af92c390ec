"""Models: networks by name, as functions of plain nested dicts."""

from vit_jax.models.classifier import Classifier, ParameterError, Params, create
from vit_jax.models.variants import (
    check,
    complete,
    grid,
    has_class_position,
    has_class_token,
    reduction,
)

__all__ = [
    "Classifier",
    "ParameterError",
    "Params",
    "check",
    "complete",
    "create",
    "grid",
    "has_class_position",
    "has_class_token",
    "reduction",
]
