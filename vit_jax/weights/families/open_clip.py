"""CLIP under the names of OpenAI's code, which open_clip kept: the image tower, read only.

visual.conv1, visual.transformer.resblocks.0, visual.proj      and transformer, text_projection, ...

Names and shapes do not reveal the heads, the form of GELU and the preprocessing; the file
open_clip_config.json in open_clip's folders does. Its towers of timm have timm's names.
"""

from collections.abc import Iterator

from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import timm, timm_vit, torch_rules
from vit_jax.weights.families.timm import OPEN_CLIP as CONFIG
from vit_jax.weights.families.timm import UNKNOWN_HEADS
from vit_jax.weights.family import NO_HEAD, Family, Files, Hints, refuse_other_model
from vit_jax.weights.mapping import (
    FLAT,
    ROWS,
    ArraySpecs,
    ModelSpec,
    Rule,
    Shapes,
    array_shape,
    size_of_positions,
)

BLOCK = "transformer.resblocks.{layer}"
NAMES = (
    ("class_embedding", "cls", FLAT),
    ("positional_embedding", "position/table", ROWS),
    ("conv1", "embedding"),
    ("ln_pre", "stem_norm"),
    (f"{BLOCK}.ln_1", "encoder/norm1"),
    (f"{BLOCK}.ln_2", "encoder/norm2"),
    (f"{BLOCK}.attn.in_proj_", "encoder/attention/query|key|value"),
    (f"{BLOCK}.attn.out_proj", "encoder/attention/out"),
    (f"{BLOCK}.mlp.c_fc", "encoder/mlp/fc1"),
    (f"{BLOCK}.mlp.c_proj", "encoder/mlp/fc2"),
    ("ln_post", "encoder_norm"),
)
OPENAI = "as of OpenAI's weights; the file does not say"
# Fields of a tower that arrays also reveal, or that change no prediction.
SHOWN = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio", "patch_dropout",
         "output_tokens"}  # fmt: skip


class OpenClip(Family):
    """The image tower of a CLIP model, with or without its text tower in the file."""

    project = "open_clip"
    anchors = ("visual.conv1.weight",)
    dropped = (
        (r"transformer\..*|token_embedding\..*|ln_final\..*", "of the text tower"),
        (r"text\..*", "of the text tower"),  # of CustomTextCLIP
        (r"positional_embedding|text_projection|attn_mask", "of the text tower"),
        (r"logit_scale|logit_bias|input_resolution|context_length|vocab_size", "of the loss"),
    )

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return {"visual.conv1.weight", "visual.class_embedding"} <= arrays.keys()

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        given = hints.files.get(CONFIG, {})
        known = json_fields.section(given, "model_cfg")
        tower = json_fields.section(known, "vision_cfg")
        # An option that is off changes nothing, so only those that are on are refused.
        if odd := sorted(key for key, value in tower.items() if value and key not in SHOWN):
            raise WeightsError(f"{CONFIG}: vision_cfg.{odd[0]}: is not supported")
        shapes = Shapes(arrays, self.rules(arrays, None))
        options = shapes.encoder(("patches", "head"))
        sides = {"width": options["width"], "layers": options["depth"]}
        refuse_other_model(
            tower, sides | {"patch_size": options["patch_size"]}, f"{CONFIG}: vision_cfg."
        )
        heads, assumed = timm_vit.read_heads({}, options["width"], hints.heads, {})
        if tower:
            each = json_fields.whole(tower, "head_width", 64)
            heads, assumed = None if options["width"] % each else options["width"] // each, {}
        # Without a config the file is taken for OpenAI's own, all of which were trained with
        # QuickGELU.
        quick = known.get("quick_gelu", False) is True or not known
        options |= {
            "heads": heads,
            "position_resize": "antialiased_bicubic",
            "stem_norm": True,
            "gelu": "quick" if quick else "erf",
            "norm_epsilon": 1e-5,
        }
        model = shapes.model(**options)
        if not known:
            assumed |= dict.fromkeys(("model.activation", "model.gelu"), OPENAI)
        said = json_fields.pair(tower, "image_size") if "image_size" in tower else hints.image_size
        # CLIP has a position for the class token too.
        patches = array_shape(arrays, "visual.positional_embedding", 2)[0] - 1
        size, guessed = size_of_positions(model, patches, said)
        view = {"pretrained_cfg": timm.open_clip_view(given)}
        data, unsaid = timm.data(view, size, shapes.channels)
        if not given:
            keys = ("mean", "std", "resampling", "eval_crop")
            unsaid = {f"data.{key}": OPENAI for key in keys}
        return ModelSpec(
            model=model,
            data=data,
            assumed=assumed | guessed | unsaid,
            fresh=NO_HEAD if shapes.headless else {},
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        if spec is not None and spec.model.heads is None:
            raise WeightsError(UNKNOWN_HEADS.format(spec.model.width))
        yield from torch_rules.rules(NAMES, "visual.")
        yield Rule("visual.proj", "head/kernel")
