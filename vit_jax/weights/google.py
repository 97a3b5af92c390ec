"""Google's Vision Transformers and hybrids: .npz files of vision_transformer and big_vision.

Files written before Flax Linen count all submodules of a block together (LayerNorm_0,
MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3), later ones count each kind by itself.
With `scan=True`, big_vision stacks the layers: one array for all of them.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from vit_jax import config, models
from vit_jax.weights.mapping import (
    HEADLESS,
    SAME,
    SOFTMAX,
    SPREAD,
    Facts,
    Hints,
    Layout,
    Rule,
    array_shape,
    depth,
)
from vit_jax.weights.position_grid import size_of_positions
from vit_jax.weights.readers import Arrays, Spec, WeightsError

BLOCK, STACKED = "Transformer/encoderblock_{layer}", "Transformer/encoderblock"
POSITIONS = "Transformer/posembed_input/pos_embedding"
DROPPED = (
    (r"opt/(?!target/).*|(?:.*/)?(?:step|rng)", "of the optimizer, not of the model"),
    (r"chrono/.*", "of big_vision's clock, not of the model"),
    (r"(?:params/)?(?:txt/.*|t|b)", "of the text tower and the loss"),
)
CODE = "as in Google's code; the file does not say"
PIXELS = ("data.mean", "data.std", "data.resampling", "data.eval_crop")


def recognizes(arrays: Arrays) -> bool:
    """Returns whether the arrays are an encoder of this format, or of no other known one."""
    return any(name.startswith("Transformer/") for name in arrays.specs)


def facts(arrays: Arrays, hints: Hints) -> Facts:
    """Infers the model from names and shapes; raises WeightsError."""
    specs = arrays.specs
    height, width, channels, features = array_shape(specs, "embedding/kernel", 4)
    layers, hidden, heads = _encoder(specs)
    table = next((n for n in (POSITIONS, "pos_embedding") if n in specs), None)
    pre_logits = "pre_logits/kernel" in specs
    pooling = "token" if "cls" in specs else "gap"
    headless = not {"head/kernel", "head/bias"} & specs.keys()
    model = config.Model(
        patch_size=(height, width),
        width=features,
        depth=layers,
        mlp_dim=hidden,
        heads=heads,
        num_classes=1 if headless else array_shape(specs, "head/kernel", 2)[1],
        patch_remainder="drop",
        pooling="map" if "MAPHead_0/probe" in specs else pooling,
        position="sincos_2d" if table is None else "learned_1d",
        # big_vision adds positions before it prepends the class token.
        class_position=pooling == "gap" or table != "pos_embedding",
        representation_size=array_shape(specs, "pre_logits/kernel", 2)[1] if pre_logits else None,
    )
    if "conv_root/kernel" in specs:
        model = dataclasses.replace(
            model,
            resnet_units=units(arrays, r"block(\d{1,2})/unit(\d{1,2})/"),
            resnet_width=array_shape(specs, "conv_root/kernel", 4)[3] / 64,
        )
        channels = array_shape(specs, "conv_root/kernel", 4)[2]
    model = models.complete(model)
    size, assumed = hints.image_size, {}
    if table is not None:
        patches = array_shape(specs, table, 3)[1] - models.has_class_position(model)
        size, assumed = size_of_positions(model, patches, hints.image_size)
    if size is None:
        raise WeightsError(
            "contains no position embeddings; "
            "give the image size: --config.data.image_size=HEIGHT,WIDTH"
        )
    return Facts(
        model=model,
        data=config.Data(image_size=size, channels=channels, eval_crop="resize"),
        assumed=assumed | dict.fromkeys(_unsaid(model, headless=headless), CODE),
        fresh={"head/kernel": HEADLESS, "head/bias": HEADLESS} if headless else {},
    )


def _encoder(specs: Mapping[str, Spec]) -> tuple[int, int, int]:
    """Returns the number of layers, the hidden width of their MLPs and their heads."""
    stacked = _stacked(specs)
    block, axes = (STACKED, 1) if stacked else (BLOCK.format(layer=0), 0)
    attention = next((n for n in (0, 1) if f"{block}/{_attention(n)}/query/kernel" in specs), 0)
    mlp = next((n for n in (0, 3) if f"{block}/MlpBlock_{n}/Dense_0/kernel" in specs), 0)
    query = array_shape(specs, f"{block}/{_attention(attention)}/query/kernel", 3 + axes)
    hidden = array_shape(specs, f"{block}/MlpBlock_{mlp}/Dense_0/kernel", 2 + axes)[-1]
    layers = query[0] if stacked else depth(specs, r"Transformer/encoderblock_(\d{1,3})/")
    return layers, hidden, query[-2]


def _stacked(specs: Mapping[str, Spec] | None) -> bool:
    """Returns whether the layers of an encoder are stacked."""
    return any(name.startswith(f"{STACKED}/") for name in specs or ())


def _unsaid(model: config.Model, *, headless: bool) -> tuple[str, ...]:
    """Returns the options that names and shapes do not reveal."""
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


def units(arrays: Arrays, pattern: str) -> tuple[int, ...]:
    """Returns the units of every stage of a ResNet; raises WeightsError if one is missing.

    Args:
      arrays: arrays of the file.
      pattern: matches the start of unit names; its groups are stage and unit, from 1.
    """
    found: dict[int, int] = {}
    for name in arrays.specs:
        if match := re.match(pattern, name):
            stage, unit = int(match[1]), int(match[2])
            found[stage] = max(found.get(stage, 0), unit)
    if set(found) != set(range(1, len(found) + 1)) or len(found) > 4:
        raise WeightsError(f"its ResNet has the stages {sorted(found)}, not 1, 2, ... up to 4")
    return tuple(found[stage] for stage in sorted(found))


def rules(specs: Mapping[str, Spec] | None, facts: Facts) -> list[Rule]:
    """Returns the rules to read a file with these arrays, or to write one (None)."""
    # Written are the names of the published files, those before Linen; big_vision's for what
    # only big_vision has.
    model = facts.model
    apart = model.pooling == "map" or model.position != "learned_1d"
    apart = apart or (models.has_class_token(model) and not model.class_position)
    block = STACKED if _stacked(specs) else BLOCK
    linen = (
        apart if specs is None else f"{block.format(layer=0)}/{_attention(0)}/query/kernel" in specs
    )
    attention, norm2, mlp = (0, 1, 0) if linen else (1, 2, 3)
    positions = [Rule(name, "position/table") for name in (POSITIONS, "pos_embedding")]
    return [
        Rule("embedding/kernel", "embedding/kernel"),
        Rule("embedding/bias", "embedding/bias"),
        Rule("cls", "cls"),
        *(reversed(positions) if apart else positions),
        *_block(block, "encoder", attention, norm2, mlp),
        Rule("Transformer/encoder_norm/scale", "encoder_norm/scale"),
        Rule("Transformer/encoder_norm/bias", "encoder_norm/bias"),
        Rule("MAPHead_0/probe", "pooling/probe"),
        Rule("MAPHead_0/LayerNorm_0/scale", "pooling/norm/scale"),
        Rule("MAPHead_0/LayerNorm_0/bias", "pooling/norm/bias"),
        *_attention_and_mlp("MAPHead_0", "pooling", 0, 0),
        Rule("pre_logits/kernel", "pre_logits/kernel"),
        Rule("pre_logits/bias", "pre_logits/bias"),
        Rule("head/kernel", "head/kernel"),
        Rule("head/bias", "head/bias"),
        *resnet("block{stage1}/unit{unit1}", spread=_spread(specs)),
        Rule("conv_root/kernel", "resnet/conv_root/kernel"),
        *norm("gn_root", "resnet/gn_root", spread=_spread(specs)),
    ]


def resnet(unit: str, *, spread: bool) -> Iterator[Rule]:
    """Yields the rules of a ResNet's units."""
    for conv in ("conv1", "conv2", "conv3", "conv_proj"):
        yield Rule(f"{unit}/{conv}/kernel", f"resnet/unit/{conv}/kernel")
    for name in ("gn1", "gn2", "gn3", "gn_proj"):
        yield from norm(f"{unit}/{name}", f"resnet/unit/{name}", spread=spread)


