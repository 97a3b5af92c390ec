"""Reads and writes Hugging Face's config.json and preprocessor_config.json."""

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
from vit_jax.weights.mapping import OWN_SIZE, SEVERAL, Facts, Hints
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
SINGLE = "single_label_classification"  # problem_type
RESAMPLING = {  # by Pillow's numbers
    0: "nearest",
    1: "lanczos",
    2: "antialiased_bilinear",
    3: "antialiased_bicubic",
    4: "box",
    5: "hamming",
}
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
ABSENT = f"there is no {PREPROCESSOR}"
# Defaults of transformers' processors, by how their names begin.
STANDARD = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "resample": 3,
}
DEIT = {"size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}}
DEFAULTS: dict[str, dict[str, Any]] = {
    "DeiT": STANDARD | DEIT | {"do_center_crop": True, "resample": 3},
    "Beit": STANDARD | {"do_center_crop": False, "resample": 3},
    "DINOv3": IMAGENET | {"resample": 2},
    "Bit": CLIP,
    "CLIP": CLIP,
    "ChineseCLIP": CLIP,
    "Siglip": STANDARD | {"resample": 3},
    "ViT": STANDARD | {"resample": 2},
}
# The processor of a model_type, where it is not ViT's, and what published weights have otherwise.
TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "deit": ("DeiT", IMAGENET),
    "beit": ("Beit", {}),
    "bit": ("Bit", STANDARD | {"resample": 2}),
    "dinov2": ("Bit", IMAGENET | {"size": {"shortest_edge": 256}}),
    "dinov2_with_registers": ("Bit", IMAGENET | {"size": {"shortest_edge": 256}}),
    "dinov3_vit": ("DINOv3", {}),
    "clip": ("CLIP", {}),
    "clip_vision_model": ("CLIP", {}),
    "siglip": ("Siglip", {}),
    "siglip_vision_model": ("Siglip", {}),
    "vit_mae": ("ViT", IMAGENET),
    "vit_msn": ("ViT", IMAGENET),
}
# Fields that change pixels as nothing here does; so does another `do_...` that is true.
FOREIGN = ("crop_pct", "offset", "rescale_offset", "ensure_multiple_of", "size_divisor")
DONE = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_pad",
        "do_reduce_labels")  # fmt: skip


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
    biased = json_fields.present(given).get("qkv_bias", True)
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
    numbers = json_fields.section(given, "label2id")
    if not given.get("id2label") and sorted(numbers.values(), key=str) == sorted(
        range(count), key=str
    ):
        return tuple(sorted(numbers, key=lambda name: numbers[name]))
    names = json_fields.labels(given, "id2label", count)
    return () if names == tuple(f"LABEL_{k}" for k in range(count)) else names


def loss(given: Given, count: int | None) -> str | None:
    """Returns how transformers' pipeline makes probabilities of the outputs; None: by softmax.

    Args:
      given: the fields of config.json.
      count: outputs of the head; None: there is none.
    """
    kind = json_fields.text(given, "problem_type", "")
    if count and kind not in ("", SINGLE, SEVERAL):
        raise WeightsError(
            f"problem_type={json_fields.shown(kind)}: the outputs are no classes; of heads, only "
            f"{SINGLE} and {SEVERAL} are supported"
        )
    return "sigmoid" if count and kind == SEVERAL else None


def _processor(hints: Hints) -> tuple[Given, dict[str, str]]:
    """The fields of the image processor, with the defaults of its class, and the assumptions made.

    transformers prefers the section that its version 5 writes to processor_config.json.
    """
    model_type = json_fields.text(hints.files.get("config.json", {}), "model_type", "vit")
    usual, published = TYPES.get(model_type, ("ViT", {}))
    given = _written(hints)
    if not given:
        keys = ("mean", "std", "resampling", "eval_crop")
        why = f"as of {model_type} by default; {ABSENT}"
        return DEFAULTS[usual] | published, {f"data.{key}": why for key in keys}
    keys = ("image_processor_type", "feature_extractor_type")
    named = next((given[key] for key in keys if isinstance(given.get(key), str)), usual)
    known = next((prefix for prefix in DEFAULTS if named.startswith(prefix)), None)
    made = {**DEFAULTS[known or "ViT"], **json_fields.present(given)}
    square = made.get("default_to_square", DEFAULTS.get(known or "ViT") is not CLIP)
    if type(made.get("size")) is int and not square:  # as older versions wrote the short side
        made["size"] = {"shortest_edge": made["size"]}
    made.setdefault("do_center_crop", known is None and "crop_size" in made)
    assumed = {}
    if known is None:
        assumed["pixels as ViT's processor makes them"] = f"{named[:80]} is not known"
    odd = [key for key in made if key in FOREIGN or (key.startswith("do_") and key not in DONE)]
    if said := ", ".join(f"{k}={json_fields.shown(made[k])}" for k in sorted(odd) if made[k]):
        assumed["pixels"] = f"not {said}"
    return made, assumed


def _written(hints: Hints) -> Given:
    section = json_fields.section(hints.files.get(PROCESSOR, {}), "image_processor")
    return section or hints.files.get(PREPROCESSOR, {})


