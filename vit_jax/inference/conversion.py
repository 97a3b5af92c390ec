"""Any checkpoint written in another form."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from vit_jax import config, weights
from vit_jax.checkpoints import manager
from vit_jax.checkpoints import record as records
from vit_jax.checkpoints.record import first_line
from vit_jax.inference import loaded_model, loading, model_card
from vit_jax.models.classifier import LORA, OBJECTIVE
from vit_jax.training import build, run_config, trainable
from vit_jax.utils import storage, tree_utils
from vit_jax.utils.errors import NotWritten
from vit_jax.weights import adapter_file, exporting, peft_export, writers

KINDS = (*weights.KINDS, "orbax", "adapter", "peft")


def convert(
    reference: str | os.PathLike[str],
    kind: str,
    output: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    step: int | str | None = None,
    dtype: str = "float32",
    license_id: str | None = None,
) -> list[str]:
    """Writes a checkpoint in another format and returns lines about its arrays, for people.

    Args:
      reference: a checkpoint, as in `load`.
      kind: `google`, `timm`, `hf`, `flax`, `orbax` for a checkpoint of this project, or `adapter`:
        the trained parameters of a run that froze the rest of `init_from`, to be loaded with it;
        `peft` is such a folder for PEFT, of a run with LoRA.
      output: the file or folder to write, which must not exist.
      overrides: options, as in `load`.
      step: as in `load`.
      dtype: of the numbers; `float16` and `bfloat16`, for other projects' formats, round them.
      license_id: of the weights, for the model card of a folder, such as `apache-2.0`.

    Raises a UserError, and leaves nothing behind, where the format cannot hold the model.

    Examples:
        >>> import vit_jax
        >>> vit_jax.convert("runs/digits", "orbax", "copy")[-1]
        'written: copy (orbax, from run, step 2, the newest)'
        >>> vit_jax.load("copy").step
        2
    """
    output = storage.given_path("--output", output, remote=False)
    check_free(output)
    for option, value, known in (("--to", kind, KINDS), ("--dtype", dtype, writers.DTYPES)):
        if value not in known:
            raise config.ConfigError(f"{option}={value}: must be one of {', '.join(known)}")
    if kind in ("orbax", "adapter", "peft") and dtype != "float32":
        raise config.ConfigError(f"--dtype={dtype}: --to={kind} keeps all bits; leave it out")
    if license_id is not None:
        if kind not in model_card.LIBRARIES or output.suffix.lower() == ".safetensors":
            raise config.ConfigError(
                f"--license={license_id}: goes into the model card of a folder that --to="
                f"{', '.join(model_card.LIBRARIES)} writes; leave it out"
            )
        model_card.check_license(license_id)
    if kind in ("adapter", "peft"):
        return _save_adapter(reference, kind, output, overrides or {}, step)
    opened = loading.load(reference, overrides, step)
    params = jax.device_get(opened.params)
    # No other format has a place for the projection head of self-distillation.
    alone = kind == "timm" and output.suffix.lower() == ".safetensors"
    projection = loading.projection(opened) if alone else None
    unsaid = () if projection else left_behind(opened)
    origin = ": ".join(filter(None, (model_card.title(opened), opened.selection)))
    if kind == "orbax":
        save_checkpoint(opened, params, output, origin)
    else:
        if opened.config.masked is not None:
            opened.require_classes()
        measured = {}
        if opened.checkpoint is not None and opened.step is not None:
            measured = model_card.results(opened.checkpoint, opened.step)
        # The run's own results hold for its own options only.
        differs = bool(measured) and not _is_as_measured(opened, reference)
        if isinstance(opened.config.loss, config.Regression):
            # No other project keeps a scale: the head itself predicts in the units of the data.
            opened = opened.rescaled((0.0,), (1.0,))
            params = jax.device_get(opened.params)
        # `save` calls it: the card reads the config files that are written beside it.
        card = functools.partial(
            model_card.text,
            opened,
            kind,
            license_id=license_id,
            measured={} if differs else measured,
            rounded="" if dtype == "float32" else dtype,
        )
        unsaid += weights.save(params, opened.spec, kind, output, dtype, origin, card, projection)
        card_written = (output / model_card.NAME).is_file()
        if card_written and differs:
            unsaid += (f"{model_card.NAME}: leaves out the run's results, of other options",)
        if card_written and license_id is None:
            unsaid += (f"{model_card.NAME}: names no license; --license=ID does",)
        if opened.temperature is not None:
            unsaid += (
                f"temperature={opened.temperature:.4f}: not stored in this format; divide logits "
                "by it for calibrated probabilities",
            )
    source = ", ".join(filter(None, (opened.kind, opened.selection)))
    return [*opened.notes, *unsaid, f"written: {output} ({kind}, from {source})"]


def _is_as_measured(opened: loaded_model.LoadedModel, reference: str | os.PathLike[str]) -> bool:
    """Whether a run is opened with the model, loss and preprocessing of its own results."""
    _, _, record = loading.find_checkpoint(reference, opened.step)
    own, asked = run_config.config_from_values(record["config"], {}), opened.config
    if any(key.startswith(("model.", "loss.")) for key in config.differences(own, asked)):
        return False
    return exporting.preprocessing(own.data) == exporting.preprocessing(asked.data)


def left_behind(opened: loaded_model.LoadedModel) -> tuple[str, ...]:
    """A line on parameters of a run's objective that no format has a place for."""
    if opened.checkpoint is None or opened.step is None or OBJECTIVE in opened.params:
        return ()
    leaves = records.read_leaves(opened.checkpoint, opened.step)
    if not any(f"/{OBJECTIVE}/" in name for name in leaves):
        return ()
    return (
        f"objective.name={opened.config.objective.name}: its own head stays in the run, where "
        "training continues from it; of DINO, convert --to=timm --output=FILE.safetensors holds it",
    )


