"""Hugging Face's CLIP and SigLIP (also SigLIP 2 of fixed size): the image tower of each.

vision_model.embeddings, ..., visual_projection      CLIPVisionModelWithProjection, CLIPModel
vision_model.embeddings, ..., vision_model.head      SiglipVisionModel, SiglipModel
vision_model.embeddings, ..., classifier             SiglipForImageClassification
embeddings, encoder.layers.0, post_layernorm         CLIPVisionModel, SiglipVisionModel

Files of both towers are read for that of images. The projection of CLIP is a head without a bias.
The pooling head of SigLIP is `model.pooling=map`; its classifiers read the mean of all patches
instead. Those of CLIP read tokens that nothing normalizes, which no model here does.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from vit_jax import config, models
from vit_jax.weights import json_fields
from vit_jax.weights.families import huggingface
from vit_jax.weights.families.hf_vit import MASKED
from vit_jax.weights.families.torch_rules import QKV, dense, mlp, norm, parts, query_key_value
from vit_jax.weights.family import Fields, Hints
from vit_jax.weights.mapping import (
    CONVOLUTION,
    FLAT,
    ROWS,
    ArraySpecs,
    ModelSpec,
    Rule,
    array_shape,
    depth,
    linear,
)
from vit_jax.weights.readers import WeightsError

PATCHES = "embeddings.patch_embedding.weight"
# Of transformers, where config.json has none.
EPSILONS = {"clip": 1e-5, "siglip": 1e-6}
ACTIVATIONS = {"clip": "quick_gelu", "siglip": "gelu_pytorch_tanh"}


class HuggingFaceTower(huggingface.HuggingFace):
    """The image towers of transformers' CLIP and SigLIP."""

    types: ClassVar = {
        "clip": ("CLIP", {}),
        "clip_vision_model": ("CLIP", {}),
        "siglip": ("Siglip", {}),
        "siglip_vision_model": ("Siglip", {}),
    }
    anchors = (f"vision_model.{PATCHES}", PATCHES)
    dropped = (
        *MASKED,
        (r"text_model\..*|text_projection\..*|logit_scale|logit_bias", "of the text tower"),
        (r"(vision_model\.)?embeddings\.position_ids", "numbers of positions, no weights"),
        (r"vision_model\.head\..*", "a pooling that the classifier does not use"),
    )

    def model_spec(self, arrays: ArraySpecs, given: Fields, hints: Hints) -> ModelSpec:
        """Infers the model from names, shapes and config.json; raises WeightsError."""
        prefix = self.prefix(arrays)
        kind = json_fields.text(given, "model_type", "").partition("_")[0]
        tower = json_fields.section(given, "vision_config") if "vision_config" in given else given
        fields = {
            "layer_norm_eps": EPSILONS[kind],
            "hidden_act": ACTIVATIONS[kind],
            "image_size": 224,
            **json_fields.present(tower),
        }
        if kind == "clip" and "classifier.weight" in arrays:
            raise WeightsError(
                "contains a CLIPForImageClassification, whose head reads tokens that nothing "
                "normalizes, which is not supported"
            )
        width, channels, *patch = array_shape(arrays, f"{prefix}{PATCHES}", 4)
        pooled = f"{prefix}head.probe" in arrays and "classifier.weight" not in arrays
        options = huggingface.encoder_options(fields, width, pooler=False) | {
            "patch_size": (patch[0], patch[1]),
            "width": width,
            "depth": depth(arrays, r"(?:vision_model\.)?encoder\.layers\.(\d{1,3})\."),
            "mlp_dim": array_shape(arrays, f"{prefix}encoder.layers.0.mlp.fc1.weight", 2)[0],
            "pooling": "map" if pooled else "gap",
            "patch_remainder": "drop",
        }
        head = "classifier.weight"
        if kind == "clip":
            head = "visual_projection.weight"
            biasless = ("patches", "head") if head in arrays else ("patches",)
            options |= {"pooling": "token", "stem_norm": True, "biasless": biasless}
        size = json_fields.pair(fields, "image_size")
        model = config.Model(position_resize="bicubic", **options)
        made = huggingface.describe(arrays, model, size, channels, hints, head)
        if options["pooling"] != "gap" or head in arrays:
            return made
        unsaid = {"model.pooling": "the file has tokens and pools none of them"}
        return dataclasses.replace(made, assumed={**made.assumed, **unsaid})

    def rules_below(self, prefix: str, model: config.Model) -> Iterator[Rule]:
        """Yields the rules of a tower and its head."""
        yield Rule(f"{prefix}embeddings.class_embedding", "cls", FLAT)
        yield Rule(f"{prefix}embeddings.position_embedding.weight", "position/table", ROWS)
        yield from dense(f"{prefix}embeddings.patch_embedding", "embedding", CONVOLUTION)
        yield from norm(f"{prefix}pre_layrnorm", "stem_norm")  # as they spell it
        block = f"{prefix}encoder.layers.{{layer}}"
        for number in (1, 2):
            yield from norm(f"{block}.layer_norm{number}", f"encoder/norm{number}")
        queries = [f"{block}.self_attn.{name[0]}_proj" for name in QKV]
        yield from query_key_value(queries, "encoder/attention")
        yield from dense(f"{block}.self_attn.out_proj", "encoder/attention/out", linear(2))
        yield from mlp(f"{block}.mlp", "encoder/mlp")
        yield from norm(f"{prefix}post_layernorm", "encoder_norm")
        head = f"{prefix}head"
        yield Rule(f"{head}.probe", "pooling/probe")
        yield from parts(f"{head}.attention.in_proj", "pooling/attention", QKV, "_")
        yield from dense(f"{head}.attention.out_proj", "pooling/attention/out", linear(2))
        yield from norm(f"{head}.layernorm", "pooling/norm")
        yield from mlp(f"{head}.mlp", "pooling/mlp")
        yield from dense("visual_projection" if model.stem_norm else "classifier", "head")

    def written_prefix(self, spec: ModelSpec) -> str:
        """The prefix in an export."""
        return "vision_model."

    def expresses(self, spec: ModelSpec) -> bool:
        """Whether a model is written as one of these rather than as a ViT or DINOv2."""
        model = spec.model
        bare = not models.has_class_token(model) and model.pooling in ("map", "gap")
        dinov2 = model.layer_scale is not None or model.mlp != "plain" or model.registers > 0
        return model.stem_norm or (bare and not dinov2)

    def check(self, spec: ModelSpec) -> None:
        """Raises WeightsError for a model that they cannot be.

        What they lack altogether, as registers, has no rule; what they have otherwise reads back
        so.
        """
        super().check(spec)
        height, width = spec.data.image_size
        if spec.model.pooling == "map" and not spec.headless:
            raise WeightsError(
                "model.pooling=map: in Hugging Face's SigLIP no head follows this pooling; a "
                "classifier there reads the mean of all patches (gap)"
            )
        if height != width:
            raise WeightsError(
                f"data.image_size={height},{width}: Hugging Face's CLIP and SigLIP take squares "
                "only"
            )

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        """The name of the class, the model_type, and the other fields of config.json."""
        model = spec.model
        kept = huggingface.without_dropout(huggingface.encoder_fields(spec))
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
        """CLIP's patches have no bias, nor has its head."""
        if spec.model.stem_norm:
            return frozenset(("patches",)), frozenset(("head",))
        return super().bias_groups(spec)
