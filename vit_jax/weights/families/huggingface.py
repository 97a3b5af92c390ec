"""The shared parts of transformers' models: config.json and preprocessor_config.json.

Folders hold these beside safetensors. config.json names the type of a model, by which its family is
found: their arrays alone look alike.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from vit_jax import config, models
from vit_jax.weights import family, json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import torch_rules
from vit_jax.weights.families.torch_rules import Names
from vit_jax.weights.family import (
    ANY_SIZE,
    FAMILIES,
    NO_HEAD,
    NOT_OFFERED,
    Family,
    Fields,
    Files,
    Hints,
)
from vit_jax.weights.mapping import ArraySpecs, ModelSpec, Rule, Shapes, Size

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
OWN_SIZE = "views of the model's size"  # assumed where a processor makes others
RESAMPLING = {  # by Pillow's numbers
    0: "nearest", 1: "lanczos", 2: "antialiased_bilinear", 3: "antialiased_bicubic", 4: "box",
    5: "hamming",
}  # fmt: skip
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
ABSENT = f"there is no {PREPROCESSOR}"
# Defaults of transformers' processors, by how their names begin.
STANDARD = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
IMAGENET: dict[str, Any] = {"image_mean": family.IMAGENET[0], "image_std": family.IMAGENET[1]}
CLIP = {
    "image_mean": family.CLIP[0],
    "image_std": family.CLIP[1],
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
    "Siglip2": STANDARD | {"resample": 2},
    "Siglip": STANDARD | {"resample": 3},
    "ViT": STANDARD | {"resample": 2},
}
# Fields that change pixels as nothing here does; so does another `do_...` that is true.
FOREIGN = ("crop_pct", "offset", "rescale_offset", "ensure_multiple_of", "size_divisor")
DONE = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_pad",
        "do_reduce_labels")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Type:
    """A model_type of config.json."""

    processor: str  # how the name of its processor begins
    # Which of that one's defaults published weights have otherwise.
    published: Fields = dataclasses.field(default_factory=dict)
    # Fields of config.json where they are missing, as transformers has them.
    defaults: Fields = dataclasses.field(default_factory=dict)


class HuggingFace(Family):
    """The folders of transformers' models.

    The `anchors` are the patch embedding under each prefix that the network may have, the last
    without.
    """

    project = "hf"
    types: ClassVar[Mapping[str, Type]] = {}  # by model_type
    names: Names = ()  # of the network's layers and arrays, below the prefix
    outer: Names = (("classifier", "head"),)  # of those beside the network
    biases: tuple[str, ...] = ()  # the parts whose bias a file may lack

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return self._anchor(arrays) is not None and _model_type(arrays, files) in self.types

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        given = _config_json(hints.files)
        fields = self.read_fields(given, _model_type(arrays, hints.files))
        shapes = Shapes(arrays, self.rules(arrays, None))
        size = self.size(fields, hints)
        data, assumed = read_data(hints, size or (224, 224), shapes.channels)
        count = None if shapes.headless or self.embeds(shapes) else shapes.outputs
        family.refuse_other_model(given, {"num_labels": count} if count else {})
        return ModelSpec(
            model=shapes.model(**self.options(fields, shapes)),
            data=data,
            classes=read_classes(given, count) if count else (),
            loss=read_loss(given, count),
            assumed=assumed if size else assumed | ANY_SIZE,
            fresh=NO_HEAD if shapes.headless else {},
        )

    def read_fields(self, given: Fields, model_type: str) -> Fields:
        """The fields of the network in config.json, with transformers' defaults."""
        if "vision_config" in given:  # beside a text tower
            given = json_fields.section(given, "vision_config")
        defaults = self.types[model_type].defaults
        return {**defaults, **json_fields.present(given), "model_type": model_type}

    def size(self, fields: Fields, hints: Hints) -> Size | None:
        """Height and width of the images, None if any will do."""
        return json_fields.pair(fields, "image_size", 224)

    def embeds(self, shapes: Shapes) -> bool:
        """Whether the outputs of the head are embeddings rather than classes."""
        return False

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        """The options of the model; raises WeightsError."""
        made = shapes.encoder(self.biases)
        family.refuse_other_model(
            fields,
            {
                "hidden_size": made["width"],
                "num_hidden_layers": made["depth"],
                "patch_size": made["patch_size"],
                "num_channels": shapes.channels,
            },
        )
        return {"position_resize": "bicubic", **made, **encoder_options(fields, shapes)}

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        without: Collection[str] = ()
        if arrays is None:
            assert spec is not None
            prefix, without = self.written_prefix(spec), self.unwritten(spec)
        else:
            prefix = self.prefix(arrays)
        yield from torch_rules.rules(self.names, prefix, without)
        yield from torch_rules.rules(self.outer, "", without)

    def unwritten(self, spec: ModelSpec) -> Collection[str]:
        """Names that an export does not use for parameters that have several."""
        return ()

    def _anchor(self, arrays: ArraySpecs) -> str | None:
        return next((name for name in self.anchors if name in arrays), None)

    def prefix(self, arrays: ArraySpecs) -> str:
        """The name prefix of the network below the head."""
        return (self._anchor(arrays) or "").removesuffix(self.anchors[-1])

    def written_prefix(self, spec: ModelSpec) -> str:
        """The prefix in an export."""
        return "" if spec.headless else f"{self.fields(spec)[1]}."

    def validate_spec(self, spec: ModelSpec) -> None:
        model = spec.model
        if model.representation_size is not None and not spec.headless:
            family.refuse(model, "representation_size", "Hugging Face has no layer before the head")
        if models.find_architecture(model).weights == "bit":
            return
        if model.resnet_units is not None:
            family.refuse(model, "resnet_units", "Hugging Face transformers dropped hybrid models")
        if model.sub_norm:
            family.refuse(model, "sub_norm", "Hugging Face has no norms inside layers")
        if model.rotary_grid is not None:
            family.refuse(model, "rotary_grid", "Hugging Face has no EVA-02; timm has")
        if model.rotary is not None and model.relative_bias != "none":
            family.refuse(model, "relative_bias", "Hugging Face has none with model.rotary")

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        """The name of the class, the model_type, and the other fields of config.json."""
        raise NotImplementedError

    def files(self, spec: ModelSpec) -> Files:
        named, model_type, known = self.fields(spec)
        made = {
            "architectures": [named],
            "model_type": model_type,
            "num_channels": spec.data.channels,
            "dtype": "float32",
            **known,
        }
        if not spec.headless and "projection_dim" not in known:
            names = spec.classes or tuple(f"LABEL_{i}" for i in range(spec.model.num_classes or 0))
            # By these names transformers counts the outputs of a head.
            made["id2label"] = {str(i): name for i, name in enumerate(names)}
            made["label2id"] = {name: i for i, name in enumerate(names)}
            problem = json_fields.PROBLEMS.get(spec.loss or "")
            made |= {"problem_type": problem} if problem else {}
        return {"config.json": made, PREPROCESSOR: _written_processor(spec.data)}

    def bias_groups(self, spec: ModelSpec) -> tuple[frozenset[str], ...]:
        return (frozenset(("query", "key", "value")),)

    def class_rows(self, model: config.Model) -> tuple[bool, ...]:
        return (True,)


