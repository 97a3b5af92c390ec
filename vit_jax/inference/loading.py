"""Any checkpoint as a model with its parameters: a run, weights of another project, or a name."""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath

from vit_jax import config, models, weights
from vit_jax.checkpoints import reader
from vit_jax.checkpoints import record as records
from vit_jax.data import split_roles
from vit_jax.inference import loaded_model
from vit_jax.models import mae
from vit_jax.models.classifier import OBJECTIVE
from vit_jax.runtime import device, logs
from vit_jax.training import run_config, sharding, trainable
from vit_jax.training.build import create_model
from vit_jax.utils import messages, storage, tree_utils
from vit_jax.utils.errors import CheckpointError
from vit_jax.weights import adapter_file, readers
from vit_jax.weights.projection_heads import MASK, PATCHES

EVALUATION_BATCH = 128  # for weights that come without a config
# Options of DINO on which the parameters of its head depend.
HEAD_OPTIONS = ("head_layers", "head_hidden", "head_bottleneck", "prototypes", "norm_last_layer",
                "patch_head")  # fmt: skip

# Options that say which images.
DATASET = ("data.source", "data.name", "data.root", "data.train_split", "data.eval_split",
           "data.test_split", "data.holdout", "data.exclude", "data.examples", "data.classes",
           "data.targets", "data.labels")  # fmt: skip

# Sections and options that a loaded model reads; the others act in training alone.
READ = ("name", "seed", "init_from", "model", "data", "loss", "objective", "lora", "evaluation",
        "mesh", "train.batch_size")  # fmt: skip
# Of those sections, what makes training views.
UNREAD = ("data.train_crop", "data.crop_area", "data.crop_aspect", "data.randaugment", "data.erase",
          "data.transforms", "data.sampling", "data.repeats", "data.flip", "data.rotation",
          "data.scale", "data.shift", "data.phases")  # fmt: skip


def load(
    reference: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    step: int | str | None = None,
    *,
    wanted: config.Config | None = None,
) -> loaded_model.LoadedModel:
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
    check_overrides(overrides or {})
    device.cache_programs()  # before the first one, which computes the digests of a run's arrays
    if is_run(reference):
        directory, number, record = find_checkpoint(reference, step)
        if not messages.is_utf8(str(directory)):  # which Orbax would call damaged
            raise config.ConfigError(f"--checkpoint={directory}: is not UTF-8; rename the folder")
        values = record["config"]
        if overrides:  # what chose the best checkpoint need not be measured once more
            # Phases of training views are of the run's own image size, and would be refused at
            # another.
            unread = {"checkpoint.best": "auto", "checkpoint.patience": None, "data.phases": ()}
            values = config.override(values, unread)
        cfg, trained = _resized_from(values, overrides or {})
        params, notes = _at_size(load_params(directory, number, trained), trained, cfg)
        temperature = fitted_temperature(record)
        scaled = f"; temperature {temperature:.3f}, fitted on validation" if temperature else ""
        if scaled and (size := config.build(values).data.image_size) != cfg.data.image_size:
            scaled += f" at {config.show(size)} pixels, not at {config.show(cfg.data.image_size)}"
        logs.log.info("%s: %s%s", reference, record["selection"], scaled)
        return loaded_model.LoadedModel(
            config=cfg,
            params=params,
            classes=loaded_model.class_names(record["classes"], cfg),
            kind=record.get("kind", "run"),
            notes=notes,
            step=number,
            checkpoint=directory,
            selection=record["selection"],
            temperature=temperature,
            fresh=_fresh(record),
        )
    if step is not None:
        raise config.ConfigError(f"--step={step}: {reference} is not a run directory")
    path = weights.resolve(os.fspath(reference))
    if adapter_file.recognizes(path):
        return _load_adapter(path, overrides or {})
    found = weights.load(path, overrides, wanted=wanted)
    cfg = _config(str(reference), found.spec, overrides or {})
    logs.warn_of_assumptions(reference, found.assumed)
    headed = cfg.needs_labels
    return loaded_model.LoadedModel(
        config=cfg,
        params={name: part for name, part in found.params.items() if headed or name != "head"},
        classes=loaded_model.class_names(found.spec.classes, cfg) if headed else (),
        kind=found.kind,
        notes=tuple(found.report.lines()),
        assumed=found.assumed,
        fresh=found.spec.fresh,
        projection=found.projection,
    )


