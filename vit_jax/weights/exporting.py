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
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax import config, models
from vit_jax.models import positions, variants
from vit_jax.utils import tree_utils
from vit_jax.weights import (
    flax_names,
    importing,
    json_fields,
    mapping,
    projection_heads,
    writers,
)
from vit_jax.weights.arrays import Arrays, ArraySpec, WeightsError
from vit_jax.weights.family import FAMILIES, Family, Files, Hints, refuse

# Options that determine a model's function and its preprocessing.
ENCODER = (
    *("patch_size", "width", "depth", "mlp_dim", "heads", "pooling", "pooled_layers"),
    *("class_token", "position", "class_position", "position_place", "representation_size"),
    *("representation_activation", "activation", "gelu", "norm_epsilon", "norm_place", "mlp"),
    *("layer_scale", "registers", "distillation", "stem_norm", "qk_norm", "biasless", "rotary"),
    *("rotary_span", "rotary_grid", "rotary_offset", "rotary_learned", "sub_norm"),
    *("relative_bias", "norm", "patch_norm", "pooling_heads", "pooling_mlp_dim", "pooling_prefix"),
)
RESNET = ("resnet_units", "resnet_width", "resnet_version", "resnet_epsilons")
PIXELS = ("image_size", "depth", "mean", "std", "eval_crop", "aspect")


class Project(NamedTuple):
    """The properties that all exports to a project share."""

    title: str
    suffix: str  # of the file without others beside it; empty: always a folder
    form: str  # what messages call such an export
    families: str  # `Family.project` of those that write it


PROJECTS = {
    "google": Project("Google", ".npz", "a .npz file", "google"),
    "timm": Project("timm", ".safetensors", "timm's form", "timm"),
    "hf": Project("Hugging Face", "", "Hugging Face's form", "hf"),
    "flax": Project("Hugging Face", "", "Hugging Face's form", "hf"),
}
KINDS = tuple(PROJECTS)
MAX_COMMENT = 60_000  # bytes; the origin and a digest follow
# Options whose values in an export are no choice of whoever exports.
FIXED = ("position", "class_position", "pooling", "num_classes", "architecture", "biasless")
FIXED += ("stem_norm", "patch_norm", "norm", "pooled_layers", "pooling_heads", "pooling_mlp_dim")
FIXED += ("pooling_prefix",)


