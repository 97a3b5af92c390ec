"""The config to run in a directory: of a new run, or of the run that the directory contains."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax import config, limits, loading, run_config, storage, weights
from vit_jax.checkpoints import manager, record
from vit_jax.training import plan, schedules

LENGTH = {"train.duration", "schedule.cooldown"}


def as_in_weights(cfg: config.Config, overrides: Mapping[str, str]) -> config.Config:
    """Returns the config with the options that belong to the weights it begins with.

    Whoever made the weights chose them: the form of GELU, epsilons, how pixels are scaled.
    What `overrides` set stays. Warns of what the weights leave open.
    """
    if cfg.init_from is None:
        return cfg
    facts, keep = loading.describe(cfg.init_from, cfg), cfg.init_head == "keep"
    found = weights.numerics(facts, keep_head=keep, channels=cfg.data.channels)
    taken = _with_options(cfg, found, overrides)
    loading.warn_of_assumptions(cfg.init_from, weights.assumptions(facts, wanted=taken))
    return taken


def reconcile(
    workdir: pathlib.Path, cfg: config.Config | None, overrides: Mapping[str, Any]
) -> config.Config:
    """Returns the config to run in `workdir`: `cfg`, or that of the run that it contains.

    Args:
      workdir: the run directory.
      cfg: a complete config, or None to resume.
      overrides: options by dotted name, which `cfg` has already.

    A run that ended before its first step, for a mistake in its options, may change all. One in
    progress may change the options that do not decide its result, and its length before
    the cooldown of a schedule that has one; anything else raises ConfigError, naming each
    difference.
    """
    file = workdir / "config.json"
    with storage.readable_errors(f"--workdir={workdir}"):
        exists = file.exists()
    if not exists:
        if cfg is None:
            raise config.ConfigError(
                f"--workdir={workdir}: holds no run to resume (no config.json); "
                "name a config to start one"
            )
        return as_in_weights(cfg, overrides)
    try:
        stored = limits.read_json(file, limits.CONFIG)
    except (OSError, ValueError) as error:
        raise config.ConfigError(
            f"--workdir={workdir}: config.json is unreadable: {error}"
        ) from error
    old = run_config.complete(config.build(stored))
    new = cfg
    if new is None:
        new = run_config.config_from_values(stored, overrides) if overrides else old
    if new.model.num_classes is None:  # the data's, which the stored config knows already
        new = config.with_classes(new, old.model.num_classes)
    if new.init_from is not None and new.init_from == old.init_from:
        facts = weights.Facts(model=old.model, data=old.data)
        keep = new.init_head == "keep"
        found = weights.numerics(facts, keep_head=keep, channels=new.data.channels)
        new = _with_options(new, found, overrides)
    changed = config.differences(old, new)
    if changed and cfg is not None and not _has_begun(workdir):
        return as_in_weights(cfg, overrides)
    longer = changed.keys() <= LENGTH and old.schedule.decay in schedules.COOLED
    if changed and not (longer and _is_before_cooldowns(workdir, old, new)):
        listed = ", ".join(
            f"{key}: {before} -> {after}" for key, (before, after) in changed.items()
        )
        raise config.ConfigError(
            f"--workdir={workdir}: holds another run ({listed}); "
            "resume it without these changes, or choose another --workdir"
            + ("; a length can change before the cooldown alone" if longer else "")
        )
    return new


def _has_begun(workdir: pathlib.Path) -> bool:
    """Returns whether a run has logged or saved anything."""
    metrics, saved = workdir / "metrics.jsonl", workdir / "checkpoints"
    if metrics.exists() and metrics.stat().st_size:
        return True
    return saved.is_dir() and any(saved.iterdir())


def _is_before_cooldowns(workdir: pathlib.Path, old: config.Config, new: config.Config) -> bool:
    """Returns whether the steps that a run has taken are the same with another length."""
    try:
        _, done, facts = loading.find_checkpoint(workdir, record.NEWEST)
    except manager.CheckpointError:
        return False
    plans = [plan.Plan.of(cfg, facts["examples"]) for cfg in (old, new)]
    return all(done <= one.steps - one.cooldown for one in plans)


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
