"""timm's VisionTransformer: ViT, DeiT, CLIP, SigLIP, DINOv2 and others, and hybrids with a ResNet.

patch_embed.proj, blocks.0.attn.qkv, norm, head      Vision Transformer
patch_embed.backbone.stages.0.blocks.0.conv1, ...    with post-activation units below: a hybrid

Files of Meta's DINOv2 have the same names but for register_tokens, and for mlp.w12 and mlp.w3 where
the MLP is SwiGLU.

Names and shapes do not reveal the number of heads, the activation, the pooling or the
preprocessing. The config.json of a folder mostly does; assumptions made without it are reported.
Nor do they tell some families from others that compute something else: norms after attention and
MLP, other rotary positions. So timm's architectures are accepted by name, and of a file without a
name everything that its arrays leave open is an assumption.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from vit_jax import config, models
from vit_jax.models import variants
from vit_jax.models.classifier import OBJECTIVE
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import Arrays, ArraySpec, WeightsError
from vit_jax.weights.families import timm, torch_rules
from vit_jax.weights.families.torch_rules import QKV, SWIGLU, Names
from vit_jax.weights.family import (
    CLIP,
    HALF,
    HEADLESS,
    IMAGENET,
    NO_HEAD,
    NO_SIZE,
    Fields,
    Files,
    Hints,
    Pixels,
    refuse,
    refuse_options,
    refuse_other_model,
    set_otherwise,
)
from vit_jax.weights.mapping import (
    ArraySpecs,
    ModelSpec,
    Rule,
    Shapes,
    Size,
    array_shape,
    decoder_positions,
    size_of_positions,
)

Assumed = dict[str, str]  # what is assumed, and why

SIZES = (
    r"vit_(?:tiny|wee|xsmall|small|little|medium|mediumd|betwixt|base|large|huge|giant|giantopt|"
    r"gigantic|so150m2?|so400m)"
)
# Heads are 64 wide, except in models of these widths, or with SwiGLU in DINOv2's giant.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
GATED_HEADS = {1536: 24}
# Models whose attention heads have an unusual width.
NAMED_HEADS = {
    "test_vit": 2,
    "test_vit2": 2,
    "test_vit3": 3,
    "vit_base_patch16_gap_224": 16,
    "vit_giant_patch16_radio_v3": 24,
}
# SigLIP 2 models with a width or patch size that SigLIP lacks.
TANH = (
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip.*|vit_large_patch16_siglip.*512|"
    r"naflexvit_.*_siglip"
)
# Activations by timm's name; of several names, exports use the first.
ACTIVATIONS = {
    "gelu": {"gelu": "erf"},
    "gelu_erf": {"gelu": "erf"},
    "gelu_tanh": {"gelu": "tanh"},
    "silu": {"activation": "silu"},
    "swish": {"activation": "silu"},
    "relu": {"activation": "relu"},
    "quick_gelu": {"gelu": "quick"},
}
POOLING = {"token": "token", "avg": "gap", "max": "max", "avgmax": "gap_max", "map": "map"}
# What Meta's linear classifiers read, by the number of vectors: pooling and model.pooled_layers.
JOINED = {2: ("token_gap", 1), 4: ("token", 4), 5: ("token_gap", 4)}
NORMS = {"fc_norm.weight": "pooled", "norm.weight": "tokens"}  # model.norm_place by array
NORMS_FIRST = "pre-norm layers"  # assumed, but no option
PLAIN = "vit_base_patch16_224"  # whose arguments give any size
# Whose ResNets have no such arguments in timm.
HYBRIDS: dict[tuple[tuple[int, ...], float], str] = {
    ((), 1): "vit_tiny_r_s16_p8_224",
    ((2, 2, 2, 2), 1): "vit_small_r26_s32_224",
    ((3, 4, 9), 1): "vit_base_r50_s16_224",
    ((3, 4, 6, 3), 1): "vit_large_r50_s32_224",
}
# Preprocessing of published weights that differs from others of their kind, by name.
NAMED_PIXELS: tuple[tuple[str, Pixels, str], ...] = (
    (r"beitv2_.*", IMAGENET, "BEiT v2"),
    (r"eva_giant_patch14_560.*", IMAGENET, "EVA at 560 pixels"),
    (r"eva_large_.*", CLIP, "EVA"),
    (r"vit_betwixt_patch16_rope_.*", CLIP, "timm"),
    (r".*_miil.*", ((0.0,), (1.0,)), "MIIL"),
    (r"vit_(?:giant_patch16|huge_patch1[46])_gap_.*", IMAGENET, "I-JEPA"),
    (r"vit_small_patch8_224|.*[._]dino", IMAGENET, "DINO"),
    (r".*[._]mae", IMAGENET, "MAE"),
)
# Architectures whose arrays look like another's: why each is refused.
OTHERWISE = (
    (r".*_rpn_.*|eva02_enormous_.*", "its layers normalize after attention and MLP, not before"),
)
NEVER = "(?!)"
FREQUENCIES = "rope.freqs"  # that the heads of RoPE-ViT's mixed models learn
DECODER_HEADS = 16  # of Meta's decoders, whose files do not say
BACKBONE = "patch_embed.backbone."
META = "storage_tokens"  # registers in Meta's DINOv3
REGISTERS = ("reg_token", "register_tokens", META)  # of timm and of Meta
SCALES = {"blocks.0.ls1.gamma", "blocks.0.gamma_1"}  # of timm, and of Meta's DeiT-III
# Arrays of timm's Eva and Beit that would make a VisionTransformer one of no known kind.
OF_EVA = re.compile(
    r"blocks\.\d+\.attn\.([qv]_bias|relative_position_bias_table)|rope_embed\.periods|"
    r"rope\.freqs|"
    r"rel_pos_bias\.relative_position_bias_table"
)
TABLES = {  # biases of attention by offset
    "layers": "blocks.0.attn.relative_position_bias_table",
    "shared": "rel_pos_bias.relative_position_bias_table",
}
# Unsupported features of timm.
NO_LAST_NORM = "with no norm after its last layer"
BIASLESS_NORM = "with RMSNorm or LayerNorms without a bias"
BIASLESS_GATE = "with a SwiGLU of another kind, without biases"
LACKING = (
    (NO_LAST_NORM,
     lambda arrays: not {"norm.weight", "fc_norm.weight"} & arrays.keys()),
    (BIASLESS_NORM,
     lambda arrays: "blocks.0.norm1.weight" in arrays and "blocks.0.norm1.bias" not in arrays),
    (BIASLESS_GATE,
     lambda arrays: ("blocks.0.mlp.fc1_g.weight" in arrays
                     and "blocks.0.mlp.fc1_g.bias" not in arrays)),
    ("with no MLP by names that are known (blocks.0.mlp.fc1)",
     lambda arrays: not any(f"blocks.0.mlp.{n}.weight" in arrays
                            for n in ("fc1", "fc1_g", "w12", "w1", "gate_proj", "weights_in"))),
)  # fmt: skip


BLOCK = "blocks.{layer}"
NAMES = (
    ("cls_token", "cls"),
    ("dist_token", "distillation"),
    *((name, "registers") for name in REGISTERS),
    ("pos_embed", "position/table"),
    ("patch_embed.proj", "embedding"),
    *timm.resnet_names(f"{BACKBONE}stem.", BACKBONE),
    (f"{BACKBONE}conv", "resnet/conv_root"),  # where it is no more than a stem
    (f"{BACKBONE}norm", "resnet/gn_root"),
    ("norm_pre", "stem_norm"),
    (f"{BLOCK}.norm1", "encoder/norm1"),
    (f"{BLOCK}.norm2", "encoder/norm2"),
    (f"{BLOCK}.attn.qkv", "encoder/attention/query|key|value"),
    (f"{BLOCK}.attn.q_norm", "encoder/attention/query_norm"),
    (f"{BLOCK}.attn.k_norm", "encoder/attention/key_norm"),
    (f"{BLOCK}.attn.norm", "encoder/attention/sub_norm"),
    (f"{BLOCK}.attn.proj", "encoder/attention/out"),
    (f"{BLOCK}.mlp.norm", "encoder/mlp/sub_norm"),
    *((f"{BLOCK}.ls{n}.gamma", f"encoder/scale{n}/scale") for n in (1, 2)),
    *((f"{BLOCK}.gamma_{n}", f"encoder/scale{n}/scale") for n in (1, 2)),  # of DeiT-III and EVA
    ("fc_norm", "encoder_norm"),
    ("norm", "encoder_norm"),
    ("attn_pool.latent", "pooling/probe"),
    ("attn_pool.q", "pooling/attention/query"),
    ("attn_pool.kv", "pooling/attention/key|value"),
    ("attn_pool.proj", "pooling/attention/out"),
    ("attn_pool.norm", "pooling/norm"),
    *((f"attn_pool.mlp.{name}", f"pooling/mlp/{name}") for name in ("fc1", "fc2")),
    ("pre_logits.fc", "pre_logits"),
    ("head", "head"),
    ("head_dist", "head_dist"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TimmViT(timm.Timm):
    """A kind of ViT: what arrays do not show of it is in the attributes."""

    # Numbers of heads by width, where heads are not 64 wide: with a plain MLP, and with SwiGLU.
    usual_heads: ClassVar[Mapping[int, int]] = HEADS
    gated_heads: ClassVar[Mapping[int, int]] = HEADS | GATED_HEADS
    packs: ClassVar[bool] = True  # whether an export has SwiGLU and its gate in one array
    title: str  # its name in messages
    names: str  # a pattern of its architectures in timm
    # Whether a file that names no architecture is one, by its arrays.
    looks_like: Callable[[ArraySpecs], bool] = lambda arrays: False
    pixels: Pixels = IMAGENET  # mean and deviation of the images that its weights were trained on
    epsilon: float = 1e-6  # of LayerNorm
    pooling: str = "token"  # timm's default where there are a class token and a norm of all tokens
    rotary: float | None = None  # base of its rotary positions
    odd: tuple[str, ...] = ()  # what it has of `LACKING`, which is a mistake in others
    # Arguments with the one value that is supported.
    fixed: Fields = dataclasses.field(default_factory=dict)
    written: str = ""  # the architecture that exports name, whose arguments give any size
    # Whether exports write a model under that name.
    expressed: Callable[[config.Model], bool] = lambda model: False

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        if not timm.is_transformer(arrays):
            return False
        name = timm.architecture(timm.read_fields(files))
        return bool(re.fullmatch(self.names, name)) if name else self.looks_like(arrays)

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        given = timm.read_fields(hints.files)
        arguments = json_fields.section(given, "model_args")
        unnormed = arguments.get("final_norm") is False
        _check_arrays(arrays, (*self.odd, NO_LAST_NORM) if unnormed else self.odd)
        self._check_given(arrays, given)
        shapes = Shapes(arrays, self.rules(arrays, None))
        options = shapes.encoder(("patches", *QKV, "out", "mlp"))
        gated, width = options["mlp"] == "swiglu", options["width"]
        scaled = "encoder/scale1/scale" in shapes.has
        outputs = {} if shapes.headless else {"num_classes": shapes.outputs}
        refuse_other_model(given, outputs)
        refuse_other_model(
            arguments,
            outputs
            | {
                "embed_dim": width,
                "depth": options["depth"],
                "patch_size": options["patch_size"],
                "in_chans": shapes.channels,
                "class_token": "cls" in shapes.has,
                "pre_norm": options["stem_norm"],
                **({} if scaled or not arguments.get("init_values") else {"init_values": None}),
            },
        )
        # Learned frequencies are (axes, layers, heads, d/2).
        told = array_shape(arrays, FREQUENCIES, 4)[2] if FREQUENCIES in arrays else hints.heads
        usual = self.gated_heads if gated else self.usual_heads
        heads, assumed = read_heads(given, width, told, usual)
        more, unsaid = self.options(arrays, given)
        assumed |= unsaid
        pooling, unsaid = self._pooling(arrays, given)
        if not shapes.headless:
            inputs = shapes.shape("head/kernel", 2)[0] // width
            if inputs > 1 and "cls" in shapes.has:
                if inputs not in JOINED:
                    raise WeightsError(
                        f"contains a linear classifier of {inputs} x {width} features, which is "
                        "not supported; those of 2 and 5 (DINOv2), and of 4 (DINO), are"
                    )
                (pooling, options["pooled_layers"]), unsaid = JOINED[inputs], {}
        assumed |= unsaid | self._unsaid(arrays, given, gated=gated)
        if "resnet_units" in options:
            options["resnet_epsilons"] = "timm"
        options |= {
            "heads": heads,
            # Its initial value, which says nothing of the learned ones.
            "layer_scale": (
                (json_fields.real(arguments, "init_values", 1e-5) or 1e-5) if scaled else None
            ),
            "pooling": pooling,
            "norm_epsilon": self.epsilon,
            "norm_place": next((p for n, p in NORMS.items() if n in arrays), "none"),
            "position_resize": _position_resize(arrays),
            **read_activation(given, gated=gated, pooling=pooling),
            **_pooling_heads(arguments, pooling),
            **more,
        }
        model = shapes.model(**options)
        sizes = timm.image_size(given), hints.image_size
        said, unsaid = self.image_size(arrays, options["patch_size"], sizes)
        assumed |= unsaid
        size, class_position, guessed = _image_size(arrays, model, (said, hints.image_size))
        name = json_fields.text(given, "architecture", "")
        pixels, whose = next(
            ((pixels, whose) for names, pixels, whose in NAMED_PIXELS if re.fullmatch(names, name)),
            (self.pixels, self.title),
        )
        whose = "the weights that Google trained" if whose == "ViT" else f"{whose}'s weights"
        data, unsaid = timm.data(given, size, shapes.channels, pixels, whose)
        second = {"head_dist/kernel": HEADLESS, "head_dist/bias": HEADLESS}
        lacking = {**NO_HEAD, **(second if pooling == "distilled" else {})}
        return ModelSpec(
            model=dataclasses.replace(model, class_position=class_position),
            data=data,
            classes=() if shapes.headless else timm.classes(given, shapes.outputs),
            loss=json_fields.loss(given.get("problem_type")),
            assumed=assumed | guessed | unsaid,
            fresh=lacking if shapes.headless else {},
        )

    def prepared(self, arrays: Arrays, hints: Hints) -> Arrays:
        sizes = timm.image_size(timm.read_fields(hints.files)), hints.image_size
        return _without_register_positions(arrays, sizes)

    # What timm's Eva has otherwise

    @property
    def why(self) -> str:
        """Why an option that neither arrays nor config.json give is assumed."""
        return "timm's default; the file does not say"

    def options(self, arrays: ArraySpecs, given: Fields) -> tuple[dict[str, Any], Assumed]:
        """Further options of the model, and the assumptions made."""
        return {}, {}

    def image_size(
        self, arrays: ArraySpecs, patch: list[int], sizes: tuple[Size | None, Size | None]
    ) -> tuple[Size | None, Assumed]:
        """The image size that files say, and the assumptions made."""
        return sizes[0], {}

    def own_names(self, spec: ModelSpec | None) -> Names:
        """Names that precede ViT's: an export takes the first of a parameter."""
        return ()

    def mlp_names(
        self, arrays: ArraySpecs | None, spec: ModelSpec | None
    ) -> Iterable[tuple[str, str]]:
        """Names of the layers of an MLP and, of each, of those here."""
        packed = {"fc1": "gate|fc1", "fc2": "fc2"}
        if spec.model.mlp == "swiglu" if spec else _packs(arrays or {}):
            return (packed | SWIGLU).items()
        return [("fc1", "fc1"), *SWIGLU.items()]

    # Shared by all

    def _check_given(self, arrays: ArraySpecs, given: Fields) -> None:
        timm.check_names(list(arrays))
        timm.check_arguments(given, self.fixed)

    def _pooling(self, arrays: ArraySpecs, given: Fields) -> tuple[str, Assumed]:
        if "attn_pool.latent" in arrays:
            return "map", {}
        if "dist_token" in arrays:
            return "distilled", {}
        token = "cls_token" in arrays
        natural = "avg" if "fc_norm.weight" in arrays or not token else self.pooling
        if META in arrays:  # whose own code reads the class token
            natural = "token"
        said = json_fields.text(json_fields.section(given, "model_args"), "global_pool", "")
        said = said or json_fields.text(given, "global_pool", "")
        kind = said or natural
        if kind not in POOLING:
            raise WeightsError(f"global_pool={kind}: only {', '.join(POOLING)} are supported")
        if kind == "map":
            raise WeightsError("global_pool=map: attn_pool.latent is missing")
        if not token and kind == "token":
            raise WeightsError("global_pool=token: cls_token is missing")
        named = said or "architecture" in given
        return POOLING[kind], {} if named else {"model.pooling": self.why}

    def _unsaid(self, arrays: ArraySpecs, given: Fields, *, gated: bool) -> Assumed:
        """The assumptions about encoder layers if the file names no architecture."""
        if timm.architecture(given):
            return {}
        keys = ["model.norm_epsilon", NORMS_FIRST]
        if not json_fields.section(given, "model_args").get("act_layer"):
            keys = [*(["model.mlp"] if gated else ["model.activation", "model.gelu"]), *keys]
        if self.rotary is None:
            placed = "pos_embed" in arrays or bool(set(TABLES.values()) & arrays.keys())
            keys += ["model.rotary"] if placed else ["model.position", "model.rotary"]
        if "attn_pool.latent" in arrays:
            keys.append("model.pooling_heads")
            if "cls_token" in arrays or registers(arrays) > 0:
                keys.append("model.pooling_prefix")
        return dict.fromkeys(keys, self.why)

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        if spec is not None and spec.model.heads is None:
            raise WeightsError(timm.UNKNOWN_HEADS.format(spec.model.width))
        without: list[str] = []
        if spec is not None:
            without = ["norm" if spec.model.norm_place == "pooled" else "fc_norm"]
            if not spec.model.resnet_units:
                without += [f"{BACKBONE}stem.conv", f"{BACKBONE}stem.norm"]
        mlp = (
            (f"{BLOCK}.mlp.{n}", f"encoder/mlp/{one}") for n, one in self.mlp_names(arrays, spec)
        )
        yield from torch_rules.rules((*self.own_names(spec), *NAMES, *mlp), "", without)

    def expresses(self, spec: ModelSpec) -> bool:
        return self.expressed(spec.model)

    def validate_spec(self, spec: ModelSpec) -> None:
        super().validate_spec(spec)
        model = spec.model
        if model.pooling not in (*POOLING.values(), "distilled", "token_gap"):
            refuse(model, "pooling", "timm has no equivalent")
        joined = model.pooling, model.pooled_layers
        if variants.joins_features(model) and joined not in JOINED.values():
            forms = "token_gap of 1 or 4 layers, token of 4"
            why = f"only the features of Meta's linear classifiers have a form: {forms}"
            refuse(model, "pooled_layers", why)
        if model.stem_norm and "patches" not in model.biasless:
            refuse(model, "biasless", "timm has no bias of patches before model.stem_norm")
        if not model.distillation:
            return
        if model.pooling != "distilled":
            own = "a head of its own (distilled)"
            refuse(model, "pooling", f"timm reads a distillation token with {own}")
        if model.registers:
            refuse(model, "registers", "timm has none beside a distillation token")
        if not model.class_position:
            why = "timm has positions for class and distillation token"
            refuse(model, "class_position", why)

    def files(self, spec: ModelSpec) -> Files:
        model, data = spec.model, spec.data
        if variants.joins_features(model):
            timm.refuse_folder(
                f"model.pooling={model.pooling} model.pooled_layers={model.pooled_layers}"
            )
        name = self.architecture(model)
        width, hidden = model.width or 0, model.mlp_dim or 0
        hidden *= 2 if self.packs and model.mlp == "swiglu" else 1
        pooling = {"distilled": "token"} | {value: key for key, value in POOLING.items()}
        pool = pooling[model.pooling]
        patch = model.patch_size or (1, 1)
        arguments = {
            "img_size": list(data.image_size),
            "patch_size": patch[0] if patch[0] == patch[1] else list(patch),
            "in_chans": data.channels,
            "embed_dim": width,
            "depth": model.depth,
            "num_heads": model.heads,
            "mlp_ratio": mlp_ratio(width, hidden),
            "global_pool": pool,
            **({"qk_norm": True} if model.qk_norm else {}),
            **self.arguments(model),
        }
        first = "patch_embed.proj"
        if model.resnet_units is not None:
            first = f"patch_embed.backbone.{'stem.' * bool(model.resnet_units)}conv"
        last = ["head", "head_dist"] if model.pooling == "distilled" else "head"
        return {
            "config.json": timm.config_json(
                spec, name, pool, arguments, first=first, classifier=last
            )
        }

    def architecture(self, model: config.Model) -> str:
        """The name of an architecture whose arguments give this model; raises WeightsError."""
        if model.resnet_units is None:
            if model.distillation and model.mlp == "swiglu":
                timm.refuse_folder("model.distillation=true with model.mlp=swiglu")
            return self.written
        if model.mlp == "swiglu":
            timm.refuse_folder("model.mlp=swiglu in a hybrid")
        return timm.resnet_architecture(model, HYBRIDS)

    def arguments(self, model: config.Model) -> dict[str, Any]:
        """The arguments from which timm builds a model, besides those that Eva shares."""
        gated = model.mlp == "swiglu"
        gelu = model.activation == "gelu"
        activation = {"gelu": model.gelu} if gelu else {"activation": model.activation}
        name = next(name for name, options in ACTIVATIONS.items() if options == activation)
        # Whether timm's table has a row for the class token, or there is no such token; beside
        # registers, which would have rows too, it has none.
        row = model.class_position or not models.has_class_token(model)
        return {
            **({} if model.distillation else {"class_token": models.has_class_token(model)}),
            "fc_norm": model.norm_place == "pooled",
            **({"final_norm": False} if model.norm_place == "none" else {}),
            # The packed SwiGLU of timm takes whatever activation it is given; only this one makes
            # it SwiGLU.
            "act_layer": "silu" if gated else name,
            **({} if row and not model.registers else {"no_embed_class": True}),
            **({} if model.layer_scale is None else {"init_values": model.layer_scale}),
            **({"reg_tokens": model.registers} if model.registers else {}),
            **({"pre_norm": model.stem_norm} if model.stem_norm or _is_clip(model) else {}),
            **({"scale_attn_norm": True} if "attention" in model.sub_norm else {}),
            **({"scale_mlp_norm": True} if "mlp" in model.sub_norm else {}),
            **({"qkv_bias": False} if "query" in model.biasless else {}),
            **({"proj_bias": False} if "out" in model.biasless else {}),
        }

    def bias_groups(self, spec: ModelSpec) -> tuple[frozenset[str], ...]:
        patches = (frozenset(("patches",)),) if spec.model.stem_norm else ()
        return frozenset(QKV), frozenset(("out", "mlp")), *patches

    def class_rows(self, model: config.Model) -> tuple[bool, ...]:
        return (False,) if model.registers else (True, False)


