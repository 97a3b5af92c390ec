"""The config.json of timm's folders: what it says of model, pixels and classes, in and out."""

import math
import re
from typing import Any

from vit_jax import config
from vit_jax.weights import documents
from vit_jax.weights.documents import Given
from vit_jax.weights.files import WeightsError
from vit_jax.weights.layout import Facts, Hints

# timm's heads are 64 wide but in these widths and models.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
NAMED_HEADS = {"test_vit": 2, "vit_base_patch16_gap_224": 16}
# Those of SigLIP 2 whose width or patch SigLIP did not have.
TANH = r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip.*|vit_large_patch16_siglip.*512"
GELU = {"gelu": "erf", "gelu_erf": "erf", "gelu_tanh": "tanh"}
# Arguments of timm's models that names and shapes show too, or that change no prediction.
SHOWN = re.compile(
    "img_size|patch_size|in_chans|num_classes|embed_dim|depth|mlp_ratio|class_token|pos_embed|"
    "no_embed_class|fc_norm|final_norm|(pos_|patch_|proj_|attn_)?drop_rate|drop_path_rate|"
    "weight_init|fix_init|zero_init_last|dynamic_img_size|strict_img_size|layers|width_factor"
)
READ = frozenset(("num_heads", "act_layer", "global_pool"))
RESAMPLING = {"bilinear": "antialiased_bilinear", "bicubic": "antialiased_bicubic"}
PIXELS = {
    "data.mean": "0.5, as of the weights that Google trained; the file does not say",
    "data.std": "0.5, as of the weights that Google trained; the file does not say",
    "data.resampling": "antialiased_bicubic, as most of timm's; the file does not say",
}


def of(hints: Hints) -> Given:
    """Returns the fields of a config.json of timm's; none where there is none."""
    given = hints.files.get("config.json", {})
    if "architecture" not in given and "pretrained_cfg" not in given:
        return {}  # it is of something else that lies beside the weights
    for key in documents.section(given, "model_args"):
        if key not in READ and not SHOWN.fullmatch(key):
            raise WeightsError(f"config.json: model_args.{key}: is known to no model here")
    if "quickgelu" in _architecture(given):
        raise WeightsError(f"architecture={_architecture(given)}: its GELU is none of those here")
    return given


def _architecture(given: Given) -> str:
    return str(given.get("architecture", ""))


def heads(given: Given, width: int) -> tuple[int | None, dict[str, str]]:
    """Returns the number of heads, None where it cannot be told, and what is assumed of it."""
    arguments = documents.section(given, "model_args")
    if "num_heads" in arguments:
        return documents.whole(arguments, "num_heads"), {}
    if _architecture(given) in NAMED_HEADS:
        return NAMED_HEADS[_architecture(given)], {}
    if width in HEADS:
        return HEADS[width], {"model.heads": f"{HEADS[width]} as in timm's models {width} wide"}
    if width % 64:
        return None, {}
    return width // 64, {"model.heads": f"{width // 64}, each 64 wide; the file does not say"}


def gelu(given: Given) -> str:
    """Returns the form of GELU; raises WeightsError for another activation."""
    arguments = documents.section(given, "model_args")
    named = "gelu_tanh" if re.fullmatch(TANH, _architecture(given)) else "gelu"
    kind = arguments.get("act_layer") or named
    if kind not in GELU:
        raise WeightsError(f"act_layer={kind}: only {', '.join(GELU)} are known")
    return GELU[kind]


def pooling(given: Given) -> str:
    """Returns timm's name of what the head sees; empty if it is not said."""
    arguments = documents.section(given, "model_args")
    return str(arguments.get("global_pool") or given.get("global_pool") or "")


def check_resnet(given: Given) -> None:
    """Raises WeightsError for a ResNet named as BiT's are that pads or divides otherwise."""
    name = _architecture(given)
    if name and "_bit" not in name:
        raise WeightsError(f"architecture={name}: of timm's ResNets only those of BiT are known")


def image_size(given: Given) -> tuple[int, int] | None:
    """Returns height and width in pixels, if they are said."""
    arguments = documents.section(given, "model_args")
    if arguments.get("img_size") is not None:
        return documents.pair(arguments, "img_size")
    size = documents.section(given, "pretrained_cfg").get("input_size")
    if size is None:
        return None
    if not isinstance(size, list | tuple) or len(size) != 3:
        raise WeightsError(f"input_size={size!r}: is no channels, height and width")
    return documents.pair({"input_size": list(size[1:])}, "input_size")


def classes(given: Given, count: int) -> tuple[str, ...]:
    """Returns the names of the classes in order, as people read them; empty if not said."""
    names = documents.labels(given, "label_names", count)
    described = documents.section(given, "label_descriptions")
    return tuple(str(described.get(name, name)) for name in names)


