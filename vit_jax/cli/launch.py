"""Config names on the command line."""

import fnmatch
from collections.abc import Sequence

from vit_jax import config
from vit_jax.config import catalog


def reference(name: str | None, file: str | None) -> str | None:
    """Returns the config that NAME or --config names, or None."""
    if name and file:
        raise config.ConfigError(f"--config={file}: {name} is given already; keep one of them")
    return name or file


def matching_names(patterns: Sequence[str]) -> list[str]:
    """Returns config names, with patterns such as `vtab/*` replaced by the names they match."""
    names = []
    for pattern in patterns:
        if not set("*?[") & set(pattern):
            names.append(pattern)
            continue
        found = [name for name in catalog.names() if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise config.ConfigError(f"{pattern}: no config has such a name; see `vit_jax list`")
        names += found
    return names
