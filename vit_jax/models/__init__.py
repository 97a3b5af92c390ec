"""Models: networks by name, as functions of plain nested dicts.

Names, sizes and FLOPs need no jax; the classes that do are imported on first use.
"""

from typing import TYPE_CHECKING, Any

import vit_jax.models.architectures  # noqa: F401 (registers the built-in architectures)
from vit_jax.models.architecture import Architecture, Params
from vit_jax.models.variants import (
    check_masked,
    check_model,
    check_read,
    check_sequences,
    check_variant,
    complete,
    default_class_token,
    find_architecture,
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
    "Architecture",
    "Classifier",
    "ParameterError",
    "Params",
    "check_masked",
    "check_model",
    "check_read",
    "check_sequences",
    "check_variant",
    "complete",
    "create",
    "default_class_token",
    "find_architecture",
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
