"""Models: sizes by name, and Vision Transformers as functions of plain nested dicts."""

from vit_jax.models.variants import complete
from vit_jax.models.vit import Classifier, ParameterError, Params, create

__all__ = ["Classifier", "ParameterError", "Params", "complete", "create"]
