"""Exports weights to the file formats of Google, timm and Hugging Face.

A format that cannot express a property of the model would silently change its function. So every
export is first read back as `importing` would: if the model changes, the export is rejected, and
the error names the option and its value in that format. For example, Google's .npz files imply the
tanh GELU and the epsilon 1e-6. Weights from timm or Hugging Face, which use others, are written
there only if the user sets these options to Google's values, a deliberate change of the function.

Preprocessing is not part of the function. Properties of it that a format cannot express are
reported, not rejected.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import config, models
from vit_jax.models import positions
from vit_jax.weights import (
    biases,
    bit,
    google,
    huggingface,
    huggingface_beit,
    huggingface_config,
    huggingface_dinov2,
    huggingface_dinov3,
    huggingface_towers,
    mapping,
    timm,
    timm_document,
    tips,
    writers,
)
from vit_jax.weights.readers import Arrays, Spec, WeightsError

KINDS = ("google", "timm", "hf")
# Options that determine the function of a model, and those of its preprocessing.
ENCODER = (
    *("patch_size", "width", "depth", "mlp_dim", "heads", "pooling", "class_token", "position"),
    *("class_position", "position_place", "representation_size", "representation_activation"),
    *("activation", "gelu", "norm_epsilon", "norm_place", "mlp", "layer_scale", "registers"),
    *("distillation", "stem_norm", "qk_norm", "biasless", "rotary", "rotary_span"),
    *("rotary_grid", "sub_norm", "relative_bias"),
)
RESNET = ("resnet_units", "resnet_width", "resnet_version", "resnet_epsilons")
PIXELS = ("image_size", "mean", "std", "eval_crop")
NAMES = {"google": "Google", "timm": "timm", "hf": "Hugging Face"}


def save(
    params: models.Params,
    facts: mapping.Facts,
    kind: str,
    path: pathlib.Path,
    dtype: str = "float32",
    origin: str = "",
) -> tuple[str, ...]:
    """Writes weights in another project's format; returns preprocessing facts it cannot express.

    `path` is never incomplete. Positions other than one learned vector per token are converted to
    such vectors if the format supports nothing else.

    Args:
      params: parameters of the model in `facts`, float32.
      facts: facts about the model, its preprocessing and classes.
      kind: `google` writes a .npz file, `hf` a folder, `timm` a .safetensors file or (a path
        without that suffix) a folder, whose config.json contains more facts.
      path: must not exist.
      dtype: written without loss as float32, or rounded to float16 or bfloat16.
      origin: where the weights come from, for the metadata of .safetensors files.

    Raises WeightsError, in one line, if the format does not support the model.
    """
    if kind == "google" and dtype == "bfloat16":
        raise WeightsError("--dtype=bfloat16: .npz files have no such type; float16 is one")
    single = {"google": (".npz",), "timm": (".safetensors",), "hf": ()}
    if kind not in single:
        raise WeightsError(f"kind={kind}: must be one of {', '.join(KINDS)}")
    folder = path.suffix not in single[kind]
    if folder and kind == "google":
        raise WeightsError(f"{path}: must end in .npz")
    if folder and path.suffix in (".npz", ".safetensors"):
        raise WeightsError(f"{path}: {kind} writes a folder; leave out {path.suffix}")
    if os.path.lexists(path):
        raise WeightsError(f"{path}: exists already; choose another, or remove it")
    architecture = facts.model.architecture
    if models.family(facts.model).weights is None:
        raise WeightsError(f"model.architecture={architecture}: {NAMES[kind]} has no equivalent")
    params, facts, told = _plain(params, facts, kind)
    form = _layout(facts, kind)
    _check_place(facts, kind)
    documents = _documents(facts, kind) if folder else {}
    arrays = mapping.write(params, form.rules(None, facts), facts)
    said = mapping.head_metadata(facts) if path.suffix == ".safetensors" else {}
    unsaid = _unsaid(form, arrays, documents, said, facts, kind, folder=folder)
    metadata = said | ({"vit_jax": origin} if origin else {})
    writers.write(path, writers.rounded(arrays, dtype), documents, metadata)
    return (*told, *unsaid)


def _layout(facts: mapping.Facts, kind: str) -> mapping.Layout:
    if kind == "google" and tips.expresses(facts):
        return tips.LAYOUT
    if kind == "google":
        return bit.LAYOUT if models.family(facts.model).weights == "bit" else google.LAYOUT
    return timm.LAYOUT if kind == "timm" else huggingface.LAYOUT


def _documents(facts: mapping.Facts, kind: str) -> writers.Documents:
    if kind == "timm":
        return {"config.json": timm_document.document(facts)}
    return huggingface_config.config_files(facts)


def _check_place(facts: mapping.Facts, kind: str) -> None:
    """Raises WeightsError for options that the format does not support at all."""
    model, name = facts.model, NAMES[kind]
    foreign = models.family(model).weights
    if model.position == "relative":
        raise WeightsError(f"model.position=relative: {name} has no equivalent")
    if model.position_place != "stem" and foreign != "bit":
        place = f"model.position_place={model.position_place}"
        raise WeightsError(f"{place}: {name} adds positions at the stem only")
    if model.norm != "layer" and foreign != "bit":
        raise WeightsError(f"model.norm={model.norm}: {name} models have LayerNorm")
    headless = "head/kernel" in facts.fresh
    parts = ("mlp", "layer_scale", "registers", "distillation", "stem_norm", "qk_norm", "rotary")
    parts += ("sub_norm", "relative_bias")
    for key in parts if kind == "google" and not tips.expresses(facts) else ():
        if (value := getattr(model, key)) != getattr(config.Model(), key):
            said = str(value).lower() if isinstance(value, bool) else config.show(value)
            raise WeightsError(f"model.{key}={said}: Google has no equivalent")
    size = model.representation_size
    if size is not None and (kind == "timm" or (kind == "hf" and not headless)):
        raise WeightsError(f"model.representation_size={size}: {name} has no layer before the head")
    if kind == "timm" and foreign != "bit":
        timm_document.check(model)
    if kind != "hf" or foreign == "bit":
        return
    if model.resnet_units is not None:
        units = f"model.resnet_units={config.show(model.resnet_units)}"
        raise WeightsError(f"{units}: Hugging Face transformers dropped hybrid models")
    if model.sub_norm:
        norms = config.show(model.sub_norm)
        raise WeightsError(f"model.sub_norm={norms}: Hugging Face has no norms inside layers")
    if model.rotary_grid is not None:
        grid = config.show(model.rotary_grid)
        raise WeightsError(f"model.rotary_grid={grid}: Hugging Face has no EVA-02; timm has")
    if model.rotary is not None and model.relative_bias != "none":
        raise WeightsError(
            f"model.relative_bias={model.relative_bias}: Hugging Face has none with model.rotary"
        )
    if huggingface_beit.expresses(model):
        huggingface_beit.check(facts)
    elif model.rotary is not None:
        huggingface_dinov3.check(model, headless=headless)
    elif huggingface_towers.expresses(model):
        huggingface_towers.check(facts, headless=headless)
    elif huggingface_dinov2.expresses(model):
        huggingface_dinov2.check(model, headless=headless)
    elif model.pooling not in ("token", "distilled"):
        pooling = f"model.pooling={model.pooling}"
        raise WeightsError(
            f"{pooling}: in Hugging Face transformers the head reads only the class token"
        )


def _plain(
    params: models.Params, facts: mapping.Facts, kind: str
) -> tuple[models.Params, mapping.Facts, tuple[str, ...]]:
    """Returns the same function with the options of other projects, and the changes."""
    if models.family(facts.model).weights == "bit":
        return params, facts, ()
    params, facts, told = biases.written(params, facts, kind)
    model = facts.model
    model = dataclasses.replace(_normal(model), layer_scale=model.layer_scale)
    if model.pooling == "token" and kind != "timm":  # normalizing each token first is equivalent
        model = dataclasses.replace(model, norm_place="tokens")
    table = _table(params, facts, kind)
    if table is not None:
        params, row = dict(params), True
        if kind == "timm" and model.registers and models.has_class_token(model):
            params["cls"] = np.asarray(params["cls"] + table[:, :1], np.float32)
            table, row = table[:, 1:], False
            if model.position == "learned_1d":
                told += (
                    "model.class_position=true: timm has no position for the class token of a "
                    "model with registers; it is written as part of the token",
                )
        elif model.position == "learned_1d":
            told += (
                "model.class_position=false: Hugging Face has a position for the class token; "
                "it is written as zeros, and would be trained",
            )
        model = dataclasses.replace(model, position="learned_1d", class_position=row)
        params["position"] = {"table": table}
    return params, dataclasses.replace(facts, model=model), told


def _normal(model: config.Model) -> config.Model:
    """Returns an encoder with the options that change nothing in it at their defaults."""
    default, changed = config.Model(), dict[str, Any]()
    changed["biasless"] = tuple(sorted(set(model.biasless)))
    if models.has_class_token(model) == models.default_class_token(model.pooling):
        changed["class_token"] = None
    if not models.has_class_token(model) or not model.position.startswith("learned"):
        changed["class_position"] = default.class_position
    if model.mlp == "swiglu" and model.pooling != "map":  # nothing reads it
        changed |= {"activation": default.activation, "gelu": default.gelu}
    if model.activation != "gelu":
        changed["gelu"] = default.gelu
    if model.layer_scale is not None:  # what it was at first
        changed["layer_scale"] = 1.0
    if model.representation_size is None:
        changed["representation_activation"] = default.representation_activation
    return dataclasses.replace(model, **changed)


def _table(params: models.Params, facts: mapping.Facts, kind: str) -> np.ndarray | None:
    """Returns the position of every token, (1, N, D) float32; None if written unchanged.

    Registers, which have none, are left out.
    """
    model = facts.model
    known = {"google": ("learned_1d", "sincos_2d", "relative")}.get(
        kind, ("learned_1d", "relative")
    )
    apart = models.has_class_token(model) and not model.class_position
    beit = kind == "hf" and huggingface_beit.expresses(model)
    other = model.rotary is not None or model.relative_bias != "none" or beit
    if model.position == "none" and other:
        return None
    if kind == "hf" and apart and model.position == "learned_1d":
        pass  # the row that Hugging Face has is written, as zeros
    elif kind == "timm" and model.registers and models.has_class_position(model):
        pass  # timm has none for the class token either
    elif model.position in known or model.position_place != "stem":
        return None
    rows, columns = models.grid(model, facts.data.image_size)
    width, token = model.width or 0, models.has_class_token(model) + model.distillation
    if model.position in ("learned_1d", "learned_2d"):
        module = mapping.create_classifier(facts).bind(params)
        every = np.asarray(module.position(), np.float32)
        return np.delete(every, range(token, token + model.registers), axis=1)
    table = np.zeros((rows * columns + token, width), np.float32)
    if model.position == "sincos_2d":
        table[token:] = positions.sincos_2d(rows, columns, width)
    elif model.position == "sincos_1d":
        table[token:] = positions.sincos_1d(rows * columns, width)
    return table[None]


def _unsaid(
    form: mapping.Layout,
    arrays: Mapping[str, np.ndarray],
    documents: writers.Documents,
    metadata: Mapping[str, str],
    facts: mapping.Facts,
    kind: str,
    *,
    folder: bool,
) -> tuple[str, ...]:
    """Returns preprocessing facts that the format lacks; raises WeightsError for model facts."""
    specs = {name: Spec(array.shape, array.dtype) for name, array in arrays.items()}
    held = Arrays(specs, arrays.__getitem__)
    sizeless = mapping.Hints(files=documents)
    sized = mapping.Hints(files=documents, image_size=facts.data.image_size)
    told: tuple[str, ...] = ()
    try:
        back = form.facts(held, sizeless)
    except WeightsError:  # as for positions of no square: then whoever reads it must give the size
        back = form.facts(held, sized)
        told = (f"data.image_size={config.show(facts.data.image_size)}: is not said by the file",)
    back = mapping.with_head(back, metadata)
    resnet = models.family(facts.model).weights == "bit"
    keys = ["architecture", "num_classes", *(() if resnet else ENCODER)]
    if facts.model.resnet_units is not None:
        keys += [*RESNET, *(["resnet_pool"] if facts.model.resnet_version == "v2" else [])]
    here, there = facts.model, back.model
    if not resnet:
        here, there = _normal(here), _normal(there)
    for key in keys:
        ours, theirs = getattr(here, key), getattr(there, key)
        if theirs is None and ours is not None:  # whoever reads it is asked for it
            told += (f"model.{key}={config.show(ours)}: is not said by the file",)
        elif ours != theirs:
            raise WeightsError(_otherwise(key, ours, theirs, kind, folder=folder))
    here, there = _pixels(facts.data), _pixels(back.data)
    for key, ours in here.items():
        theirs = there.get(key)
        if ours != theirs and not (told and key == "image_size"):
            told += (f"data.{key}={config.show(ours)}: reads back as {config.show(theirs)}",)
    key = "position_resize"
    ours, theirs = getattr(facts.model, key), getattr(back.model, key)
    resizable = facts.model.position == "learned_1d" or facts.model.relative_bias != "none"
    if ours != theirs and resizable:
        told += (f"model.{key}={ours}: reads back as {theirs}",)
    if facts.classes and facts.classes != back.classes:
        told += ("the names of the classes are not said by the file",)
    ours, theirs = facts.loss or "softmax", back.loss or "softmax"
    if ours != theirs and "head/kernel" not in facts.fresh:
        there = f"is not said by the file, which reads back as {theirs}"
        told += (f"train.loss={ours}: {there}; set --config.train.loss={ours} then",)
    return told


def _pixels(data: config.Data) -> dict[str, Any]:
    """The preprocessing in terms in which equal views are equal."""
    made = {key: getattr(data, key) for key in PIXELS}
    made["resampling"] = data.eval_resampling or data.resampling
    if data.eval_crop == "squash" and data.before_crop == data.image_size:
        made["eval_crop"] = "resize"
    if made["eval_crop"] != "resize":
        made["resize_to"] = data.before_crop
        made["crop_rounding"] = data.crop_rounding
        border = data.mean if data.eval_crop == "border" else None
        made["fill"] = data.fill if data.fill is not None else border
    return made


def _otherwise(key: str, ours: Any, theirs: Any, kind: str, *, folder: bool) -> str:
    there = {"google": "a .npz file", "timm": "timm's form", "hf": "Hugging Face's form"}[kind]
    if kind == "timm" and not folder:
        there, remedy = "a .safetensors file alone", "write a folder, a path without that suffix"
    else:
        remedy = ""
    fixed = ("position", "class_position", "pooling", "num_classes", "architecture")
    fixed += ("biasless", "stem_norm")
    if theirs is not None and key not in fixed:
        set_it = f"set --config.model.{key}={config.show(theirs)} to write another function"
        remedy = f"{remedy}, or {set_it}" if remedy else set_it
    text = f"model.{key}={config.show(ours)}: is not said by {there}, which reads back as "
    return f"{text}{config.show(theirs)}{f'; {remedy}' if remedy else ''}"
