"""vit_jax: train Vision Transformers in JAX, on a laptop or a TPU slice, by config name.

Examples:
    >>> import vit_jax
    >>> vit_jax.list_configs("digits")
    ['digits']
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.api import get_config as get_config
    from vit_jax.api import list_configs as list_configs
    from vit_jax.api import preview as preview
    from vit_jax.api import train as train
    from vit_jax.config.components import register as register
    from vit_jax.inference.averaging import average as average
    from vit_jax.inference.conversion import convert as convert
    from vit_jax.inference.doctor.run import doctor as doctor
    from vit_jax.inference.embedding import embed as embed
    from vit_jax.inference.evaluation import evaluate as evaluate
    from vit_jax.inference.loading import load as load
    from vit_jax.inference.prediction import predict as predict
    from vit_jax.inference.search import search as search
    from vit_jax.studies.transfer import transfer as transfer
    from vit_jax.training.build import create_model as create_model

__version__ = "0.2.0"

_MODULES = {  # imported on first use: jax takes a second
    "average": "inference.averaging",
    "convert": "inference.conversion",
    "create_model": "training.build",
    "doctor": "inference.doctor.run",
    "embed": "inference.embedding",
    "evaluate": "inference.evaluation",
    "get_config": "api",
    "list_configs": "api",
    "load": "inference.loading",
    "predict": "inference.prediction",
    "preview": "api",
    "register": "config.components",
    "search": "inference.search",
    "train": "api",
    "transfer": "studies.transfer",
}
__all__ = [*_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vit_jax' has no attribute {name!r}")
    from vit_jax.runtime import backend

    # Before jax starts one.
    backend.choose_platform(opens=name not in ("get_config", "list_configs", "register"))
    return getattr(importlib.import_module(f"vit_jax.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