def seen_size(hints: Hints) -> tuple[int, int] | None:
    """Returns height and width of preprocessed images, if given."""
    return _made(_processor(hints)[0]) if _written(hints) else None


def _sides(size: Any) -> tuple[int, int] | None:
    """Returns height and width; None where only a short side is given."""
    if size is None:
        return None
    if not isinstance(size, dict):
        return json_fields.pair({"size": size}, "size")
    if not {"height", "width"} <= set(_keys(size)):
        return None
    return json_fields.whole(size, "height"), json_fields.whole(size, "width")


def data(hints: Hints, size: tuple[int, int], channels: int) -> tuple[config.Data, dict[str, str]]:
    """Returns the preprocessing options and the assumptions made; raises WeightsError.

    Args:
      hints: contains the preprocessor's fields.
      size: height and width of the model's input.
      channels: of the model's input.
    """
    given, assumed = _processor(hints)
    view, made = _view(given, size), _made(given)
    if view is not None and _written(hints) and made not in (None, size):
        assumed[OWN_SIZE] = (
            f"{size[0]} x {size[1]}, the same part of an image as the {made[0]} x {made[1]} that "
            "the processor makes"
        )
    if view is None:
        unread = ("do_resize", "size", "do_center_crop", "crop_size", "do_pad")
        said = ", ".join(f"{k}={json_fields.shown(given[k])}" for k in unread if given.get(k))
        said = "do_resize=false" if given.get("do_resize") is False else said
        assumed["data.eval_crop"] = f"not {said}: such views have sizes of their own"
    resample = given.get("resample", 2)
    if type(resample) is not int or resample not in RESAMPLING:
        assumed["data.resampling"] = f"not resample={json_fields.shown(resample)}"
        resample = 2
    if not _written(hints) and channels != 3:  # nobody says three means
        given = {**given, "image_mean": 0.5, "image_std": 0.5}
    mean, std = _normalization(given, channels)
    return config.Data(
        image_size=size,
        channels=channels,
        mean=mean,
        std=std,
        resampling=RESAMPLING[resample],
        **(view or {"eval_crop": "resize"}),
    ), assumed


def _made(given: Given) -> tuple[int, int] | None:
    """Height and width that the processor makes, where the fields say so."""
    return _sides(given.get("crop_size" if given.get("do_center_crop") else "size"))


def _view(given: Given, size: tuple[int, int]) -> dict[str, Any] | None:
    """The options of an evaluation view of this size; None if the fields make no such view.

    A view of another size shows the same part of an image.
    """
    if given.get("do_resize") is False or given.get("do_pad"):
        return None
    wanted, short = _sides(given.get("size")), _short(given.get("size"))
    if not given.get("do_center_crop"):
        return {"eval_crop": "resize"} if wanted or not given.get("size") else None
    crop = _made(given) or size
    if wanted == crop:
        return {"eval_crop": "resize"}
    larger = max(size) / max(crop)
    if short is not None and "longest_edge" not in _keys(given.get("size")):
        view: dict[str, Any] = {"eval_crop": "central", "resize_to": round(short * larger)}
    elif wanted is not None and wanted[0] == wanted[1]:
        view = {"eval_crop": "squash", "resize_to": round(wanted[0] * larger)}
    else:
        return None
    if view["resize_to"] > 10 * max(size):  # which would take all memory
        return None
    return view | ({"fill": (0.0,)} if view["resize_to"] < max(size) else {})


def _short(size: Any) -> int | None:
    return json_fields.whole(size, "shortest_edge") if "shortest_edge" in _keys(size) else None


def _keys(size: Any) -> tuple[str, ...]:
    """The keys of a size that are not null."""
    return tuple(k for k, v in size.items() if v is not None) if isinstance(size, dict) else ()


def _normalization(given: Given, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and deviation of pixels from 0 to 1."""
    mean, std = (0.0,), (1.0,)
    if given.get("do_normalize", True):
        mean, std = (json_fields.reals(given, key) for key in ("image_mean", "image_std"))
    if channels == 1:  # three equal values say one
        mean, std = _shortest(mean), _shortest(std)
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
        made |= {"problem_type": SEVERAL} if facts.loss == "sigmoid" else {}
    return {"config.json": made, PREPROCESSOR: _written_processor(data)}


def _written_processor(data: config.Data) -> dict[str, Any]:
    """The fields of preprocessor_config.json; a border, which transformers lacks, is left out."""
    sides, box = ({"height": h, "width": w} for h, w in (data.image_size, data.before_crop))
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "central": ("Bit", {"size": {"shortest_edge": max(data.before_crop)}}),
        "squash": ("DeiT", {"size": box}),
    }
    kind, size = kinds.get(data.eval_crop, ("ViT", {"size": sides}))
    numbers = {name: number for number, name in RESAMPLING.items()}
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        **size,
        "resample": numbers.get(data.eval_resampling or data.resampling, 2),
        **({} if kind == "ViT" else {"do_center_crop": True, "crop_size": sides}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": _each(data.mean, data.channels),
        "image_std": _each(data.std, data.channels),
    }


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
