"""The shared part of timm's models: the config.json of its folders, read and written."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from vit_jax import config
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import torch_rules
from vit_jax.weights.family import (
    CLIP,
    FILTERS,
    HALF,
    IMAGENET,
    NOT_OFFERED,
    Family,
    Fields,
    Files,
    refuse,
    share_of_crop,
)
from vit_jax.weights.mapping import ArraySpecs, ModelSpec, Size

OPEN_CLIP = "open_clip_config.json"
CROPS = {"center": "central", "squash": "squash", "border": "border"}
FLAT = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")
PIXELS = dict.fromkeys(
    ("data.resampling", "data.eval_crop"), "as most of timm's; the file does not say"
)
UNKNOWN_HEADS = (
    "does not say how many heads its layers of width {} have; "
    "give them, such as --config.model.heads=3"
)
# Model arguments that arrays also reveal, or that change no prediction.
SHOWN = re.compile(
    "img_size|patch_size|in_chans|num_classes|embed_dim|depth|mlp_ratio|class_token|pos_embed|"
    "no_embed_class|pre_norm|qk_norm|(qkv|proj)_bias|(use_)?fc_norm|final_norm|(num_)?reg_tokens|"
    "pos_embed_grid_size|(pos_|patch_|proj_|attn_)?drop_rate|drop_path_rate|swiglu_(mlp|align_to)|init_values|"
    "qkv_fused|scale_(mlp|attn_inner|mlp_norm|attn_norm)|use_((abs|shared_rel)_pos_(emb|bias)|"
    "rel_pos_bias|(pre|post)_transformer_norm)|head_init_scale|attn_pool_mlp_ratio|"
    "weight_init|fix_init|zero_init_last|dynamic_img_size|strict_img_size|layers|width_factor"
)
READ = frozenset(("num_heads", "act_layer", "global_pool", "rope_temperature", "ref_feat_shape",
                  "pos_embed_interp_mode", "attn_pool_num_heads"))  # fmt: skip
# Unsupported features of timm's models, by patterns of names.
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


class Timm(Family):
    """The files of timm's models: state dicts, and the folders of its hub."""

    project = "timm"
    anchors = ("patch_embed.proj.weight", "stem.conv.weight")
    head = "head"
    dropped = (
        (r"mask(?:_token|ed_embed)|decoder_.*", "of masked image modeling"),
        (r"blocks\.\d+\.attn\.qkv\.bias_mask", "of the biases of keys, which are zero"),
        (r"rope_embed\.periods", "of rotary positions, which model.rotary gives"),
        (r"local_cls_norm\..*", "of small crops in pretraining"),
        (r".*relative_position_index", "numbers of offsets, no weights"),
        (r"text\..*|logit_scale|logit_bias", "of the text tower and the loss"),
    )
    pooled_norm = True

    def validate_spec(self, spec: ModelSpec) -> None:
        if spec.model.representation_size is not None:
            refuse(spec.model, "representation_size", "timm has no layer before the head")


def is_transformer(arrays: ArraySpecs) -> bool:
    """Whether arrays have the names of one of timm's Vision Transformers."""
    if "patch_embed.proj.weight" not in arrays:
        return False
    return any(name.startswith(("blocks.0.", "stages.0.blocks.0.")) for name in arrays)


def check_names(names: list[str]) -> None:
    """Raises WeightsError for arrays of unsupported parts."""
    for pattern, feature in FOREIGN:
        if any(re.fullmatch(pattern, name) for name in names):
            raise WeightsError(f"contains a model with {feature}, which is not supported")


def unsupported(name: str, otherwise: Iterable[tuple[str, str]], remedy: str = "") -> WeightsError:
    """Why an architecture is not read: by the first pattern of `otherwise` that it fits."""
    why = next((f", as {why}" for pattern, why in otherwise if re.fullmatch(pattern, name)), remedy)
    return WeightsError(f"architecture={name[:80]}: this model of timm is not supported{why}")


def check_arguments(given: Fields, fixed: Fields) -> None:
    """Raises WeightsError for an argument that changes what a model computes.

    `fixed` are arguments with the one value that is supported.
    """
    for key, value in json_fields.section(given, "model_args").items():
        same = key in fixed and value == fixed[key]
        known = same if key in fixed else key in READ or SHOWN.fullmatch(key)
        if not known:
            raise WeightsError(f"config.json: model_args.{key}: is not supported")