def _check_arrays(arrays: ArraySpecs, odd: Collection[str] = ()) -> None:
    """Raises WeightsError for arrays of unsupported parts, and for missing ones.

    `odd`: what models of this kind have of `LACKING`.
    """
    timm.check_names([name for name in arrays if not OF_EVA.fullmatch(name)])
    lacking = next((what for what, lacks in LACKING if what not in odd and lacks(arrays)), "")
    if lacking:
        raise WeightsError(f"contains a model {lacking}, which is not supported")


def _packs(arrays: ArraySpecs) -> bool:
    """Whether the first layer of the MLP holds SwiGLU and its gate."""
    # Of a plain MLP, fc1 has as many outputs as fc2 has inputs; packed with its gate, twice as
    # many.
    layers = [arrays.get(f"blocks.0.mlp.fc{n}.weight") for n in (1, 2)]
    shapes = [layer.shape for layer in layers if layer is not None and len(layer.shape) == 2]
    return len(shapes) == 2 and shapes[0][0] == 2 * shapes[1][1]


def read_heads(
    given: Fields, width: int, wanted: int | None = None, usual: Mapping[int, int] = HEADS
) -> tuple[int | None, Assumed]:
    """The number of heads, or None if unknown, and the assumptions made.

    `wanted` is the caller's number, used if config.json has none; `usual` has numbers by width,
    where heads are not 64 wide.
    """
    arguments = json_fields.section(given, "model_args")
    if arguments.get("num_heads") is not None:
        return json_fields.whole(arguments, "num_heads"), {}
    name = timm.architecture(given)
    if name in NAMED_HEADS:
        return NAMED_HEADS[name], {}
    if wanted is not None:
        return wanted, {}
    if width in usual:
        return usual[width], {"model.heads": f"as in timm's models {width} wide"}
    if width % 64:
        return None, {}
    return width // 64, {"model.heads": "each 64 wide; the file does not say"}


