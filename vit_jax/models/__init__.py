"""Models: networks by name, as functions of plain nested dicts.

Names, sizes and FLOPs need no jax; the classes that do are imported on first use.
"""

from typing import TYPE_CHECKING, Any

import vit_jax.models.families  # noqa: F401 (registers the built-in families)
from vit_jax.models.family import Family, Params
from vit_jax.models.variants import (
    check_masked,
    check_model,
    check_read,
    check_sequences,
    complete,
    default_class_token,
    family,
    flops,
    grid,
    has_class_position,
    has_class_token,
    placed_tokens,
    reduction,
)

if TYPE_CHECKING:
    from vit_jax.models.classifier import Classifier, ParameterError, create

__all__ = [
    "Classifier",
    "Family",
    "ParameterError",
    "Params",
    "check_masked",
    "check_model",
    "check_read",
    "check_sequences",
    "complete",
    "create",
    "default_class_token",
    "family",
    "flops",
    "grid",
    "has_class_position",
    "has_class_token",
    "placed_tokens",
    "reduction",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vit_jax.models import classifier

    return getattr(classifier, name)
