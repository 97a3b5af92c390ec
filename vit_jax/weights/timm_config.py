"""Reads the model, pixels and classes in the config.json of timm folders."""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax import config
from vit_jax.weights import json_fields, timm_kinds
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import SEVERAL, Hints
from vit_jax.weights.readers import WeightsError
from vit_jax.weights.timm_kinds import BIT, HALF, HEADS, IMAGENET, OPENAI, VIT, Kind

# Models whose heads are not as wide as those of others of their width.
NAMED_HEADS = {"test_vit": 2, "vit_base_patch16_gap_224": 16}
GATED_HEADS = {1536: 24}  # DINOv2's giant
# SigLIP 2 models with a width or patch size that SigLIP lacks.
TANH = r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip.*|vit_large_patch16_siglip.*512"
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
DEFAULT = "timm's default; the file does not say"
NORMS_FIRST = "pre-norm layers"  # which is no option
# Model arguments that arrays also reveal, or that change no prediction.
SHOWN = re.compile(
    "img_size|patch_size|in_chans|num_classes|embed_dim|depth|mlp_ratio|class_token|pos_embed|"
    "no_embed_class|pre_norm|qk_norm|(qkv|proj)_bias|(use_)?fc_norm|final_norm|(num_)?reg_tokens|"
    "(pos_|patch_|proj_|attn_)?drop_rate|drop_path_rate|swiglu_(mlp|align_to)|init_values|"
    "qkv_fused|scale_(mlp|attn_inner|mlp_norm|attn_norm)|use_((abs|shared_rel)_pos_(emb|bias)|"
    "rel_pos_bias|(pre|post)_transformer_norm)|head_init_scale|"
    "weight_init|fix_init|zero_init_last|dynamic_img_size|strict_img_size|layers|width_factor"
)
READ = frozenset(("num_heads", "act_layer", "global_pool", "rope_temperature", "ref_feat_shape"))
# Pillow's filters by the name that timm and open_clip give them.
RESAMPLING = {
    "bilinear": "antialiased_bilinear",
    "bicubic": "antialiased_bicubic",
    "nearest": "nearest",
    "box": "box",
    "hamming": "hamming",
    "lanczos": "lanczos",
}
CROPS = {"center": "central", "squash": "squash", "border": "border"}
OPEN_CLIP = "open_clip_config.json"
FLAT = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")
PIXELS = {
    "data.resampling": "as most of timm's; the file does not say",
    "data.eval_crop": "as most of timm's; the file does not say",
}


def read(hints: Hints) -> Given:
    """Returns the fields of timm's config.json; empty without one.

    Those of open_clip_config.json stand for them where its tower is one of timm's.
    """
    given = hints.files.get("config.json", {})
    if "architecture" not in given and "pretrained_cfg" not in given:
        return _of_open_clip(hints.files.get(OPEN_CLIP, {}))  # another project's config.json
    if "architecture" in given and not json_fields.section(given, "pretrained_cfg"):
        # Before timm 0.9 the fields stood side by side.
        flat = {key: value for key, value in json_fields.present(given).items() if key in FLAT}
        given = {"label_names": given.get("labels"), **given, "pretrained_cfg": flat}
    return given


def _of_open_clip(given: Given) -> Given:
    """Returns what open_clip says of its image tower as timm's config.json would; {}: nothing."""
    tower = json_fields.section(json_fields.section(given, "model_cfg"), "vision_cfg")
    name = json_fields.text(tower, "timm_model_name", "")
    if not name:
        return {}
    pixels = json_fields.section(given, "preprocess_cfg")
    crops = {"shortest": "center", "longest": "border", "squash": "squash"}
    mode = json_fields.text(pixels, "resize_mode", "shortest")
    view = {"mean": OPENAI[0], "std": OPENAI[1], "interpolation": "bicubic"}
    view |= {key: pixels[key] for key in view if pixels.get(key) is not None}
    size = json_fields.pair(tower, "image_size", 224)
    return {
        "architecture": name,
        "global_pool": tower.get("timm_pool", "avg"),
        "pretrained_cfg": {
            **view,
            "input_size": [3, *size],
            "crop_pct": 1.0,
            "crop_mode": crops.get(mode, mode),
        },
    }