class UnknownHuggingFace(HuggingFace):
    """A model of transformers of no known type, or whose config.json names another."""

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return any(name in arrays for one in _known() for name in one.anchors)

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        _config_json(hints.files)
        raise unrecognized(_model_type(arrays, hints.files))


def unrecognized(model_type: str) -> WeightsError:
    """Why no family recognizes a folder whose config.json has this `model_type`."""
    if named := next((one for one in _known() if model_type in one.types), None):
        missing = named.anchors[0]
        return WeightsError(f"model_type={model_type}: there is no {missing} in the file")
    known = ", ".join(kind for one in _known() for kind in one.types)
    return WeightsError(
        f"model_type={model_type}: of the Hugging Face models, only {known} are supported"
    )


def _known() -> list[HuggingFace]:
    return [one for one in FAMILIES if isinstance(one, HuggingFace)]


def _config_json(files: Files) -> Fields:
    if "config.json" not in files:
        raise WeightsError(
            "contains a Hugging Face model; its config.json defines heads and epsilons; "
            "put that file next to it"
        )
    return files["config.json"]


def _model_type(arrays: ArraySpecs, files: Files) -> str:
    vit = any(name.endswith("embeddings.patch_embeddings.projection.weight") for name in arrays)
    return json_fields.text(files.get("config.json", {}), "model_type", "vit" if vit else "bit")


# Read


