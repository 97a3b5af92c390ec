"""NaFlex models, trained on images at their own aspect ratio: timm's naflexvit and SigLIP 2.

embeds.proj, embeds.pos_embed, blocks.0.attn.qkv              timm's NaFlexVit
embeddings.patch_embedding, encoder.layers.0.self_attn, ...   transformers' Siglip2VisionModel

They are ViTs that take padded sequences of patches: a dense layer on flat patches in place of a
convolution, positions resized to the grid of each image. Files are read by the rules of the same
project's ViTs, once these arrays have their shapes.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from vit_jax import config, models
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import Arrays, ArraySpec, WeightsError
from vit_jax.weights.families import huggingface, timm
from vit_jax.weights.families.hf_towers import HuggingFaceTower
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.families.timm_vit import TimmViT
from vit_jax.weights.family import HALF, Fields, Files, Hints
from vit_jax.weights.mapping import ArraySpecs, ModelSpec, Rule, Shapes, Size, linear, reshaped

LONGEST = 2**16  # patches of a view: as many as 4096 x 4096 pixels have
TIMM_LENGTH = 576  # of timm's loaders by default
SIGLIP_LENGTH = 256
# Names of arrays in timm's NaFlexVit, and in its ViT.
EMBEDDINGS = {
    "embeds.proj.weight": "patch_embed.proj.weight",
    "embeds.proj.bias": "patch_embed.proj.bias",
    "embeds.cls_token": "cls_token",
    "embeds.reg_token": "reg_token",
    "embeds.pos_embed": "pos_embed",
}
INTERPOLATION = {"bicubic": "antialiased_bicubic", "bilinear": "antialiased_bilinear"}
# Architectures that position patches otherwise.
OTHERWISE = (
    (r"naflexvit_.*_parfac_.*", "its positions are of rows and columns, and of square grids"),
    (r"naflexvit_.*_par_.*", "its positions are those of a square around the image"),
    (r"naflexvit_.*_radio_.*", "its positions are those of a square around the image, and nothing "
     "normalizes its last layer"),
)  # fmt: skip


def _patches(arrays: Arrays, name: str, patch: Size, channels: int) -> Arrays:
    """The arrays, the dense kernel on flattened patches reshaped to a convolution's."""
    shape = arrays.specs[name].shape
    if len(shape) == 4:  # timm's embed_proj_type="conv"
        return arrays
    if shape[1:] != (math.prod(patch) * channels,):
        raise WeightsError(
            f"{name} is {shape}: is no layer on patches of {patch[0]} x {patch[1]} pixels and "
            f"{channels} channels"
        )
    spec = ArraySpec((shape[0], channels, *patch), arrays.specs[name].dtype)

    def read(one: str) -> np.ndarray:
        value = arrays.read(one)
        # Flat patches are in the order rows, columns, channels; torch's kernels have channels
        # first.
        return value.reshape(-1, *patch, channels).transpose(0, 3, 1, 2) if one == name else value

    return Arrays({**arrays.specs, name: spec}, read, arrays.metadata)


