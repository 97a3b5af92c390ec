"""The config of a run: a catalog name or file, and overrides. Needs no jax."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax import config, models, smoke, unread_options, validation
from vit_jax.config import catalog
from vit_jax.data import availability, folders, split_roles
from vit_jax.runtime import locking
from vit_jax.utils import messages, storage


def resolve(reference: str, overrides: Mapping[str, Any], *, tiny: bool = False) -> config.Config:
    """Returns the complete config of a catalog name or file; with `tiny`, a copy for `--smoke`.

    Raises ConfigError; reads no data and compiles nothing.
    """
    values = catalog.load(reference)
    if ".py" in reference:  # the catalog's own are checked by a test
        unread_options.check_file(values)
    own, source = values.get("data"), overrides.get("data.source")
    if source in ("folder", "csv") and isinstance(own, Mapping) and own.get("source") != source:
        # Its splits are those of other data, which knew no validation split, say.
        splits = ("train_split", "eval_split", "test_split")
        values = {**values, "data": {k: v for k, v in own.items() if k not in splits}}
    cfg = config_from_values(values, overrides, tiny=tiny)
    validation.check_fixed(cfg, "a run")
    return cfg


def config_from_values(
    values: Mapping[str, Any], overrides: Mapping[str, Any], *, tiny: bool = False
) -> config.Config:
    """Returns the complete config of nested options; raises ConfigError."""
    given = config.override(values, overrides)
    cfg = config.build(given)
    own = given.get("data", {})
    if cfg.data.source in ("folder", "csv") and "eval_split" not in own:
        # A validation split beside the training images is there to choose.
        test = cfg.data.test_split if "test_split" in own else split_roles.AUTO
        data = dataclasses.replace(cfg.data, eval_split=split_roles.AUTO, test_split=test)
        cfg = dataclasses.replace(cfg, data=data)
    unread_options.check(cfg, overrides)
    if tiny:  # overridden options keep their values
        cfg = config.build(config.override(config.to_dict(smoke.shrink(cfg)), overrides))
    return complete(_located(cfg))


def _located(cfg: config.Config) -> config.Config:
    """A config as a run records it: it is resumed and evaluated from other directories too."""

    def absolute(option: str) -> str | None:
        path = config.get(cfg, option)
        if path is None or storage.is_remote(path):
            return path
        return os.path.abspath(storage.given_path(option, path))  # noqa: PTH100 (no links)

    def weights(reference: str | None) -> str | None:
        # A path goes before a published name, as it does where weights are looked for.
        path = None if reference is None or "://" in reference else storage.as_path(reference)
        return os.path.abspath(path) if path and path.exists() else reference  # noqa: PTH100

    data = dataclasses.replace(
        cfg.data, root=absolute("data.root"), examples=absolute("data.examples")
    )
    distill = dataclasses.replace(cfg.distill, teacher=weights(cfg.distill.teacher))
    return dataclasses.replace(cfg, data=data, distill=distill, init_from=weights(cfg.init_from))


def complete(cfg: config.Config) -> config.Config:
    """Returns the config with the sizes of its model variant and its splits by name.

    Splits of a folder of images are called as the folders that are there. Raises ConfigError.
    """
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    models.check(cfg.model, cfg.data.image_size)
    validation.check_options(cfg)
    return dataclasses.replace(cfg, data=folders.splits_there(split_roles.resolved(cfg.data)))


def start(
    reference: str,
    overrides: Mapping[str, Any],
    workdir: pathlib.Path | None,
    *,
    tiny: bool = False,
) -> tuple[config.Config, pathlib.Path]:
    """Returns the config and the run directory of a training run that is about to start.

    Without `workdir`, the directory is runs/NAME; with `tiny` it is runs/smoke/NAME, and an earlier
    run there is removed. Raises ConfigError if the config cannot be trained, or its data are
    missing.
    """
    cfg, about = resolve(reference, overrides, tiny=tiny), catalog.about(reference)
    if tiny:
        if workdir is None:
            workdir = pathlib.Path("runs", "smoke", cfg.name)
            locking.clear(workdir)
        return cfg, workdir
    if about.needs and not any(key in overrides for key in about.lifted_by):
        raise config.ConfigError(about.needs)
    if about.warning and "init_from" not in overrides:
        messages.print_error(f"{cfg.name} {about.warning}")
    if cfg.data.source == "tfds" and cfg.data.name:
        availability.check_prepared(cfg.data.name, cfg.data.root)
    return cfg, workdir or pathlib.Path("runs", cfg.name)