@contextlib.contextmanager
def named(option: str, reference: str) -> Iterator[None]:
    """Names the option that gives a checkpoint in errors about that."""
    try:
        yield
    except (weights.WeightsError, CheckpointError) as error:
        text = str(error).removeprefix("--checkpoint=")
        if f"{option}=" in text:
            raise
        what = f"{option}={text}" if text.startswith(reference) else f"{option}={reference}: {text}"
        # The same class, which decides the exit code.
        raise type(error)(what) from error


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that a loaded model does not read."""
    config.check_overrides(overrides)
    for key, value in overrides.items():
        read = key in READ or key.partition(".")[0] in READ
        if not read or key.startswith(UNREAD):
            raise config.ConfigError(
                f"{key}={config.show(value)}: is read in training alone; leave it out"
            )


def describe_checkpoint(reference: str, wanted: config.Config | None = None) -> weights.ModelSpec:
    """A checkpoint's model and preprocessing, without its arrays; takes and raises as `load`."""
    if is_run(reference):
        _, _, record = find_checkpoint(reference)
        cfg = run_config.complete(config.build(record["config"]))
        fresh = _fresh(record)
        return weights.ModelSpec(model=cfg.model, data=cfg.data, mae=cfg.mae, fresh=fresh)
    path = weights.resolve(reference)
    if adapter_file.recognizes(path):
        cfg = run_config.complete(config.build(adapter_file.read_fields(path)["config"]))
        return weights.ModelSpec(model=cfg.model, data=cfg.data)
    return weights.read_spec(path, wanted)


def is_run(reference: str | os.PathLike[str]) -> bool:
    """Whether a reference is a run directory, its `checkpoints`, or one step of those.

    Raises ConfigError for an empty one, which would be the current folder.
    """
    if not storage.path_text("--checkpoint", reference):
        storage.given_path("--checkpoint", reference)
    path = storage.as_path(reference)
    if storage.is_remote(reference) and path.suffix.lower() in readers.FORMATS:
        return False  # weights, downloaded as they are
    with storage.readable_errors(os.fspath(reference)):
        return (
            (path / "checkpoints").is_dir()
            or records.is_committed(epath.Path(path))
            or (path.is_dir() and path.name == "checkpoints")
        )


def has_images(reference: str | os.PathLike[str], overrides: Mapping[str, str]) -> bool:
    """Whether the config names images; weights of other projects name none."""
    if {"data.source", "data.name", "data.root"} & set(overrides):
        return True
    if not is_run(reference):
        return adapter_file.recognizes(storage.as_path(reference))
    _, _, record = find_checkpoint(reference)
    # Nor do copies and means of such weights, unless an option named some.
    data = record["config"]["data"]
    return "kind" not in record or data["source"] != _unnamed_source(data["channels"])


def require_images(reference: str | os.PathLike[str], overrides: Mapping[str, str]) -> None:
    """Raises ConfigError if no images are named, WeightsError if this is not a checkpoint."""
    config.check_overrides(overrides)
    if not str(reference).startswith("https://"):
        storage.given_path("--checkpoint", reference)
    if not storage.as_path(reference).exists() and "://" not in str(reference):
        weights.find_published(str(reference))  # a mistyped name is reported first
    if not has_images(reference, overrides):
        path = storage.as_path(reference)
        if not storage.is_remote(path) and path.exists() and not is_run(path):
            weights.read_spec(path)  # so is a folder or file that is no checkpoint
        raise config.ConfigError(
            f"{reference} names no images; set --config.data.source=folder and "
            "--config.data.root=DIR, or --config.data.source=tfds and --config.data.name=NAME"
        )


def check_given(overrides: Mapping[str, Any] | None) -> None:
    """Raises ConfigError for an option that says which images, beside images that are given."""
    for key, value in (overrides or {}).items():
        if key in DATASET:
            raise config.ConfigError(
                f"{key}={config.show(value)}: is not read, as the images are given; leave one of "
                "them out"
            )


