"""The config to run in a directory: of a new run, or of the run that the directory contains."""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from vit_jax import config, weights
from vit_jax.checkpoints.record import NEWEST
from vit_jax.inference import loading
from vit_jax.runtime import logs
from vit_jax.training import run_config
from vit_jax.training.durations import Durations
from vit_jax.utils import limits, storage
from vit_jax.utils.errors import CheckpointError
from vit_jax.weights import exporting

LENGTH = {"train.duration", "schedule.cooldown"}
# What a commit record seals and resuming compares (`resume.restore`), as `--accept` names it.
PARTS = ("config", "data", "plugins", "teacher")


def as_in_weights(cfg: config.Config, overrides: Mapping[str, str]) -> config.Config:
    """Sets the options fixed by the weights a run starts from: GELU, epsilons, pixel scaling.

    What `overrides` set stays. Warns of what the weights leave open.
    """
    if cfg.init_from is None:
        return cfg
    with loading.named("init_from", cfg.init_from):
        spec = loading.describe_checkpoint(cfg.init_from, cfg)
    found = _of_weights(spec, cfg)
    taken = _with_options(cfg, found, overrides)
    every = _with_options(cfg, found, {})
    try:  # again, as they were checked beside others of the run
        run_config.check_config(taken)
    except config.ConfigError as error:
        raise config.ConfigError(f"init_from={cfg.init_from}: {error}") from error
    lines = [*weights.assumptions(spec, wanted=taken)]
    if others := config.differences(*(_as_computed(one) for one in (every, taken))):
        lines.append(
            f"differs from these weights: {config.listed(others)}; leave these options out to take "
            "the weights' (in Python: pass init_from to get_config)"
        )
    logs.warn_of_assumptions(cfg.init_from, lines)
    return taken


def reconcile(
    workdir: pathlib.Path,
    cfg: config.Config | None,
    overrides: Mapping[str, str],
    accept: Collection[str] = (),
) -> config.Config:
    """The config to run in `workdir`: `cfg`, or the config of the run in it.

    The config of the run is in its newest commit record, or before the first in config.json.

    Args:
      workdir: the run directory.
      cfg: a complete config, or None to resume.
      overrides: options by dotted name, which `cfg` has already.
      accept: with `config`, any option may change.

    A run that failed before its first step, such as for a wrong option, may change all. One in
    progress may change the options that do not decide its result, and its length before
    the cooldown of a schedule that has one; anything else raises ConfigError, naming each
    difference.
    """
    if unknown := [part for part in accept if part not in PARTS]:
        raise config.ConfigError(f"--accept={unknown[0]}: must be among {', '.join(PARTS)}")
    file = workdir / "config.json"
    with storage.readable_errors(f"--workdir={workdir}"):
        # A broken link counts: it is a config.json that cannot be read, not an empty directory.
        exists = file.exists() if storage.is_remote(file) else os.path.lexists(file)
    record = _newest(workdir)
    if not exists and record is None:
        if cfg is None:
            raise config.ConfigError(
                f"--workdir={workdir}: holds no run to resume (no config.json); "
                "name a config to start one"
            )
        return as_in_weights(cfg, overrides)
    recorded = None if record is None else record["config"]
    remedy = "" if record is None else "; remove it: the newest checkpoint has a copy"
    try:
        stored: Any = limits.read_json(file, limits.CONFIG) if exists else recorded
        if not isinstance(stored, dict):
            raise ValueError("holds no options")
    except (OSError, ValueError) as error:
        raise config.ConfigError(
            f"--workdir={workdir}: config.json is unreadable: {error}{remedy}"
        ) from error
    # The commit record goes first: its digest shows that nobody has edited it.
    old = run_config.complete(config.build(recorded or stored))
    try:
        new = run_config.config_from_values(stored, overrides) if cfg is None else cfg
    except config.ConfigError as error:
        # A mistake in an override is reported as such; the remedy is for a file edited by hand.
        if overrides or not exists or type(error) is not config.ConfigError:
            raise
        line = f"--workdir={workdir}: config.json: {error}{remedy}"
        raise config.ConfigError(line) from error
    # The number of classes and the scale of targets come from opened data: taken as recorded.
    new = config.as_recorded(new, old)
    if new.init_from is not None and new.init_from == old.init_from:
        # From the record, not the weights: those may be gone since the run started.
        spec = weights.ModelSpec(model=old.model, data=old.data)
        new = _with_options(new, _of_weights(spec, new), overrides)
    changed = _changes(old, new, record)
    if not changed or "config" in accept:
        return new
    if cfg is not None and not _has_begun(workdir):
        return as_in_weights(cfg, overrides)
    why = ""
    if changed.keys() <= LENGTH and isinstance(old.schedule, config.Cooled):
        why = "a length can change before the cooldown alone"
        if key := _changes_by_length(old):
            why = f"earlier steps depend on the length by {key}"
    what, remedy = "holds another run", "resume it without these changes"
    if record is not None and cfg is None and not overrides:
        what, remedy = f"config.json is not that of step {record['step']}", "undo the edit"
    raise config.ConfigError(
        f"--workdir={workdir}: {what} ({config.listed(changed)}); {remedy}, or choose another "
        "--workdir"
        + (why and f"; {why}")
        + ("" if record is None else "; --accept=config resumes with the change")
    )