def check_arguments(given: Given, kind: Kind | None) -> None:
    """Raises WeightsError for an argument that changes what a model of a kind computes."""
    own = kind.fixed if kind else {}
    for key, value in json_fields.section(given, "model_args").items():
        fixed = key in own and value == own[key]
        known = fixed if key in own else key in READ or SHOWN.fullmatch(key)
        if not known:
            raise WeightsError(f"config.json: model_args.{key}: is not supported")


def heads(
    given: Given, width: int, wanted: int | None = None, usual: Mapping[int, int] = HEADS
) -> tuple[int | None, dict[str, str]]:
    """Returns the number of heads, or None if unknown, and the assumptions made.

    Args:
      given: the fields of config.json.
      width: width of the model.
      wanted: the caller's number, used if the file has none.
      usual: numbers by width, where heads are not 64 wide.
    """
    arguments = json_fields.section(given, "model_args")
    if arguments.get("num_heads") is not None:
        return json_fields.whole(arguments, "num_heads"), {}
    name = timm_kinds.architecture(given)
    if name in NAMED_HEADS:
        return NAMED_HEADS[name], {}
    if wanted is not None:
        return wanted, {}
    if width in usual:
        return usual[width], {"model.heads": f"as in timm's models {width} wide"}
    if width % 64:
        return None, {}
    return width // 64, {"model.heads": "each 64 wide; the file does not say"}


def usual_heads(*, gated: bool) -> Mapping[int, int]:
    """Returns the heads of timm's models by width, of those with SwiGLU or without."""
    return HEADS | GATED_HEADS if gated else HEADS


def layer_scale(given: Given) -> float:
    """Returns the initial value of LayerScale, which says nothing of its learned ones."""
    arguments = json_fields.section(given, "model_args")
    said = arguments.get("init_values") is not None
    return (json_fields.real(arguments, "init_values") if said else 0) or 1e-5


def activation(given: Given, *, gated: bool = False, pooling: str = "token") -> dict[str, str]:
    """Returns the options of the activation; raises WeightsError for an unknown one.

    Args:
      given: the fields of config.json.
      gated: whether the MLP is SwiGLU, whose activation is SiLU; that of attention pooling too.
      pooling: of the model.
    """
    name = timm_kinds.architecture(given)
    named = "gelu_tanh" if re.fullmatch(TANH, name) else "gelu"
    named = "quick_gelu" if "_quickgelu" in name else named
    kind = json_fields.text(json_fields.section(given, "model_args"), "act_layer", "") or named
    if kind not in ACTIVATIONS:
        raise WeightsError(f"act_layer={kind}: only {', '.join(ACTIVATIONS)} are supported")
    if gated:
        said = json_fields.text(json_fields.section(given, "model_args"), "act_layer", "silu")
        if ACTIVATIONS[said or "silu"] != ACTIVATIONS["silu"]:
            raise WeightsError(f"act_layer={said}: of gated MLPs, only SwiGLU (silu) is supported")
        return ACTIVATIONS["silu"] if pooling == "map" else {}
    return ACTIVATIONS[kind]


def pooling(given: Given) -> str:
    """Returns timm's name of the pooling; empty if the file has none."""
    said = json_fields.text(json_fields.section(given, "model_args"), "global_pool", "")
    return said or json_fields.text(given, "global_pool", "")


def unsaid(given: Given, kind: Kind, *, gated: bool, placed: bool) -> dict[str, str]:
    """Returns the assumptions about encoder layers if the file names no architecture.

    Args:
      given: the fields of config.json.
      kind: that the arrays look like.
      gated: whether the MLP is SwiGLU.
      placed: whether there is a table of positions, or of biases by offset.
    """
    if timm_kinds.architecture(given):
        return {}
    keys = ["model.norm_epsilon", NORMS_FIRST]
    if not json_fields.section(given, "model_args").get("act_layer"):
        keys = ["model.mlp" if gated else "model.activation", *["model.gelu"][gated:], *keys]
    if kind.rotary is None:
        keys += ["model.rotary"] if placed else ["model.position", "model.rotary"]
    return dict.fromkeys(keys, kind.unsaid if kind.eva else DEFAULT)


def check_resnet(given: Given) -> None:
    """Raises WeightsError for the architecture of a ResNet other than BiT's."""
    name = timm_kinds.architecture(given)
    if name and not BIT.fullmatch(name):
        raise WeightsError(f"architecture={name}: of timm's ResNets, only BiT is supported")