# Read


def read_fields(files: Files) -> Fields:
    """The fields of timm's config.json; empty without one.

    Those of open_clip_config.json stand for them where its tower is one of timm's.
    """
    given = files.get("config.json", {})
    if "architecture" not in given and "pretrained_cfg" not in given:
        return _from_open_clip(files.get(OPEN_CLIP, {}))  # another project's config.json
    if "architecture" in given and not json_fields.section(given, "pretrained_cfg"):
        # Before timm 0.9 the fields stood side by side.
        flat = {key: value for key, value in json_fields.present(given).items() if key in FLAT}
        given = {"label_names": given.get("labels"), **given, "pretrained_cfg": flat}
    return given


def _from_open_clip(given: Fields) -> Fields:
    """The image tower of an open_clip config in the form of timm's config.json; {} for none."""
    tower = json_fields.section(json_fields.section(given, "model_cfg"), "vision_cfg")
    name = json_fields.text(tower, "timm_model_name", "")
    if not name:
        return {}
    size = json_fields.pair(tower, "image_size", 224)
    return {
        "architecture": name,
        "global_pool": tower.get("timm_pool", "avg"),
        "pretrained_cfg": {**open_clip_view(given), "input_size": [3, *size]},
    }


def open_clip_view(given: Fields) -> Fields:
    """The preprocessing of open_clip_config.json in the fields of timm's config.json."""
    said = json_fields.section(given, "preprocess_cfg")
    mode = json_fields.text(said, "resize_mode", "shortest")
    color = json_fields.real(said, "fill_color", 0)
    if color > 255:
        raise WeightsError(f"{OPEN_CLIP}: fill_color={color:g}: must be from 0 to 255")
    view = {"mean": CLIP[0], "std": CLIP[1], "interpolation": "bicubic"}
    return {
        **view,
        **{key: said[key] for key in view if said.get(key) is not None},
        "crop_pct": 1.0,
        "crop_mode": {"shortest": "center", "longest": "border"}.get(mode, mode),
        "fill": color / 255,
    }


def architecture(given: Fields) -> str:
    """The architecture in config.json, without a tag of its weights; empty if it says none."""
    name = json_fields.text(given, "architecture", "").partition(".")[0]
    return re.sub(r"_(?:in2[12](?:k|ft1k)|dino|sam)$", "", name)  # tags before timm 0.9


def image_size(given: Fields) -> Size | None:
    """Height and width in pixels, if the file has them."""
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


def classes(given: Fields, count: int) -> tuple[str, ...]:
    """Class names in order, words for WordNet ids; empty if the file has none."""
    names = json_fields.labels(given, "label_names", count)
    described = json_fields.section(given, "label_descriptions")
    # Other names are the folders' of whoever trained it, by which they are found again.
    return tuple(str(described.get(n, n)) if re.fullmatch(r"n\d+", n) else n for n in names)


def data(
    given: Fields,
    size: Size,
    channels: int,
    pixels: tuple[tuple[float, ...], tuple[float, ...]] = HALF,
    weights: str = "the weights that Google trained",
) -> tuple[config.Data, dict[str, str]]:
    """The preprocessing options and the assumptions made; raises WeightsError.

    Where config.json says nothing, mean and deviation are `pixels`, those of the `weights`.
    """
    said = json_fields.section(given, "pretrained_cfg")
    if not said:
        mean, std = pixels if channels == 3 else HALF
        plain = config.Data(
            image_size=size,
            channels=channels,
            mean=mean,
            std=std,
            eval_crop="resize",
            resampling=FILTERS["bicubic"],
        )
        why = f"as of {weights}; the file does not say"
        return plain, {"data.mean": why, "data.std": why, **PIXELS}
    filter_ = json_fields.text(said, "interpolation", "bicubic")
    mode = json_fields.text(said, "crop_mode", "") or "center"
    share = json_fields.real(said, "crop_pct", 0.875)
    fill = json_fields.real(said, "fill") if said.get("fill") is not None else None
    assumed = {}
    if not share:
        share, assumed["data.crop_pct"] = 0.875, "as in timm, of crop_pct=0"
    if filter_ not in FILTERS:
        assumed["data.resampling"] = f"{NOT_OFFERED}interpolation={filter_}"
    if mode not in CROPS:
        assumed["data.eval_crop"] = f"{NOT_OFFERED}crop_mode={mode}"
    # At 0.1 an image is resized to ten times its crop; below, one could take all memory.
    if not 0.1 < share <= 10:
        assumed["data.crop_pct"] = f"{NOT_OFFERED}crop_pct={share:g}"
        share = 1.0
    return config.Data(
        image_size=size,
        channels=channels,
        mean=_pixel(said, "mean", channels, IMAGENET[0]),
        std=_pixel(said, "std", channels, IMAGENET[1]),
        resampling=FILTERS.get(filter_, "antialiased_bicubic"),
        **share_of_crop(CROPS.get(mode, "central"), share, fill),
    ), assumed


