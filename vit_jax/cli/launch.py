"""Checks before a training run starts; they need no jax, so mistakes are reported at once."""

import fnmatch
import pathlib
from collections.abc import Mapping, Sequence

from vit_jax import catalog, config, locking, messages


def reference(name: str | None, file: str | None) -> str | None:
    """Returns the config that NAME or --config names, or None."""
    if name and file:
        raise config.ConfigError(f"--config={file}: {name} is given already; keep one of them")
    return name or file


def check(
    name: str, overrides: Mapping[str, str], workdir: pathlib.Path | None, *, smoke: bool
) -> pathlib.Path:
    """Returns the run directory of a config; raises ConfigError where training cannot start.

    With `smoke` and no `workdir`, the directory of an earlier smoke run is removed.
    """
    values, about = catalog.load(name), catalog.about(name)
    data = config.build(config.override(values, overrides)).data
    if smoke:
        if workdir is None:
            workdir = pathlib.Path("runs", "smoke", values["name"])
            locking.clear(workdir)
        return workdir
    if about.needs and not any(key in overrides for key in about.lifted_by):
        raise config.ConfigError(about.needs)
    if about.warning and "init_from" not in overrides:
        messages.print_error(f"{values['name']} {about.warning}")
    if data.source == "tfds" and data.name:
        from vit_jax.data import availability

        availability.check(data.name, data.root)
    return workdir or pathlib.Path("runs", values["name"])


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