def save(
    params: models.Params,
    spec: mapping.ModelSpec,
    kind: str,
    path: pathlib.Path,
    dtype: str = "float32",
    origin: str = "",
    card: Callable[[Files, Sequence[str]], str] | None = None,
    projection: models.Params | None = None,
) -> tuple[str, ...]:
    """Writes weights in another project's format.

    `path` is never incomplete. Positions other than one learned vector per token are converted to
    such vectors if the format supports nothing else.

    Args:
      params: parameters of the model in `spec`, float32.
      spec: describes the model, its preprocessing and classes.
      kind: `google` writes a .npz file, `hf` and `flax` a folder, `timm` a .safetensors file or (a
        path without that suffix) a folder, whose config.json says more.
      path: must not exist.
      dtype: written without loss as float32, or rounded to float16 or bfloat16.
      origin: where the weights come from, for the metadata of files.
      card: makes the README.md of a folder, from its JSON files and what these cannot express.
      projection: the head of self-distillation to write beside the encoder, in timm's file alone.

    Returns lines on what changes in the export, and on preprocessing that it cannot express.

    Raises WeightsError, in one line, if the format does not support the model.
    """
    if kind == "google" and dtype == "bfloat16":
        raise WeightsError("--dtype=bfloat16: .npz files have no such type; float16 is one")
    if kind not in PROJECTS:
        raise WeightsError(f"kind={kind}: must be one of {', '.join(KINDS)}")
    project = PROJECTS[kind]
    suffix = path.suffix.lower()
    folder = suffix != project.suffix or not project.suffix
    if folder and kind == "google":
        raise WeightsError(f"{path}: must end in .npz")
    if folder and suffix in (".npz", ".safetensors", ".msgpack"):
        raise WeightsError(f"{path}: {kind} writes a folder; leave out {path.suffix}")
    # Not exists: a link that leads nowhere would be replaced by the file.
    if os.path.lexists(path):
        raise WeightsError(f"{path}: exists already; choose another, or remove it")
    if models.find_architecture(spec.model).weights is None:
        raise WeightsError(
            f"model.architecture={spec.model.architecture}: {project.title} has no equivalent"
        )
    params, spec, family, changes = prepare(params, spec, kind, folder=folder)
    files = family.files(spec) if folder else {}
    if kind == "flax":
        (named,) = files["config.json"]["architectures"]
        if named not in flax_names.CLASSES:
            raise WeightsError(
                f"--to=flax: of transformers' {named} there is no Flax class; there is one of "
                + ", ".join(flax_names.CLASSES)
            )
    arrays = mapping.write_arrays(params, family.rules(None, spec), spec)
    arrays |= {name: np.asarray(a, np.float32) for name, a in family.constants(spec).items()}
    said = {} if folder else _head_metadata(spec, suffix)
    beside = {} if projection is None else projection_heads.to_arrays(projection)
    # Readers take the embedding of masked patches for a sign of whose weights they are.
    inside = {n.removeprefix("backbone."): a for n, a in beside.items() if "backbone." in n}
    alone = not folder and kind != "google"  # a file that is read with what is there already
    read = importing.read_beside(path.parent) if alone else files
    differences = _read_back({**arrays, **inside}, read, said, spec, kind, folder=folder)
    joins = kind == "timm" and not spec.headless and variants.joins_features(spec.model)
    if projection is not None or joins:
        # No name begins with (none). Beside a projection head all of the encoder is the backbone,
        # as in DINO's files.
        of_head = "head." if joins else "(none)"
        arrays = {
            f"linear_{name}" if name.startswith(of_head) else f"backbone.{name}": array
            for name, array in arrays.items()
        }
        changes += ("written as backbone.* and linear_head.*, as in DINOv2's code",) * joins
    arrays = writers.rounded({**arrays, **beside}, dtype)
    documents = {**files, **({"README.md": card(files, differences)} if card and folder else {})}
    if kind == "flax":
        writers.write_weights(path, flax_names.from_torch(arrays), documents, folded=writers.FLAX)
    else:
        metadata = said | ({"vit_jax": origin[:400]} if origin else {})
        writers.write_weights(path, arrays, documents, metadata)
    return (*changes, *differences)


def prepare(
    params: models.Params, spec: mapping.ModelSpec, kind: str, *, folder: bool = True
) -> tuple[models.Params, mapping.ModelSpec, Family, tuple[str, ...]]:
    """The same function with the options of another project, its family there, and the changes.

    Raises WeightsError for a model that the project cannot hold.
    """
    title, left = PROJECTS[kind].title, ()
    # timm's own classes have no decoder: Meta's names hold it, in a file alone.
    holds = find_family(spec, kind).autoencoders and not (folder and kind == "timm")
    if spec.mae is not None and not holds:
        spec = dataclasses.replace(spec, mae=None)
        left = (f"the decoder is left out, as {title} has none for this model",)
    params, spec, changes = _normalized(params, spec, kind)
    # Once more, as `expresses` reads options that have just changed, such as biasless.
    family, changes = find_family(spec, kind), changes + left
    _check_encoder(spec.model, title, family)
    family.validate_spec(spec)
    return params, spec, family, changes


def find_family(spec: mapping.ModelSpec, kind: str) -> Family:
    """The family that exports to a project write a model as."""
    project = PROJECTS[kind].families
    # Never without one: the last family of each project expresses every model.
    return next(one for one in FAMILIES if one.project == project and one.expresses(spec))