def image_size(given: Given) -> tuple[int, int] | None:
    """Returns height and width in pixels, if the file has them."""
    arguments = json_fields.section(given, "model_args")
    if arguments.get("img_size") is not None:
        return json_fields.pair(arguments, "img_size")
    size = json_fields.section(given, "pretrained_cfg").get("input_size")
    if size is None:
        return None
    if not isinstance(size, list | tuple) or len(size) != 3:
        raise WeightsError(
            f"input_size={json_fields.shown(size)}: must be channels, height and width"
        )
    return json_fields.pair({"input_size": list(size[1:])}, "input_size")


def classes(given: Given, count: int) -> tuple[str, ...]:
    """Returns class names in order, words for WordNet ids; empty if the file has none."""
    names = json_fields.labels(given, "label_names", count)
    described = json_fields.section(given, "label_descriptions")
    # Other names are the folders' of whoever trained it, by which they are found again.
    return tuple(str(described.get(n, n)) if re.fullmatch(r"n\d+", n) else n for n in names)


def loss(given: Given) -> str | None:
    """Returns how outputs become probabilities, as this project's exports say; None: not said."""
    return "sigmoid" if given.get("problem_type") == SEVERAL else None


def data(
    given: Given, size: tuple[int, int], channels: int, kind: Kind | None = None
) -> tuple[config.Data, dict[str, str]]:
    """Returns the preprocessing options and the assumptions made; raises WeightsError.

    Args:
      given: the fields of config.json.
      size: height and width of the model's input.
      channels: channels of the model's input.
      kind: of a Vision Transformer.
    """
    said = json_fields.section(given, "pretrained_cfg")
    if not said:
        family = kind or VIT
        mean, std = family.pixels if channels == 3 else HALF
        google = family is VIT
        whose = "the weights that Google trained" if google else f"{family.title}'s weights"
        plain = config.Data(
            image_size=size,
            channels=channels,
            mean=mean,
            std=std,
            eval_crop="resize",
            resampling=RESAMPLING["bicubic"],
        )
        why = f"as of {whose}; the file does not say"
        return plain, {"data.mean": why, "data.std": why, **PIXELS}
    filter_ = json_fields.text(said, "interpolation", "bicubic")
    mode = json_fields.text(said, "crop_mode", "") or "center"
    share = json_fields.real(said, "crop_pct", 0.875) or 0.875
    assumed = {}
    if filter_ not in RESAMPLING:
        assumed["data.resampling"] = f"not interpolation={filter_}"
    if mode not in CROPS:
        assumed["data.eval_crop"] = f"not crop_mode={mode}"
    if not 0.1 < share <= 10:
        assumed["data.crop_pct"] = f"not crop_pct={share:g}"
        share = 1.0
    return config.Data(
        image_size=size,
        channels=channels,
        mean=_pixel(said, "mean", channels, IMAGENET[0]),
        std=_pixel(said, "std", channels, IMAGENET[1]),
        resampling=RESAMPLING.get(filter_, "antialiased_bicubic"),
        **torchvision_view(CROPS.get(mode, "central"), share),
    ), assumed


def torchvision_view(crop: str, share: float, fill: float | None = None) -> dict[str, Any]:
    """The options of an evaluation view that torchvision's classes make.

    Args:
      crop: `data.eval_crop`.
      share: timm's crop_pct.
      fill: of the border, as `data.fill`; None: the mean. That of a crop is black.
    """
    if crop == "squash" and share == 1:
        return {"eval_crop": "resize"}
    view: dict[str, Any] = {"eval_crop": crop, "crop_pct": share, "crop_rounding": "even"}
    if crop != "border":
        fill = 0.0 if share > 1 else None
    return view | ({} if fill is None else {"fill": (fill,)})


def _pixel(said: Given, key: str, channels: int, default: tuple[float, ...]) -> tuple[float, ...]:
    values = json_fields.reals(said, key, default if channels == len(default) else (0.5,))
    if len(values) not in (1, channels) or max(values) > 1 or (key == "std" and not min(values)):
        raise WeightsError(f"{key}={list(values)}: must be {channels} values from 0 to 1")
    return values if len(set(values)) > 1 else values[:1]
