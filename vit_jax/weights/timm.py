"""timm's Vision Transformers, hybrids and BiT ResNets: state dicts, and the folders of its hub.

patch_embed.proj, blocks.0.attn.qkv, norm, head      Vision Transformer
patch_embed.backbone.stages.0.blocks.0.conv1, ...    with post-activation units below: a hybrid
stem.conv, stages.0.blocks.0.conv1, norm, head.fc    Big Transfer's ResNet, pre-activation

Files of Meta's DINOv2 have the same names but for register_tokens, and for mlp.w12 and mlp.w3 where
the MLP is SwiGLU.

Names and shapes do not reveal the number of heads, the activation, the pooling or the
preprocessing. The config.json of a folder mostly does; assumptions made without it are reported.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vit_jax import config, models
from vit_jax.weights import bit, timm_config, timm_eva, timm_kinds
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import (
    CONVOLUTION,
    HEADLESS,
    Facts,
    Form,
    Hints,
    Layout,
    Rule,
    array_shape,
    depth,
    linear,
)
from vit_jax.weights.position_grid import size_of_positions
from vit_jax.weights.readers import Arrays, Spec, WeightsError
from vit_jax.weights.timm_kinds import Kind
from vit_jax.weights.torch_rules import biasless, dense, hidden, mlp, norm, parts, registers, swiglu

# Dense layers, and our names of those that lack a bias where it is missing.
QKV = {"blocks.0.attn.qkv": ("query", "key", "value")}
BIASES = {
    "patch_embed.proj": ("patches",),
    "blocks.0.attn.proj": ("out",),
    "blocks.0.mlp.fc1": ("mlp",),
}
BACKBONE = "patch_embed.backbone."
REGISTERS = ("reg_token", "register_tokens", timm_kinds.META)  # of timm and of Meta
SCALES = {"blocks.0.ls1.gamma", "blocks.0.gamma_1"}  # of timm, and of Meta's DeiT-III
# The head of a ResNet is a 1 x 1 convolution.
PIXEL = Form(
    lambda shape: (shape[1], shape[0], 1, 1),
    lambda array, _: array[:, :, 0, 0].T,
    lambda array: array.T[:, :, None, None],
)
# Unsupported features of timm models, by patterns of names.
FOREIGN = (
    (r".*\.attn\.[qv]_bias", "biases of queries and values only"),
    (r"(?!blocks\.).*\.[qk]_norm\..*", "normalized queries and keys in its pooling"),
    (r".*\.relative_position_bias_table|.*\.rel_pos.*|rel_pos.*", "relative positions"),
    (r".*rope.*|.*freqs.*", "rotary positions"),
    (r".*\.running_mean", "BatchNorm"),
    (r"(patch_embed\.backbone\.)?(stem\.)?conv2\..*", "a stem of several convolutions"),
    (r"attn_pool\.pos_embed", "positions in its attention pooling"),
    (
        r"blocks\.\d+\.(attns|ffns|in_proj|in_split|mlp_out_proj).*",
        "parallel branches in its layers",
    ),
    (r"blocks\.\d+\.attn\.lambda_.*", "differential attention"),
)
# The same by what is missing.
LACKING = (
    ("with no norm after its last layer",
     lambda specs: not {"norm.weight", "fc_norm.weight"} & specs.keys()),
    ("with RMSNorm or LayerNorms without a bias",
     lambda specs: "blocks.0.norm1.weight" in specs and "blocks.0.norm1.bias" not in specs),
    ("with a SwiGLU of another kind, without biases",
     lambda specs: "blocks.0.mlp.fc1_g.weight" in specs and "blocks.0.mlp.fc1_g.bias" not in specs),
    ("with no MLP by names that are known (blocks.0.mlp.fc1)",
     lambda specs: not any(f"blocks.0.mlp.{n}.weight" in specs
                           for n in ("fc1", "fc1_g", "w12", "w1", "gate_proj", "weights_in"))),
)  # fmt: skip


def recognizes(arrays: Arrays) -> bool:
    """Returns whether the arrays are a state dict of this kind."""
    names = arrays.specs
    vit = "patch_embed.proj.weight" in names and any(n.startswith("blocks.0.") for n in names)
    return vit or any(name.startswith("stages.0.blocks.0.") for name in names)


def facts(arrays: Arrays, hints: Hints) -> Facts:
    """Infers the model from names, shapes and config.json; raises WeightsError."""
    specs = arrays.specs
    given = timm_config.read(hints)
    if "patch_embed.proj.weight" not in specs:
        _check_features(specs)
        timm_config.check_arguments(given, None)
        return _resnet(specs, given, hints)
    # What arrays show is a better reason than an unknown name.
    _check_features(name for name in specs if not timm_eva.OWN.fullmatch(name))
    if lacking := next((what for what, lacks in LACKING if lacks(specs)), ""):
        raise WeightsError(f"contains a model {lacking}, which is not supported")
    kind = timm_kinds.recognize(specs, given)
    if not kind.eva:
        _check_features(specs)
    timm_config.check_arguments(given, kind)
    return _transformer(specs, given, hints, kind)


def _check_features(names: Iterable[str]) -> None:
    """Raises WeightsError for arrays of what no model here has."""
    names = list(names)
    for pattern, feature in FOREIGN:
        if any(re.fullmatch(pattern, name) for name in names):
            raise WeightsError(f"contains a model with {feature}, which is not supported")


def _transformer(specs: Mapping[str, Spec], given: Given, hints: Hints, family: Kind) -> Facts:
    width, channels, *patch = array_shape(specs, "patch_embed.proj.weight", 4)
    hybrid = _root(specs)
    token = "cls_token" in specs
    kind, features = hidden(specs, "blocks.0.mlp")
    eva = family.eva
    usual = family.heads if eva else timm_config.usual_heads(gated=kind == "swiglu")
    heads, assumed = timm_config.heads(given, width, hints.heads, usual)
    options: dict[str, Any] = {"biasless": biasless(specs, BIASES | QKV)}
    if eva:
        options, unsaid = timm_eva.options(specs, given, family)
        options["biasless"] = (*timm_eva.biasless(specs), *biasless(specs, BIASES))
        assumed |= unsaid
    distilled = "dist_token" in specs
    pooling, unsaid = _pooling(specs, given, family)
    placed = "pos_embed" in specs or bool(set(timm_kinds.TABLES.values()) & specs.keys())
    assumed |= unsaid | timm_config.unsaid(given, family, gated=kind == "swiglu", placed=placed)
    headless = "head.weight" not in specs
    ends = ("head", "head_dist") if pooling == "distilled" else ("head",)
    lacking = {f"{end}/{part}": HEADLESS for end in ends for part in ("kernel", "bias")}
    pre_logits = "pre_logits.fc.weight" in specs
    model = models.complete(
        config.Model(
            patch_size=(patch[0], patch[1]),
            width=width,
            depth=depth(specs, r"blocks\.(\d{1,3})\."),
            mlp_dim=features,
            mlp=kind,
            heads=heads,
            layer_scale=timm_config.layer_scale(given) if SCALES & specs.keys() else None,
            distillation=distilled,
            registers=registers(specs, *REGISTERS),
            num_classes=1 if headless else array_shape(specs, "head.weight", 2)[0],
            patch_remainder="drop",
            pooling=pooling,
            class_token=None if token == (pooling == "token") else token,
            stem_norm="norm_pre.weight" in specs,
            sub_norm=timm_eva.sub_norm(specs),
            qk_norm="blocks.0.attn.q_norm.weight" in specs,
            norm_epsilon=family.epsilon,
            norm_place="pooled" if "fc_norm.weight" in specs else "tokens",
            position="learned_1d" if "pos_embed" in specs else "none",
            position_resize=_position_resize(specs),
            representation_size=(
                array_shape(specs, "pre_logits.fc.weight", 2)[0] if pre_logits else None
            ),
            **timm_config.activation(given, gated=kind == "swiglu", pooling=pooling),
            **(_units(specs, hybrid) if hybrid else {}),
            **options,
        )
    )
    if hybrid:
        channels = array_shape(specs, f"{hybrid}conv.weight", 4)[1]
    said = timm_config.image_size(given)
    if eva and "pos_embed" not in specs:
        said, unsaid = timm_eva.image_size(specs, family, patch, (said, hints.image_size))
        assumed |= unsaid
    size, class_position, guessed = _image_size(specs, model, (said, hints.image_size))
    data, unsaid = timm_config.data(given, size, channels, family)
    return Facts(
        model=dataclasses.replace(model, class_position=class_position),
        data=data,
        classes=() if headless else timm_config.classes(given, model.num_classes or 0),
        loss=timm_config.loss(given),
        assumed=assumed | guessed | unsaid,
        fresh=lacking if headless else {},
    )


def _position_resize(specs: Mapping[str, Spec]) -> str:
    """The way of resizing positions: timm's, or that of Meta's DINOv2 without registers."""
    if "pos_embed" not in specs and not any("relative_position_bias" in name for name in specs):
        return config.Model().position_resize  # there is nothing to resize
    meta = "mask_token" in specs and "pos_embed" in specs and "register_tokens" not in specs
    return "bicubic_offset" if meta and "blocks.0.ls1.gamma" in specs else "antialiased_bicubic"


def _pooling(specs: Mapping[str, Spec], given: Given, family: Kind) -> tuple[str, dict[str, str]]:
    """Returns the pooling and the assumptions made; raises WeightsError."""
    if "attn_pool.latent" in specs:
        return "map", {}
    if "dist_token" in specs:
        return "distilled", {}
    token = "cls_token" in specs
    natural = "avg" if "fc_norm.weight" in specs or not token else family.pooling
    if timm_kinds.META in specs:  # whose own code reads the class token
        natural = "token"
    said = timm_config.pooling(given)
    kind = said or natural
    known = timm_config.POOLING
    if kind not in known:
        raise WeightsError(f"global_pool={kind}: only {', '.join(known)} are supported")
    if kind == "map":
        raise WeightsError("global_pool=map: attn_pool.latent is missing")
    if not token and kind == "token":
        raise WeightsError("global_pool=token: cls_token is missing")
    default = family.unsaid if family.eva else timm_config.DEFAULT
    return known[kind], {} if said or "architecture" in given else {"model.pooling": default}


Size = tuple[int, int]


def _image_size(
    specs: Mapping[str, Spec], model: config.Model, sizes: tuple[Size | None, Size | None]
) -> tuple[Size, bool, dict[str, str]]:
    """Returns the image size of the positions, whether the class token has one, and assumptions.

    Args:
      specs: arrays of the file.
      model: complete.
      sizes: image sizes from config.json and from the caller. The first with equally many patches
        counts; otherwise the grid is square.
    """
    given = next((size for size in sizes if size is not None), None)
    if "pos_embed" not in specs:
        if given is None:
            raise WeightsError(
                "contains no position embeddings; "
                "give the image size: --config.data.image_size=HEIGHT,WIDTH"
            )
        return given, True, {}
    rows = array_shape(specs, "pos_embed", 3)[1]
    token = models.has_class_token(model)
    before = token + model.distillation
    counts = (rows - before, rows) if token else (rows,)  # the latter with no_embed_class
    for size in sizes:
        if size is not None and (patches := math.prod(models.grid(model, size))) in counts:
            return size, not token or patches < rows, {}
    squares = [count for count in counts if count and math.isqrt(count) ** 2 == count]
    own = rows - token - model.registers  # if registers had positions of their own
    if model.registers and not squares and own > 0 and math.isqrt(own) ** 2 == own:
        raise WeightsError("contains positions of its register tokens, which is not supported")
    patches = (squares or counts)[0]
    size, assumed = size_of_positions(model, patches, given)
    apart = token and patches == rows
    if apart:
        assumed |= {"model.class_position": f"{rows} positions are a square without it"}
    return size, not apart, assumed


def _root(specs: Mapping[str, Spec]) -> str:
    """Returns the name prefix of a hybrid's root convolution; empty without one."""
    roots = (f"{BACKBONE}stem.", BACKBONE)  # the latter where it is no more than a stem
    return next((root for root in roots if f"{root}conv.weight" in specs), "")


