"""Reads and writes Hugging Face's config.json and preprocessor_config.json."""

import re
from typing import Any

from vit_jax import config, models
from vit_jax.weights import (
    huggingface_beit,
    huggingface_dinov2,
    huggingface_dinov3,
    huggingface_towers,
    json_fields,
)
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import Facts, Hints
from vit_jax.weights.readers import WeightsError

# Activations by transformers' name.
ACTIVATIONS = {
    "gelu": {"gelu": "erf"},
    "gelu_python": {"gelu": "erf"},
    "gelu_new": {"gelu": "tanh"},
    "gelu_fast": {"gelu": "tanh"},
    "gelu_accurate": {"gelu": "tanh"},
    "gelu_pytorch_tanh": {"gelu": "tanh"},
    "quick_gelu": {"gelu": "quick"},
    "silu": {"activation": "silu"},
    "swish": {"activation": "silu"},
    "relu": {"activation": "relu"},
}
POOLER = {"tanh": "tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
RESAMPLING = {2: "antialiased_bilinear", 3: "antialiased_bicubic"}  # Pillow's numbers
PREPROCESSOR = "preprocessor_config.json"
ABSENT = f"there is no {PREPROCESSOR}"
STANDARD = (0.5, 0.5, 0.5)  # transformers' own defaults: of ViT,
CLIP = {  # of BiT and CLIP
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}


def transformer(
    given: Given, width: int, *, pooler: bool, epsilon: float = 1e-12
) -> dict[str, Any]:
    """Returns the options of a ViT that its arrays do not reveal; raises WeightsError.

    Args:
      given: the fields of config.json.
      width: width of the model.
      pooler: whether it has a pooler, our layer before the head.
      epsilon: that of transformers, where config.json says nothing.
    """
    heads = json_fields.whole(given, "num_attention_heads", 12)
    activation = json_fields.text(given, "hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise WeightsError(f"hidden_act={activation}: only {', '.join(ACTIVATIONS)} are supported")
    last = json_fields.text(given, "pooler_act", "tanh") if pooler else "tanh"
    if last not in POOLER:
        raise WeightsError(f"pooler_act={last}: only {', '.join(POOLER)} are supported")
    biased = given.get("qkv_bias", True)
    if given.get("head_dim") not in (None, width / heads):
        dimension = json_fields.shown(given["head_dim"])
        raise WeightsError(f"head_dim={dimension}: is not {width} / {heads} heads")
    epsilon = json_fields.real(given, "layer_norm_eps", epsilon)
    if not epsilon:
        raise WeightsError("layer_norm_eps=0: must be more than 0")
    return {
        "heads": heads,
        "norm_epsilon": epsilon,
        "biasless": () if biased else ("query", "key", "value"),
        "representation_activation": POOLER[last],
        **ACTIVATIONS[activation],
    }


def resnet(given: Given, units: tuple[int, ...]) -> dict[str, Any]:
    """Returns the options of a BiT that its arrays do not reveal; raises WeightsError."""
    kind = json_fields.text(given, "layer_type", "preactivation")
    padding = (json_fields.text(given, "global_padding", "") or "none").lower()
    dynamic = given.get("embedding_dynamic_padding", False) is True
    wanted = {"preactivation": ("none", False), "bottleneck": ("same", True)}
    if kind not in wanted:
        raise WeightsError(f"layer_type={kind}: only preactivation and bottleneck are supported")
    if (padding, dynamic) != wanted[kind]:
        raise WeightsError(
            f"global_padding={padding} with embedding_dynamic_padding={str(dynamic).lower()}: "
            f"{kind} units pad by {wanted[kind][0]} and {str(wanted[kind][1]).lower()} here"
        )
    least = 4 * 2 ** max(len(units) - 1, 0)
    fixed = {"num_groups": 32, "hidden_act": "relu"}
    for key, value in fixed.items():
        if given.get(key, value) != value:
            raise WeightsError(f"{key}={str(given[key])[:80]}: only {value} is supported")
    if json_fields.whole(given, "output_stride", 32) < least:
        raise WeightsError(
            f"output_stride={given['output_stride']}: dilated units are not supported"
        )
    return {
        "resnet_version": "v2" if kind == "preactivation" else "v1",
        "resnet_epsilons": "timm",
    }


def classes(given: Given, count: int) -> tuple[str, ...]:
    """Returns the names of the classes in order; none for the placeholders LABEL_0, LABEL_1, ..."""
    if "id2label" not in given:
        return ()
    names = json_fields.labels(given, "id2label", count)
    return () if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names


def _processor(hints: Hints) -> Given:
    return hints.files.get(PREPROCESSOR, {})


def seen_size(hints: Hints) -> tuple[int, int] | None:
    """Returns height and width of preprocessed images, if given."""
    given = _processor(hints)
    cropped = given.get("do_center_crop", "crop_size" in given)
    return _sides(given.get("crop_size" if cropped else "size"))


def _sides(size: Any) -> tuple[int, int] | None:
    """Returns height and width; None where only a short side is given."""
    if size is None:
        return None
    if not isinstance(size, dict):
        return json_fields.pair({"size": size}, "size")
    if "height" not in size:
        return None
    return json_fields.whole(size, "height"), json_fields.whole(size, "width")


def data(hints: Hints, size: tuple[int, int], channels: int) -> tuple[config.Data, dict[str, str]]:
    """Returns the preprocessing options and the assumptions made; raises WeightsError.

    Args:
      hints: contains the preprocessor's fields.
      size: height and width of the model's input.
      channels: of the model's input.
    """
    given, assumed = _processor(hints), dict[str, str]()
    if not given:
        keys = ("mean", "std", "resampling", "eval_crop")
        assumed = {f"data.{key}": f"as of ViT by default; {ABSENT}" for key in keys}
    elif type(given.get("size")) is int and _made_by(given, "CLIP"):
        given = {**given, "size": {"shortest_edge": given["size"]}}
    crop, resize_to = "resize", None
    if given.get("do_center_crop", "crop_size" in given):
        short = _short(given.get("size"))
        if short is not None and max(size) <= short:
            crop, resize_to = "central", short
        elif _sides(given.get("size")) != size:
            assumed["data.eval_crop"] = f"not a crop of size={json_fields.shown(given.get('size'))}"
    elif given and not given.get("do_resize", True):
        assumed["data.eval_crop"] = "do_resize=false takes images of that size only"
    elif _short(given.get("size")) is not None:
        assumed["data.eval_crop"] = f"not size={json_fields.shown(given['size'])} without a crop"
    resample = given.get("resample", 2)
    if type(resample) is not int or resample not in RESAMPLING:
        assumed["data.resampling"] = f"not resample={json_fields.shown(resample)}"
        resample = 2
    mean, std = _normalization(given, channels)
    return config.Data(
        image_size=size,
        channels=channels,
        mean=mean,
        std=std,
        resampling=RESAMPLING[resample],
        eval_crop=crop,
        resize_to=resize_to,
    ), assumed


def _short(size: Any) -> int | None:
    return json_fields.whole(size, "shortest_edge") if "shortest_edge" in _keys(size) else None


def _made_by(given: Given, *kinds: str) -> bool:
    """Returns whether one of these kinds of processor wrote the fields."""
    keys = ("image_processor_type", "feature_extractor_type")
    return any(str(given.get(key, "")).startswith(kinds) for key in keys)


def _keys(size: Any) -> tuple[str, ...]:
    return tuple(size) if isinstance(size, dict) else ()


def _normalization(given: Given, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and deviation of pixels from 0 to 1."""
    mean, std = (0.0,), (1.0,)
    if given.get("do_normalize", True):
        standard = {"image_mean": STANDARD, "image_std": STANDARD}
        usual = CLIP if _made_by(given, "Bit", "CLIP") else standard
        mean = json_fields.reals(given, "image_mean", usual["image_mean"])
        std = json_fields.reals(given, "image_std", usual["image_std"])
    # Normalization applies to pixels from 0 to 255 times this factor.
    scaled = given.get("do_rescale", True)
    factor = json_fields.real(given, "rescale_factor", 1 / 255) if scaled else 1.0
    white = 255 * factor if factor != 1 / 255 else 1.0
    if not white or not min(std) or len(mean) not in (1, channels) or len(std) not in (1, channels):
        raise WeightsError(
            f"image_mean={list(mean)}, image_std={list(std)}, rescale_factor={factor:g}: "
            f"normalize no pixels of {channels} channels"
        )
    return _shortest(v / white for v in mean), _shortest(v / white for v in std)


def _shortest(values: Any) -> tuple[float, ...]:
    many = tuple(values)
    return many if len(set(many)) > 1 else many[:1]


# Out


def config_files(facts: Facts) -> dict[str, dict[str, Any]]:
    """Returns the fields of both files from which transformers builds this model."""
    model, data = facts.model, facts.data
    headless = "head/kernel" in facts.fresh
    kind, model_type, known = "ViT", "vit", {}
    if models.family(model).weights == "bit":
        kind, model_type, known = "Bit", "bit", _bit(model)
    elif huggingface_dinov2.expresses(model):
        kind, model_type, known = huggingface_dinov2.fields(model)
    elif huggingface_beit.expresses(model):
        kind, model_type, known = huggingface_beit.fields(model)
    elif model.distillation:
        kind, model_type = "DeiT", "deit"
    task = "ForImageClassification" + "WithTeacher" * (model.pooling == "distilled")
    named = f"{kind}{'Model' if headless else task}"
    if kind != "Bit":
        known = _vit(facts) | known
    if kind != "Bit" and model.rotary is not None:
        named, model_type, known = huggingface_dinov3.fields(model, known)
    elif kind != "Bit" and huggingface_towers.expresses(model):
        known["num_channels"] = data.channels
        named, model_type, known = huggingface_towers.fields(model, known, headless=headless)
    made = {
        "architectures": [named],
        "model_type": model_type,
        "num_channels": data.channels,
        "dtype": "float32",
        **known,
    }
    if not headless and "projection_dim" not in known:
        names = facts.classes or tuple(f"LABEL_{i}" for i in range(model.num_classes or 0))
        made["id2label"] = {str(i): name for i, name in enumerate(names)}
        made["label2id"] = {name: i for i, name in enumerate(names)}
    height, width = data.image_size
    sides = {"height": height, "width": width}
    central = data.eval_crop == "central"
    short = data.resize_to or round(max(data.image_size) * 8 / 7)
    processor = {
        "image_processor_type": f"{'Bit' if central else 'ViT'}ImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": short} if central else sides,
        "resample": 3 if "bicubic" in data.resampling else 2,
        **({"do_center_crop": True, "crop_size": sides} if central else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": _each(data.mean, data.channels),
        "image_std": _each(data.std, data.channels),
    }
    return {"config.json": made, PREPROCESSOR: processor}


def _vit(facts: Facts) -> dict[str, Any]:
    model, (height, width) = facts.model, facts.data.image_size
    patch = model.patch_size or (1, 1)
    made: dict[str, Any] = {
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.heads,
        "intermediate_size": model.mlp_dim,
        "hidden_act": _written_activation(model),
        "layer_norm_eps": model.norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": patch[0] if patch[0] == patch[1] else list(patch),
        "qkv_bias": "query" not in model.biasless,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if model.representation_size:
        made |= {
            "pooler_output_size": model.representation_size,
            "pooler_act": model.representation_activation,
        }
    return made


def _written_activation(model: config.Model) -> str:
    if model.activation != "gelu":
        return model.activation
    return {"tanh": "gelu_pytorch_tanh", "erf": "gelu", "quick": "quick_gelu"}[model.gelu]


def _bit(model: config.Model) -> dict[str, Any]:
    root, units = round(64 * (model.resnet_width or 1)), model.resnet_units or ()
    post = model.resnet_version == "v1"
    return {
        "embedding_size": root,
        "hidden_sizes": [4 * root * 2**stage for stage in range(len(units))],
        "depths": list(units),
        "layer_type": "bottleneck" if post else "preactivation",
        "global_padding": "SAME" if post else None,
        "embedding_dynamic_padding": post,
        "num_groups": 32,
        "hidden_act": "relu",
        "output_stride": max(32, 4 * 2 ** (len(units) - 1)),
        "width_factor": 1,
    }


def _each(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) if len(values) == channels else list(values) * channels