def _head_metadata(spec: mapping.ModelSpec, suffix: str) -> dict[str, str]:
    """The class names and the loss, for the metadata of a file without a config.json."""
    problem = json_fields.PROBLEMS.get(spec.loss or "")
    said: dict[str, Any] = {"problem_type": problem} if problem else {}
    if spec.classes:
        whole = {**said, "label_names": spec.classes}
        # A zip archive's comment ends at 64 KiB, the names of about 3,000 classes. Dumped twice, as
        # the text is a value of JSON there, with a backslash before each quote.
        if suffix != ".npz" or len(json.dumps(json.dumps(whole))) < MAX_COMMENT:
            said = whole
    return {importing.HEAD: json.dumps(said)} if said and not spec.headless else {}


def _check_encoder(model: config.Model, title: str, family: Family) -> None:
    if model.position == "relative":
        refuse(model, "position", f"{title} has no equivalent")
    if models.find_architecture(model).weights == "bit":
        return
    if model.position_place != "stem":
        refuse(model, "position_place", f"{title} adds positions at the stem only")
    if model.norm not in family.norms:
        refuse(model, "norm", f"{title} models have LayerNorm")
    if model.patch_norm and "rms" not in family.norms:
        refuse(model, "patch_norm", f"{title} has no equivalent with model.norm={model.norm}")


def _normalized(
    params: models.Params, spec: mapping.ModelSpec, kind: str
) -> tuple[models.Params, mapping.ModelSpec, tuple[str, ...]]:
    """The same function with the options of another project, and the changes."""
    if models.find_architecture(spec.model).weights == "bit":
        return params, spec, ()
    family, title = find_family(spec, kind), PROJECTS[kind].title
    params, spec, changes = _with_biases(params, spec, family)
    model = spec.model
    model = dataclasses.replace(normal(model), layer_scale=model.layer_scale)
    # Normalizing each token first is equivalent.
    if model.pooling == "token" and model.norm_place == "pooled" and not family.pooled_norm:
        model = dataclasses.replace(model, norm_place="tokens")
    rows = family.class_rows(spec.model)
    table = _position_table(params, spec, family)
    if table is not None:
        params, row = dict(params), True
        # The class token and its position are only ever added, so their sum can be the token.
        if True not in rows and models.has_class_token(model):
            params["cls"] = np.asarray(params["cls"] + table[:, :1], np.float32)
            table, row = table[:, 1:], False
            if model.position == "learned_1d":
                changes += (
                    f"model.class_position=true: {title} has no position for the class token of a "
                    "model with registers; it is written as part of the token",
                )
        elif model.position == "learned_1d":
            changes += (
                f"model.class_position=false: {title} has a position for the class token; "
                "it is written as zeros, and would be trained",
            )
        model = dataclasses.replace(model, position="learned_1d", class_position=row)
        params["position"] = {"table": table}
    return params, dataclasses.replace(spec, model=model), changes


def _with_biases(
    params: models.Params, spec: mapping.ModelSpec, family: Family
) -> tuple[models.Params, mapping.ModelSpec, tuple[str, ...]]:
    """The same function with zeros for biases that a family always has, and a line on each."""
    # A bias of zeros computes the same as none. A family without some biases leaves them out in
    # groups only, such as those of queries, keys and values.
    lacking = frozenset(spec.model.biasless)
    groups = (group for group in family.bias_groups(spec) if group <= lacking)
    kept = frozenset(part for group in groups for part in group)
    if kept == lacking:
        return params, spec, ()
    model = dataclasses.replace(spec.model, biasless=tuple(sorted(kept)))
    spec = dataclasses.replace(spec, model=model)
    flat = tree_utils.flatten(params)
    shapes = tree_utils.flatten(mapping.create_classifier(spec).shapes())
    zeros = {n: np.zeros(leaf.shape, np.float32) for n, leaf in shapes.items() if n not in flat}
    change = (
        f"model.biasless={config.show(tuple(sorted(lacking - kept)))}: the file has these biases; "
        "they are written as zeros, and would be trained"
    )
    return tree_utils.nest({**flat, **zeros}), spec, (change,)