def _units(specs: Mapping[str, Spec], root: str) -> dict[str, Any]:
    """Returns the options of a ResNet whose root convolution follows `root`."""
    stages = re.escape(root.removesuffix("stem."))
    counts = (
        depth(specs, rf"{stages}stages\.{stage}\.blocks\.(\d{{1,3}})\.")
        for stage in itertools.count()
    )
    return {
        "resnet_units": tuple(itertools.takewhile(bool, counts)),
        "resnet_width": array_shape(specs, f"{root}conv.weight", 4)[0] / 64,
        "resnet_epsilons": "timm",
    }


def _resnet(specs: Mapping[str, Spec], given: Given, hints: Hints) -> Facts:
    if not {"stem.conv.weight", "norm.weight"} & specs.keys():
        raise WeightsError("contains neither a Vision Transformer nor a BiT ResNet of timm")
    channels = array_shape(specs, "stem.conv.weight", 4)[1]
    if "norm.weight" not in specs or "stem.norm.weight" in specs:
        raise WeightsError(
            "contains a ResNet with post-activation units, which timm uses only in hybrids"
        )
    timm_config.check_resnet(given)
    headless = "head.fc.weight" not in specs
    classes = 1 if headless else array_shape(specs, "head.fc.weight", 4)[0]
    model = config.Model(
        architecture="resnet", num_classes=classes, resnet_version="v2", **_units(specs, "stem.")
    )
    size = timm_config.image_size(given) or hints.image_size
    data, assumed = timm_config.data(given, size or (224, 224), channels)
    return Facts(
        model=models.complete(model),
        data=data,
        classes=() if headless else timm_config.classes(given, classes),
        loss=timm_config.loss(given),
        assumed=assumed if size else assumed | bit.SIZE,
        fresh={"head/kernel": HEADLESS, "head/bias": HEADLESS} if headless else {},
    )


