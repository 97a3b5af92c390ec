"""Google's Vision Transformers and hybrids: .npz files of vision_transformer and big_vision.

Files written before Flax Linen count all submodules of a block together (LayerNorm_0,
MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3), later ones count each kind by itself.
With `scan=True`, big_vision stacks the layers: one array for all of them.
"""

import dataclasses
import re
from collections.abc import Iterator

from vit_jax import config, models
from vit_jax.weights.family import NO_HEAD, Family, Files, Hints
from vit_jax.weights.mapping import (
    SAME,
    SPREAD,
    ArraySpecs,
    ModelSpec,
    Rule,
    array_shape,
    depth,
    size_of_positions,
)
from vit_jax.weights.readers import WeightsError

BLOCK, STACKED = "Transformer/encoderblock_{layer}", "Transformer/encoderblock"
POSITIONS = "Transformer/posembed_input/pos_embedding"
DROPPED = (
    (r"opt/(?!target/).*|(?:.*/)?(?:step|rng)", "of the optimizer, not of the model"),
    (r"chrono/.*", "of big_vision's clock, not of the model"),
    (r"(?:params/)?(?:txt/.*|t|b)", "of the text tower and the loss"),
)
SOFTMAX = "loss.name=softmax"  # as an assumption
CODE = "as in Google's code; the file does not say"
PIXELS = ("data.mean", "data.std", "data.resampling", "data.eval_crop")
# Parts of an encoder that Google's has not.
FOREIGN = ("mlp", "layer_scale", "registers", "distillation", "stem_norm", "qk_norm", "rotary")
FOREIGN += ("sub_norm", "relative_bias")


class Google(Family):
    """ViTs and hybrids."""

    project = "google"
    anchors = ("embedding/kernel",)
    dropped = DROPPED
    positions = ("learned_1d", "sincos_2d", "relative")

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        """Whether the arrays are an encoder of this format, or of no other known one."""
        return any(name.startswith("Transformer/") for name in arrays)

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        """Infers the model from names and shapes; raises WeightsError."""
        height, width, channels, features = array_shape(arrays, "embedding/kernel", 4)
        layers, hidden, heads = _encoder(arrays)
        table = next((n for n in (POSITIONS, "pos_embedding") if n in arrays), None)
        pre_logits = "pre_logits/kernel" in arrays
        pooling = "token" if "cls" in arrays else "gap"
        headless = not {"head/kernel", "head/bias"} & arrays.keys()
        model = config.Model(
            patch_size=(height, width),
            width=features,
            depth=layers,
            mlp_dim=hidden,
            heads=heads,
            num_classes=1 if headless else array_shape(arrays, "head/kernel", 2)[1],
            patch_remainder="drop",
            pooling="map" if "MAPHead_0/probe" in arrays else pooling,
            position="sincos_2d" if table is None else "learned_1d",
            # big_vision adds positions before it prepends the class token.
            class_position=pooling == "gap" or table != "pos_embedding",
            representation_size=(
                array_shape(arrays, "pre_logits/kernel", 2)[1] if pre_logits else None
            ),
        )
        if "conv_root/kernel" in arrays:
            model = dataclasses.replace(
                model,
                resnet_units=units(arrays, r"block(\d{1,2})/unit(\d{1,2})/"),
                resnet_width=array_shape(arrays, "conv_root/kernel", 4)[3] / 64,
            )
            channels = array_shape(arrays, "conv_root/kernel", 4)[2]
        model = models.complete(model)
        size, assumed = hints.image_size, {}
        if table is not None:
            patches = array_shape(arrays, table, 3)[1] - models.has_class_position(model)
            size, assumed = size_of_positions(model, patches, hints.image_size)
        if size is None:
            raise WeightsError(
                "contains no position embeddings; "
                "give the image size: --config.data.image_size=HEIGHT,WIDTH"
            )
        return ModelSpec(
            model=model,
            data=config.Data(image_size=size, channels=channels, eval_crop="resize"),
            assumed=assumed | dict.fromkeys(_unsaid(model, headless=headless), CODE),
            fresh=NO_HEAD if headless else {},
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec) -> Iterator[Rule]:
        """Yields the rules to read a file with these arrays, or to write one (None)."""
        # Written are the names of the published files, those before Linen; big_vision's for what
        # only big_vision has.
        model = spec.model
        apart = model.pooling == "map" or model.position != "learned_1d"
        apart = apart or (models.has_class_token(model) and not model.class_position)
        block = STACKED if _stacked(arrays) else BLOCK
        query = f"{block.format(layer=0)}/{_attention(0)}/query/kernel"
        linen = apart if arrays is None else query in arrays
        attention, norm2, mlp = (0, 1, 0) if linen else (1, 2, 3)
        yield Rule("embedding/kernel", "embedding/kernel")
        yield Rule("embedding/bias", "embedding/bias")
        yield Rule("cls", "cls")
        positions = [Rule(name, "position/table") for name in (POSITIONS, "pos_embedding")]
        yield from reversed(positions) if apart else positions
        for number, name in ((0, "norm1"), (norm2, "norm2")):
            yield from norm(f"{block}/LayerNorm_{number}", f"encoder/{name}")
        yield from _attention_and_mlp(block, "encoder", attention, mlp)
        yield from norm("Transformer/encoder_norm", "encoder_norm")
        yield Rule("MAPHead_0/probe", "pooling/probe")
        yield from norm("MAPHead_0/LayerNorm_0", "pooling/norm")
        yield from _attention_and_mlp("MAPHead_0", "pooling", 0, 0)
        for name in ("pre_logits", "head"):
            yield Rule(f"{name}/kernel", f"{name}/kernel")
            yield Rule(f"{name}/bias", f"{name}/bias")
        root = arrays["gn_root/scale"].shape if arrays and "gn_root/scale" in arrays else ()
        spread = arrays is None or len(root) == 4
        yield from resnet_units("block{stage1}/unit{unit1}", spread=spread)
        yield Rule("conv_root/kernel", "resnet/conv_root/kernel")
        yield from norm("gn_root", "resnet/gn_root", spread=spread)

    def expresses(self, spec: ModelSpec) -> bool:
        """Whether it is an encoder."""
        return True

    def check(self, spec: ModelSpec) -> None:
        """Raises WeightsError for parts that Google's encoder has not."""
        for key in FOREIGN:
            if (value := getattr(spec.model, key)) != getattr(config.Model(), key):
                said = str(value).lower() if isinstance(value, bool) else config.show(value)
                raise WeightsError(f"model.{key}={said}: Google has no equivalent")


