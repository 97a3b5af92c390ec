"""Hugging Face's ViT, DeiT and ViTMAE, the encoder of ViTMSN, and I-JEPA.

vit.embeddings, vit.encoder.layer.0, classifier      ViTForImageClassification
embeddings, encoder.layer.0, pooler                  ViTModel, whose pooler becomes `pre_logits`
deit.embeddings, deit.encoder.layer.0, classifier    DeiTForImageClassification, ...WithTeacher
vit.embeddings, vit.encoder.layer.0, decoder         ViTMAEForPreTraining
ijepa.embeddings, ijepa.encoder.layer.0, classifier  IJepaForImageClassification, IJepaModel

Version 5 of transformers names the layers of a ViT otherwise (layers.0.attention.q_proj) but still
writes the older names; imports accept both, exports use the older. It writes layers of a decoder
as decoder.decoder_encoder.layer.0, published files have decoder.decoder_layers.0.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from vit_jax import config
from vit_jax.models.classifier import OBJECTIVE
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import huggingface
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.family import Fields, Hints, refuse
from vit_jax.weights.mapping import ArraySpecs, ModelSpec, Shapes, decoder_positions

PATCHES = "embeddings.patch_embeddings.projection.weight"
AROUND = (
    ("embeddings.cls_token", "cls"),
    ("embeddings.distillation_token", "distillation"),
    ("embeddings.position_embeddings", "position/table"),
    ("embeddings.patch_embeddings.projection", "embedding"),
    ("layernorm", "encoder_norm"),
)
POSITIONS = "decoder.decoder_pos_embed"
MASKED = (
    # Before the pattern of the whole decoder: the first that fits gives the reason.
    (re.escape(POSITIONS), "fixed positions, which are computed"),
    (r"(\w+\.)?embeddings\.mask_token|decoder\..*", "of masked image modeling"),
)


DENSE = (
    *(f"attention.attention.{name}" for name in ("query", "key", "value")),
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
NEWER_DENSE = (*(f"attention.{name}_proj" for name in "qkvo"), "mlp.fc1", "mlp.fc2")


def _layer(
    block: str, dense: tuple[str, ...], encoder: str = "encoder"
) -> tuple[tuple[str, str], ...]:
    targets = (*(f"attention/{name}" for name in ("query", "key", "value", "out")),
               "mlp/fc1", "mlp/fc2")  # fmt: skip
    return (
        (f"{block}.layernorm_before", f"{encoder}/norm1"),
        (f"{block}.layernorm_after", f"{encoder}/norm2"),
        *((f"{block}.{name}", f"{encoder}/{target}")
          for name, target in zip(dense, targets, strict=True)),
    )  # fmt: skip


OLDER = _layer("encoder.layer.{layer}", DENSE)
NEWER = _layer("layers.{layer}", NEWER_DENSE)
DECODER = (
    ("decoder.decoder_embed", f"{OBJECTIVE}/embed"),
    ("decoder.mask_token", f"{OBJECTIVE}/mask_token"),
    *_layer("decoder.decoder_layers.{layer}", DENSE, f"{OBJECTIVE}/encoder"),
    *_layer("decoder.decoder_layers.{layer}", NEWER_DENSE, f"{OBJECTIVE}/encoder"),
    *_layer("decoder.decoder_encoder.layer.{layer}", DENSE, f"{OBJECTIVE}/encoder"),
    ("decoder.decoder_norm", f"{OBJECTIVE}/norm"),
    ("decoder.decoder_pred", f"{OBJECTIVE}/pixels"),
)


class HuggingFaceViT(huggingface.HuggingFace):
    """Models with the layers of ViT, which every encoder is written as."""

    types: ClassVar = {
        "vit": Type("ViT"),
        "deit": Type("DeiT", huggingface.IMAGENET),
        "vit_mae": Type("ViT", huggingface.IMAGENET),
        "vit_msn": Type("ViT", huggingface.IMAGENET, {"layer_norm_eps": 1e-6}),
    }
    anchors = (f"vit.{PATCHES}", f"deit.{PATCHES}", PATCHES)
    names = (*AROUND, *OLDER, *NEWER)
    outer = (
        ("classifier", "head"),
        ("cls_classifier", "head"),  # with a teacher
        ("distillation_classifier", "head_dist"),
        ("pooler.dense", "pre_logits"),
        *OLDER,  # where transformers 5 saves the layers of a ViTMSN with a head
        *DECODER,
    )
    autoencoders = True
    dropped = (*MASKED, (r"(vit|deit)\.pooler\..*", "a pooler that the classifier does not use"))

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        spec, shapes = super().read_spec(arrays, hints), Shapes(arrays, self.rules(arrays, None))
        if "cls" not in shapes.has or f"{OBJECTIVE}/pixels/kernel" not in shapes.has:
            return spec
        given = hints.files["config.json"]
        width = shapes.shape(f"{OBJECTIVE}/embed/kernel", 2)[1]
        # The decoders of models.mae have MLPs of four times their width, and no other.
        if shapes.shape(f"{OBJECTIVE}/encoder/mlp/fc1/kernel", 2)[1] != 4 * width:
            return spec  # of no decoder here
        mae = config.Mae(
            name="mae",
            mask_ratio=json_fields.real(given, "mask_ratio", 0.75),
            norm_pix=bool(given.get("norm_pix_loss", False)),
            decoder_width=width,
            decoder_depth=shapes.depth(f"{OBJECTIVE}/encoder/"),
            decoder_heads=json_fields.whole(given, "decoder_num_attention_heads", 16),
        )
        return dataclasses.replace(spec, mae=mae)

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        if "cls" not in shapes.has:
            raise WeightsError(f"contains no {shapes.expected('cls')}")
        teacher = shapes.has.get("head/kernel") == "cls_classifier.weight"
        return super().options(fields, shapes) | {"pooling": "distilled" if teacher else "token"}

    def unwritten(self, spec: ModelSpec) -> Collection[str]:
        return ("classifier",) if spec.model.pooling == "distilled" else ()

    def expresses(self, spec: ModelSpec) -> bool:
        return True

    def validate_spec(self, spec: ModelSpec) -> None:
        super().validate_spec(spec)
        if spec.model.pooling not in ("token", "distilled"):
            why = "in Hugging Face transformers the head reads only the class token"
            refuse(spec.model, "pooling", why)

    def written_prefix(self, spec: ModelSpec) -> str:
        return super().written_prefix(spec) if spec.mae is None else "vit."

    def constants(self, spec: ModelSpec) -> Mapping[str, np.ndarray]:
        return {POSITIONS: decoder_positions(spec)} if spec.mae else {}

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        if (mae := spec.mae) is not None:
            decoder = {
                "decoder_hidden_size": mae.decoder_width,
                "decoder_num_hidden_layers": mae.decoder_depth,
                "decoder_num_attention_heads": mae.decoder_heads,
                "decoder_intermediate_size": 4 * mae.decoder_width,
                "mask_ratio": mae.mask_ratio,
                "norm_pix_loss": mae.norm_pix,
            }
            return "ViTMAEForPreTraining", "vit_mae", huggingface.encoder_fields(spec) | decoder
        kind = "DeiT" if spec.model.distillation else "ViT"
        # DeiTForImageClassification has one head, on the class token alone.
        task = "ForImageClassification" + "WithTeacher" * (spec.model.pooling == "distilled")
        named = f"{kind}{'Model' if spec.headless else task}"
        return named, kind.lower(), huggingface.encoder_fields(spec)


class HuggingFaceIJepa(huggingface.HuggingFace):
    """I-JEPA: a ViT without a class token.

    The classifier reads the mean of all patches, as that of SigLIP does, whose form exports have.
    """

    types: ClassVar = {"ijepa": Type("ViT", huggingface.IMAGENET)}
    anchors = (f"ijepa.{PATCHES}", PATCHES)
    names = (*AROUND, *OLDER)
    dropped = (*MASKED, (r"pooler\..*", "a pooler of no trained weights"))

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        return super().options(fields, shapes) | {"pooling": "gap"}
