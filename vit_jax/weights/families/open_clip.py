"""CLIP under the names of OpenAI's code, which open_clip kept: the image tower, read only.

visual.conv1, visual.transformer.resblocks.0, visual.proj      and transformer, text_projection, ...

Names and shapes do not reveal the heads, the form of GELU and the preprocessing; the file
open_clip_config.json in open_clip's folders does. Its towers of timm have timm's names.
"""

from collections.abc import Iterator

from vit_jax import config, models
from vit_jax.weights import family, json_fields
from vit_jax.weights.families.timm import OPEN_CLIP as CONFIG
from vit_jax.weights.families.timm import UNKNOWN_HEADS
from vit_jax.weights.families.torch_rules import dense, norm, parts
from vit_jax.weights.family import FILTERS, NO_HEAD, NOT_OFFERED, Family, Fields, Files, Hints
from vit_jax.weights.mapping import (
    CONVOLUTION,
    FLAT,
    ROWS,
    ArraySpecs,
    ModelSpec,
    Rule,
    Size,
    array_shape,
    depth,
    linear,
    size_of_positions,
)
from vit_jax.weights.readers import WeightsError

CROPS = {"shortest": "central", "longest": "border", "squash": "squash"}
OPENAI = "as of OpenAI's weights; the file does not say"
# Fields of a tower that arrays also reveal, or that change no prediction.
SHOWN = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio", "patch_dropout",
         "output_tokens"}  # fmt: skip


class OpenClip(Family):
    """The image tower beside or without that of texts."""

    project = "open_clip"
    anchors = ("visual.conv1.weight",)
    dropped = (
        (r"transformer\..*|token_embedding\..*|ln_final\..*", "of the text tower"),
        (r"text\..*", "of the text tower"),  # of CustomTextCLIP
        (r"positional_embedding|text_projection|attn_mask", "of the text tower"),
        (r"logit_scale|logit_bias|input_resolution|context_length|vocab_size", "of the loss"),
    )

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        """Whether the arrays contain a Vision Transformer of this kind."""
        return {"visual.conv1.weight", "visual.class_embedding"} <= arrays.keys()

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        """Infers the model from names, shapes and open_clip_config.json; raises WeightsError."""
        given = hints.files.get(CONFIG, {})
        known = json_fields.section(given, "model_cfg")
        tower = json_fields.section(known, "vision_cfg")
        if odd := sorted(key for key, value in tower.items() if value and key not in SHOWN):
            raise WeightsError(f"{CONFIG}: vision_cfg.{odd[0]}: is not supported")
        width, channels, *patch = array_shape(arrays, "visual.conv1.weight", 4)
        heads, assumed = _heads(tower, width, hints.heads)
        projected = "visual.proj" in arrays
        quick = known.get("quick_gelu", False) is True or not known
        hidden = array_shape(arrays, "visual.transformer.resblocks.0.mlp.c_fc.weight", 2)[0]
        model = models.complete(
            config.Model(
                patch_size=(patch[0], patch[1]),
                width=width,
                depth=depth(arrays, r"visual\.transformer\.resblocks\.(\d{1,3})\."),
                mlp_dim=hidden,
                heads=heads,
                num_classes=array_shape(arrays, "visual.proj", 2)[1] if projected else 1,
                patch_remainder="drop",
                position_resize="antialiased_bicubic",
                stem_norm=True,
                biasless=("patches", "head") if projected else ("patches",),
                gelu="quick" if quick else "erf",
                norm_epsilon=1e-5,
            )
        )
        if not known:
            assumed |= dict.fromkeys(("model.activation", "model.gelu"), OPENAI)
        said = json_fields.pair(tower, "image_size") if "image_size" in tower else hints.image_size
        patches = array_shape(arrays, "visual.positional_embedding", 2)[0] - 1
        size, guessed = size_of_positions(model, patches, said)
        data, unsaid = _data(given, size, channels)
        return ModelSpec(
            model=model,
            data=data,
            assumed=assumed | guessed | unsaid,
            fresh={} if projected else NO_HEAD,
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec) -> Iterator[Rule]:
        """Yields the rules to read a file."""
        if spec.model.heads is None:
            raise WeightsError(UNKNOWN_HEADS.format(spec.model.width))
        block = "visual.transformer.resblocks.{layer}"
        yield Rule("visual.class_embedding", "cls", FLAT)
        yield Rule("visual.positional_embedding", "position/table", ROWS)
        yield Rule("visual.conv1.weight", "embedding/kernel", CONVOLUTION)
        yield from norm("visual.ln_pre", "stem_norm")
        yield from norm(f"{block}.ln_1", "encoder/norm1")
        yield from norm(f"{block}.ln_2", "encoder/norm2")
        qkv = ("query", "key", "value")
        yield from parts(f"{block}.attn.in_proj", "encoder/attention", qkv, "_")
        yield from dense(f"{block}.attn.out_proj", "encoder/attention/out", linear(2))
        yield from dense(f"{block}.mlp.c_fc", "encoder/mlp/fc1")
        yield from dense(f"{block}.mlp.c_proj", "encoder/mlp/fc2")
        yield from norm("visual.ln_post", "encoder_norm")
        yield Rule("visual.proj", "head/kernel")


def _heads(tower: Fields, width: int, wanted: int | None) -> tuple[int | None, dict[str, str]]:
    """The number of heads, or None if unknown, and the assumptions made."""
    each = json_fields.whole(tower, "head_width", 64)
    if not tower and wanted is not None:
        return wanted, {}
    if width % each:
        return None, {}
    return width // each, {} if tower else {"model.heads": "each 64 wide; the file does not say"}


def _data(given: Fields, size: Size, channels: int) -> tuple[config.Data, dict[str, str]]:
    """The preprocessing options and the assumptions made."""
    said = json_fields.section(given, "preprocess_cfg")
    kind = json_fields.text(said, "interpolation", "bicubic")
    mode = json_fields.text(said, "resize_mode", "shortest")
    color = json_fields.real(said, "fill_color", 0)
    assumed: dict[str, str] = {}
    if not given:
        keys = ("mean", "std", "resampling", "eval_crop")
        assumed = {f"data.{key}": OPENAI for key in keys}
    if kind not in FILTERS:
        assumed["data.resampling"] = f"{NOT_OFFERED}interpolation={json_fields.shown(kind)}"
    if mode not in CROPS:
        assumed["data.eval_crop"] = f"{NOT_OFFERED}resize_mode={json_fields.shown(mode)}"
    mean, std = (
        json_fields.reals(said, key, default)
        for key, default in zip(("mean", "std"), family.CLIP, strict=True)
    )
    if any(len(values) not in (1, channels) for values in (mean, std)) or not min(std):
        raise WeightsError(f"{CONFIG}: mean and std must be {channels} values, std above 0")
    if color > 255:
        raise WeightsError(f"{CONFIG}: fill_color={color:g}: must be from 0 to 255")
    return config.Data(
        image_size=size,
        channels=channels,
        mean=mean,
        std=std,
        resampling=FILTERS.get(kind, "antialiased_bicubic"),
        **family.share_of_crop(CROPS.get(mode, "central"), 1.0, color / 255),
    ), assumed