def normal(model: config.Model) -> config.Model:
    """The model with every option that has no effect in it reset to its default, to compare two."""
    token, mapped = models.has_class_token(model), model.pooling == "map"
    gated = model.mlp == "swiglu" and not mapped
    unread = {
        "class_token": token == models.default_class_token(model.pooling),
        "class_position": not token or not model.position.startswith("learned"),
        "pooling_prefix": not mapped or not variants.prefix_tokens(model),
        "pooling_heads": not mapped or model.pooling_heads == model.heads,
        "pooling_mlp_dim": not mapped or model.pooling_mlp_dim == model.mlp_dim,
        "activation": gated,
        "gelu": gated or model.activation != "gelu",
        "representation_activation": model.representation_size is None,
    }
    default = config.Model()
    changed: dict[str, Any] = {key: getattr(default, key) for key, odd in unread.items() if odd}
    changed["biasless"] = tuple(sorted(set(model.biasless)))
    if model.layer_scale is not None:  # its value before training
        changed["layer_scale"] = 1.0
    return dataclasses.replace(model, **changed)


def _position_table(
    params: models.Params, spec: mapping.ModelSpec, family: Family
) -> np.ndarray | None:
    """The position of every token, (1, N, D) float32; None if written unchanged.

    Registers, which have none, are left out.
    """
    model = spec.model
    relative = model.rotary is not None or model.relative_bias != "none"
    if model.position == "none" and (relative or "none" in family.positions):
        return None
    placed = not models.has_class_token(model) or model.class_position in family.class_rows(model)
    kept = model.position in family.positions or model.position_place != "stem"
    if kept and (placed or model.position != "learned_1d"):
        return None
    rows, columns = models.grid(model, spec.data.image_size)
    width, token = model.width or 0, models.has_class_token(model) + model.distillation
    if model.position in ("learned_1d", "learned_2d"):
        # By the network itself, which joins rows and columns of learned_2d.
        module = mapping.create_classifier(spec).bind(params)
        every = np.asarray(module.position(), np.float32)
        # Registers follow the class and distillation tokens.
        return np.delete(every, range(token, token + model.registers), axis=1)
    table = np.zeros((rows * columns + token, width), np.float32)
    fixed = positions.fixed(model.position, (rows, columns), width)
    if fixed is not None:
        table[token:] = fixed[0]
    return table[None]


