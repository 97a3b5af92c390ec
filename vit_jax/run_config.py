"""The config of a run: from a catalog name or file, overrides and what a run directory holds."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax import catalog, config, loading, smoke, storage, unread_options, weights


def resolve(reference: str, overrides: Mapping[str, str], *, tiny: bool = False) -> config.Config:
    """Returns the checked config of a catalog name or file, sizes filled in; `tiny`, cut down.

    Raises ConfigError; reads no data and compiles nothing.
    """
    values = catalog.load(reference)
    unread_options.check_file(values)
    return config_from_values(values, overrides, tiny=tiny)


def config_from_values(
    values: Mapping[str, Any], overrides: Mapping[str, str], *, tiny: bool = False
) -> config.Config:
    """Returns the same of nested options."""
    cfg = config.build(config.override(values, overrides))
    unread_options.check(cfg, overrides)
    if tiny:  # what is overridden is not cut down
        cfg = config.build(config.override(config.to_dict(smoke.shrink(cfg)), overrides))
    return loading.complete(cfg)


def as_in_weights(cfg: config.Config, overrides: Mapping[str, str]) -> config.Config:
    """Returns the config with the options that belong to the weights it begins with.

    Whoever made the weights chose them: the form of GELU, epsilons, how pixels are scaled.
    What `overrides` set stays.
    """
    if cfg.init_from is None:
        return cfg
    facts, keep = loading.describe(cfg.init_from, cfg), cfg.init_head == "keep"
    return _with_options(cfg, weights.numerics(facts, keep_head=keep), overrides)


def config_for_workdir(
    workdir: pathlib.Path,
    reference: str | None,
    overrides: Mapping[str, str],
    *,
    tiny: bool = False,
    whole: bool = False,
) -> config.Config:
    """Returns the config to run in `workdir`: a new one, or the one of the run it holds.

    A run in progress may change only the options that do not decide its result; anything else
    raises ConfigError, naming each difference. With `whole`, `overrides` are every option of a
    config, so some of them may not be read.
    """
    file = workdir / "config.json"
    with storage.readable_errors(f"--workdir={workdir}"):
        exists = file.exists()
    if not exists:
        if reference is None:
            raise config.ConfigError(
                f"--workdir={workdir}: holds no run to resume (no config.json); "
                "name a config to start one"
            )
        return as_in_weights(resolve(reference, overrides, tiny=tiny), overrides)
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise config.ConfigError(
            f"--workdir={workdir}: config.json is unreadable: {error}"
        ) from error
    old = loading.complete(config.build(stored))
    if reference is None:
        new = loading.complete(config.build(config.override(stored, overrides)))
        unread_options.check(new, () if whole else overrides)
    else:
        new = resolve(reference, overrides, tiny=tiny)
    if new.model.num_classes is None:  # the data's, which the stored config knows already
        new = with_classes(new, old.model.num_classes)
    if new.init_from is not None and new.init_from == old.init_from:
        facts = weights.Facts(model=old.model, data=old.data)
        keep = new.init_head == "keep"
        new = _with_options(new, weights.numerics(facts, keep_head=keep), overrides)
    changed = config.differences(old, new)
    if changed:
        listed = ", ".join(
            f"{key}: {before} -> {after}" for key, (before, after) in changed.items()
        )
        raise config.ConfigError(
            f"--workdir={workdir}: holds another run ({listed}); "
            "resume it without these changes, or choose another --workdir"
        )
    return new


def with_classes(cfg: config.Config, classes: int | None) -> config.Config:
    """Returns the config with num_classes filled in where the user left it to the data."""
    model = dataclasses.replace(cfg.model, num_classes=cfg.model.num_classes or classes)
    return dataclasses.replace(cfg, model=model)


def _with_options(
    cfg: config.Config, options: Mapping[str, Any], overrides: Mapping[str, str]
) -> config.Config:
    """Returns the config with values by dotted name, except where the user set others."""
    for key, value in options.items():
        if key not in overrides:
            section, _, leaf = key.partition(".")
            part = dataclasses.replace(getattr(cfg, section), **{leaf: value})
            cfg = dataclasses.replace(cfg, **{section: part})
    return cfg