def find_checkpoint(
    checkpoint: str | os.PathLike[str], at: int | str | None = None
) -> tuple[pathlib.Path, int, dict[str, Any]]:
    """The checkpoint folder, step and commit record of a run.

    Args:
      checkpoint: a run directory, its `checkpoints` folder, or one step of that.
      at: a step number, `best`, `newest`, or None, as in `load`.

    Raises CheckpointError.
    """
    path = checkpoint = storage.as_path(checkpoint)
    # A run directory may be called by a number too; a step has a commit record.
    if path.name.isdigit() and records.is_committed(epath.Path(path)):
        own, path = int(path.name), path.parent
        if at not in (None, own):
            raise config.ConfigError(f"--step={at}: {checkpoint} is step {own} alone; name its run")
        at = own
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not directory.is_dir():
        raise CheckpointError(f"--checkpoint={checkpoint}: no such run directory")
    number, record = records.find_step(directory, at)
    if missing := {"config", "classes"} - record.keys():
        raise CheckpointError(
            f"{records.folder(directory, number)}: its record has no {min(missing)}"
        )
    return directory, number, record


def _resized_from(
    values: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[config.Config, config.Config]:
    """A run's config with overrides, and the one of the shapes that its checkpoints hold.

    They differ where positions are resized to another `data.image_size`.
    """
    cfg = run_config.config_from_values(values, overrides)
    kept = cfg.data.holdout and "data.holdout" not in overrides
    # The images of another folder may all be there to be measured.
    if kept and cfg.data.root != values["data"].get("root"):
        line = f"data.holdout={cfg.data.holdout:g} is the run's, so that only the images it holds "
        line += "out of this folder are used; set data.holdout, or 0 for a folder of splits"
        logs.warn_of_assumptions(f"data.root={cfg.data.root}", [line])
    if "data.image_size" not in overrides:
        return cfg, cfg
    # Chosen for the new size, a view may not fit the run's own.
    view = ("data.image_size", "data.resize_to", "data.crop_pct")
    sizeless = {key: value for key, value in overrides.items() if key not in view}
    # Whole on every device, as the host resizes.
    trained = run_config.config_from_values(values, sizeless | {"mesh.fsdp": "1"})
    # Models without tables of positions have the same arrays at any size: nothing is resized.
    same = create_model(cfg).shapes() == create_model(trained).shapes()
    return cfg, cfg if same else trained


def _at_size(
    params: models.Params, trained: config.Config, cfg: config.Config
) -> tuple[models.Params, tuple[str, ...]]:
    """Parameters of a run, with positions resized to the `data.image_size` of `cfg`, and notes."""
    if trained is cfg:
        return params, ()
    held = jax.device_get(params)
    spec = weights.ModelSpec(model=trained.model, data=trained.data)
    resized, report = weights.fit_params(held, spec, create_model(cfg), keep_head=True)
    # The objective's own parameters, such as a decoder, are of no image size.
    resized |= {name: part for name, part in held.items() if name == OBJECTIVE}
    return resized, tuple(dataclasses.replace(report, dropped={}, fresh={}).lines()[1:])


def load_params(directory: pathlib.Path, step_number: int, cfg: config.Config) -> models.Params:
    """The parameters to evaluate (the average where the run kept one), verified.

    Adapters are added to their matrices.
    """
    # A checkpoint is read as it was trained: patterns of parameters were checked when its run
    # began, and may name the objective's own, which no command reads afterwards.
    selection = trainable.from_config(create_model(cfg), cfg, check=False)
    return selection.evaluated(load_held(directory, step_number, cfg))


def load_held(directory: pathlib.Path, step_number: int, cfg: config.Config) -> dict[str, Any]:
    """The parameters of a training state: `params`, and `ema` if there is one.

    Only `ema` if it covers all parameters.
    """
    mesh, model = sharding.create_mesh(cfg.mesh.fsdp), create_model(cfg)
    selection = trainable.from_config(model, cfg, check=False)
    params = trainable.parameters(model, cfg)
    leaves = records.read_leaves(directory, step_number)
    _check_complete(records.folder(directory, step_number), leaves, params)
    kept = any(name.startswith("ema/") for name in leaves)  # by train.ema, or the objective
    own = jax.eval_shape(selection.split, params)
    averaged = {"ema": own} if kept and own else {}  # empty where the objective's alone train
    shapes = averaged if averaged and selection.specs is None else {"params": params} | averaged
    target = sharding.placed(shapes, mesh, cfg.mesh, sharding.COMPUTE)
    return reader.restore_subtree(directory, step_number, target)


def _check_complete(path: epath.Path, leaves: Collection[str], params: models.Params) -> None:
    """Raises CheckpointError for arrays of a model that other options of it would leave out."""
    # The objective's own are read by those who need them.
    own = {*tree_utils.flatten({"params": params})}
    lost = [
        name
        for name in leaves
        if name.startswith("params/") and not name.startswith(f"params/{OBJECTIVE}/")
        and name not in own
    ]  # fmt: skip
    if lost:
        remedy = "set model.class_token=true" if "params/cls" in lost else "keep the run's options"
        raise CheckpointError(
            f"{path}: does not fit this config, which has no {lost[0]}{messages.more(lost)}; "
            f"{remedy}"
        )


class Initial(NamedTuple):
    """Parameters to start from, a line on every difference, and assumptions about their files."""

    params: models.Params
    notes: list[str]
    assumed: tuple[str, ...]


def initial_params(cfg: config.Config, model: models.Classifier, classes: Sequence[str]) -> Initial:
    """Initial parameters from `init_from`; `init_head=keep` takes rows of the head by `classes`.

    Raises WeightsError if they do not fit, CheckpointError or ConfigError if they cannot be read.
    """
    assert cfg.init_from is not None
    # Whole on every device: each process needs all of it.
    with named("init_from", cfg.init_from):
        opened, notes = load(cfg.init_from, {"mesh.fsdp": "1"}, wanted=cfg), []
    keep = cfg.init_head == "keep"
    if keep and cfg.needs_labels and not opened.config.needs_labels:
        objective = opened.config.objective.name
        raise config.ConfigError(
            f"init_head=keep: {cfg.init_from} learned by objective.name={objective}, so it has no "
            "head of classes; set init_head=new"
        )
    if keep and cfg.needs_labels and "head/kernel" not in opened.fresh:
        wanted, fewer = loaded_model.class_names(classes, cfg), ""
        if len(classes) < len(wanted):
            fewer = f"model.num_classes={len(classes)}, as many as the data has, or "
        remedy = f"set {fewer}init_head=new"
        kept = opened.with_classes(wanted, "init_head=keep", remedy=remedy)
        if kept is not opened:
            count, had = len(kept.classes), len(opened.classes)
            order = ", in another order" if count == had else ""
            notes.append(f"head: {count} of its {had} classes, by name{order}")
        opened, loss = kept, opened.config.loss
        if isinstance(loss, config.Regression) != isinstance(cfg.loss, config.Regression):
            raise config.ConfigError(
                f"init_head=keep: the head was trained with loss.name={loss.name}, of which "
                f"{cfg.loss.name} can keep nothing; set init_head=new"
            )
        if isinstance(cfg.loss, config.Regression):  # same predictions, in the new run's scale
            opened = opened.rescaled(cfg.loss.mean or (0.0,), cfg.loss.std or (1.0,))
            loss = opened.config.loss
        if loss != cfg.loss:
            notes.append(
                f"head: was trained with loss.name={loss.name}, continues with {cfg.loss.name}"
            )
    given, decoder = jax.device_get(opened.params), {}
    own = opened.config.mae
    if keep and cfg.mae:
        fits = own is not None and _decoder(opened.model, own) == _decoder(model, cfg.mae)
        decoder = {OBJECTIVE: given.pop(OBJECTIVE)} if fits else {}
        new = "none in the weights" if own is None else "that of the weights has other shapes"
        notes.append("decoder: from the weights" if fits else f"decoder new: {new}")
        if fits and own and own.norm_pix != cfg.mae.norm_pix:
            learned, next_ = (str(one.norm_pix).lower() for one in (own, cfg.mae))
            notes.append(
                f"decoder: was trained with objective.norm_pix={learned}, continues with {next_}"
            )
    if keep and cfg.dino is not None:
        own_head, said = _kept_projection(opened, cfg.dino)
        decoder, notes = {OBJECTIVE: own_head} if own_head else {}, notes + said
    with named("init_from", cfg.init_from):
        params, report = weights.fit_params(given, opened.spec, model, keep_head=keep)
    if keep and cfg.dino is not None and decoder:
        _check_features(decoder[OBJECTIVE], opened.config.model, model)
    params |= decoder
    # The notes on a file of another project count its arrays; a second count would puzzle.
    lines = [*opened.notes, *report.lines()[bool(opened.notes) :], *notes]
    return Initial(params, lines, opened.assumed)


def _kept_projection(
    opened: loaded_model.LoadedModel, wanted: config.Dino
) -> tuple[models.Params, list[str]]:
    """The projection head that a run goes on with, {} if there is none; and lines about it.

    Raises ConfigError where that of a run has another shape.
    """
    if (had := opened.config.dino) is not None:
        options = {name: getattr(had, name) for name in HEAD_OPTIONS}
        wrong = {n: value for n, value in options.items() if value != getattr(wanted, n)}
        if bool(had.patch_loss) < bool(wanted.patch_loss):
            wrong["patch_loss"] = had.patch_loss
        if wrong:
            text = " ".join(f"objective.{n}={config.show(v).lower()}" for n, v in wrong.items())
            raise config.ConfigError(
                f"init_head=keep: the run has another projection head; set {text}, or init_head=new"
            )
    own = projection(opened)
    if not own:
        return {}, ["projection head new: none in the weights"]
    said = ["projection head of student and teacher: from the weights"]
    if wanted.centering == "mean":
        said.append("center of the teacher's outputs: starts at 0")
    unread = set() if wanted.patch_loss else {MASK, PATCHES} & own.keys()
    if unread:
        said.append(f"dropped: {', '.join(sorted(unread))} (objective.patch_loss=0)")
    return {name: part for name, part in own.items() if name not in unread}, said


def _check_features(head: models.Params, own: config.Model, model: models.Classifier) -> None:
    """Raises ConfigError where a projection head reads features of another width."""
    had = head["dense_0"]["kernel"].shape[0]
    width = loaded_model.feature_shape(model, "pre_logits")[-1]
    if had == width:
        return
    pairs = ((key, getattr(own, key)) for key in ("pooling", "pooled_layers"))
    text = " ".join(
        f"model.{key}={value}" for key, value in pairs if value != getattr(model.config, key)
    )
    raise config.ConfigError(
        f"init_head=keep: the projection head reads {had} features of an image, and the model "
        f"gives {width}; set {text}, or init_head=new"
    )


def projection(opened: loaded_model.LoadedModel) -> models.Params | None:
    """The objective's own parameters of a run of self-distillation, averaged; or of weights."""
    if opened.checkpoint is None or opened.step is None or opened.config.dino is None:
        return opened.projection
    leaves = records.read_leaves(opened.checkpoint, opened.step)
    # The average is the teacher's, with which both networks of the next run begin.
    tree = "ema" if any(name.startswith("ema/") for name in leaves) else "params"
    names = [name for name in leaves if name.startswith(f"{tree}/{OBJECTIVE}/")]
    if not names:  # a checkpoint of the encoder alone
        return None
    shapes = {n: jax.ShapeDtypeStruct(leaves[n]["shape"], leaves[n]["dtype"]) for n in names}
    mesh = sharding.create_mesh(opened.config.mesh.fsdp)
    target = sharding.placed(tree_utils.nest(shapes), mesh, opened.config.mesh, sharding.COMPUTE)
    return jax.device_get(reader.restore_subtree(opened.checkpoint, opened.step, target))[tree][
        OBJECTIVE
    ]


def _decoder(model: models.Classifier, options: config.Mae) -> models.Params:
    return mae.create_decoder(model, options).shapes()


class AdapterBase(NamedTuple):
    """The base of an adapter.

    Attributes:
      params: the base's parameters in the run's model, by name.
      digest: of those that are frozen.
      shapes: of the adapter's arrays by name: what trains, and what the base lacks.
      assumed: what the base's files leave open.
    """

    params: dict[str, jax.typing.ArrayLike]
    digest: str
    shapes: dict[str, jax.ShapeDtypeStruct]
    assumed: tuple[str, ...]


def adapter_base(cfg: config.Config, classes: Sequence[str]) -> AdapterBase:
    """Splits the parameters of a LoRA run with these classes into base and adapter.

    Raises ConfigError for a run without a base, or in which everything trains, or nothing.
    """
    model = create_model(cfg)
    selection = trainable.from_config(model, cfg, check=False)
    if selection.specs is None:
        raise config.ConfigError(
            f"{cfg.name}: all of its parameters train, so there is no adapter; "
            "write --to=orbax, or set lora.rank or optimizer.freeze for the next run"
        )
    if cfg.init_from is None:
        raise config.ConfigError(f"{cfg.name}: started from random weights, so it has no base")
    initial = initial_params(cfg, model, classes)
    every = tree_utils.flatten(trainable.parameters(model, cfg))
    # A projection head that the run goes on with is no part of the model.
    fitted = {n: array for n, array in tree_utils.flatten(initial.params).items() if n in every}
    shapes = tree_utils.flatten(jax.eval_shape(selection.split, tree_utils.nest(every)))
    shapes |= {n: leaf for n, leaf in every.items() if n not in fitted and n not in shapes}
    if not shapes:
        raise config.ConfigError(
            f"{cfg.name}: none of the model's parameters train, so there is no adapter; "
            "write --to=orbax"
        )
    digest = adapter_file.digest_params(
        {n: array for n, array in fitted.items() if n not in shapes}
    )
    return AdapterBase(fitted, digest, shapes, initial.assumed)


def _load_adapter(path: pathlib.Path, overrides: Mapping[str, Any]) -> loaded_model.LoadedModel:
    fields = adapter_file.read_fields(path)
    final, cfg = _resized_from(fields["config"], overrides)
    classes = tuple(map(str, fields["classes"]))
    base = adapter_base(cfg, classes)
    if base.digest != fields["base"]:
        raise weights.WeightsError(
            f"{path}: init_from={cfg.init_from} is not the base it was trained on; set "
            "--config.init_from=PATH to that"
        )
    held = adapter_file.read_arrays(path, base.shapes, fields)
    selection = trainable.from_config(create_model(cfg), cfg, check=False)
    whole = {name: jnp.asarray(array) for name, array in (held | base.params).items()}
    trained = {name: held[name] for name in selection.specs or ()}
    # As an average: the folder holds what its run evaluated, and `evaluated` prefers that.
    state = {"params": tree_utils.nest(whole), "ema": tree_utils.nest(trained)}
    params, notes = _at_size(jax.device_get(selection.evaluated(state)), cfg, final)
    return loaded_model.LoadedModel(
        config=final,
        params=params,
        classes=loaded_model.class_names(classes, final),
        kind="adapter",
        notes=(f"starts from {cfg.init_from}", *notes),
        temperature=fitted_temperature(fields),
        fresh=_fresh(fields),
        assumed=base.assumed,
    )


def _unnamed_source(channels: int) -> str:
    """The `data.source` of weights that name no images: the default, the digits, is gray or RGB."""
    return config.Data().source if channels in (1, 3) else "synthetic"


def _config(name: str, spec: weights.ModelSpec, overrides: Mapping[str, str]) -> config.Config:
    # A batch has to divide over the devices.
    rows = max(EVALUATION_BATCH // jax.device_count(), 1) * jax.device_count()
    data = dataclasses.replace(spec.data, source=_unnamed_source(spec.data.channels))
    cfg = config.Config(
        name=name,
        model=spec.model,
        data=data,
        objective=spec.mae or config.Objective(),
        loss=config.Loss(name=spec.loss or "softmax"),
        evaluation=config.Evaluation(batch_size=rows),
    )
    return run_config.config_from_values(config.to_dict(cfg), overrides)


def _fresh(record: Mapping[str, Any]) -> dict[str, str]:
    """What a checkpoint lacks, as `LoadedModel.fresh`: a head that its file had not, or its run."""
    found = record.get("fresh")
    if isinstance(found, dict):
        return {str(n): str(why) for n, why in found.items()}
    cfg = config.build(record["config"])
    if cfg.knows_classes or (distillation := cfg.distillation) is None:
        return {}
    heads = ("head", "head_dist") if cfg.model.pooling == "distilled" else ("head",)
    names = [f"{head}/{name}" for head in heads for name in ("kernel", "bias")]
    why = f"no loss has trained its head (objective.target={distillation.target})"
    return dict.fromkeys(names, why)


def fitted_temperature(record: Mapping[str, Any]) -> float | None:
    """The temperature that the evaluation of a checkpoint has fitted."""
    named = split_roles.evaluation(config.build(record["config"]).data).name
    # A run has it among its metrics; `convert` and adapters keep it as a field of its own.
    found = (record.get("metrics") or {}).get(f"{named}/temperature", record.get("temperature"))
    return found if isinstance(found, int | float) and 0 < found < math.inf else None
