"""Hugging Face's BEiT.

beit.embeddings, beit.encoder.layer.0, beit.pooler.layernorm    BeitForImageClassification
embeddings, encoder.layer.0, pooler.layernorm                   BeitModel

The head reads the normalized mean of all patches, or with use_mean_pooling=false the class token.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from vit_jax import models
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import hf_vit, huggingface
from vit_jax.weights.families.hf_vit import PATCHES
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.family import Fields, refuse_options, set_otherwise
from vit_jax.weights.mapping import ModelSpec, Shapes

BLOCK = "encoder.layer.{layer}"
TABLE = "relative_position_bias.relative_position_bias_table"


class HuggingFaceBeit(huggingface.HuggingFace):
    """transformers' BEiT, whose layers have the names of ViT's."""

    types: ClassVar = {"beit": Type("Beit")}
    anchors = (f"beit.{PATCHES}", PATCHES)
    names = (
        *((f"{BLOCK}.lambda_{n}", f"encoder/scale{n}/scale") for n in (1, 2)),
        (f"{BLOCK}.attention.attention.{TABLE}", "encoder/attention/relative_bias/table"),
        (f"encoder.{TABLE}", "relative_bias/table"),
        ("pooler.layernorm", "encoder_norm"),
        *hf_vit.AROUND,
        *hf_vit.OLDER,
    )
    dropped = (*hf_vit.MASKED, (r".*relative_position_index", "numbers of offsets, no weights"))
    positions = ("learned_1d", "relative", "none")

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        if "lm_head.weight" in shapes.arrays:
            raise WeightsError(
                "contains a BeitForMaskedImageModeling, whose layers end in no norm that a "
                "classifier reads; take the weights that were fine-tuned from it"
            )
        has, options = shapes.has, super().options(fields, shapes)
        if {"relative_bias/table", "encoder/attention/relative_bias/table"} <= has.keys():
            raise WeightsError(
                "contains biases of offsets of each layer and shared; one is supported"
            )
        height, width = json_fields.pair(fields, "image_size", 224)
        if options["relative_bias"] != "none" and height != width:
            raise WeightsError(
                f"image_size={height},{width}: transformers mixes up the offsets of images that "
                "are not a square"
            )
        # transformers gives the pooler a norm only with `use_mean_pooling`, so the arrays answer
        # this.
        mean = "pooler.layernorm.weight" in has.get("encoder_norm/scale", "")
        initial = json_fields.real(fields, "layer_scale_init_value", 0.1) or 0.1
        return options | {
            # BEiT's keys have no bias in transformers.
            "biasless": ("key",),
            "layer_scale": initial if "encoder/scale1/scale" in has else None,
            "pooling": "gap" if mean else "token",
            "norm_place": "pooled" if mean else "tokens",
        }

    def unwritten(self, spec: ModelSpec) -> Collection[str]:
        return () if spec.model.norm_place == "pooled" else ("pooler.layernorm",)

    def expresses(self, spec: ModelSpec) -> bool:
        model = spec.model
        keyless = "key" in model.biasless and "query" not in model.biasless
        other = model.registers > 0 or model.distillation or model.stem_norm or model.qk_norm
        other = other or model.rotary is not None or model.mlp != "plain"
        same = model.pooling in ("gap", "token") and models.has_class_token(model)
        return model.relative_bias != "none" or (keyless and same and not other)

    def validate_spec(self, spec: ModelSpec) -> None:
        super().validate_spec(spec)
        model = spec.model
        mean = model.pooling == "gap" and model.norm_place == "pooled"
        wrong = {
            "biasless": "key" not in model.biasless,
            "pooling": model.pooling not in ("gap", "token"),
            "norm_place": model.pooling == "gap" and not mean,
            "class_token": not models.has_class_token(model),
            "class_position": model.position != "none" and not model.class_position,
            **set_otherwise(model, "registers", "distillation", "stem_norm", "qk_norm", "mlp"),
        }
        refuse_options(model, wrong, "Hugging Face's BEiT")
        huggingface.refuse_oblong(spec, "BEiT takes")

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        model = spec.model
        made = {
            "use_relative_position_bias": model.relative_bias == "layers",
            "use_shared_relative_position_bias": model.relative_bias == "shared",
            "use_absolute_position_embeddings": model.position != "none",
            "use_mean_pooling": model.pooling == "gap",
            "use_mask_token": False,
            "layer_scale_init_value": model.layer_scale or 0.0,
        }
        named = f"Beit{'Model' if spec.headless else 'ForImageClassification'}"
        return named, "beit", huggingface.encoder_fields(spec) | made

    def bias_groups(self, spec: ModelSpec) -> tuple[frozenset[str], ...]:
        return (frozenset(("key",)),)