def _view(data: config.Data, size: Size, length: int) -> config.Data:
    """`data` with views of at most `length` patches; `size` is the pixels of the position grid."""
    if length > LONGEST:
        raise WeightsError(f"{length} patches: at most {LONGEST} are supported")
    plain = config.Data()
    # At its own aspect ratio an image is never cropped, so these get their defaults.
    crop = {key: getattr(plain, key) for key in ("crop_pct", "crop_rounding", "resize_to", "fill")}
    return dataclasses.replace(
        data, image_size=size, aspect="native", lengths=(length,), eval_crop="resize", **crop
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TimmNaFlex(TimmViT):
    """timm's NaFlexVit."""

    anchors: ClassVar[tuple[str, ...]] = ("embeds.proj.weight",)

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return {"embeds.proj.weight", "blocks.0.norm1.weight"} <= arrays.keys()

    def prepared(self, arrays: Arrays, hints: Hints) -> Arrays:
        given = timm.read_fields(hints.files)
        name = timm.architecture(given)
        odd = any(re.fullmatch(pattern, name) for pattern, _ in OTHERWISE)
        if name and (odd or not re.fullmatch(self.names, name)):
            raise timm.unsupported(name, OTHERWISE)
        if (table := arrays.specs.get("embeds.pos_embed")) is None or len(table.shape) != 4:
            raise WeightsError("contains a NaFlex model whose positions are no learned grid")
        arguments = json_fields.section(given, "model_args")
        rows, columns = table.shape[1:3]
        if json_fields.pair(arguments, "pos_embed_grid_size", rows) != (rows, columns):
            raise WeightsError(
                f"embeds.pos_embed is a grid of {rows} x {columns}; let the model_args of "
                f"config.json say pos_embed_grid_size=[{rows}, {columns}]"
            )
        channels = json_fields.whole(arguments, "in_chans", 3)
        inputs = math.prod(arrays.specs["embeds.proj.weight"].shape[1:])
        # Without an argument for it the patch is taken for a square.
        side = max(math.isqrt(inputs // channels), 1)
        patch = json_fields.pair(arguments, "patch_size", side)
        arrays = _patches(arrays, "embeds.proj.weight", patch, channels)
        own = {EMBEDDINGS.get(name, name): name for name in arrays.specs}
        flat = ArraySpec((1, math.prod(table.shape[:3]), table.shape[3]), table.dtype)
        specs = {name: arrays.specs[there] for name, there in own.items()} | {"pos_embed": flat}

        def read(name: str) -> np.ndarray:
            value = arrays.read(own[name])
            return value.reshape(flat.shape) if name == "pos_embed" else value

        return Arrays(specs, read, arrays.metadata)

    def image_size(
        self, arrays: ArraySpecs, patch: list[int], sizes: tuple[Size | None, Size | None]
    ) -> tuple[Size | None, dict[str, str]]:
        return sizes[1], {}  # by the grid of the positions

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        given = timm.read_fields(hints.files)
        arguments = json_fields.section(given, "model_args")
        side = math.isqrt(arrays["pos_embed"].shape[1])
        rows, columns = json_fields.pair(arguments, "pos_embed_grid_size", side)
        patch = arrays["patch_embed.proj.weight"].shape[2:]
        hints = dataclasses.replace(hints, image_size=(rows * patch[0], columns * patch[1]))
        made = super().read_spec(arrays, hints)
        name = timm.architecture(given)
        usual = "bilinear" if "siglip" in name else "bicubic"
        resize = json_fields.text(arguments, "pos_embed_interp_mode", usual)
        if resize not in INTERPOLATION:
            known = ", ".join(INTERPOLATION)
            raise WeightsError(f"pos_embed_interp_mode={resize}: only {known} are supported")
        seen, assumed = timm.image_size({**given, "model_args": {}}), dict(made.assumed)
        length = TIMM_LENGTH if seen is None else math.prod(seen) // math.prod(patch)
        if seen is None:
            assumed["data.lengths"] = self.why
        if not name:
            assumed["model.position_resize"] = self.why
        return dataclasses.replace(
            made,
            model=dataclasses.replace(made.model, position_resize=INTERPOLATION[resize]),
            data=_view(made.data, made.data.image_size, max(length, 1)),
            assumed={key: why for key, why in assumed.items() if key != "data.eval_crop"},
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        # Read arrays have the plain ViT's names and shapes already, by `prepared`.
        if arrays is not None:
            yield from super().rules(arrays, spec)
            return
        assert spec is not None
        here = {name: there for there, name in EMBEDDINGS.items()}
        grid = models.grid(spec.model, spec.data.image_size)
        table = reshaped(lambda shape: (1, *grid, shape[2]))
        layouts = {"pos_embed": table, "patch_embed.proj.weight": linear(3)}
        for rule in super().rules(arrays, spec):
            source = here.get(rule.source, rule.source)
            yield rule._replace(source=source, layout=layouts.get(rule.source, rule.layout))

    def expresses(self, spec: ModelSpec) -> bool:
        model = spec.model
        plain = model.mlp == "plain" and not (model.stem_norm or model.sub_norm)
        learned = model.rotary is None and model.relative_bias == "none"
        return bool(spec.data.padded) and plain and learned and not model.distillation

    def files(self, spec: ModelSpec) -> Files:
        made = dict(super().files(spec)["config.json"])
        gone = ("img_size", "no_embed_class")
        arguments = {key: value for key, value in made["model_args"].items() if key not in gone}
        arguments["pos_embed_grid_size"] = list(models.grid(spec.model, spec.data.image_size))
        if spec.model.pooling == "map" and spec.model.pooling_heads is not None:
            arguments["attn_pool_num_heads"] = spec.model.pooling_heads
        names = {value: key for key, value in INTERPOLATION.items()}
        arguments["pos_embed_interp_mode"] = names.get(spec.model.position_resize, "bicubic")
        length, (height, width) = spec.data.padded or 1, spec.model.patch_size or (1, 1)
        # config.json has no field for a number of patches: the input is the squarest image of as
        # many.
        rows = next(n for n in range(math.isqrt(length), 0, -1) if length % n == 0)
        seen = {"input_size": [spec.data.channels, rows * height, length // rows * width]}
        view = {**made["pretrained_cfg"], **seen, "crop_pct": 1.0, "crop_mode": "center"}
        view |= {"fixed_input_size": False, "first_conv": "embeds.proj"}
        return {"config.json": {**made, "model_args": arguments, "pretrained_cfg": view}}

    def class_rows(self, model: config.Model) -> tuple[bool, ...]:
        return (False,)


SIGLIP_2 = Type("Siglip2", {}, {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"})


class HuggingFaceNaFlex(HuggingFaceTower):
    """The image tower of transformers' Siglip2, and its classifier."""

    types: ClassVar = {"siglip2": SIGLIP_2, "siglip2_vision_model": SIGLIP_2}

    def prepared(self, arrays: Arrays, hints: Hints) -> Arrays:
        kind = "siglip2_vision_model"
        fields = self.read_fields(hints.files.get("config.json", {}), kind)
        patch = json_fields.pair(fields, "patch_size", 16)
        channels = json_fields.whole(fields, "num_channels", 3)
        return _patches(arrays, self._anchor(arrays.specs) or "", patch, channels)

    def size(self, fields: Fields, hints: Hints) -> Size:
        side = math.isqrt(json_fields.whole(fields, "num_patches", 256))
        height, width = json_fields.pair(fields, "patch_size", 16)
        return side * height, side * width

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        return super().options(fields, shapes) | {"position_resize": "antialiased_bilinear"}

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        made = super().read_spec(arrays, hints)
        given = huggingface.written_processor(hints)
        length = json_fields.whole(given, "max_num_patches", SIGLIP_LENGTH)
        unsaid = {} if given else {"data.lengths": made.assumed["data.mean"]}
        assumed = {key: why for key, why in made.assumed.items() if key != "data.eval_crop"}
        data = _view(made.data, made.data.image_size, length)
        return dataclasses.replace(made, data=data, assumed=assumed | unsaid)

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        for rule in super().rules(arrays, spec):
            flat = arrays is None and rule.target == "embedding/kernel"
            yield rule._replace(layout=linear(3)) if flat else rule

    def expresses(self, spec: ModelSpec) -> bool:
        return bool(spec.data.padded) and not spec.model.stem_norm and super().expresses(spec)

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        named, _, known = super().fields(spec)
        tower = {k: v for k, v in known.get("vision_config", known).items() if k != "image_size"}
        tower["num_patches"] = math.prod(models.grid(spec.model, spec.data.image_size))
        named = named.replace("Siglip", "Siglip2")
        if "vision_config" not in known:
            return named, "siglip2_vision_model", tower
        return named, "siglip2", {"vision_config": tower | {"model_type": "siglip2_vision_model"}}

    def files(self, spec: ModelSpec) -> Files:
        made = super().files(spec)
        drop = ("size", "do_center_crop", "crop_size")
        view = {k: v for k, v in made[huggingface.PREPROCESSOR].items() if k not in drop}
        patch, length = spec.model.patch_size or (1, 1), spec.data.padded
        view |= {"image_processor_type": "Siglip2ImageProcessor", "do_convert_rgb": True}
        view |= {"patch_size": patch[0], "max_num_patches": length}
        return {**made, huggingface.PREPROCESSOR: view}


TIMM = TimmNaFlex(
    title="NaFlex",
    names=r"naflexvit_(?:base_patch16_(?:gap|map|siglip)|so150m2_patch16_reg1_(?:gap|map)|"
    r"so400m_patch16_siglip)",
    looks_like=lambda arrays: "embeds.proj.weight" in arrays,
    pixels=HALF,
    fixed={
        **{"pos_embed": "learned", "pos_embed_ar_preserving": False, "pos_embed_antialias": True},
        **{"pos_embed_align_corners": False, "rope_type": "", "embed_proj_type": "linear"},
        **{"pool_include_prefix": False, "attn_type": "standard", "final_norm": True},
    },
    written="naflexvit_base_patch16_siglip",
)