def _save_adapter(
    reference: str | os.PathLike[str],
    kind: str,
    output: pathlib.Path,
    overrides: Mapping[str, Any],
    step: int | str | None,
) -> list[str]:
    loading.check_overrides(overrides)
    if not loading.is_run(reference):
        raise config.ConfigError(f"--to={kind}: {reference} is not a run; only a run has a base")
    if (size := overrides.get("data.image_size")) is not None:
        raise config.ConfigError(
            f"data.image_size={config.show(size)}: an adapter keeps the image size of its run; "
            "set this when you load the adapter"
        )
    directory, number, record = loading.find_checkpoint(reference, step)
    cfg = run_config.config_from_values(record["config"], overrides)
    base = loading.adapter_base(cfg, record["classes"])
    held = jax.device_get(loading.load_held(directory, number, cfg))
    params = tree_utils.flatten(held["params"])
    # An adapter is loaded together with its base, so that must still be the one the run was trained
    # on.
    frozen = {name: params[name] for name in base.params if name not in base.shapes}
    if adapter_file.digest_params(frozen) != base.digest:
        raise weights.WeightsError(
            f"init_from={cfg.init_from}: has changed since {reference} started from it; "
            "set --config.init_from=PATH to the base"
        )
    split = trainable.from_config(build.create_model(cfg), cfg, check=False).split
    # What the run evaluates: the moving average, if it keeps one.
    trained = tree_utils.flatten(held.get("ema") or split(held["params"]))
    # What the base lacks and the run froze, such as a random head, is in `params` alone.
    arrays = {name: np.asarray(trained.get(name, params.get(name))) for name in base.shapes}
    if kind == "peft":
        opened = loading.load(reference, overrides, step)
        return _write_peft(output, opened, arrays)
    fields = {"config": config.to_dict(cfg), "classes": record["classes"], "base": base.digest}
    if (temperature := loading.fitted_temperature(record)) is not None:
        fields[adapter_file.TEMPERATURE] = temperature
    adapter_file.write_adapter(output, arrays, fields, f"{cfg.name}: {record['selection']}")
    count = sum(array.size for array in arrays.values())
    return [
        f"used: {len(arrays)} arrays, {count:,} parameters; the base: {cfg.init_from}",
        f"written: {output} (adapter, from run, {record['selection']})",
    ]


