"""Hugging Face's ViT and BiT: folders of config.json, preprocessor_config.json and safetensors.

vit.embeddings, vit.encoder.layer.0, classifier      ViTForImageClassification
embeddings, encoder.layer.0, pooler                  ViTModel, whose pooler is our pre_logits
deit.embeddings, deit.encoder.layer.0, classifier    DeiTForImageClassification, ...WithTeacher
beit.embeddings, beit.encoder.layer.0                see `huggingface_beit`
dinov2.embeddings, dinov2.encoder.layer.0            see `huggingface_dinov2`
embeddings, layer.0, norm                            see `huggingface_dinov3`
vision_model.embeddings, vision_model.encoder        see `huggingface_towers`
bit.embedder, bit.encoder.stages.0, classifier.1     BitForImageClassification

Version 5 of transformers names the layers of a ViT otherwise (layers.0.attention.q_proj) but still
writes the older names; imports accept both, exports use the older.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from vit_jax import config, models
from vit_jax.weights import (
    bit,
    huggingface_beit,
    huggingface_config,
    huggingface_dinov2,
    huggingface_dinov3,
    huggingface_towers,
    json_fields,
)
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import (
    CONVOLUTION,
    FLAT,
    HEADLESS,
    Facts,
    Hints,
    Layout,
    Rule,
    array_shape,
    depth,
    linear,
)
from vit_jax.weights.readers import Arrays, Spec, WeightsError
from vit_jax.weights.timm import units
from vit_jax.weights.torch_rules import dense, norm

PATCHES, ROOT = "embeddings.patch_embeddings.projection.weight", "embedder.convolution.weight"
# Models with the layers of ViT, and their epsilon where config.json has none.
EPSILONS = {"vit": 1e-12, "deit": 1e-12, "vit_mae": 1e-12, "vit_msn": 1e-6}
PREFIXES = ("vit.", "deit.", "bit.", "beit.", *(f"{kind}." for kind in huggingface_dinov2.KINDS))
PREFIXES += ("vision_model.", "")
# The dense layers of a block: queries, keys, values, output projection, and the MLP's two.
OLDER = (
    *(f"attention.attention.{name}" for name in ("query", "key", "value")),
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
NEWER = (*(f"attention.{name}_proj" for name in "qkvo"), "mlp.fc1", "mlp.fc2")
DISTILLATION = "embeddings.distillation_token"
TWO_HEADS = ("cls_classifier", "distillation_classifier")
DROPPED = (
    (r"(\w+\.)?embeddings\.mask_token|decoder\..*", "of masked image modeling"),
    (r"(vit|deit)\.pooler\..*", "a pooler that the classifier does not use"),
    *huggingface_towers.DROPPED,
    *huggingface_beit.DROPPED,
)


def recognizes(arrays: Arrays) -> bool:
    """Returns whether the arrays are in this format, or in a variant that `facts` rejects."""
    return any(_prefix(arrays.specs, name) is not None for name in FIRST)


def facts(arrays: Arrays, hints: Hints) -> Facts:
    """Infers the model from names, shapes and config.json; raises WeightsError."""
    specs, given = arrays.specs, hints.files.get("config.json")
    if given is None:
        raise WeightsError(
            "contains a Hugging Face model; its config.json defines heads and epsilons; "
            "put that file next to it"
        )
    kind = json_fields.text(given, "model_type", "vit" if _prefix(specs, PATCHES) else "bit")
    one = next((one for one in ARCHITECTURES if kind in one.types), None)
    if one is None or _prefix(specs, one.first) is None:
        known = ", ".join(kind for one in ARCHITECTURES for kind in one.types)
        why = (
            f"only {known} are supported" if one is None else f"there is no {one.first} in the file"
        )
        raise WeightsError(
            f"model_type={kind}: {'of the Hugging Face models, ' * (one is None)}{why}"
        )
    return dataclasses.replace(one.facts(specs, given, hints), kind=kind)


def _prefix(specs: Mapping[str, Spec], name: str) -> str | None:
    """Returns the name prefix of the network below the head; None if unknown."""
    return next((p for p in PREFIXES if p + name in specs), None)


def _transformer(specs: Mapping[str, Spec], given: Given, hints: Hints) -> Facts:
    epsilon = EPSILONS[json_fields.text(given, "model_type", "vit")]
    prefix = _prefix(specs, PATCHES) or ""
    width, channels, *patch = array_shape(specs, prefix + PATCHES, 4)
    older, newer = f"encoder.layer.0.{OLDER[4]}.weight", f"layers.0.{NEWER[4]}.weight"
    names = (prefix + newer, prefix + older, older)
    hidden = next((name for name in names if name in specs), names[1])
    head = TWO_HEADS[0] if f"{TWO_HEADS[0]}.weight" in specs else "classifier"
    pooler = f"{head}.weight" not in specs and "pooler.dense.weight" in specs
    if f"{prefix}embeddings.cls_token" not in specs:
        raise WeightsError(f"contains no {prefix}embeddings.cls_token")
    model = config.Model(
        patch_size=(patch[0], patch[1]),
        width=width,
        depth=depth(specs, r"(?:(?:vit|deit)\.)?(?:encoder\.layer|layers)\.(\d{1,3})\."),
        mlp_dim=array_shape(specs, hidden, 2)[0],
        representation_size=array_shape(specs, "pooler.dense.weight", 2)[0] if pooler else None,
        patch_remainder="drop",
        position_resize="bicubic",
        distillation=f"{prefix}{DISTILLATION}" in specs,
        pooling="distilled" if head in TWO_HEADS else "token",
        **huggingface_config.transformer(given, width, pooler=pooler, epsilon=epsilon),
    )
    size = json_fields.pair(given, "image_size", 224)
    return _facts(specs, model, size, channels, hints, f"{head}.weight")


def _dinov2(specs: Mapping[str, Spec], given: Given, hints: Hints) -> Facts:
    prefix = _prefix(specs, PATCHES) or ""
    width, channels, *patch = array_shape(specs, prefix + PATCHES, 4)
    known = huggingface_config.transformer(given, width, pooler=False, epsilon=1e-6)
    model = config.Model(
        patch_size=(patch[0], patch[1]),
        width=width,
        depth=depth(specs, r"(?:\w+\.)?encoder\.layer\.(\d{1,3})\."),
        patch_remainder="drop",
        **(known | huggingface_dinov2.options(specs, given, prefix)),
    )
    size = json_fields.pair(given, "image_size", 224)
    return _facts(specs, model, size, channels, hints, "classifier.weight")


def _beit(specs: Mapping[str, Spec], given: Given, hints: Hints) -> Facts:
    prefix = _prefix(specs, PATCHES) or ""
    width, channels, *patch = array_shape(specs, prefix + PATCHES, 4)
    layers = depth(specs, r"(?:beit\.)?encoder\.layer\.(\d{1,3})\.")
    if not layers:
        raise WeightsError("model_type=beit: there is no beit.encoder.layer.0; name another type")
    known = huggingface_config.transformer(given, width, pooler=False)
    model = config.Model(
        patch_size=(patch[0], patch[1]),
        width=width,
        depth=layers,
        mlp_dim=array_shape(specs, f"{prefix}encoder.layer.0.{OLDER[4]}.weight", 2)[0],
        patch_remainder="drop",
        position_resize="bicubic",
        **(known | huggingface_beit.options(specs, given, prefix)),
    )
    size = json_fields.pair(given, "image_size", 224)
    return _facts(specs, model, size, channels, hints, "classifier.weight")


def _dinov3(specs: Mapping[str, Spec], given: Given, hints: Hints) -> Facts:
    fields = huggingface_dinov3.fields_read(given)
    found = huggingface_dinov3.options(specs, fields)
    known = huggingface_config.transformer(fields, found["width"], pooler=False)
    channels = array_shape(specs, huggingface_dinov3.PATCHES, 4)[1]
    size = json_fields.pair(given, "image_size", 224)
    return _facts(specs, config.Model(**(known | found)), size, channels, hints, "none")


def _tower(specs: Mapping[str, Spec], given: Given, hints: Hints) -> Facts:
    prefix = _prefix(specs, huggingface_towers.PATCHES) or ""
    fields = huggingface_towers.tower(given)
    found = huggingface_towers.options(specs, given, prefix)
    known = huggingface_config.transformer(fields, found["width"], pooler=False)
    channels = array_shape(specs, f"{prefix}{huggingface_towers.PATCHES}", 4)[1]
    size = json_fields.pair(fields, "image_size")
    head = "visual_projection.weight" if found.get("stem_norm") else "classifier.weight"
    model = config.Model(position_resize="bicubic", **(known | found))
    made = _facts(specs, model, size, channels, hints, head)
    pools = found["pooling"] != "gap" or head in specs
    unsaid = {} if pools else {"model.pooling": "the file has tokens and pools none of them"}
    return dataclasses.replace(made, assumed={**made.assumed, **unsaid})


def _resnet(specs: Mapping[str, Spec], given: Given, hints: Hints) -> Facts:
    width, channels = array_shape(specs, (_prefix(specs, ROOT) or "") + ROOT, 4)[:2]
    counts = (
        depth(specs, rf"(?:bit\.)?encoder\.stages\.{stage}\.layers\.(\d{{1,3}})\.")
        for stage in itertools.count()
    )
    units = tuple(itertools.takewhile(bool, counts))
    model = config.Model(
        architecture="resnet",
        resnet_units=units,
        resnet_width=width / 64,
        **huggingface_config.resnet(given, units),
    )
    size = huggingface_config.seen_size(hints) or hints.image_size
    return _facts(specs, model, size, channels, hints, "classifier.1.weight")


def _facts(
    specs: Mapping[str, Spec],
    model: config.Model,
    size: tuple[int, int] | None,
    channels: int,
    hints: Hints,
    head: str,
) -> Facts:
    """Returns the facts of a model, its head the array of that name, where there is one."""
    given = hints.files["config.json"]
    count = array_shape(specs, head, 2)[0] if head in specs else None
    classed = head != "visual_projection.weight"  # whose outputs are embeddings
    data, assumed = huggingface_config.data(hints, size or (224, 224), channels)
    return Facts(
        model=models.complete(dataclasses.replace(model, num_classes=count or 1)),
        data=data,
        classes=huggingface_config.classes(given, count) if count and classed else (),
        loss=huggingface_config.loss(given, count if classed else None),
        assumed=assumed if size else assumed | bit.SIZE,
        fresh={} if count else {"head/kernel": HEADLESS, "head/bias": HEADLESS},
    )


def rules(specs: Mapping[str, Spec] | None, facts: Facts) -> list[Rule]:
    """Returns the rules to read a folder with these arrays, or to write one (None)."""
    model = facts.model
    if specs is not None:
        one = next(one for one in ARCHITECTURES if facts.kind in one.types)
        return list(one.rules(_prefix(specs, one.first) or "", model))
    resnet = models.family(model).weights == "bit"
    kind = "bit" if resnet else written_type(model)
    one = next(one for one in ARCHITECTURES if kind in one.types)
    if one.first == huggingface_towers.PATCHES:
        prefix = "vision_model."
    else:
        prefix = "" if "head/kernel" in facts.fresh else f"{kind}."
    return list(one.rules(prefix, model))


def written_type(model: config.Model) -> str:
    """Returns the model_type that an encoder is written as."""
    if huggingface_beit.expresses(model):
        return huggingface_beit.KIND
    if model.rotary is not None:
        return huggingface_dinov3.KIND
    if huggingface_towers.expresses(model):
        return huggingface_towers.KINDS[0]
    if huggingface_dinov2.expresses(model):
        return huggingface_dinov2.fields(model)[1]
    return "deit" if model.distillation else "vit"


def _vit_rules(prefix: str, model: config.Model) -> Iterator[Rule]:
    yield from _around(prefix, model)
    yield from _layers(prefix)


def _dinov2_rules(prefix: str, model: config.Model) -> Iterator[Rule]:
    yield from _around(prefix, model)
    yield from huggingface_dinov2.rules(prefix, model)


def _beit_rules(prefix: str, model: config.Model) -> Iterator[Rule]:
    yield from huggingface_beit.rules(prefix, model)
    yield from _vit_rules(prefix, model)


def _around(prefix: str, model: config.Model) -> Iterator[Rule]:
    """Yields the rules of what stands before and after the layers."""
    embeddings = f"{prefix}embeddings"
    yield Rule(f"{embeddings}.cls_token", "cls")
    yield Rule(f"{prefix}{DISTILLATION}", "distillation")
    yield Rule(f"{embeddings}.position_embeddings", "position/table")
    yield Rule(f"{prefix}{PATCHES}", "embedding/kernel", CONVOLUTION)
    yield Rule(f"{prefix}{PATCHES}".replace("weight", "bias"), "embedding/bias")
    yield from norm(f"{prefix}layernorm", "encoder_norm")
    yield from dense("pooler.dense", "pre_logits")
    heads = TWO_HEADS if model.pooling == "distilled" else ("classifier",)
    for theirs, ours in zip(heads, ("head", "head_dist"), strict=False):
        yield from dense(theirs, ours)


def _layers(prefix: str) -> Iterator[Rule]:
    places = [(f"{prefix}encoder.layer", OLDER), (f"{prefix}layers", NEWER)]
    # transformers 5 leaves the prefix out where it saves the layers of a ViTMSN with a head.
    places += [("encoder.layer", OLDER)] if prefix else []
    for place, names in places:
        block = f"{place}.{{layer}}"
        yield from norm(f"{block}.layernorm_before", "encoder/norm1")
        yield from norm(f"{block}.layernorm_after", "encoder/norm2")
        for theirs, ours in zip(names, ("query", "key", "value"), strict=False):
            yield Rule(f"{block}.{theirs}.weight", f"encoder/attention/{ours}/kernel", linear())
            yield Rule(f"{block}.{theirs}.bias", f"encoder/attention/{ours}/bias", FLAT)
        yield from dense(f"{block}.{names[3]}", "encoder/attention/out", linear(2))
        yield from dense(f"{block}.{names[4]}", "encoder/mlp/fc1")
        yield from dense(f"{block}.{names[5]}", "encoder/mlp/fc2")


def _resnet_rules(prefix: str, model: config.Model) -> Iterator[Rule]:
    del model
    yield Rule(f"{prefix}{ROOT}", "resnet/conv_root/kernel", CONVOLUTION)
    yield from norm(f"{prefix}embedder.norm", "resnet/gn_root")
    yield from units(f"{prefix}encoder.stages.{{stage}}.layers.{{unit}}")
    yield from norm(f"{prefix}norm", "resnet/gn_final")
    yield from dense("classifier.1", "head")


class Architecture(NamedTuple):
    """One of transformers' models for images."""

    types: tuple[str, ...]  # model_type of config.json
    first: str  # the array that it begins with, below a prefix
    facts: Callable[[Mapping[str, Spec], Given, Hints], Facts]
    rules: Callable[[str, config.Model], Iterator[Rule]]  # of a prefix


ARCHITECTURES = (
    Architecture(tuple(EPSILONS), PATCHES, _transformer, _vit_rules),
    Architecture(huggingface_dinov2.KINDS, PATCHES, _dinov2, _dinov2_rules),
    Architecture(
        (huggingface_dinov3.KIND,),
        huggingface_dinov3.PATCHES,
        _dinov3,
        lambda _, model: huggingface_dinov3.rules(model),
    ),
    Architecture(
        huggingface_towers.KINDS, huggingface_towers.PATCHES, _tower, huggingface_towers.rules
    ),
    Architecture((huggingface_beit.KIND,), PATCHES, _beit, _beit_rules),
    Architecture(("bit",), ROOT, _resnet, _resnet_rules),
)
FIRST = tuple(dict.fromkeys(one.first for one in ARCHITECTURES))
# What a model's names end in, to find prefixes by.
ANCHORS = tuple(prefix + name for prefix in PREFIXES for name in FIRST)
LAYOUT = Layout("hf", recognizes, facts, rules, DROPPED)
