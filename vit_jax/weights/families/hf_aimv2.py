"""Hugging Face's AIMv2, images alone: RMSNorm, SwiGLU, no biases, patches with a norm of their own.

embeddings.patch_embed, encoder.layers.0.ffn, rms_norm      Aimv2VisionModel
vision_model.embeddings, ...                                Aimv2Model

transformers has no class of it that classifies. Its pooling head is not read: the query is a
learned vector that no layer projects.
"""

import dataclasses
from typing import Any, ClassVar

from vit_jax import models
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import huggingface
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.families.torch_rules import QKV
from vit_jax.weights.family import Fields, Hints, refuse, refuse_options, set_otherwise
from vit_jax.weights.mapping import ROWS, ArraySpecs, ModelSpec, Shapes, Size

PATCHES = "embeddings.patch_embed.weight"
HEAD = "head.cls_token"
BLOCK = "encoder.layers.{layer}"
TYPE = Type("CLIP", {}, {"rms_norm_eps": 1e-5, "hidden_act": "silu", "num_attention_heads": 8})
NATIVE = "sincos_2d_mae"
PARTS = (*QKV, "out", "mlp")


class HuggingFaceAimv2(huggingface.HuggingFace):
    """The image towers of transformers' AIMv2."""

    types: ClassVar = {"aimv2": TYPE, "aimv2_vision_model": TYPE}
    anchors = (f"vision_model.{PATCHES}", PATCHES)
    names = (
        ("embeddings.patch_embed", "embedding"),
        ("embeddings.rms_norm", "patch_norm"),
        ("embeddings.position_embedding.weight", "position/table", ROWS),
        *((f"{BLOCK}.rms_norm{n}", f"encoder/norm{n}") for n in (1, 2)),
        *((f"{BLOCK}.attention.{name[0]}_proj", f"encoder/attention/{name}") for name in QKV),
        (f"{BLOCK}.attention.out_proj", "encoder/attention/out"),
        (f"{BLOCK}.ffn.gate_proj", "encoder/mlp/gate"),
        (f"{BLOCK}.ffn.up_proj", "encoder/mlp/fc1"),
        (f"{BLOCK}.ffn.down_proj", "encoder/mlp/fc2"),
        ("rms_norm", "encoder_norm"),
    )
    outer = ()
    norms = ("rms",)
    positions = ("learned_1d", NATIVE)
    biases = PARTS
    dropped = (
        (r"text_model\..*|(text|visual)_projection\..*|logit_scale", "of the text tower"),
        (r"(vision_model\.)?embeddings\.position_ids", "numbers of positions, no weights"),
    )

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        if f"{self.prefix(arrays)}{HEAD}" in arrays:
            raise WeightsError(
                "contains the pooling head of AIMv2 (use_head), whose query no layer projects, "
                "which is not supported; files of the encoder alone are (use_head=false)"
            )
        made = super().read_spec(arrays, hints)
        assumed = {"model.pooling": "the file has tokens and pools none of them"}
        return dataclasses.replace(made, assumed={**made.assumed, **assumed})

    def size(self, fields: Fields, hints: Hints) -> Size | None:
        # Positions of a native model are computed for each image, so the user may choose its size.
        native = fields.get("is_native") and hints.image_size is not None
        return hints.image_size if native else super().size(fields, hints)

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        if fields["hidden_act"] != TYPE.defaults["hidden_act"]:
            said = json_fields.shown(fields["hidden_act"])
            raise WeightsError(f"hidden_act={said}: of gated MLPs, only SwiGLU (silu) is supported")
        lacking = shapes.encoder(PARTS)["biasless"]  # which fields say too, but for all attention
        made = super().options({**fields, "layer_norm_eps": fields["rms_norm_eps"]}, shapes)
        native = {} if made["position"] == "learned_1d" else {"position": NATIVE}
        unread = {"activation": "gelu", "gelu": "tanh"}  # of SwiGLU
        return made | unread | native | {"norm": "rms", "pooling": "gap", "biasless": lacking}

    def expresses(self, spec: ModelSpec) -> bool:
        model = spec.model
        return model.norm == "rms" and model.patch_norm and model.mlp == "swiglu"

    def validate_spec(self, spec: ModelSpec) -> None:
        super().validate_spec(spec)
        model = spec.model
        wrong = {
            "class_token": models.has_class_token(model),
            "pooling": model.pooling != "gap",
            **set_otherwise(model, "norm_place", "registers", "layer_scale", "stem_norm"),
            **set_otherwise(model, "qk_norm", "relative_bias", "rotary"),
        }
        refuse_options(model, wrong, "Hugging Face's AIMv2, which alone has model.norm=rms there,")
        if not spec.headless:
            refuse(model, "norm", "Hugging Face's AIMv2 has no class with a head; --to=timm has")
        huggingface.refuse_oblong(spec, "AIMv2 takes")

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        model = spec.model
        made = huggingface.without_dropout(huggingface.encoder_fields(spec))
        made |= {
            "rms_norm_eps": made.pop("layer_norm_eps"),
            "hidden_act": "silu",
            "qkv_bias": "query" not in model.biasless,
            "mlp_bias": "mlp" not in model.biasless,
            "use_head": False,
            "is_native": model.position == NATIVE,
        }
        return "Aimv2VisionModel", "aimv2_vision_model", made

    def bias_groups(self, spec: ModelSpec) -> tuple[frozenset[str], ...]:
        # Of the two fields, qkv_bias is for all four layers of attention, mlp_bias for the MLP.
        return frozenset((*QKV, "out")), frozenset(("mlp",))
