"""Hugging Face's ViT and DeiT, and the encoders of ViTMAE and ViTMSN.

vit.embeddings, vit.encoder.layer.0, classifier      ViTForImageClassification
embeddings, encoder.layer.0, pooler                  ViTModel, whose pooler becomes `pre_logits`
deit.embeddings, deit.encoder.layer.0, classifier    DeiTForImageClassification, ...WithTeacher

Version 5 of transformers names the layers of a ViT otherwise (layers.0.attention.q_proj) but still
writes the older names; imports accept both, exports use the older.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import huggingface
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.family import Fields
from vit_jax.weights.mapping import ModelSpec, Shapes

PATCHES = "embeddings.patch_embeddings.projection.weight"
AROUND = (
    ("embeddings.cls_token", "cls"),
    ("embeddings.distillation_token", "distillation"),
    ("embeddings.position_embeddings", "position/table"),
    ("embeddings.patch_embeddings.projection", "embedding"),
    ("layernorm", "encoder_norm"),
)
MASKED = ((r"(\w+\.)?embeddings\.mask_token|decoder\..*", "of masked image modeling"),)


def _layer(block: str, *dense: str) -> tuple[tuple[str, str], ...]:
    targets = (*(f"attention/{name}" for name in ("query", "key", "value", "out")),
               "mlp/fc1", "mlp/fc2")  # fmt: skip
    return (
        (f"{block}.layernorm_before", "encoder/norm1"),
        (f"{block}.layernorm_after", "encoder/norm2"),
        *((f"{block}.{name}", f"encoder/{target}")
          for name, target in zip(dense, targets, strict=True)),
    )  # fmt: skip


OLDER = _layer(
    "encoder.layer.{layer}",
    *(f"attention.attention.{name}" for name in ("query", "key", "value")),
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
NEWER = _layer(
    "layers.{layer}", *(f"attention.{name}_proj" for name in "qkvo"), "mlp.fc1", "mlp.fc2"
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
    )
    dropped = (*MASKED, (r"(vit|deit)\.pooler\..*", "a pooler that the classifier does not use"))

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        if "cls" not in shapes.has:
            raise WeightsError(f"contains no {shapes.expected('cls')}")
        teacher = shapes.has.get("head/kernel") == "cls_classifier.weight"
        return super().options(fields, shapes) | {"pooling": "distilled" if teacher else "token"}

    def unwritten(self, spec: ModelSpec) -> Collection[str]:
        return ("classifier",) if spec.model.pooling == "distilled" else ()

    def expresses(self, spec: ModelSpec) -> bool:
        return True

    def check(self, spec: ModelSpec) -> None:
        super().check(spec)
        if spec.model.pooling not in ("token", "distilled"):
            raise WeightsError(
                f"model.pooling={spec.model.pooling}: in Hugging Face transformers the head reads "
                "only the class token"
            )

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        kind = "DeiT" if spec.model.distillation else "ViT"
        task = "ForImageClassification" + "WithTeacher" * (spec.model.pooling == "distilled")
        named = f"{kind}{'Model' if spec.headless else task}"
        return named, kind.lower(), huggingface.encoder_fields(spec)
