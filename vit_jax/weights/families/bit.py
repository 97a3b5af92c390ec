"""Big Transfer's ResNets, as Google, timm and Hugging Face store them.

resnet/block1/unit01/a/standardized_conv2d/kernel    big_transfer, pre-activation
block1/unit01/conv1/kernel, root_block/...           big_vision's bit_paper, pre-activation
block1/unit1/conv1/kernel, conv_root/...             big_vision's bit, post-activation
stem.conv, stages.0.blocks.0.conv1, norm, head.fc    timm, pre-activation
bit.embedder, bit.encoder.stages.0, classifier.1     BitForImageClassification, either

In some files of big_transfer TensorFlow numbered the convolutions through the whole network:
`standardized_conv2d_12/kernel`.
"""

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from vit_jax import config, models
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import google, huggingface, timm, torch_rules
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.family import (
    ANY_SIZE,
    NO_HEAD,
    Family,
    Fields,
    Files,
    Hints,
    refuse_other_model,
)
from vit_jax.weights.mapping import (
    SAME,
    SPREAD,
    ArrayLayout,
    ArraySpecs,
    ModelSpec,
    Rule,
    Shapes,
    Size,
    reshaped,
)


def _is_bit(spec: ModelSpec) -> bool:
    return models.find_architecture(spec.model).weights == "bit"


# Google

PRE, POST = "root_block/conv_root/kernel", "conv_root/kernel"
LEGACY = "resnet/root_block/standardized_conv2d/kernel"
NUMBERED = re.compile(r"(resnet/.*/standardized_conv2d)(_\d{1,3})/kernel")
# The head of big_transfer is a 1 x 1 convolution.
PIXEL = reshaped(lambda shape: (1, 1, *shape))


class GoogleBit(Family):
    """The .npz files of big_transfer and big_vision."""

    project = "google"
    anchors = (PRE, POST, LEGACY)
    dropped = google.DROPPED

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return _root(arrays) is not None and not any(n.startswith("Transformer/") for n in arrays)

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        shapes, root = Shapes(arrays, self.rules(arrays, None)), _root(arrays)
        unsaid: dict[str, str] = dict.fromkeys(
            ("model.resnet_epsilons", *google.PIXELS), google.CODE
        )
        return ModelSpec(
            model=shapes.model(
                **shapes.resnet(),
                architecture="resnet",
                resnet_version="v1" if root == POST else "v2",
                # The first pool of big_transfer pads with zeros, that of big_vision's bit_paper
                # with nothing.
                resnet_pool="nothing" if root == PRE else "zeros",
                num_classes=shapes.outputs,
            ),
            data=config.Data(
                image_size=hints.image_size or (224, 224),
                channels=shapes.channels,
                eval_crop="resize",
            ),
            assumed=unsaid if hints.image_size else ANY_SIZE | unsaid,
            fresh=NO_HEAD if shapes.headless else {},
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        if arrays is None:
            assert spec is not None
            version, padded = spec.model.resnet_version, spec.model.resnet_pool == "zeros"
            root = POST if version == "v1" else LEGACY if padded else PRE
        else:
            root = _root(arrays) or POST
        if root not in (PRE, POST):
            numbers = {m[2] for name in arrays or () if (m := NUMBERED.fullmatch(name))}
            yield from _legacy(["", *sorted(numbers)])
            return
        scale = "gn_root/scale" if root == POST else "norm-pre-head/scale"
        spread = arrays is None or (scale in arrays and len(arrays[scale].shape) == 4)
        yield from google.rules(
            (
                (root.removesuffix("/kernel"), "resnet/conv_root"),
                ("gn_root", "resnet/gn_root"),
                *google.resnet_units("block{stage1}/unit{unit1%s}" % (":02d" * (root == PRE))),
                ("norm-pre-head", "resnet/gn_final"),
                ("head", "head"),
            ),
            SPREAD if spread else SAME,
        )

    def expresses(self, spec: ModelSpec) -> bool:
        return _is_bit(spec)


def _root(arrays: ArraySpecs) -> str | None:
    """The name of the first convolution, which identifies the format."""
    roots = (PRE, POST, LEGACY)
    return next((name for name in arrays if NUMBERED.sub(r"\1/kernel", name) in roots), None)


def _legacy(numbers: list[str]) -> Iterator[Rule]:
    """Yields the rules for big_transfer's names, with optional suffixes of convolutions."""
    unit = "resnet/block{stage1}/unit{unit1:02d}"
    for after in numbers:
        conv = f"standardized_conv2d{after}/kernel"
        yield Rule(f"resnet/root_block/{conv}", "resnet/conv_root/kernel")
        for number, letter in enumerate("abc", start=1):
            yield Rule(f"{unit}/{letter}/{conv}", f"resnet/unit/conv{number}/kernel")
        yield Rule(f"{unit}/a/proj/{conv}", "resnet/unit/conv_proj/kernel")
    norms = {f"{unit}/{letter}/group_norm": f"resnet/unit/gn{number}"
             for number, letter in enumerate("abc", start=1)}  # fmt: skip
    for source, target in {**norms, "resnet/group_norm": "resnet/gn_final"}.items():
        yield Rule(f"{source}/gamma", f"{target}/scale")
        yield Rule(f"{source}/beta", f"{target}/bias")
    yield Rule("resnet/head/conv2d/kernel", "head/kernel", PIXEL)
    yield Rule("resnet/head/conv2d/bias", "head/bias")


# timm

NAMES = re.compile(r"resnetv2_\d+x\d_bitm?")
WRITTEN: dict[tuple[tuple[int, ...], float], str] = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}
# The head of a ResNet of timm is a 1 x 1 convolution.
TORCH_PIXEL = ArrayLayout(
    lambda shape: (shape[1], shape[0], 1, 1),
    lambda array, _: array[:, :, 0, 0].T,
    lambda array: array.T[:, :, None, None],
    (1, 0),
)