def data(given: Given, size: tuple[int, int], channels: int) -> tuple[config.Data, dict[str, str]]:
    """Returns how pixels come to the model, and what is assumed of it; raises WeightsError.

    Args:
      given: the fields of config.json.
      size: height and width of the model's input.
      channels: of the model's input.
    """
    said = documents.section(given, "pretrained_cfg")
    if not said:
        resampling = RESAMPLING["bicubic"]
        plain = config.Data(
            image_size=size, channels=channels, eval_crop="resize", resampling=resampling
        )
        return plain, dict(PIXELS)
    kind, mode = said.get("interpolation", "bicubic"), said.get("crop_mode") or "center"
    share = documents.real(said, "crop_pct", 0.875)
    assumed = {}
    if kind not in RESAMPLING:
        assumed["data.resampling"] = f"antialiased_bicubic, not interpolation={kind}"
    square = size[0] == size[1] and 0 < share <= 1
    central = mode == "center" and square
    if not central and (mode != "squash" or share != 1):
        assumed["data.eval_crop"] = f"resize, not crop_mode={mode} with crop_pct={share:g}"
    made = config.Data(
        image_size=size,
        channels=channels,
        mean=_pixel(said, "mean", channels),
        std=_pixel(said, "std", channels),
        resampling=RESAMPLING.get(str(kind), "antialiased_bicubic"),
        eval_crop="central" if central else "resize",
        resize_to=math.floor(size[0] / share) if central else None,
    )
    return made, assumed


def _pixel(said: Given, key: str, channels: int) -> tuple[float, ...]:
    values = documents.reals(said, key, (0.5,))
    if len(values) not in (1, channels) or max(values) > 1 or (key == "std" and not min(values)):
        raise WeightsError(f"{key}={list(values)}: is none of {channels} channels from 0 to 1")
    return values if len(set(values)) > 1 else values[:1]


# Out

HYBRIDS: dict[tuple[int, ...], str] = {  # whose ResNets no argument of timm's changes
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
RESNETS: dict[tuple[tuple[int, ...], float], str] = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}


def document(facts: Facts) -> dict[str, Any]:
    """Returns the fields of the config.json that timm makes this model of; raises WeightsError."""
    model, data = facts.model, facts.data
    resnet = model.architecture == "resnet"
    headless = "head/kernel" in facts.fresh
    arguments = _resnet_arguments(facts) if resnet else _arguments(facts)
    count = 0 if headless else model.num_classes
    pool = "avg" if resnet else arguments["global_pool"]
    made: dict[str, Any] = {
        "architecture": _written_name(model),
        "num_classes": count,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [data.channels, *data.image_size],
            "fixed_input_size": not resnet,
            "interpolation": "bicubic" if "bicubic" in data.resampling else "bilinear",
            "crop_pct": 1.0 if data.eval_crop == "resize" else share(data),
            "crop_mode": "squash" if data.eval_crop == "resize" else "center",
            "mean": _each(data.mean, data.channels),
            "std": _each(data.std, data.channels),
            "num_classes": count,
            "pool_size": None,
            "first_conv": "stem.conv" if resnet else _first(model),
            "classifier": "head.fc" if resnet else "head",
            "custom_load": False,
        },
    }
    if facts.classes:
        made["label_names"] = list(facts.classes)
    return made


def _written_name(model: config.Model) -> str:
    units, width = model.resnet_units, model.resnet_width or 1.0
    if units is None:
        return "vit_base_patch16_224"
    resnet = model.architecture == "resnet"
    name = RESNETS.get((units, width)) if resnet else HYBRIDS.get(units) if width == 1 else None
    if name is None:
        known = resnet and any(units == others for others, _ in RESNETS)
        wide = known or (not resnet and units in HYBRIDS)
        wrong = f"width={width:g}" if wide else f"units={config.show(units)}"
        raise WeightsError(
            f"model.resnet_{wrong}: timm makes no such model by a config.json; "
            "write the weights alone, to a path that ends in .safetensors"
        )
    return name


def _arguments(facts: Facts) -> dict[str, Any]:
    model, data = facts.model, facts.data
    width, hidden = model.width or 0, model.mlp_dim or 0
    ratio = hidden / width
    return {
        "img_size": list(data.image_size),
        "patch_size": _one(model.patch_size or (1, 1)),
        "in_chans": data.channels,
        "embed_dim": width,
        "depth": model.depth,
        "num_heads": model.heads,
        # timm rounds the product down.
        "mlp_ratio": ratio if int(width * ratio) == hidden else (hidden + 0.5) / width,
        "global_pool": {"token": "token", "gap": "avg", "map": "map"}[model.pooling],
        "class_token": model.pooling == "token",
        "fc_norm": model.norm_place == "pooled",
        "act_layer": "gelu_tanh" if model.gelu == "tanh" else "gelu",
    }


def _resnet_arguments(facts: Facts) -> dict[str, Any]:
    return {} if facts.data.channels == 3 else {"in_chans": facts.data.channels}


def _first(model: config.Model) -> str:
    if model.resnet_units is None:
        return "patch_embed.proj"
    return f"patch_embed.backbone.{'stem.' * bool(model.resnet_units)}conv"


def _one(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)


def _each(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) if len(values) == channels else list(values) * channels


def share(data: config.Data) -> float:
    """Returns the roundest share that timm resizes to the same short side by."""
    side, wanted = data.image_size[0], data.resize_to or round(data.image_size[0] * 8 / 7)
    exact, within = side / wanted, side / (wanted + 0.5)
    shares = (round(share, digits) for digits in range(1, 9) for share in (exact, within))
    return next((s for s in shares if s and math.floor(side / s) == wanted), exact)