def mlp_ratio(width: int, hidden: int) -> float:
    """The ratio of timm's arguments that gives an MLP its width: timm rounds the product down."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def read_activation(
    given: Fields, *, gated: bool = False, pooling: str = "token"
) -> dict[str, str]:
    """The options of the activation; raises WeightsError for an unknown one.

    `gated`: whether the MLP is SwiGLU, whose activation is SiLU; that of attention pooling too.
    """
    name = timm.architecture(given)
    named = "gelu_tanh" if re.fullmatch(TANH, name) else "gelu"
    named = "quick_gelu" if "_quickgelu" in name else named
    said = json_fields.text(json_fields.section(given, "model_args"), "act_layer", "")
    kind = said or named
    if kind not in ACTIVATIONS:
        raise WeightsError(f"act_layer={kind}: only {', '.join(ACTIVATIONS)} are supported")
    if gated:
        if said and ACTIVATIONS[said] != ACTIVATIONS["silu"]:
            raise WeightsError(f"act_layer={said}: of gated MLPs, only SwiGLU (silu) is supported")
        return ACTIVATIONS["silu"] if pooling == "map" else {}
    return ACTIVATIONS[kind]


def _pooling_heads(arguments: Fields, pooling: str) -> dict[str, int]:
    """The heads of attention pooling, where they are others than those of the layers."""
    own = pooling == "map" and arguments.get("attn_pool_num_heads") is not None
    return {"pooling_heads": json_fields.whole(arguments, "attn_pool_num_heads")} if own else {}


def _position_resize(arrays: ArraySpecs) -> str:
    """`model.position_resize`: timm's, or that of Meta's DINOv2 without registers."""
    if "pos_embed" not in arrays and not any("relative_position_bias" in n for n in arrays):
        return config.Model().position_resize  # there is nothing to resize
    meta = "mask_token" in arrays and "pos_embed" in arrays and "register_tokens" not in arrays
    return "bicubic_offset" if meta and "blocks.0.ls1.gamma" in arrays else "antialiased_bicubic"


def _image_size(
    arrays: ArraySpecs, model: config.Model, sizes: tuple[Size | None, Size | None]
) -> tuple[Size, bool, Assumed]:
    """The image size of the positions, whether the class token has one, and assumptions.

    Of the `sizes` from config.json and from the caller the first with equally many patches counts;
    otherwise the grid is square.
    """
    given = next((size for size in sizes if size is not None), None)
    if "pos_embed" not in arrays:
        if given is None:
            raise WeightsError(NO_SIZE)
        return given, True, {}
    rows = array_shape(arrays, "pos_embed", 3)[1]
    token = models.has_class_token(model)
    before = token + model.distillation
    counts = (rows - before, rows) if token else (rows,)  # the latter with no_embed_class
    for size in sizes:
        if size is not None and (patches := math.prod(models.grid(model, size))) in counts:
            return size, not token or patches < rows, {}
    squares = [count for count in counts if count and math.isqrt(count) ** 2 == count]
    patches = (squares or counts)[0]
    size, assumed = size_of_positions(model, patches, given)
    apart = token and patches == rows
    if apart:
        assumed |= {"model.class_position": f"{rows} positions are a square without it"}
    return size, not apart, assumed


def _without_register_positions(arrays: Arrays, sizes: tuple[Size | None, Size | None]) -> Arrays:
    """Adds positions of register tokens to those tokens; arrays without such are as they were.

    timm's first models with registers have them. `sizes` as in `_image_size`.
    """
    specs, token = arrays.specs, "cls_token" in arrays.specs
    name = next((name for name in REGISTERS if name in specs), "")
    count = registers(specs)
    if not count or "pos_embed" not in specs:
        return arrays
    _, rows, width = array_shape(specs, "pos_embed", 3)
    patch = array_shape(specs, "patch_embed.proj.weight", 4)[2:]
    own = rows - token - count  # patches, if registers have positions
    known = [(size[0] // patch[0]) * (size[1] // patch[1]) for size in sizes if size is not None]
    counts = rows - token, rows, own
    squares = [n for n in counts if math.isqrt(max(n, 0)) ** 2 == n]
    patches = next(iter([n for n in known if n in counts] + squares), 0)
    if own <= 0 or patches != own:
        return arrays
    registered = slice(token, token + count)

    def read(one: str) -> np.ndarray:
        if one == "pos_embed":
            return np.delete(arrays.read(one), registered, axis=1)
        if one == name:
            added = arrays.read("pos_embed")[:, registered].astype(np.float32)
            return arrays.read(one).astype(np.float32) + added
        return arrays.read(one)

    shorter = ArraySpec((1, rows - count, width), specs["pos_embed"].dtype)
    return Arrays({**specs, "pos_embed": shorter}, read, arrays.metadata)


def registers(arrays: ArraySpecs) -> int:
    """The number of register tokens in a file."""
    found = next((arrays[name].shape for name in REGISTERS if name in arrays), ())
    return found[1] if len(found) == 3 else 0


def _has_scales(arrays: ArraySpecs) -> bool:
    return bool(SCALES & arrays.keys()) and "cls_token" in arrays


def _is_clip(model: config.Model) -> bool:
    """Whether a model has the epsilon of timm's CLIP, which no argument sets."""
    return model.norm_epsilon == 1e-5 and model.mlp == "plain" and model.resnet_units is None