def encoder_options(given: Fields, shapes: Shapes) -> dict[str, Any]:
    """The options of a ViT that its arrays do not reveal; raises WeightsError."""
    heads = json_fields.whole(given, "num_attention_heads", 12)
    activation = json_fields.text(given, "hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise WeightsError(f"hidden_act={activation}: only {', '.join(ACTIVATIONS)} are supported")
    pooler = "pre_logits/kernel" in shapes.has
    last = json_fields.text(given, "pooler_act", "tanh") if pooler else "tanh"
    if last not in POOLER:
        raise WeightsError(f"pooler_act={last}: only {', '.join(POOLER)} are supported")
    width = shapes.shape("embedding/kernel", 4)[3]
    if given.get("head_dim") not in (None, width / heads):
        dimension = json_fields.shown(given["head_dim"])
        raise WeightsError(f"head_dim={dimension}: is not {width} / {heads} heads")
    epsilon = json_fields.real(given, "layer_norm_eps", 1e-12)
    if not epsilon:
        raise WeightsError("layer_norm_eps=0: must be more than 0")
    return {
        "heads": heads,
        "norm_epsilon": epsilon,
        **({} if given.get("qkv_bias", True) else {"biasless": torch_rules.QKV}),
        "representation_activation": POOLER[last],
        **ACTIVATIONS[activation],
    }


def read_classes(given: Fields, count: int) -> tuple[str, ...]:
    """The names of the classes in order; none for the placeholders LABEL_0, LABEL_1, ..."""
    names = json_fields.labels(given, "id2label", count)
    numbers = json_fields.section(given, "label2id")
    placeholders = tuple(f"LABEL_{k}" for k in range(count))
    # By text, as values of a JSON file may be of types that do not compare.
    whole = sorted(numbers.values(), key=str) == sorted(range(count), key=str)
    if names in ((), placeholders) and whole:  # what id2label does not say
        names = tuple(sorted(numbers, key=lambda name: numbers[name]))
    return () if names == placeholders else names


def read_loss(given: Fields, count: int | None) -> str | None:
    """The loss that transformers pairs with `count` outputs, None without a head; None: softmax."""
    kind = json_fields.text(given, "problem_type", "")
    if count and kind not in ("", SINGLE, *json_fields.PROBLEMS.values()):
        raise WeightsError(
            f"problem_type={json_fields.shown(kind)}: is unknown; {SINGLE}, "
            f"{' and '.join(json_fields.PROBLEMS.values())} are supported"
        )
    return json_fields.loss(kind) if count else None


def _processor(hints: Hints) -> tuple[Fields, dict[str, str]]:
    """The fields of the image processor, with the defaults of its class, and the assumptions made.

    transformers prefers the section that its version 5 writes to processor_config.json.
    """
    model_type = json_fields.text(hints.files.get("config.json", {}), "model_type", "vit")
    types = {kind: type_ for one in _known() for kind, type_ in one.types.items()}
    type_ = types.get(model_type, Type("ViT"))
    usual = type_.processor
    given = written_processor(hints)
    if not given:
        keys = ("mean", "std", "resampling", "eval_crop")
        why = f"as of {model_type} by default; {ABSENT}"
        return {**DEFAULTS[usual], **type_.published}, {f"data.{key}": why for key in keys}
    keys = ("image_processor_type", "feature_extractor_type")
    named = next((given[key] for key in keys if isinstance(given.get(key), str)), usual)
    known = next((prefix for prefix in DEFAULTS if named.startswith(prefix)), None)
    made = {**DEFAULTS[known or "ViT"], **json_fields.present(given)}
    # Processors of CLIP's kind read a lone number as the short side, others as a square.
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


def written_processor(hints: Hints) -> Fields:
    """The fields of the image processor as the files have them; empty without them."""
    section = json_fields.section(hints.files.get(PROCESSOR, {}), "image_processor")
    return section or hints.files.get(PREPROCESSOR, {})


def seen_size(hints: Hints) -> Size | None:
    """Height and width of preprocessed images, if given."""
    return _made(_processor(hints)[0]) if written_processor(hints) else None


def _sides(size: object) -> Size | None:
    """Height and width; None where only a short side is given."""
    if size is None:
        return None
    if not isinstance(size, dict):
        return json_fields.pair({"size": size}, "size")
    if not {"height", "width"} <= set(_keys(size)):
        return None
    return json_fields.whole(size, "height"), json_fields.whole(size, "width")


def read_data(hints: Hints, size: Size, channels: int) -> tuple[config.Data, dict[str, str]]:
    """The preprocessing options of a model of this input, and the assumptions made."""
    given, assumed = _processor(hints)
    view, made = _view(given, size), _made(given)
    if view is not None and written_processor(hints) and made not in (None, size):
        assumed[OWN_SIZE] = (
            f"{size[0]} x {size[1]}, the same part of an image as the {made[0]} x {made[1]} that "
            "the processor makes"
        )
    if view is None:
        unread = ("size", "do_center_crop", "crop_size", "do_pad")
        said = ", ".join(f"{k}={json_fields.shown(given[k])}" for k in unread if given.get(k))
        said = "do_resize=false" if given.get("do_resize") is False else said
        assumed["data.eval_crop"] = f"{NOT_OFFERED}{said}"
    resample = given.get("resample", 2)
    if type(resample) is not int or resample not in RESAMPLING:
        assumed["data.resampling"] = f"{NOT_OFFERED}resample={json_fields.shown(resample)}"
        resample = 2
    if not written_processor(hints) and channels != 3:  # no file gives three means
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


def _made(given: Fields) -> Size | None:
    """Height and width that the processor makes, where the fields say so."""
    return _sides(given.get("crop_size" if given.get("do_center_crop") else "size"))


def _view(given: Fields, size: Size) -> dict[str, Any] | None:
    """The options of an evaluation view of this size; None if the fields make no such view.

    A view of another size shows the same part of an image.
    """
    if given.get("do_resize") is False or given.get("do_pad"):
        return None
    wanted, keys = _sides(given.get("size")), _keys(given.get("size"))
    short = json_fields.whole(given["size"], "shortest_edge") if "shortest_edge" in keys else None
    if not given.get("do_center_crop"):
        return {"eval_crop": "resize"} if wanted or not given.get("size") else None
    crop = _made(given) or size
    if wanted == crop:
        return {"eval_crop": "resize"}
    larger = max(size) / max(crop)
    if short is not None and "longest_edge" not in keys:
        view: dict[str, Any] = {"eval_crop": "central", "resize_to": round(short * larger)}
    elif wanted is not None and wanted[0] == wanted[1]:
        view = {"eval_crop": "squash", "resize_to": round(wanted[0] * larger)}
    elif wanted is not None:
        return _squashed(wanted, crop)
    else:
        return None
    if view["resize_to"] > 10 * max(size):  # which would take all memory
        return None
    # transformers pads an image that is smaller than its crop by zeros.
    return view | ({"fill": (0.0,)} if view["resize_to"] < max(size) else {})


def _squashed(wanted: Size, crop: Size) -> dict[str, Any] | None:
    """The view that cuts `crop` out of an oblong of these sides, as timm's share of them."""
    share = min(made / side for made, side in zip(crop, wanted, strict=True))
    share = math.floor(share * 10_000) / 10_000
    # Below a tenth, images would take all memory.
    if share < 0.1 or tuple(math.floor(side / share) for side in crop) != wanted:
        return None
    return {"eval_crop": "squash", "crop_pct": share} | ({"fill": (0.0,)} if share > 1 else {})


def _keys(size: object) -> tuple[str, ...]:
    return tuple(k for k, v in size.items() if v is not None) if isinstance(size, dict) else ()


def _normalization(given: Fields, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, std = (0.0,), (1.0,)
    if given.get("do_normalize", True):
        mean, std = (json_fields.reals(given, key) for key in ("image_mean", "image_std"))
    if channels == 1:  # three equal values count as one
        mean, std = _shortest(mean), _shortest(std)
    # Normalization applies to pixels from 0 to 255 times this factor.
    scaled = given.get("do_rescale", True)
    factor = json_fields.real(given, "rescale_factor", 1 / 255) if scaled else 1.0
    white = 255 * factor
    if not white or not min(std) or len(mean) not in (1, channels) or len(std) not in (1, channels):
        raise WeightsError(
            f"image_mean={list(mean)}, image_std={list(std)}, rescale_factor={factor:g}: "
            f"normalize no pixels of {channels} channels"
        )
    return _shortest(v / white for v in mean), _shortest(v / white for v in std)


def _shortest(values: Iterable[float]) -> tuple[float, ...]:
    many = tuple(values)
    return many if len(set(many)) > 1 else many[:1]


# Written


def _written_processor(data: config.Data) -> dict[str, Any]:
    """The fields of preprocessor_config.json; a border, which transformers lacks, is left out."""
    sides, box = ({"height": h, "width": w} for h, w in (data.image_size, data.before_crop))
    # Named for what they do, not for the model: Bit's resizes the short side and crops, DeiT's
    # resizes both sides and crops, ViT's resizes only.
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
        # By default transformers makes three channels of every image.
        **({} if data.channels == 3 else {"do_convert_rgb": False}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": json_fields.each_channel(data.mean, data.channels),
        "image_std": json_fields.each_channel(data.std, data.channels),
    }


def encoder_fields(spec: ModelSpec) -> dict[str, Any]:
    """The fields of an encoder in config.json."""
    model, (height, width) = spec.model, spec.data.image_size
    patch = model.patch_size or (1, 1)
    gelu = {"tanh": "gelu_pytorch_tanh", "erf": "gelu", "quick": "quick_gelu"}
    made: dict[str, Any] = {
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.heads,
        "intermediate_size": model.mlp_dim,
        "hidden_act": gelu[model.gelu] if model.activation == "gelu" else model.activation,
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


def refuse_oblong(spec: ModelSpec, who: str) -> None:
    """Raises WeightsError for images other than squares; `who` ends in `takes`, or `take`."""
    height, width = spec.data.image_size
    if height != width:
        raise WeightsError(f"data.image_size={height},{width}: Hugging Face's {who} squares only")


def without_dropout(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields for model types without fields of dropout and of `qkv_bias`."""
    return {k: v for k, v in fields.items() if k != "qkv_bias" and "dropout_prob" not in k}