def _pixel(said: Fields, key: str, channels: int, default: tuple[float, ...]) -> tuple[float, ...]:
    values = json_fields.reals(said, key, default if channels == len(default) else (0.5,))
    if len(values) not in (1, channels) or max(values) > 1 or (key == "std" and not min(values)):
        raise WeightsError(f"{key}={list(values)}: must be {channels} values from 0 to 1")
    return values if len(set(values)) > 1 else values[:1]


def resnet_names(root: str, stages: str) -> Iterator[tuple[str, str]]:
    """Yields the names of a ResNet up to its last unit, below the prefixes of both parts."""
    yield f"{root}conv", "resnet/conv_root"
    yield f"{root}norm", "resnet/gn_root"
    yield from torch_rules.resnet_units(f"{stages}stages.{{stage}}.blocks.{{unit}}")


# Written


def config_json(
    spec: ModelSpec,
    name: str,
    pool: str,
    arguments: Fields,
    *,
    first: str,
    classifier: str | list[str],
    fixed_size: bool = True,
) -> Fields:
    """The config.json from which timm builds a model, by the names and arguments of timm.

    `fixed_size`: whether it takes images of one size only.
    """
    data = spec.data
    count = 0 if spec.headless else spec.model.num_classes
    modes, filters = ({value: key for key, value in one.items()} for one in (CROPS, FILTERS))
    made: dict[str, Any] = {
        "architecture": name,
        "num_classes": count,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [data.channels, *data.image_size],
            "fixed_input_size": fixed_size,
            "interpolation": filters.get(data.eval_resampling or data.resampling, "bilinear"),
            "crop_pct": 1.0 if data.eval_crop == "resize" else crop_share(data),
            "crop_mode": modes.get(data.eval_crop, "squash"),
            "mean": json_fields.each_channel(data.mean, data.channels),
            "std": json_fields.each_channel(data.std, data.channels),
            "num_classes": count,
            "pool_size": None,
            "first_conv": first,
            "classifier": classifier,
            "custom_load": False,
        },
    }
    if spec.classes:
        made["label_names"] = list(spec.classes)
    if (problem := json_fields.PROBLEMS.get(spec.loss or "")) and not spec.headless:
        # The word is transformers'; timm has none, and passes over the field.
        made["problem_type"] = problem
    return made


def refuse_folder(what: str) -> NoReturn:
    """Raises WeightsError for a model that no config.json makes timm create."""
    raise WeightsError(
        f"{what}: timm cannot create this model from a config.json; write the weights alone, to a "
        "path that ends in .safetensors"
    )


def resnet_architecture(
    model: config.Model, names: Mapping[tuple[tuple[int, ...], float], str]
) -> str:
    """The architecture with the ResNet of a model, by its units and width; raises WeightsError."""
    units, width = model.resnet_units or (), model.resnet_width or 1.0
    if (units, width) not in names:
        known = any(units == others for others, _ in names)
        wrong = f"width={width:g}" if known else f"units={config.show(units)}"
        refuse_folder(f"model.resnet_{wrong}")
    return names[units, width]


def crop_share(data: config.Data) -> float:
    """The crop share in timm, or the shortest decimal one that gives the same short side."""
    if data.crop_pct is not None:
        return data.crop_pct
    # timm resizes the short side to floor(size / crop_pct).
    side, wanted = data.image_size[0], data.before_crop[0]
    exact, within = side / wanted, side / (wanted + 0.5)
    shares = (round(share, digits) for digits in range(1, 9) for share in (exact, within))
    return next((s for s in shares if s and math.floor(side / s) == wanted), exact)
