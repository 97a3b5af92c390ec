"""Hugging Face's ViT and DeiT, and the encoders of ViTMAE and ViTMSN.

vit.embeddings, vit.encoder.layer.0, classifier      ViTForImageClassification
embeddings, encoder.layer.0, pooler                  ViTModel, whose pooler becomes `pre_logits`
deit.embeddings, deit.encoder.layer.0, classifier    DeiTForImageClassification, ...WithTeacher

Version 5 of transformers names the layers of a ViT otherwise (layers.0.attention.q_proj) but still
writes the older names; imports accept both, exports use the older.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from vit_jax import config
from vit_jax.weights import json_fields
from vit_jax.weights.families import huggingface
from vit_jax.weights.families.torch_rules import dense, norm, query_key_value
from vit_jax.weights.family import Fields, Hints
from vit_jax.weights.mapping import (
    CONVOLUTION,
    ArraySpecs,
    ModelSpec,
    Rule,
    array_shape,
    depth,
    linear,
)
from vit_jax.weights.readers import WeightsError

PATCHES = "embeddings.patch_embeddings.projection.weight"
# The dense layers of a block: queries, keys, values, output projection, and the MLP's two.
OLDER = (
    *(f"attention.attention.{name}" for name in ("query", "key", "value")),
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
NEWER = (*(f"attention.{name}_proj" for name in "qkvo"), "mlp.fc1", "mlp.fc2")
DISTILLATION = "embeddings.distillation_token"
TWO_HEADS = ("cls_classifier", "distillation_classifier")
MASKED = ((r"(\w+\.)?embeddings\.mask_token|decoder\..*", "of masked image modeling"),)


class HuggingFaceViT(huggingface.HuggingFace):
    """Models with the layers of ViT."""

    types: ClassVar = {
        "vit": ("ViT", {}),
        "deit": ("DeiT", huggingface.IMAGENET),
        "vit_mae": ("ViT", huggingface.IMAGENET),
        "vit_msn": ("ViT", huggingface.IMAGENET),
    }
    anchors = (f"vit.{PATCHES}", f"deit.{PATCHES}", PATCHES)
    dropped = (*MASKED, (r"(vit|deit)\.pooler\..*", "a pooler that the classifier does not use"))

    def model_spec(self, arrays: ArraySpecs, given: Fields, hints: Hints) -> ModelSpec:
        """Infers the model from names, shapes and config.json; raises WeightsError."""
        # Their epsilons where config.json has none.
        kind = json_fields.text(given, "model_type", "vit")
        epsilon = 1e-6 if kind == "vit_msn" else 1e-12
        prefix = self.prefix(arrays)
        width, channels, *patch = array_shape(arrays, prefix + PATCHES, 4)
        older, newer = f"encoder.layer.0.{OLDER[4]}.weight", f"layers.0.{NEWER[4]}.weight"
        names = (prefix + newer, prefix + older, older)
        hidden = next((name for name in names if name in arrays), names[1])
        head = TWO_HEADS[0] if f"{TWO_HEADS[0]}.weight" in arrays else "classifier"
        pooler = f"{head}.weight" not in arrays and "pooler.dense.weight" in arrays
        if f"{prefix}embeddings.cls_token" not in arrays:
            raise WeightsError(f"contains no {prefix}embeddings.cls_token")
        model = config.Model(
            patch_size=(patch[0], patch[1]),
            width=width,
            depth=depth(arrays, r"(?:(?:vit|deit)\.)?(?:encoder\.layer|layers)\.(\d{1,3})\."),
            mlp_dim=array_shape(arrays, hidden, 2)[0],
            representation_size=(
                array_shape(arrays, "pooler.dense.weight", 2)[0] if pooler else None
            ),
            patch_remainder="drop",
            position_resize="bicubic",
            distillation=f"{prefix}{DISTILLATION}" in arrays,
            pooling="distilled" if head in TWO_HEADS else "token",
            **huggingface.encoder_options(given, width, pooler=pooler, epsilon=epsilon),
        )
        size = json_fields.pair(given, "image_size", 224)
        return huggingface.describe(arrays, model, size, channels, hints, f"{head}.weight")

    def rules_below(self, prefix: str, model: config.Model) -> Iterator[Rule]:
        """Yields the rules below a prefix, and of the head."""
        yield from around(prefix, model)
        places = [(f"{prefix}encoder.layer", OLDER), (f"{prefix}layers", NEWER)]
        # transformers 5 leaves the prefix out where it saves the layers of a ViTMSN with a head.
        places += [("encoder.layer", OLDER)] if prefix else []
        for place, names in places:
            yield from layer(f"{place}.{{layer}}", names)

    def expresses(self, spec: ModelSpec) -> bool:
        """Whether it is an encoder."""
        return True

    def check(self, spec: ModelSpec) -> None:
        """Raises WeightsError for a model whose head reads something else."""
        super().check(spec)
        if spec.model.pooling not in ("token", "distilled"):
            raise WeightsError(
                f"model.pooling={spec.model.pooling}: in Hugging Face transformers the head reads "
                "only the class token"
            )

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        """The name of the class, the model_type, and the other fields of config.json."""
        kind = "DeiT" if spec.model.distillation else "ViT"
        task = "ForImageClassification" + "WithTeacher" * (spec.model.pooling == "distilled")
        named = f"{kind}{'Model' if spec.headless else task}"
        return named, kind.lower(), huggingface.encoder_fields(spec)


def around(prefix: str, model: config.Model) -> Iterator[Rule]:
    """Yields the rules of what stands before and after the layers."""
    embeddings = f"{prefix}embeddings"
    yield Rule(f"{embeddings}.cls_token", "cls")
    yield Rule(f"{prefix}{DISTILLATION}", "distillation")
    yield Rule(f"{embeddings}.position_embeddings", "position/table")
    yield from dense(f"{embeddings}.patch_embeddings.projection", "embedding", CONVOLUTION)
    yield from norm(f"{prefix}layernorm", "encoder_norm")
    yield from dense("pooler.dense", "pre_logits")
    heads = TWO_HEADS if model.pooling == "distilled" else ("classifier",)
    for source, target in zip(heads, ("head", "head_dist"), strict=False):
        yield from dense(source, target)


def layer(block: str, names: tuple[str, ...]) -> Iterator[Rule]:
    """Yields the rules of a layer by the names of its dense layers."""
    yield from norm(f"{block}.layernorm_before", "encoder/norm1")
    yield from norm(f"{block}.layernorm_after", "encoder/norm2")
    yield from query_key_value([f"{block}.{name}" for name in names[:3]], "encoder/attention")
    yield from dense(f"{block}.{names[3]}", "encoder/attention/out", linear(2))
    yield from dense(f"{block}.{names[4]}", "encoder/mlp/fc1")
    yield from dense(f"{block}.{names[5]}", "encoder/mlp/fc2")