def changes(record: Mapping[str, Any], new: config.Config) -> str:
    """The options that a run must not change after a commit record, each old -> new."""
    old = run_config.complete(config.build(record["config"]))
    return config.listed(_changes(old, new, record))


def _changes(
    old: config.Config, new: config.Config, record: Mapping[str, Any] | None
) -> dict[str, tuple[object, object]]:
    """Options that decide the result and differ; the length may differ before the cooldown."""
    changed = config.differences(old, new)
    cooled = isinstance(old.schedule, config.Cooled) and not _changes_by_length(old)
    if record is not None and changed.keys() <= LENGTH and cooled:
        lengths = [Durations.from_config(cfg, record["examples"]) for cfg in (old, new)]
        # In both lengths, or steps were done at the full rate that the new cooldown lowers.
        if all(record["step"] <= one.steps - one.cooldown for one in lengths):
            return {}
    return changed


def _changes_by_length(cfg: config.Config) -> str:
    """The option by which a step before the cooldown depends on the run's length; empty if none."""
    optimizer, dino = cfg.optimizer, cfg.dino
    if optimizer.weight_decay_end not in (None, optimizer.weight_decay):
        return "optimizer.weight_decay_end"
    if dino is not None and dino.momentum != dino.momentum_end:
        return "objective.momentum_end"
    return ""


def _newest(workdir: pathlib.Path) -> dict[str, Any] | None:
    """The newest sound commit record of a run, or None; weights written by `convert` are no run."""
    try:
        _, _, record = loading.find_checkpoint(workdir, NEWEST)
    except CheckpointError:
        return None
    return record if "data" in record else None


def _has_begun(workdir: pathlib.Path) -> bool:
    metrics, saved = workdir / "metrics.jsonl", workdir / "checkpoints"
    # A file without a line is that of a run that failed before its first step. It is read, as a
    # bucket's `stat` has no st_size.
    if metrics.exists() and metrics.read_bytes():
        return True
    return saved.is_dir() and any(saved.iterdir())


def _of_weights(spec: weights.ModelSpec, cfg: config.Config) -> dict[str, object]:
    """The options that the weights determine for a run, by dotted name."""
    return weights.numerics(
        spec,
        keep_head=cfg.init_head == "keep",
        channels=cfg.data.channels,
        position=cfg.model.position,
    )


def _as_computed(cfg: config.Config) -> config.Config:
    """The config without differences in model and pixels that change no output."""

    def shortest(values: tuple[float, ...]) -> tuple[float, ...]:
        return values[:1] if len(set(values)) == 1 else values

    pixels = {key: shortest(getattr(cfg.data, key)) for key in ("mean", "std")}
    data = dataclasses.replace(cfg.data, **pixels)
    return dataclasses.replace(cfg, model=exporting.normal(cfg.model), data=data)


def _with_options(
    cfg: config.Config, options: Mapping[str, object], overrides: Mapping[str, str]
) -> config.Config:
    """Sets options by dotted name, except those that the user set."""
    for key, value in options.items():
        if key not in overrides:
            section, _, leaf = key.partition(".")
            part = dataclasses.replace(getattr(cfg, section), **{leaf: value})
            cfg = dataclasses.replace(cfg, **{section: part})
    return cfg