def _write_peft(
    output: pathlib.Path, opened: loaded_model.LoadedModel, arrays: Mapping[str, np.ndarray]
) -> list[str]:
    """Writes a run's trained parameters as an adapter folder of PEFT; returns lines for people."""
    cfg, base = opened.config, str(opened.config.init_from)
    if cfg.lora.rank is None:
        raise config.ConfigError("--to=peft: the run has no LoRA; write --to=adapter, or --to=hf")
    if other := [name for name in arrays if not name.startswith((f"{LORA}/", "head/"))]:
        raise config.ConfigError(
            f"--to=peft: {other[0]} is trained too, and PEFT holds only LoRA and the head; "
            "write --to=adapter, or --to=hf"
        )
    said = list(left_behind(opened))
    if isinstance(cfg.loss, config.Regression):
        # PEFT has no place for a scale: the head itself predicts in the units of the data.
        opened = opened.rescaled((0.0,), (1.0,))
    elif opened.temperature is not None:
        said.append(f"temperature={opened.temperature:.4f}: not stored in this format")
    adapters = {n.removeprefix(f"{LORA}/"): a for n, a in arrays.items() if n.startswith(LORA)}
    before, size = loading.describe_checkpoint(base), cfg.data.image_size
    own, its = exporting.normal(cfg.model), exporting.normal(before.model)
    for key in exporting.ENCODER:
        value, other = getattr(own, key), getattr(its, key)
        if value != other:
            raise config.ConfigError(
                f"--to=peft: model.{key}={config.show(value)}: {base} has {config.show(other)}, "
                "and PEFT adds to it as it is; write --to=hf, or --to=timm"
            )
    values = config.to_dict(config.Config(model=before.model, data=before.data))
    seen = config.build(config.override(values, {"data.image_size": size})).data
    # Whoever loads the folder takes the base's preprocessing.
    for key, (value, other) in exporting.other_views(cfg.data, seen).items():
        said.append(f"data.{key}={value}: not stored in this format, and the base has {other}")
    resized = before.data.image_size != size
    # The base on the Hub has position embeddings of its own image size.
    repository = None if resized else peft_export.repository(base)
    params = jax.device_get(opened.params)
    modules = peft_export.write_peft(output, params, opened.spec, adapters, cfg.lora, repository)
    if repository is None:
        option = f" --config.data.image_size={size[0]},{size[1]}" if resized else ""
        said.append(
            f"base: vit_jax convert --checkpoint={base}{option} --to=hf --output=BASE writes it "
            "for transformers"
        )
    head = "" if opened.spec.headless else " and the head"
    if head:
        said.append(
            f"classes: load the base with num_labels={cfg.model.num_classes}, "
            "ignore_mismatched_sizes=True; their names are not stored in this format"
        )
    written = f"{len(modules)} layers of LoRA{head}, from run, {opened.selection}"
    return [*said, f"written: {output} (peft, {written})"]


def check_free(output: pathlib.Path) -> None:
    """Raises ConfigError if there is something at a path to write, or nothing can be there."""
    # lexists: a broken link counts as well.
    if os.path.lexists(output):
        raise config.ConfigError(f"--output={output}: exists already; choose another, or remove it")
    storage.check_folder(output)


def save_checkpoint(
    opened: loaded_model.LoadedModel, params: object, output: pathlib.Path, origin: str
) -> None:
    """Writes parameters as a checkpoint of this project, with a line on their origin."""
    # What is saved are the parameters alone, those that the run would have evaluated.
    cfg = dataclasses.replace(
        opened.config, train=dataclasses.replace(opened.config.train, ema=None), lora=config.Lora()
    )
    with storage.writing("--output", output):
        output.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(output) as part:
        with storage.writing("--output", output):
            part.mkdir()
        saver = manager.Manager(part / "checkpoints", keep=1, best=None)
        try:
            record = {"config": config.to_dict(cfg), "classes": list(opened.classes)}
            record |= {"origin": origin}
            if opened.kind not in loaded_model.RUNS:  # whose configs name their images
                record["kind"] = opened.kind
            if opened.fresh:
                record["fresh"] = dict(opened.fresh)
            if opened.temperature is not None:
                record["temperature"] = opened.temperature
            whole = {"params": jax.device_put(params)}
            # Weights of other projects have no step.
            saver.save(opened.step or 0, whole, record=record, metrics={})
            saver.wait()
        except manager.SaveFailed as error:  # which names the hidden folder, and the step
            reason = first_line(error.__cause__ or error)
            raise NotWritten(f"--output={output}: cannot be written: {reason}") from error
        finally:
            saver.close()
