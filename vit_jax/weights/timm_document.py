"""Writes the config.json from which timm builds a model."""

import math
from typing import Any

from vit_jax import config, models
from vit_jax.weights import timm_eva
from vit_jax.weights.mapping import SEVERAL, Facts
from vit_jax.weights.readers import WeightsError
from vit_jax.weights.timm_config import ACTIVATIONS, CROPS, POOLING, RESAMPLING
from vit_jax.weights.timm_kinds import CLIP, DEIT, VIT

# timm's models whose names alone ask for SwiGLU.
GIANT = "vit_giant_patch14_dinov2"
HYBRIDS: dict[tuple[int, ...], str] = {  # whose ResNets have no such arguments in timm
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


def check(model: config.Model) -> None:
    """Raises WeightsError for an encoder that timm has no equivalent of."""
    if model.pooling not in (*POOLING.values(), "distilled"):
        raise WeightsError(f"model.pooling={model.pooling}: timm has no equivalent")
    if kind := timm_eva.written_kind(model):
        timm_eva.check(model, kind)
    if model.stem_norm and "patches" not in model.biasless:
        raise WeightsError(
            f"model.biasless={config.show(model.biasless)}: timm has no bias of patches before "
            "model.stem_norm"
        )
    if not model.distillation:
        return
    if model.pooling != "distilled":
        raise WeightsError(
            f"model.pooling={model.pooling}: timm reads a distillation token with a head of its "
            "own (distilled)"
        )
    if model.registers:
        raise WeightsError(
            f"model.registers={model.registers}: timm has none beside a distillation token"
        )
    if not model.class_position:
        raise WeightsError(
            "model.class_position=false: timm has positions for class and distillation token"
        )


def document(facts: Facts) -> dict[str, Any]:
    """Returns a config.json from which timm builds this model; raises WeightsError."""
    model, data = facts.model, facts.data
    resnet = models.family(model).weights == "bit"
    headless = "head/kernel" in facts.fresh
    arguments = _resnet_arguments(facts) if resnet else _arguments(facts)
    count = 0 if headless else model.num_classes
    pool = "avg" if resnet else arguments["global_pool"]
    modes, filters = ({ours: theirs for theirs, ours in one.items()} for one in (CROPS, RESAMPLING))
    made: dict[str, Any] = {
        "architecture": _written_name(model),
        "num_classes": count,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [data.channels, *data.image_size],
            "fixed_input_size": not resnet,
            "interpolation": filters.get(data.eval_resampling or data.resampling, "bilinear"),
            "crop_pct": 1.0 if data.eval_crop == "resize" else share(data),
            "crop_mode": modes.get(data.eval_crop, "squash"),
            "mean": _each(data.mean, data.channels),
            "std": _each(data.std, data.channels),
            "num_classes": count,
            "pool_size": None,
            "first_conv": "stem.conv" if resnet else _first(model),
            "classifier": "head.fc" if resnet else _classifier(model),
            "custom_load": False,
        },
    }
    if facts.classes:
        made["label_names"] = list(facts.classes)
    if facts.loss == "sigmoid" and not headless:
        made["problem_type"] = SEVERAL  # transformers' word; timm has none, and lets it pass
    return made


def _written_name(model: config.Model) -> str:
    units, width = model.resnet_units, model.resnet_width or 1.0
    if kind := timm_eva.written_kind(model):
        return kind.written
    if units is None:
        if model.distillation and model.mlp == "swiglu":
            raise WeightsError(
                "model.distillation=true: timm cannot create it with SwiGLU from a config.json; "
                "write the weights alone, to a path that ends in .safetensors"
            )
        plain = CLIP.written if _is_clip(model) else VIT.written
        others = GIANT if model.mlp == "swiglu" else plain
        return DEIT.written if model.distillation else others
    if model.mlp == "swiglu":
        raise WeightsError(
            "model.mlp=swiglu: timm cannot create such a hybrid from a config.json; "
            "write the weights alone, to a path that ends in .safetensors"
        )
    resnet = models.family(model).weights == "bit"
    name = RESNETS.get((units, width)) if resnet else HYBRIDS.get(units) if width == 1 else None
    if name is None:
        known = resnet and any(units == others for others, _ in RESNETS)
        wide = known or (not resnet and units in HYBRIDS)
        wrong = f"width={width:g}" if wide else f"units={config.show(units)}"
        raise WeightsError(
            f"model.resnet_{wrong}: timm cannot create this model from a config.json; "
            "write the weights alone, to a path that ends in .safetensors"
        )
    return name


def _is_clip(model: config.Model) -> bool:
    """Returns whether a model has the epsilon of timm's CLIP, which no argument sets."""
    return model.norm_epsilon == 1e-5 and model.mlp == "plain" and model.resnet_units is None


def _arguments(facts: Facts) -> dict[str, Any]:
    model, data = facts.model, facts.data
    gated = model.mlp == "swiglu"
    eva = timm_eva.written_kind(model)
    packed = gated and not eva  # both kernels of the first layer in one array
    width, hidden = model.width or 0, (model.mlp_dim or 0) * (2 if packed else 1)
    ratio = hidden / width
    pooling = {"distilled": "token"} | {ours: theirs for theirs, ours in POOLING.items()}
    shared = {
        "img_size": list(data.image_size),
        "patch_size": _one(model.patch_size or (1, 1)),
        "in_chans": data.channels,
        "embed_dim": width,
        "depth": model.depth,
        "num_heads": model.heads,
        # timm rounds the product down.
        "mlp_ratio": ratio if int(width * ratio) == hidden else (hidden + 0.5) / width,
        "global_pool": pooling[model.pooling],
        **({"qk_norm": True} if model.qk_norm else {}),
    }
    if eva:
        return shared | timm_eva.arguments(model, eva)
    return shared | {
        **({} if model.distillation else {"class_token": models.has_class_token(model)}),
        "fc_norm": model.norm_place == "pooled",
        "act_layer": "silu" if gated else _written_activation(model),
        **({} if _class_position(model) else {"no_embed_class": True}),
        **({} if model.layer_scale is None else {"init_values": model.layer_scale}),
        **({"reg_tokens": model.registers} if model.registers else {}),
        **({"pre_norm": model.stem_norm} if model.stem_norm or _is_clip(model) else {}),
        **({"scale_attn_norm": True} if "attention" in model.sub_norm else {}),
        **({"scale_mlp_norm": True} if "mlp" in model.sub_norm else {}),
        **({"qkv_bias": False} if "query" in model.biasless else {}),
        **({"proj_bias": False} if "out" in model.biasless else {}),
    }


def _written_activation(model: config.Model) -> str:
    gelu = model.activation == "gelu"
    ours = {"gelu": model.gelu} if gelu else {"activation": model.activation}
    return next(name for name, options in ACTIVATIONS.items() if options == ours)


def _classifier(model: config.Model) -> str | list[str]:
    return ["head", "head_dist"] if model.pooling == "distilled" else "head"


def _class_position(model: config.Model) -> bool:
    """Returns whether timm's table has a row for the class token, or there is no such token."""
    if model.registers:  # which would have rows too
        return False
    return model.class_position or not models.has_class_token(model)


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
    """The crop share in timm, or the shortest decimal one that gives the same short side."""
    if data.crop_pct is not None:
        return data.crop_pct
    side, wanted = data.image_size[0], data.before_crop[0]
    exact, within = side / wanted, side / (wanted + 0.5)
    shares = (round(share, digits) for digits in range(1, 9) for share in (exact, within))
    return next((s for s in shares if s and math.floor(side / s) == wanted), exact)
