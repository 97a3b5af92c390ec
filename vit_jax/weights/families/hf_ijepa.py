"""Hugging Face's I-JEPA: a ViT without a class token.

ijepa.embeddings, ijepa.encoder.layer.0, classifier    IJepaForImageClassification
embeddings, encoder.layer.0                            IJepaModel

The classifier reads the mean of all patches, as that of SigLIP does, whose form exports have.
"""

from typing import Any, ClassVar

from vit_jax.weights.families import hf_vit, huggingface
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.family import Fields
from vit_jax.weights.mapping import Shapes


class HuggingFaceIJepa(huggingface.HuggingFace):
    """transformers' I-JEPA."""

    types: ClassVar = {"ijepa": Type("ViT", huggingface.IMAGENET)}
    anchors = (f"ijepa.{hf_vit.PATCHES}", hf_vit.PATCHES)
    names = (*hf_vit.AROUND, *hf_vit.OLDER)
    dropped = (*hf_vit.MASKED, (r"pooler\..*", "a pooler of no trained weights"))

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        return super().options(fields, shapes) | {"pooling": "gap"}