def rules(specs: Mapping[str, Spec] | None, facts: Facts) -> list[Rule]:
    """Returns the rules to read a state dict with these arrays, or to write one (None)."""
    if models.family(facts.model).weights == "bit":
        return [
            *_convolutions("stem.", ""),
            *norm("norm", "resnet/gn_final"),
            Rule("head.fc.weight", "head/kernel", PIXEL),
            Rule("head.fc.bias", "head/bias"),
        ]
    if facts.model.heads is None:
        raise WeightsError(
            f"does not say how many heads its layers of width {facts.model.width} have; "
            "give them: --config.model.heads=3, say"
        )
    root = f"{BACKBONE}stem." if facts.model.resnet_units else BACKBONE
    last = "fc_norm" if facts.model.norm_place == "pooled" else "norm"
    block = "blocks.{layer}"
    return [
        *_convolutions(root, BACKBONE),
        *(timm_eva.rules(block, facts.model) if _is_eva(specs, facts.model) else ()),
        *timm_eva.inner_norms(block),
        Rule("cls_token", "cls"),
        Rule("dist_token", "distillation"),
        *dense("head_dist", "head_dist"),
        *(Rule(name, "registers") for name in REGISTERS),
        Rule("pos_embed", "position/table"),
        Rule("patch_embed.proj.weight", "embedding/kernel", CONVOLUTION),
        Rule("patch_embed.proj.bias", "embedding/bias"),
        *norm("norm_pre", "stem_norm"),
        *norm(f"{block}.norm1", "encoder/norm1"),
        *norm(f"{block}.norm2", "encoder/norm2"),
        *parts(f"{block}.attn.qkv", "encoder/attention", ("query", "key", "value")),
        *norm(f"{block}.attn.q_norm", "encoder/attention/query_norm"),
        *norm(f"{block}.attn.k_norm", "encoder/attention/key_norm"),
        *dense(f"{block}.attn.proj", "encoder/attention/out", linear(2)),
        *_block_mlp(facts.model)(f"{block}.mlp", "encoder/mlp"),
        *(Rule(f"{block}.ls{n}.gamma", f"encoder/scale{n}/scale") for n in (1, 2)),
        *(Rule(f"{block}.gamma_{n}", f"encoder/scale{n}/scale") for n in (1, 2)),
        *norm(last, "encoder_norm"),
        Rule("attn_pool.latent", "pooling/probe"),
        *parts("attn_pool.q", "pooling/attention", ("query",)),
        *parts("attn_pool.kv", "pooling/attention", ("key", "value")),
        *dense("attn_pool.proj", "pooling/attention/out", linear(2)),
        *norm("attn_pool.norm", "pooling/norm"),
        *mlp("attn_pool.mlp", "pooling/mlp"),
        *dense("pre_logits.fc", "pre_logits"),
        *dense("head", "head"),
    ]


