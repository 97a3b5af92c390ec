"""Functions of the Python API that build on whole runs: configs and training."""

import fnmatch
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from vit_jax import config
from vit_jax.config import catalog
from vit_jax.runtime import logs, progress
from vit_jax.training import run_config
from vit_jax.utils import storage

if TYPE_CHECKING:
    from vit_jax.runs.evaluating import Outcome

Overrides = Mapping[str, Any] | None


def list_configs(pattern: str | None = None) -> list[str]:
    """The names of the configs, or those that match a pattern such as `vtab/*`.

    Examples:
        >>> import vit_jax
        >>> vit_jax.list_configs("digits*")
        ['digits', 'digits-token']
    """
    if not isinstance(pattern, str | None):
        raise config.ConfigError(f"pattern={pattern}: must be text, such as 'vtab/*'")
    # Plain `fnmatch` ignores case on Windows.
    return [name for name in catalog.names() if fnmatch.fnmatchcase(name, pattern or "*")]


def get_config(name: str | os.PathLike[str], overrides: Overrides = None) -> config.Config:
    """A frozen, complete config: defaults, sizes and overrides filled in.

    Args:
      name: a config name, `FILE.py` or `FILE.py:NAME`.
      overrides: options by dotted name, as values or as texts of the command line.

    Where `init_from` is set, options that belong to those weights are taken from them. Raises
    ConfigError.

    Examples:
        >>> import vit_jax
        >>> vit_jax.get_config("digits", {"optimizer.lr": 3e-4}).optimizer.lr
        0.0003
    """
    given = _given(overrides)
    cfg = run_config.resolve(storage.path_text("name", name), given)
    if cfg.init_from is None:
        return cfg
    # The checkpoint that `init_from` names is read with jax, which a config alone never imports.
    from vit_jax.runs import directory

    return directory.as_in_weights(cfg, given)


def train(
    name_or_config: str | os.PathLike[str] | config.Config | None,
    workdir: str | os.PathLike[str] | None = None,
    overrides: Overrides = None,
    *,
    smoke: bool = False,
    profile: tuple[int, int] | None = None,
    accept: Collection[str] | str = (),
) -> "Outcome":
    """Trains to the end in a run directory, or resumes the run it holds.

    Args:
      name_or_config: a config name or file, a Config, or None to resume.
      workdir: the run directory; by default, runs/NAME of a config name.
      overrides: options by dotted name, as in `get_config`.
      smoke: two steps of a tiny copy on random pixels, in runs/smoke/NAME; needs a name.
      profile: first and last step to write a profiler trace of.
      accept: what may have changed since the run stopped: `config`, `data`, `plugins`, `teacher`.

    The log goes to standard error, unless the level of the logger `vit_jax` is set, or INFO is
    logged already. Raises Preempted, Diverged, or another UserError.

    Examples:
        >>> import vit_jax
        >>> vit_jax.train("digits", smoke=True).steps
        2
    """
    accept = _accepted(accept)
    cfg, given, folder = _start(name_or_config, workdir, _given(overrides), smoke=smoke)
    with progress.doing("loading libraries"):
        # Only now: a mistake in the config is reported before jax is imported, which is slow.
        from vit_jax import train_loop
        from vit_jax.runs import directory
    with logs.shown():
        cfg = directory.reconcile(folder, cfg, given, accept)
        return train_loop.train(cfg, folder, profile=profile, accept=accept)


def preview(
    name_or_config: str | os.PathLike[str] | config.Config | None,
    workdir: str | os.PathLike[str] | None = None,
    overrides: Overrides = None,
    *,
    accept: Collection[str] | str = (),
) -> list[tuple[str, str]]:
    """Describes a run before `train` starts it, as (label, text) pairs; writes nothing.

    Raises a UserError, as `train` would.

    Examples:
        >>> import vit_jax
        >>> dict(vit_jax.preview("digits", "runs/new"))["training"]
        'train: 1,437 images of 10 classes'
    """
    accept = _accepted(accept)
    cfg, given, folder = _start(name_or_config, workdir, _given(overrides), smoke=False)
    with progress.doing("loading libraries"):
        from vit_jax.runs import directory
        from vit_jax.runs.preview import preview as preview_run
    return preview_run(directory.reconcile(folder, cfg, given, accept), folder)


def _accepted(accept: Collection[str] | str) -> tuple[str, ...]:
    if not isinstance(accept, Collection):
        raise config.ConfigError(f"accept={accept}: must be names, such as ['config', 'data']")
    # A text is a Collection of its letters.
    return (accept,) if isinstance(accept, str) else tuple(accept)


def _given(overrides: Overrides) -> dict[str, Any]:
    given = overrides or {}
    config.check_overrides(given)
    return dict(given)


def _start(
    name_or_config: str | os.PathLike[str] | config.Config | None,
    workdir: str | os.PathLike[str] | None,
    given: dict[str, Any],
    *,
    smoke: bool,
) -> tuple[config.Config | None, dict[str, Any], pathlib.Path]:
    """The complete config, the options that the user has set, and the run directory."""
    directory = None if workdir is None else storage.given_path("workdir", workdir)
    if isinstance(name_or_config, str | os.PathLike):
        name = storage.path_text("name", name_or_config)
        cfg, directory = run_config.start(name, given, directory, tiny=smoke)
        return cfg, given, directory
    if smoke:
        raise config.ConfigError("smoke=True: needs the name of a config")
    if directory is None:
        raise config.ConfigError("workdir=None: needs the name of a config, or a run directory")
    if name_or_config is None:
        return None, given, directory
    if not isinstance(name_or_config, config.Config):
        line = "name_or_config: must be a name, a file or what vit_jax.get_config returns, not "
        raise config.ConfigError(line + type(name_or_config).__name__)
    cfg = run_config.from_config(name_or_config, given)
    if cfg.init_from is None and cfg.name in catalog.names():
        about = catalog.about(cfg.name)
        if about.warning or "init_from" in about.lifted_by:
            # By its name alone it would be refused, or say so.
            logs.warn_of_assumptions(cfg.name, ["init_from=none: begins with random weights"])
    # Every option of a Config counts as set by the user: `init_from` replaces none of them.
    return cfg, {key: config.get(cfg, key) for key, _, _ in config.fields(cfg)}, directory
