"""Any checkpoint as a model with its parameters: a run, weights of another project, or a name."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from vit_jax import config, models, weights
from vit_jax.checkpoints import manager
from vit_jax.checkpoints import record as records
from vit_jax.data import class_matching
from vit_jax.inference.loaded_model import LoadedModel, class_names
from vit_jax.runtime import logs
from vit_jax.training import run_config, sharding, trainable
from vit_jax.training.build import create_model
from vit_jax.utils import messages, storage, tree_utils
from vit_jax.weights import adapter_file

BATCH_SIZE = 128  # of evaluation, for weights that come without a config


def load(
    reference: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    step: int | str | None = None,
    *,
    wanted: config.Config | None = None,
) -> LoadedModel:
    """Loads any checkpoint: model, parameters, classes and preprocessing.

    Never imports a module that a run directory names.

    Args:
      reference: a run directory, one of its checkpoints, a file or folder of weights (Google .npz,
        timm, Hugging Face), an adapter folder, or the name or address of published weights, which
        are downloaded.
      overrides: options by dotted name, as values or as texts of the command line.
      step: which checkpoint of a run: its number, `best`, `newest`, or None: the best where a
        validation split chose one (`checkpoint.best`), else the newest.
      wanted: the config to start from these weights, for options that their files leave open.

    Logs which checkpoint of a run it is. Warns (AssumptionWarning, once per file) of what the files
    leave open. Raises CheckpointError, WeightsError or ConfigError.

    Examples:
        >>> import vit_jax
        >>> model = vit_jax.load("runs/digits")
        >>> model.config.model.width, model.classes[:2], model.step
        (16, ('0', '1'), 2)
    """
    if is_run(reference):
        directory, number, record = find_checkpoint(storage.as_path(reference), step)
        if not messages.is_utf8(str(directory)):  # which Orbax would call damaged
            raise config.ConfigError(f"--checkpoint={directory}: is not UTF-8; rename the folder")
        cfg = run_config.config_from_values(record["config"], overrides or {})
        params = load_params(directory, number, cfg)
        logs.log.info("%s: %s", reference, record["chosen"])
        return LoadedModel(
            config=cfg,
            params=params,
            classes=class_names(record["classes"], cfg),
            kind="run",
            step=number,
            chosen=record["chosen"],
        )
    if step is not None:
        raise config.ConfigError(f"--step={step}: {reference} is no run directory")
    path = weights.resolve(os.fspath(reference))
    if adapter_file.recognizes(path):
        return _load_adapter(path, overrides or {})
    found = weights.load(path, overrides, wanted=wanted)
    cfg = _config(str(reference), found.spec, overrides or {})
    logs.warn_of_assumptions(reference, found.assumed)
    return LoadedModel(
        config=cfg,
        params=found.params,
        classes=class_names(found.spec.classes, cfg),
        kind=found.kind,
        notes=tuple(found.report.lines()),
        assumed=found.assumed,
        fresh=found.spec.fresh,
    )


def describe(reference: str, wanted: config.Config | None = None) -> weights.ModelSpec:
    """Reads a checkpoint's model metadata without its arrays. Raises the same errors as `load`.

    Args:
      reference: as in `load`.
      wanted: as in `load`.
    """
    if is_run(reference):
        _, _, record = find_checkpoint(storage.as_path(reference))
        cfg = run_config.complete(config.build(record["config"]))
        return weights.ModelSpec(model=cfg.model, data=cfg.data)
    path = weights.resolve(reference)
    if adapter_file.recognizes(path):
        cfg = run_config.complete(config.build(adapter_file.read_fields(path)["config"]))
        return weights.ModelSpec(model=cfg.model, data=cfg.data)
    return weights.read_spec(path, wanted)


def is_run(reference: str | os.PathLike[str]) -> bool:
    """Whether a reference is a run directory, its `checkpoints`, or one step of those."""
    path = storage.as_path(reference)
    if storage.is_remote(reference) and path.suffix in (".npz", ".safetensors"):
        return False  # weights, downloaded as they are
    with storage.readable_errors(os.fspath(reference)):
        return (
            (path / "checkpoints").is_dir()
            or records.is_committed(epath.Path(path))
            or (path.is_dir() and path.name == "checkpoints")
        )


def has_images(reference: str | os.PathLike[str], overrides: Mapping[str, str]) -> bool:
    """Whether the config names images; weights of other projects name none."""
    own = is_run(reference) or adapter_file.recognizes(storage.as_path(reference))
    return own or bool({"data.source", "data.name", "data.root"} & set(overrides))


def check_images(reference: str | os.PathLike[str], overrides: Mapping[str, str]) -> None:
    """Raises ConfigError if no images are named, WeightsError if this is no checkpoint."""
    if not str(reference).startswith("https://"):
        storage.given_path("checkpoint", reference)
    if not storage.as_path(reference).exists() and "://" not in str(reference):
        weights.find(str(reference))  # a mistyped name is the first thing to say
    if not has_images(reference, overrides):
        path = storage.as_path(reference)
        if not storage.is_remote(path) and path.exists():
            weights.read_spec(path)  # so is a folder or file that is no checkpoint
        raise config.ConfigError(
            f"{reference} brings no images; set --config.data.source=folder and "
            "--config.data.root=DIR, or --config.data.source=tfds and --config.data.name=NAME"
        )


def find_checkpoint(
    checkpoint: pathlib.Path, at: int | str | None = None
) -> tuple[pathlib.Path, int, dict[str, Any]]:
    """The checkpoint folder, step and commit record of a run.

    Args:
      checkpoint: a run directory, its `checkpoints` folder, or one step of that.
      at: a step number, `best`, `newest`, or None, as in `load`.

    Raises CheckpointError.
    """
    path = storage.as_path(checkpoint)
    if path.name.isdigit() and records.is_committed(epath.Path(path)):
        own, path = int(path.name), path.parent
        if at not in (None, own):
            raise config.ConfigError(f"--step={at}: {checkpoint} is step {own} alone; name its run")
        at = own
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not directory.is_dir():
        raise manager.CheckpointError(f"--checkpoint={checkpoint}: no such run directory")
    number, record = manager.find(directory, at)
    if missing := {"config", "classes"} - record.keys():
        raise manager.CheckpointError(
            f"{records.folder(directory, number)}: its record has no {min(missing)}"
        )
    return directory, number, record


def load_params(directory: pathlib.Path, step_number: int, cfg: config.Config) -> models.Params:
    """The parameters to evaluate (the average where the run kept one), verified.

    Adapters are added to their matrices.
    """
    chosen = trainable.from_config(create_model(cfg), cfg)
    return chosen.evaluated(load_held(directory, step_number, cfg))


def load_held(directory: pathlib.Path, step_number: int, cfg: config.Config) -> dict[str, Any]:
    """The parameters of a training state: `params`, and `ema` if there is one.

    Only `ema` if it covers all parameters.
    """
    mesh, model = sharding.create_mesh(cfg.mesh.fsdp), create_model(cfg)
    chosen, params = trainable.from_config(model, cfg), trainable.parameters(model, cfg)
    averaged = {} if cfg.train.ema is None else {"ema": jax.eval_shape(chosen.split, params)}
    shapes = averaged if averaged and chosen.specs is None else {"params": params} | averaged
    target = sharding.placed(shapes, mesh, cfg.mesh, sharding.COMPUTE)
    return manager.restore_subtree(directory, step_number, target)


def initial_params(
    cfg: config.Config, model: models.Classifier, classes: Sequence[str]
) -> tuple[models.Params, list[str]]:
    """Initial parameters from `init_from`, and a line on every difference.

    Args:
      cfg: the run.
      model: its model.
      classes: names of the data's classes, by which `init_head=keep` takes rows of the head.

    Raises WeightsError if they do not fit, CheckpointError or ConfigError if they cannot be read.
    """
    assert cfg.init_from is not None
    # Whole on every device: each process needs all of it.
    opened, told = load(cfg.init_from, {"mesh.fsdp": "1"}, wanted=cfg), []
    keep = cfg.init_head == "keep"
    if keep and cfg.needs_labels:
        opened.check_whole()
    if keep and cfg.needs_labels and "head/kernel" not in opened.fresh:
        told, opened = _head_of(opened, cfg, classes)
    params, report = weights.fit(jax.device_get(opened.params), opened.spec, model, keep_head=keep)
    # The notes on a file of another project count its arrays; a second count would puzzle.
    return params, [*opened.notes, *report.lines()[bool(opened.notes) :], *told]


def _head_of(
    opened: LoadedModel, cfg: config.Config, classes: Sequence[str]
) -> tuple[list[str], LoadedModel]:
    """Lines about the head that a run keeps, and the model with its rows for `classes`."""
    remedy, had = "set init_head=new", len(opened.classes)
    if len(classes) < len(wanted := class_names(classes, cfg)):
        remedy = f"set model.num_classes={len(classes)}, as many as the data has, or init_head=new"
    outputs = class_matching.match(opened.classes, wanted, "init_head=keep", remedy=remedy)
    told, loss = [], opened.config.loss
    if outputs != list(range(had)):
        order = "" if len(outputs) < had else ", in another order"
        told.append(f"head: {len(outputs)} of its {had} classes, by name{order}")
    if loss != cfg.loss:
        told.append(f"head: was trained with loss.name={loss.name}, goes on with {cfg.loss.name}")
    return told, opened.with_outputs(outputs)


def adapter_base(
    cfg: config.Config, classes: Sequence[str]
) -> tuple[models.Params, str, dict[str, Any]]:
    """Splits the parameters of a LoRA run into base and adapter.

    Args:
      cfg: the run.
      classes: names of its classes.

    Returns:
      The base's parameters in the run's model; a digest of those that are frozen; the shapes of the
      arrays of the adapter by name: what trains, and what the base lacks.

    Raises ConfigError for a run without a base, or in which everything trains.
    """
    model = create_model(cfg)
    chosen = trainable.from_config(model, cfg)
    if chosen.specs is None:
        raise config.ConfigError(
            f"{cfg.name}: all of its parameters train, so there is no adapter; "
            "write --to=orbax, or set lora.rank or optimizer.freeze for the next run"
        )
    if cfg.init_from is None:
        raise config.ConfigError(f"{cfg.name}: began with random weights, so it has no base")
    params, _ = initial_params(cfg, model, classes)
    fitted, every = tree_utils.flatten(params), trainable.parameters(model, cfg)
    shapes = tree_utils.flatten(jax.eval_shape(chosen.split, every))
    lacking = tree_utils.flatten(every).items()
    shapes |= {n: leaf for n, leaf in lacking if n not in fitted and n not in shapes}
    digest = adapter_file.digest({n: array for n, array in fitted.items() if n not in shapes})
    return fitted, digest, shapes


def _load_adapter(path: pathlib.Path, overrides: Mapping[str, Any]) -> LoadedModel:
    """The model of an adapter folder on its base."""
    fields = adapter_file.read_fields(path)
    cfg = run_config.config_from_values(fields["config"], overrides)
    classes = tuple(map(str, fields["classes"]))
    fitted, digest, shapes = adapter_base(cfg, classes)
    if digest != fields["base"]:
        raise weights.WeightsError(
            f"{path}: init_from={cfg.init_from} is not the base it was trained on; set "
            "--config.init_from=PATH to that"
        )
    held = adapter_file.read_arrays(path, shapes, fields)
    chosen = trainable.from_config(create_model(cfg), cfg)
    whole = {name: jnp.asarray(array) for name, array in (held | fitted).items()}
    trained = {name: held[name] for name in chosen.specs or ()}
    params = chosen.evaluated({"params": tree_utils.nest(whole), "ema": tree_utils.nest(trained)})
    return LoadedModel(
        config=cfg,
        params=jax.device_get(params),
        classes=class_names(classes, cfg),
        kind="adapter",
        notes=(f"begins with {cfg.init_from}",),
        assumed=weights.assumptions(describe(str(cfg.init_from), cfg), wanted=cfg),
    )


def _config(name: str, spec: weights.ModelSpec, overrides: Mapping[str, str]) -> config.Config:
    """A config for weights that come without one."""
    rows = max(BATCH_SIZE // jax.device_count(), 1) * jax.device_count()
    # Such a file names no images. The default, the digits, are gray or RGB.
    source = spec.data.source if spec.data.channels in (1, 3) else "synthetic"
    data = dataclasses.replace(spec.data, source=source)
    cfg = config.Config(
        name=name,
        model=spec.model,
        data=data,
        loss=config.Loss(name=spec.loss or "softmax"),
        evaluation=config.Evaluation(batch_size=rows),
    )
    return run_config.config_from_values(config.to_dict(cfg), overrides)
