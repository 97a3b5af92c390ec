"""Hugging Face's CLIP, MetaCLIP 2 and SigLIP (also SigLIP 2 of fixed size): their image towers.

vision_model.embeddings, ..., visual_projection      CLIPVisionModelWithProjection, CLIPModel
vision_model.embeddings, ..., vision_model.head      SiglipVisionModel, SiglipModel
vision_model.embeddings, ..., classifier             SiglipForImageClassification
embeddings, encoder.layers.0, post_layernorm         CLIPVisionModel, SiglipVisionModel

Files of both towers are read for that of images. The projection of CLIP is a head without a bias.
The pooling head of SigLIP is `model.pooling=map`; its classifiers read the mean of all patches
instead. Those of CLIP read tokens that nothing normalizes, which no model here does.
"""

import dataclasses
from typing import Any, ClassVar

from vit_jax import models
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import huggingface
from vit_jax.weights.families.hf_vit import MASKED
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.families.torch_rules import QKV
from vit_jax.weights.family import Fields, Hints
from vit_jax.weights.mapping import FLAT, ROWS, ArraySpecs, ModelSpec, Shapes

PATCHES = "embeddings.patch_embedding.weight"
BLOCK = "encoder.layers.{layer}"
CLIP = Type("CLIP", {}, {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"})
SIGLIP = Type("Siglip", {}, {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"})


class HuggingFaceTower(huggingface.HuggingFace):
    """The image towers of transformers' CLIP and SigLIP."""

    types: ClassVar = {
        **dict.fromkeys(("clip", "clip_vision_model", "metaclip_2"), CLIP),
        "metaclip_2_vision_model": CLIP,
        **dict.fromkeys(("siglip", "siglip_vision_model"), SIGLIP),
    }
    anchors = (f"vision_model.{PATCHES}", PATCHES)
    names = (
        ("embeddings.class_embedding", "cls", FLAT),
        ("embeddings.position_embedding.weight", "position/table", ROWS),
        ("embeddings.patch_embedding", "embedding"),
        ("pre_layrnorm", "stem_norm"),  # as they spell it
        *((f"{BLOCK}.layer_norm{n}", f"encoder/norm{n}") for n in (1, 2)),
        *((f"{BLOCK}.self_attn.{name[0]}_proj", f"encoder/attention/{name}") for name in QKV),
        (f"{BLOCK}.self_attn.out_proj", "encoder/attention/out"),
        *((f"{BLOCK}.mlp.{name}", f"encoder/mlp/{name}") for name in ("fc1", "fc2")),
        ("post_layernorm", "encoder_norm"),
        ("head.probe", "pooling/probe"),
        ("head.attention.in_proj_", "pooling/attention/query|key|value"),
        ("head.attention.out_proj", "pooling/attention/out"),
        ("head.layernorm", "pooling/norm"),
        *((f"head.mlp.{name}", f"pooling/mlp/{name}") for name in ("fc1", "fc2")),
    )
    outer = (("visual_projection", "head"), ("classifier", "head"))
    dropped = (
        *MASKED,
        (r"text_model\..*|text_projection\..*|logit_scale|logit_bias", "of the text tower"),
        (r"(vision_model\.)?embeddings\.position_ids", "numbers of positions, no weights"),
        (r"vision_model\.head\..*", "a pooling that the classifier does not use"),
    )

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        made = super().read_spec(arrays, hints)
        if made.model.pooling == "gap" and made.headless:
            assumed = {"model.pooling": "the file has tokens and pools none of them"}
            return dataclasses.replace(made, assumed={**made.assumed, **assumed})
        return made

    def embeds(self, shapes: Shapes) -> bool:
        return shapes.has.get("head/kernel") == "visual_projection.weight"

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        classifies = shapes.has.get("head/kernel") == "classifier.weight"
        made = super().options(fields, shapes)
        if self.types[fields["model_type"]] is not CLIP:
            pooled = "pooling/probe" in shapes.has and not classifies
            return made | {"pooling": "map" if pooled else "gap", "stem_norm": False}
        if classifies:
            raise WeightsError(
                "contains a CLIPForImageClassification, whose head reads tokens that nothing "
                "normalizes, which is not supported"
            )
        lacking = ("patches",) if shapes.headless else ("patches", "head")
        return made | {"pooling": "token", "stem_norm": True, "biasless": lacking}

    def unwritten(self, spec: ModelSpec) -> tuple[str, ...]:
        # Both names are the head's, and the first is written: CLIP's projection.
        return () if spec.model.stem_norm else ("visual_projection",)

    def written_prefix(self, spec: ModelSpec) -> str:
        return "vision_model."

    def expresses(self, spec: ModelSpec) -> bool:
        model = spec.model
        bare = not models.has_class_token(model) and model.pooling in ("map", "gap")
        dinov2 = model.layer_scale is not None or model.mlp != "plain" or model.registers > 0
        return model.stem_norm or (bare and not dinov2)

    def validate_spec(self, spec: ModelSpec) -> None:
        super().validate_spec(spec)
        if spec.model.pooling == "map" and not spec.headless:
            raise WeightsError(
                "model.pooling=map: in Hugging Face's SigLIP no head follows this pooling; a "
                "classifier there reads the mean of all patches (gap)"
            )
        huggingface.refuse_oblong(spec, "CLIP and SigLIP take")

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        model = spec.model
        kept = huggingface.without_dropout(huggingface.encoder_fields(spec))
        # `files` sets it at the top of config.json, which a nested vision_config does not see.
        kept["num_channels"] = spec.data.channels
        if model.stem_norm and spec.headless:
            return "CLIPVisionModel", "clip_vision_model", kept
        if model.stem_norm:
            named = "CLIPVisionModelWithProjection", "clip_vision_model"
            return *named, kept | {"projection_dim": model.num_classes}
        pooled = {"vision_use_head": model.pooling == "map"}
        if spec.headless:
            return "SiglipVisionModel", "siglip_vision_model", kept | pooled
        nested = {"model_type": "siglip_vision_model", **kept, **pooled}
        return "SiglipForImageClassification", "siglip", {"vision_config": nested}

    def bias_groups(self, spec: ModelSpec) -> tuple[frozenset[str], ...]:
        if spec.model.stem_norm:
            # CLIP has no bias of its patch embedding and of its projection.
            return frozenset(("patches",)), frozenset(("head",))
        return super().bias_groups(spec)