def _read_back(
    arrays: Mapping[str, np.ndarray],
    files: Files,
    metadata: Mapping[str, str],
    spec: mapping.ModelSpec,
    kind: str,
    *,
    folder: bool,
) -> tuple[str, ...]:
    """Preprocessing that the format lacks; raises WeightsError where the model itself changes."""
    specs = {name: ArraySpec(array.shape, array.dtype) for name, array in arrays.items()}
    source, family, *_ = importing.find_family(Arrays(specs, arrays.__getitem__), files)
    size = spec.data.image_size
    specs = family.prepared(source, Hints(files=files, image_size=size)).specs
    lines: tuple[str, ...] = ()
    try:
        # Without a size first, as a reader has none: what the file does not say is to be told.
        back = family.read_spec(specs, Hints(files=files))
    except WeightsError:  # such as for positions of no square: the reader must then give the size
        back = family.read_spec(specs, Hints(files=files, image_size=size))
        lines = (f"data.image_size={config.show(size)}: not stored in this format",)
    back = importing.with_head(back, metadata)
    resnet = models.find_architecture(spec.model).weights == "bit"
    keys = ["architecture", "num_classes", *(() if resnet else ENCODER)]
    if spec.model.resnet_units is not None:
        keys += [*RESNET, *(["resnet_pool"] if spec.model.resnet_version == "v2" else [])]
    written, found = spec.model, back.model
    if not resnet:
        written, found = normal(written), normal(found)
    for key in keys:
        value, other = getattr(written, key), getattr(found, key)
        if key == "heads" and other is None:  # the reader has to give them
            lines += (f"model.{key}={config.show(value)}: not stored in this format",)
        elif value != other:
            raise WeightsError(_difference(key, value, other, kind, folder=folder))
    for name, value in vars(spec.mae).items() if spec.mae else ():
        if back.mae is None or value != getattr(back.mae, name):
            raise WeightsError(f"objective.{name}={config.show(value)}: not stored in this format")
    for key, (value, other) in other_views(spec.data, back.data).items():
        # The size has its line already where the reader must give it.
        if not (lines and key == "image_size"):
            lines += (f"data.{key}={value}: reads back as {other}",)
    key = "position_resize"
    value, other = getattr(spec.model, key), getattr(back.model, key)
    resizable = spec.model.position == "learned_1d" or spec.model.relative_bias != "none"
    if value != other and resizable:
        if spec.data.padded and back.data.padded:  # resized to the grid of every image
            raise WeightsError(_difference(key, value, other, kind, folder=folder))
        lines += (f"model.{key}={value}: reads back as {other}",)
    if spec.classes and spec.classes != back.classes:
        lines += ("the names of the classes are not stored in this format",)
    value, other = spec.loss or "softmax", back.loss or "softmax"
    if value != other and not spec.headless:
        lines += (
            f"loss.name={value}: not stored in this format, and reads back as {other}; "
            f"set --config.loss.name={value} then",
        )
    return lines


def function(model: config.Model) -> dict[str, Any]:
    """The options of what a model computes from its parameters by name, equal for one function."""
    resnet = models.find_architecture(model).weights == "bit"
    model = model if resnet else normal(model)
    keys = ("architecture", *(() if resnet else ENCODER), *RESNET, "resnet_pool")
    keys += tuple(config.arguments(type(model)))  # a plug-in's
    return {key: getattr(model, key) for key in keys}


def preprocessing(data: config.Data) -> dict[str, Any]:
    """The options of evaluation's preprocessing by name, equal where images look equal."""
    made = {key: getattr(data, key) for key in PIXELS}
    for key in ("mean", "std"):
        if len(set(made[key])) == 1:
            made[key] = made[key][:1]
    made["resampling"] = data.eval_resampling or data.resampling
    if data.aspect == "native":
        return made | {"eval_crop": "resize", "lengths": data.padded}
    if data.eval_crop == "squash" and data.before_crop == data.image_size:
        made["eval_crop"] = "resize"
    if made["eval_crop"] != "resize":
        # Without a share, a central view is that of the short side, whatever the image's shape.
        short = data.eval_crop == "central" and data.crop_pct is None
        made["resize_to"] = (max(data.before_crop),) * 2 if short else data.before_crop
        made["crop_rounding"] = data.crop_rounding
        border = data.mean if data.eval_crop == "border" else None
        made["fill"] = data.fill if data.fill is not None else border
    return made


def other_views(data: config.Data, other: config.Data) -> dict[str, tuple[str, str]]:
    """The options of the preprocessing that `other` has otherwise: both values, by name."""
    views = preprocessing(data), preprocessing(other)
    return {
        key: (config.show(value), config.show(views[1].get(key)))
        for key, value in views[0].items()
        if value != views[1].get(key)
    }


def _difference(key: str, value: object, other: object, kind: str, *, folder: bool) -> str:
    form, remedy = PROJECTS[kind].form, ""
    if kind == "timm" and not folder:
        form, remedy = "a .safetensors file alone", "write a folder, a path without that suffix"
    if other is not None and key not in FIXED:
        set_it = f"set --config.model.{key}={config.show(other)} to write another function"
        remedy = f"{remedy}, or {set_it}" if remedy else set_it
    text = f"model.{key}={config.show(value)}: not stored in {form}, which reads back as "
    return f"{text}{config.show(other)}{f'; {remedy}' if remedy else ''}"