def _is_eva(specs: Mapping[str, Spec] | None, model: config.Model) -> bool:
    """Returns whether a state dict is one of `timm_eva`, or (None) is to be written as one."""
    return bool(timm_eva.written_kind(model)) or any(map(timm_eva.OWN.fullmatch, specs or ()))


def _block_mlp(model: config.Model) -> Callable[[str, str], Iterator[Rule]]:
    """Returns what yields the rules of a layer's MLP."""
    return swiglu if model.mlp == "swiglu" else mlp


def _convolutions(root: str, stages: str) -> Iterator[Rule]:
    """Yields the rules of a ResNet up to its last unit."""
    yield Rule(f"{root}conv.weight", "resnet/conv_root/kernel", CONVOLUTION)
    yield from norm(f"{root}norm", "resnet/gn_root")
    yield from units(f"{stages}stages.{{stage}}.blocks.{{unit}}")


def units(theirs: str) -> Iterator[Rule]:
    """Yields the rules of a ResNet's units, shared with Hugging Face."""
    ours = "resnet/unit"
    for number in (1, 2, 3):
        yield Rule(f"{theirs}.conv{number}.weight", f"{ours}/conv{number}/kernel", CONVOLUTION)
        yield from norm(f"{theirs}.norm{number}", f"{ours}/gn{number}")
    yield Rule(f"{theirs}.downsample.conv.weight", f"{ours}/conv_proj/kernel", CONVOLUTION)
    yield from norm(f"{theirs}.downsample.norm", f"{ours}/gn_proj")


DROPPED = (
    (r"mask_token|decoder_.*", "of masked image modeling"),
    *timm_eva.DROPPED,
    (r"text\..*|logit_scale|logit_bias", "of the text tower and the loss"),
)
LAYOUT = Layout("timm", recognizes, facts, rules, DROPPED)