def norm(theirs: str, ours: str, *, spread: bool) -> Iterator[Rule]:
    """Yields the rules of a GroupNorm, its numbers stored as (1, 1, 1, C) or as (C,)."""
    for part in ("scale", "bias"):
        yield Rule(f"{theirs}/{part}", f"{ours}/{part}", SPREAD if spread else SAME)


def _spread(specs: Mapping[str, Spec] | None) -> bool:
    return specs is None or ("gn_root/scale" in specs and len(specs["gn_root/scale"].shape) == 4)


def _attention(number: int) -> str:
    return f"MultiHeadDotProductAttention_{number}"


def _block(theirs: str, ours: str, attention: int, norm2: int, mlp: int) -> Iterator[Rule]:
    for number, name in ((0, "norm1"), (norm2, "norm2")):
        for part in ("scale", "bias"):
            yield Rule(f"{theirs}/LayerNorm_{number}/{part}", f"{ours}/{name}/{part}")
    yield from _attention_and_mlp(theirs, ours, attention, mlp)


def _attention_and_mlp(theirs: str, ours: str, attention: int, mlp: int) -> Iterator[Rule]:
    for part in ("kernel", "bias"):
        for name in ("query", "key", "value", "out"):
            yield Rule(
                f"{theirs}/{_attention(attention)}/{name}/{part}",
                f"{ours}/attention/{name}/{part}",
            )
        for number, name in ((0, "fc1"), (1, "fc2")):
            yield Rule(
                f"{theirs}/MlpBlock_{mlp}/Dense_{number}/{part}", f"{ours}/mlp/{name}/{part}"
            )


LAYOUT = Layout("google", recognizes, facts, rules, DROPPED)