def _encoder(arrays: ArraySpecs) -> tuple[int, int, int]:
    """The number of layers, the hidden width of their MLPs and their heads."""
    stacked = _stacked(arrays)
    block, axes = (STACKED, 1) if stacked else (BLOCK.format(layer=0), 0)
    attention = next((n for n in (0, 1) if f"{block}/{_attention(n)}/query/kernel" in arrays), 0)
    mlp = next((n for n in (0, 3) if f"{block}/MlpBlock_{n}/Dense_0/kernel" in arrays), 0)
    query = array_shape(arrays, f"{block}/{_attention(attention)}/query/kernel", 3 + axes)
    hidden = array_shape(arrays, f"{block}/MlpBlock_{mlp}/Dense_0/kernel", 2 + axes)[-1]
    layers = query[0] if stacked else depth(arrays, r"Transformer/encoderblock_(\d{1,3})/")
    return layers, hidden, query[-2]


def _stacked(arrays: ArraySpecs | None) -> bool:
    """Whether one array holds all layers."""
    return any(name.startswith(f"{STACKED}/") for name in arrays or ())


def _unsaid(model: config.Model, *, headless: bool) -> tuple[str, ...]:
    """The options that names and shapes do not reveal."""
    keys = ["model.activation", "model.gelu", "model.norm_epsilon"]
    if model.pooling == "gap":
        keys.insert(0, "model.pooling")
    if model.position != "learned_1d":
        keys.append("model.position")
    if model.representation_size is not None:
        keys.append("model.representation_activation")
    if model.resnet_units is not None:
        keys.append("model.resnet_epsilons")
    return (*keys, *PIXELS, *([] if headless else [SOFTMAX]))


def units(arrays: ArraySpecs, pattern: str) -> tuple[int, ...]:
    """The units of every stage of a ResNet; raises WeightsError if one is missing.

    Args:
      arrays: arrays of the file.
      pattern: matches the start of unit names; its groups are stage and unit, from 1.
    """
    found: dict[int, int] = {}
    for name in arrays:
        if match := re.match(pattern, name):
            stage, unit = int(match[1]), int(match[2])
            found[stage] = max(found.get(stage, 0), unit)
    if set(found) != set(range(1, len(found) + 1)) or len(found) > 4:
        raise WeightsError(f"its ResNet has the stages {sorted(found)}, not 1, 2, ... up to 4")
    return tuple(found[stage] for stage in sorted(found))


def resnet_units(unit: str, *, spread: bool) -> Iterator[Rule]:
    """Yields the rules of a ResNet's units."""
    for conv in ("conv1", "conv2", "conv3", "conv_proj"):
        yield Rule(f"{unit}/{conv}/kernel", f"resnet/unit/{conv}/kernel")
    for name in ("gn1", "gn2", "gn3", "gn_proj"):
        yield from norm(f"{unit}/{name}", f"resnet/unit/{name}", spread=spread)


def norm(source: str, target: str, *, spread: bool = False) -> Iterator[Rule]:
    """Yields the rules of a norm, its numbers stored as (C,), or `spread` as (1, 1, 1, C)."""
    for part in ("scale", "bias"):
        yield Rule(f"{source}/{part}", f"{target}/{part}", SPREAD if spread else SAME)


def _attention(number: int) -> str:
    return f"MultiHeadDotProductAttention_{number}"


def _attention_and_mlp(source: str, target: str, attention: int, mlp: int) -> Iterator[Rule]:
    for part in ("kernel", "bias"):
        for name in ("query", "key", "value", "out"):
            yield Rule(
                f"{source}/{_attention(attention)}/{name}/{part}",
                f"{target}/attention/{name}/{part}",
            )
        for number, name in ((0, "fc1"), (1, "fc2")):
            yield Rule(
                f"{source}/MlpBlock_{mlp}/Dense_{number}/{part}", f"{target}/mlp/{name}/{part}"
            )
