"""Functions of the Python API that build on whole runs: configs, training, evaluation, transfer."""

import fnmatch
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import catalog, config, experiment, run_config, storage, transfer_learning

Overrides = Mapping[str, Any] | None


def list_configs(pattern: str | None = None) -> list[str]:
    """Returns the names of the configs, or those that match a pattern such as `vtab/*`.

    >>> list_configs("digits*")
    ['digits', 'digits-token']
    """
    return [name for name in catalog.names() if fnmatch.fnmatchcase(name, pattern or "*")]


def get_config(name: str, overrides: Overrides = None) -> config.Config:
    """Returns a frozen, complete config: defaults, sizes and overrides filled in.

    Args:
      name: a config name, or `FILE.py:NAME`.
      overrides: options by dotted name, as values or as texts of the command line.

    Where `init_from` is set, options that belong to those weights are taken from them. Raises
    ConfigError.

    >>> get_config("digits", {"optimizer.lr": 3e-4}).optimizer.lr
    0.0003
    """
    given = overrides or {}
    return run_config.as_in_weights(run_config.resolve(name, given), given)


def train(
    name_or_config: str | config.Config | None,
    workdir: str | os.PathLike[str],
    overrides: Overrides = None,
    *,
    smoke: bool = False,
    profile: tuple[int, int] | None = None,
) -> experiment.Outcome:
    """Trains to the end in a run directory, or resumes the run it holds.

    Args:
      name_or_config: a config name, a Config, or None to resume.
      workdir: the run directory.
      overrides: options by dotted name, as in `get_config`.
      smoke: two steps of a tiny copy on random pixels; needs a name.
      profile: first and last step to write a profiler trace of.

    Raises Preempted, Diverged, or another UserError.

    >>> train("digits", RUN, OPTIONS).steps  # the run is complete: nothing is trained again
    2
    """
    given = dict(overrides or {})
    directory = storage.as_path(workdir)
    if not isinstance(name_or_config, config.Config):
        cfg = run_config.config_for_workdir(directory, name_or_config, given, tiny=smoke)
    elif smoke:
        raise config.ConfigError("smoke=True: needs the name of a config")
    else:
        cfg = run_config.config_from_values(config.to_dict(name_or_config), given)
        if (directory / "config.json").exists():  # every option must be that of the run
            every = {key: config.get(cfg, key) for key, _, _ in config.options()}
            cfg = run_config.config_for_workdir(directory, None, every, whole=True)
    return experiment.train(cfg, directory, profile=profile)


def evaluate(
    reference: str | os.PathLike[str],
    overrides: Overrides = None,
    step: int | str | None = None,
) -> dict[str, Any]:
    """Returns the metrics of a checkpoint on its whole evaluation split, by name.

    Args:
      reference: a checkpoint, as in `load`.
      overrides: options, as in `load`.
      step: as in `load`.

    Raises a UserError.

    >>> evaluate(RUN, {"data.eval_split": "test[:20]"})["test/count"]
    20
    """
    return experiment.evaluate(reference, overrides or {}, at=step)


def transfer(
    name_or_plan: str | transfer_learning.Plan,
    workdir: str | os.PathLike[str],
    overrides: Overrides = None,
    *,
    rates: Sequence[float] = (),
    choose_seeds: Sequence[int] = (),
    seeds: Sequence[int] = (0, 1, 2),
    parallel: int = 1,
    smoke: bool = False,
) -> dict[str, Any]:
    """Fine-tunes by the paper's protocol; returns the content of `transfer.json`.

    Args:
      name_or_plan: a config name, or a plan; the options below are for names.
      workdir: directory of the runs; the same call continues there.
      overrides: options of every run, as in `get_config`.
      rates: learning rates to choose among; (): the config's.
      choose_seeds: seeds to try each learning rate with; (): the config's.
      seeds: seeds of the final runs.
      parallel: runs at a time, each on its share of the devices.
      smoke: tiny copies on random pixels.

    Raises a UserError.

    >>> transfer("digits", FOLDER / "transfer")
    Traceback (most recent call last):
    vit_jax.options.ConfigError: transfer: digits names no learning rates to try; set \
--rates=0.003,0.01,0.03
    """
    plan = name_or_plan
    if isinstance(plan, str):
        choices = {"rates": rates, "choose_seeds": choose_seeds, "seeds": seeds, "tiny": smoke}
        plan = transfer_learning.create(plan, overrides or {}, **choices)
    return transfer_learning.sweep(plan, pathlib.Path(workdir), transfer_learning.shares(parallel))
