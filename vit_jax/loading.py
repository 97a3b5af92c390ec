"""Any checkpoint as a model with its parameters: a run, weights of another project, or a name."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax import config, logs, messages, run_config, storage, weights
from vit_jax.checkpoints import manager
from vit_jax.loaded_model import LoadedModel, Prediction, check_features, class_names, create_model
from vit_jax.training import sharding

__all__ = [
    "LoadedModel",
    "Prediction",
    "check_features",
    "check_images",
    "class_names",
    "create_model",
    "describe",
    "find_checkpoint",
    "has_images",
    "is_run",
    "load",
    "load_params",
]

EVALUATED_AT_ONCE = 128  # images, of weights whose config says nothing


def load(
    reference: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    step: int | str | None = None,
    *,
    wanted: config.Config | None = None,
) -> LoadedModel:
    """Returns the model of any checkpoint, with its parameters, classes and preprocessing.

    Never imports a module that a run directory names.

    Args:
      reference: a run directory, one of its checkpoints, a file or folder of weights (Google .npz,
        timm, Hugging Face), or the name or address of published weights, which are downloaded.
      overrides: options by dotted name, as values or as texts of the command line.
      step: which checkpoint of a run: its number, `best`, or None for the newest.
      wanted: the config to start from these weights, for options that their files leave open.

    Logs assumptions. Raises CheckpointError, WeightsError or ConfigError.

    >>> model = load(RUN)
    >>> model.config.model.width, model.classes[:2], model.step
    (16, ('0', '1'), 2)
    """
    if is_run(reference):
        directory, number, record = find_checkpoint(storage.as_path(reference), step)
        if not messages.is_utf8(str(directory)):  # which Orbax would call damaged
            raise config.ConfigError(f"--checkpoint={directory}: is not UTF-8; rename the folder")
        cfg = run_config.config_from_values(record["config"], overrides or {})
        return LoadedModel(
            config=cfg,
            params=load_params(directory, number, cfg),
            classes=class_names(record["classes"], cfg),
            kind="run",
            step=number,
        )
    if step is not None:
        raise config.ConfigError(f"--step={step}: {reference} is no run directory")
    path = weights.resolve(os.fspath(reference))
    found = weights.load(path, overrides, wanted=wanted)
    cfg = _config(str(reference), found.facts, overrides or {})
    for line in found.assumed:
        logs.log.info("%s: %s", reference, line)
    return LoadedModel(
        config=cfg,
        params=found.params,
        classes=class_names(found.facts.classes, cfg),
        kind=found.kind,
        notes=tuple(found.report.lines()),
        fresh=found.facts.fresh,
    )


def describe(reference: str, wanted: config.Config | None = None) -> weights.Facts:
    """Returns what a checkpoint says of its model, without reading its arrays; raises likewise.

    Args:
      reference: as in `load`.
      wanted: as in `load`.
    """
    if is_run(reference):
        _, _, record = find_checkpoint(storage.as_path(reference))
        cfg = run_config.complete(config.build(record["config"]))
        return weights.Facts(model=cfg.model, data=cfg.data)
    return weights.look(weights.resolve(reference), wanted)


def is_run(reference: str | os.PathLike[str]) -> bool:
    """Returns whether a reference is a run directory, its `checkpoints`, or one step of those."""
    path = storage.as_path(reference)
    if storage.is_remote(reference) and path.suffix in (".npz", ".safetensors"):
        return False  # weights, downloaded as they are
    with storage.readable_errors(os.fspath(reference)):
        return (
            (path / "checkpoints").is_dir()
            or (path / "commit.json").is_file()
            or (path.is_dir() and path.name == "checkpoints")
        )


def has_images(reference: str | os.PathLike[str], overrides: Mapping[str, str]) -> bool:
    """Returns whether images are named, as a run does; weights of other projects bring none."""
    return is_run(reference) or bool({"data.source", "data.name", "data.root"} & set(overrides))


def check_images(reference: str | os.PathLike[str], overrides: Mapping[str, str]) -> None:
    """Raises ConfigError where no images are named, WeightsError where this is no checkpoint."""
    if not pathlib.Path(reference).exists() and "://" not in str(reference):
        weights.find(str(reference))  # a mistyped name is the first thing to say
    if not has_images(reference, overrides):
        if pathlib.Path(reference).exists():
            weights.look(pathlib.Path(reference))  # so is a folder or file that is no checkpoint
        raise config.ConfigError(
            f"{reference} brings no images; set --config.data.source=folder and "
            "--config.data.root=DIR, or --config.data.source=tfds and --config.data.name=NAME"
        )


def find_checkpoint(
    checkpoint: pathlib.Path, at: int | str | None = None
) -> tuple[pathlib.Path, int, dict[str, Any]]:
    """Returns the checkpoint folder, step and commit record of a run.

    Args:
      checkpoint: a run directory, its `checkpoints` folder, or one step of that.
      at: a step number, `best`, or None for the newest.

    Raises CheckpointError.
    """
    path = storage.as_path(checkpoint)
    if path.name.isdigit() and (path / "commit.json").exists():
        at, path = int(path.name), path.parent
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not directory.is_dir():
        raise manager.CheckpointError(f"--checkpoint={checkpoint}: no such run directory")
    number, record = manager.find(directory, at)
    return directory, number, record


def load_params(directory: pathlib.Path, step_number: int, cfg: config.Config) -> Any:
    """Returns the parameters to evaluate (the average where the run kept one), verified."""
    mesh = sharding.create_mesh(cfg.mesh.fsdp)
    name = "params" if cfg.train.ema is None else "ema"
    shapes = {name: create_model(cfg).shapes()}
    target = sharding.placed(shapes, mesh, cfg.mesh, sharding.COMPUTE)
    return manager.restore_subtree(directory, step_number, target)[name]


def _config(name: str, facts: weights.Facts, overrides: Mapping[str, str]) -> config.Config:
    """Returns a config around a model whose own is not known."""
    rows = max(EVALUATED_AT_ONCE // jax.device_count(), 1) * jax.device_count()
    cfg = config.Config(
        name=name,
        model=facts.model,
        data=facts.data,
        evaluation=config.Evaluation(batch_size=rows),
    )
    return run_config.config_from_values(config.to_dict(cfg), overrides)
