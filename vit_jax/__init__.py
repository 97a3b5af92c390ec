"""vit_jax: train Vision Transformers in JAX, on a laptop or a TPU slice, by config name.

Examples:
    >>> import vit_jax
    >>> vit_jax.list_configs("digits")
    ['digits']
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.api import get_config, list_configs, preview, train
    from vit_jax.config.components import register
    from vit_jax.inference.averaging import average
    from vit_jax.inference.conversion import convert
    from vit_jax.inference.doctor.run import doctor
    from vit_jax.inference.embedding import embed
    from vit_jax.inference.evaluation import evaluate
    from vit_jax.inference.loading import load
    from vit_jax.inference.prediction import predict
    from vit_jax.inference.search import search
    from vit_jax.studies.transfer import transfer
    from vit_jax.training.build import create_model

__version__ = "0.2.0"

__all__ = [
    "average",
    "convert",
    "create_model",
    "doctor",
    "embed",
    "evaluate",
    "get_config",
    "list_configs",
    "load",
    "predict",
    "preview",
    "register",
    "search",
    "train",
    "transfer",
]

_MODULES = {  # imported on first use: jax takes a second
    "average": "inference.averaging",
    "convert": "inference.conversion",
    "create_model": "training.build",
    "doctor": "inference.doctor.run",
    "embed": "inference.embedding",
    "evaluate": "inference.evaluation",
    "load": "inference.loading",
    "predict": "inference.prediction",
    "register": "config.components",
    "search": "inference.search",
    "transfer": "studies.transfer",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vit_jax' has no attribute {name!r}")
    from vit_jax.runtime import backend

    # Before jax starts one.
    backend.choose_platform(opens=name not in ("get_config", "list_configs", "register"))
    return getattr(importlib.import_module(f"vit_jax.{_MODULES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