class TimmBit(timm.Timm):
    """timm's resnetv2_..._bit."""

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        units = any(name.startswith("stages.0.blocks.0.") for name in arrays)
        return units and not timm.is_transformer(arrays)

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        given = timm.read_fields(hints.files)
        timm.check_names(list(arrays))
        timm.check_arguments(given, {"act_layer": "relu", "global_pool": "avg"})
        if not {"stem.conv.weight", "norm.weight"} & arrays.keys():
            raise WeightsError("contains neither a Vision Transformer nor a BiT ResNet of timm")
        shapes = Shapes(arrays, self.rules(arrays, None))
        channels = shapes.channels
        if "norm.weight" not in arrays or "stem.norm.weight" in arrays:
            raise WeightsError(
                "contains a ResNet with post-activation units, which timm uses only in hybrids"
            )
        name = timm.architecture(given)
        if name and not NAMES.fullmatch(name):
            raise WeightsError(f"architecture={name}: of timm's ResNets, only BiT is supported")
        if (pool := json_fields.text(given, "global_pool", "avg")) != "avg":
            raise WeightsError(f"global_pool={pool}: of timm's ResNets, only avg is supported")
        if not shapes.headless:
            refuse_other_model(given, {"num_classes": shapes.outputs})
        size = timm.image_size(given) or hints.image_size
        data, assumed = timm.data(given, size or (224, 224), channels)
        return ModelSpec(
            model=shapes.model(
                **shapes.resnet(),
                architecture="resnet",
                resnet_version="v2",
                resnet_epsilons="timm",
                num_classes=shapes.outputs,
            ),
            data=data,
            classes=() if shapes.headless else timm.classes(given, shapes.outputs),
            loss=json_fields.loss(given.get("problem_type")),
            assumed=assumed if size else assumed | ANY_SIZE,
            fresh=NO_HEAD if shapes.headless else {},
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        return torch_rules.rules(
            (
                *timm.resnet_names("stem.", ""),
                ("norm", "resnet/gn_final"),
                ("head.fc", "head", TORCH_PIXEL),
            )
        )

    def expresses(self, spec: ModelSpec) -> bool:
        return _is_bit(spec)

    def files(self, spec: ModelSpec) -> Files:
        name = timm.resnet_architecture(spec.model, WRITTEN)
        channels = spec.data.channels
        arguments = {} if channels == 3 else {"in_chans": channels}
        return {
            "config.json": timm.config_json(
                spec, name, "avg", arguments, first="stem.conv", classifier="head.fc",
                fixed_size=False,
            )
        }  # fmt: skip


# Hugging Face


class HuggingFaceBit(huggingface.HuggingFace):
    """transformers' BiT."""

    types: ClassVar = {"bit": Type("Bit", huggingface.STANDARD | {"resample": 2})}
    anchors = ("bit.embedder.convolution.weight", "embedder.convolution.weight")
    names = (
        ("embedder.convolution", "resnet/conv_root"),
        ("embedder.norm", "resnet/gn_root"),
        *torch_rules.resnet_units("encoder.stages.{stage}.layers.{unit}"),
        ("norm", "resnet/gn_final"),
    )
    outer = (("classifier.1", "head"),)

    def size(self, fields: Fields, hints: Hints) -> Size | None:
        return huggingface.seen_size(hints) or hints.image_size

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        made = {"architecture": "resnet", "num_classes": shapes.outputs, **shapes.resnet()}
        kind = json_fields.text(fields, "layer_type", "preactivation")
        padding = (json_fields.text(fields, "global_padding", "") or "none").lower()
        dynamic = fields.get("embedding_dynamic_padding", False) is True
        wanted = {"preactivation": ("none", False), "bottleneck": ("same", True)}
        if kind not in wanted:
            raise WeightsError(
                f"layer_type={kind}: only preactivation and bottleneck are supported"
            )
        if (padding, dynamic) != wanted[kind]:
            raise WeightsError(
                f"global_padding={padding} with embedding_dynamic_padding={str(dynamic).lower()}: "
                f"{kind} units pad by {wanted[kind][0]} and {str(wanted[kind][1]).lower()} here"
            )
        least = 4 * 2 ** max(len(made["resnet_units"]) - 1, 0)
        for key, value in {"num_groups": 32, "hidden_act": "relu"}.items():
            if fields.get(key, value) != value:
                raise WeightsError(f"{key}={str(fields[key])[:80]}: only {value} is supported")
        if json_fields.whole(fields, "output_stride", 32) < least:
            raise WeightsError(
                f"output_stride={fields['output_stride']}: dilated units are not supported"
            )
        version = "v2" if kind == "preactivation" else "v1"
        return made | {"resnet_version": version, "resnet_epsilons": "timm"}

    def expresses(self, spec: ModelSpec) -> bool:
        return _is_bit(spec)

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        model = spec.model
        root, units = round(64 * (model.resnet_width or 1)), model.resnet_units or ()
        post = model.resnet_version == "v1"
        made = {
            "embedding_size": root,
            "hidden_sizes": [4 * root * 2**stage for stage in range(len(units))],
            "depths": list(units),
            "layer_type": "bottleneck" if post else "preactivation",
            "global_padding": "SAME" if post else None,
            "embedding_dynamic_padding": post,
            "num_groups": 32,
            "hidden_act": "relu",
            # transformers dilates the stages beyond this stride; at the model's own stride there
            # are none.
            "output_stride": max(32, 4 * 2 ** (len(units) - 1)),
            # `hidden_sizes` contain it already.
            "width_factor": 1,
        }
        return f"Bit{'Model' if spec.headless else 'ForImageClassification'}", "bit", made