class Aimv2(TimmViT):
    """AIMv2: RMSNorm, SwiGLU, no biases, and a norm of patches before positions are added."""

    norms = ("rms",)
    usual_heads: ClassVar = {width: width // 128 for width in (1024, 1536, 2048, 3072)}
    gated_heads: ClassVar = usual_heads
    packs: ClassVar = False

    def options(self, arrays: ArraySpecs, given: Fields) -> tuple[dict[str, Any], Assumed]:
        return {"norm": "rms"}, {} if "architecture" in given else {"model.norm": self.why}

    def own_names(self, spec: ModelSpec | None) -> Names:
        return (("patch_embed.norm", "patch_norm"),)

    def mlp_names(
        self, arrays: ArraySpecs | None, spec: ModelSpec | None
    ) -> Iterable[tuple[str, str]]:
        return SWIGLU.items()

    def validate_spec(self, spec: ModelSpec) -> None:
        model = spec.model
        wrong = {"norm_epsilon": model.norm_epsilon != self.epsilon}
        wrong |= set_otherwise(model, "distillation", "resnet_units")
        refuse_options(model, wrong, "timm's AIMv2, which alone has model.norm=rms there,")
        super().validate_spec(spec)


DECODER_BLOCK, DECODED = "decoder_blocks.{layer}", f"{OBJECTIVE}/encoder"
DECODER = (
    ("decoder_embed", f"{OBJECTIVE}/embed"),
    ("mask_token", f"{OBJECTIVE}/mask_token"),
    *((f"{DECODER_BLOCK}.norm{n}", f"{DECODED}/norm{n}") for n in (1, 2)),
    (f"{DECODER_BLOCK}.attn.qkv", f"{DECODED}/attention/query|key|value"),
    (f"{DECODER_BLOCK}.attn.proj", f"{DECODED}/attention/out"),
    *((f"{DECODER_BLOCK}.mlp.{name}", f"{DECODED}/mlp/{name}") for name in ("fc1", "fc2")),
    ("decoder_norm", f"{OBJECTIVE}/norm"),
    ("decoder_pred", f"{OBJECTIVE}/pixels"),
)
DECODER_POSITIONS = "decoder_pos_embed"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MetaMae(TimmViT):
    """A masked autoencoder with its decoder, under the names of Meta's code."""

    autoencoders: ClassVar[bool] = True

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        made, shapes = super().read_spec(arrays, hints), Shapes(arrays, self.rules(arrays, None))
        width = array_shape(arrays, "decoder_embed.weight", 2)[0]
        if f"{DECODED}/mlp/fc1/kernel" not in shapes.has or "cls" not in shapes.has:
            return made
        if shapes.shape(f"{DECODED}/mlp/fc1/kernel", 2)[1] != 4 * width or width % DECODER_HEADS:
            return made  # of no decoder here
        decoder = config.Mae(
            name="mae",
            decoder_width=width,
            decoder_depth=shapes.depth(f"{DECODED}/"),
            decoder_heads=DECODER_HEADS,
        )
        said = f"its decoder of {DECODER_HEADS} heads, trained on normalized pixels"
        assumed = {**made.assumed, said: "as Meta's code by default; the file does not say"}
        return dataclasses.replace(made, mae=decoder, assumed=assumed)

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        yield from super().rules(arrays, spec)
        if spec is None or spec.mae is not None:
            yield from torch_rules.rules(DECODER)

    def expresses(self, spec: ModelSpec) -> bool:
        if (own := spec.mae) is None:
            return False
        sizes = {"decoder_width": own.decoder_width, "decoder_depth": own.decoder_depth}
        return own == config.Mae(name=own.name, **sizes)  # the file says no more

    def constants(self, spec: ModelSpec) -> Mapping[str, np.ndarray]:
        return {DECODER_POSITIONS: decoder_positions(spec)} if spec.mae else {}


class UnknownTimm(timm.Timm):
    """A Vision Transformer of timm whose architecture is unknown here."""

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return timm.is_transformer(arrays)

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        _check_arrays(arrays)  # what arrays show is a better reason than an unknown name
        name = timm.architecture(timm.read_fields(hints.files))
        remedy = f"; if it is a ViT of other sizes, let config.json say {PLAIN}"
        raise timm.unsupported(name, OTHERWISE, remedy)


# In the order in which files that name no architecture are tried.
FAMILIES = (
    Aimv2(
        title="AIMv2",
        names=r"aimv2_(?:large|huge|1b|3b)_patch14_\d+",
        looks_like=lambda arrays: "patch_embed.norm.weight" in arrays,
        pixels=CLIP,
        epsilon=1e-5,
        odd=(BIASLESS_NORM, BIASLESS_GATE),
        written="aimv2_large_patch14_224",
        expressed=lambda model: model.norm == "rms" and model.patch_norm and model.mlp == "swiglu",
    ),
    TimmViT(
        title="CLIP",
        names=rf"{SIZES}_patch\d+(?:_plus)?_clip_(?:quickgelu_)?\d+",
        looks_like=lambda arrays: "norm_pre.weight" in arrays,
        pixels=CLIP,
        epsilon=1e-5,
        written="vit_base_patch16_clip_224",
        expressed=lambda model: _is_clip(model) and not model.distillation,
    ),
    TimmViT(
        title="BEiT-3",
        names=r"beit3_(?:base|large|giant)_patch\d+_\d+",
        looks_like=lambda arrays: "blocks.0.attn.norm.weight" in arrays,
        epsilon=1e-5,
    ),
    TimmViT(
        title="SigLIP",
        names=rf"{SIZES}_patch\d+_siglip_(?:gap_)?\d+",
        looks_like=lambda arrays: "attn_pool.latent" in arrays,
        pixels=HALF,
    ),
    TimmViT(
        title="DeiT",
        names=r"deit_(?:tiny|small|base)_(?:distilled_)?patch16_\d+",
        looks_like=lambda arrays: "dist_token" in arrays,
        written="deit_base_distilled_patch16_224",
        expressed=lambda model: model.distillation and model.resnet_units is None,
    ),
    TimmViT(
        title="TIPSv2",
        names=rf"{SIZES}_patch14_reg1_tipsv2",
        looks_like=lambda arrays: _has_scales(arrays) and registers(arrays) == 1,
        pixels=((0.0,), (1.0,)),
    ),
    TimmViT(
        title="RADIO",
        names=rf"{SIZES}_patch16_radio_v\d",
        pixels=CLIP,
        odd=(NO_LAST_NORM,),
    ),
    TimmViT(
        title="DINOv2 or DeiT-III",
        names=rf"{SIZES}_patch14_(?:reg4_)?dinov2|deit3_(?:small|medium|base|large|huge)_\w+",
        looks_like=_has_scales,
        # The giant's name alone asks for SwiGLU.
        written="vit_giant_patch14_dinov2",
        expressed=lambda model: model.mlp == "swiglu" and model.resnet_units is None,
    ),
    TimmViT(
        title="iBOT",
        # No architecture of timm: files of iBOT's own code.
        names=NEVER,
        looks_like=lambda arrays: "masked_embed" in arrays,
    ),
    MetaMae(
        title="MAE",
        names=NEVER,  # in timm a ViT's
        looks_like=lambda arrays: "decoder_embed.weight" in arrays,
        written=PLAIN,
    ),
    TimmViT(
        title="ViT",
        names=rf"{SIZES}_patch\d+(?:_36x1|_plus|_reg\d+)*(?:_gap|_map)?_\d+(?:_miil)?|"
        rf"test_vit[234]?|{SIZES}_r(?:26|50)?_s\d+(?:_p8)?_\d+|flexivit_(?:small|base|large)|"
        r"eva_large_patch14_\d+",
        looks_like=lambda arrays: True,
        pixels=HALF,
        written=PLAIN,
        expressed=lambda model: True,
    ),
    UnknownTimm(),
)
