"""The config files: which names there are, and how a name becomes a config.

A config file is Python with two functions: `names()`, the names it knows, and `get_config(name)`,
which returns an `ml_collections.ConfigDict` holding the knobs that differ from the schema.
"""

import importlib.util
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import config


def directory() -> pathlib.Path:
    """Returns the folder of the config files: in the installed package, or beside a checkout."""
    package = pathlib.Path(__file__).resolve().parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def names() -> dict[str, pathlib.Path]:
    """Returns every name of the catalog with its file, in order."""
    files = sorted(path for path in directory().glob("*.py") if path.name != "__init__.py")
    return {name: path for path in files for name in _module(path).names()}


def load(reference: str) -> dict[str, Any]:
    """Returns the knobs that `NAME`, `FILE.py:NAME` or `FILE.py` sets.

    Raises ConfigError for a name or file that does not exist, or a file that is no config file.
    """
    file, _, name = reference.rpartition(":") if ".py:" in reference else ("", "", reference)
    if reference.endswith(".py"):
        file, name = reference, ""
    if file:
        module = _module(_find(file))
        known: list[str] = list(module.names())
        if not name and len(known) > 1:
            raise ConfigError(f"--config={file}: name one of its configs: {_each(file, known)}")
        name = name or known[0]
    else:
        catalog = names()
        known = list(catalog)
        module = _module(catalog[name]) if name in catalog else None
    if module is None or name not in known:
        raise ConfigError(f"--config={reference}: no such config{config.suggest(name, known)}")
    values = module.get_config(name)
    if not isinstance(values, Mapping) and not hasattr(values, "items"):
        raise ConfigError(f"--config={reference}: get_config({name!r}) must return a ConfigDict")
    values = config.override(values, {})  # plain dicts from here on
    return {"name": name} | values


def summary(path: pathlib.Path) -> str:
    """Returns the first line of a config file's docstring."""
    return (_module(path).__doc__ or "").strip().split("\n")[0]


ConfigError = config.ConfigError


def _each(file: str, known: Sequence[str]) -> str:
    return ", ".join(f"{file}:{name}" for name in known)


def _find(file: str) -> pathlib.Path:
    path = pathlib.Path(file)
    for candidate in (path, directory() / path.name):
        if candidate.is_file():
            return candidate
    known = sorted(p.name for p in directory().glob("*.py") if p.name != "__init__.py")
    raise ConfigError(f"--config={file}: no such file{config.suggest(path.name, known)}")


def _module(path: pathlib.Path) -> types.ModuleType:
    # By path, never by import: `configs` is too common a name to claim.
    spec = importlib.util.spec_from_file_location(f"vit_jax_config_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file can fail in any way
        raise ConfigError(f"--config={path}: {type(error).__name__}: {error}") from error
    for function in ("names", "get_config"):
        if not hasattr(module, function):
            raise ConfigError(
                f"--config={path}: has no function {function}(); see configs/digits.py"
            )
    return module
