"""Hugging Face's BEiT.

beit.embeddings, beit.encoder.layer.0, beit.pooler.layernorm    BeitForImageClassification
embeddings, encoder.layer.0, pooler.layernorm                   BeitModel

The head reads the normalized mean of all patches, or with use_mean_pooling=false the class token.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from vit_jax import config, models
from vit_jax.weights import json_fields
from vit_jax.weights.families import hf_vit, huggingface
from vit_jax.weights.families.hf_vit import OLDER, PATCHES
from vit_jax.weights.families.torch_rules import norm
from vit_jax.weights.family import Fields, Hints, refuse_options
from vit_jax.weights.mapping import ArraySpecs, ModelSpec, Rule, array_shape, depth
from vit_jax.weights.readers import WeightsError

TABLE = "relative_position_bias.relative_position_bias_table"


class HuggingFaceBeit(huggingface.HuggingFace):
    """transformers' BEiT, whose layers have the names of ViT's."""

    types: ClassVar = {"beit": ("Beit", {})}
    anchors = (f"beit.{PATCHES}", PATCHES)
    dropped = (*hf_vit.MASKED, (r".*relative_position_index", "numbers of offsets, no weights"))
    positions = ("learned_1d", "relative", "none")

    def model_spec(self, arrays: ArraySpecs, given: Fields, hints: Hints) -> ModelSpec:
        """Infers the model from names, shapes and config.json; raises WeightsError."""
        prefix = self.prefix(arrays)
        width, channels, *patch = array_shape(arrays, prefix + PATCHES, 4)
        layers = depth(arrays, r"(?:beit\.)?encoder\.layer\.(\d{1,3})\.")
        if not layers:
            raise WeightsError(
                "model_type=beit: there is no beit.encoder.layer.0; name another type"
            )
        known = huggingface.encoder_options(given, width, pooler=False)
        model = config.Model(
            patch_size=(patch[0], patch[1]),
            width=width,
            depth=layers,
            mlp_dim=array_shape(arrays, f"{prefix}encoder.layer.0.{OLDER[4]}.weight", 2)[0],
            patch_remainder="drop",
            position_resize="bicubic",
            **(known | _options(arrays, given, prefix)),
        )
        size = json_fields.pair(given, "image_size", 224)
        return huggingface.describe(arrays, model, size, channels, hints, "classifier.weight")

    def rules_below(self, prefix: str, model: config.Model) -> Iterator[Rule]:
        """Yields the rules below a prefix, and of the head."""
        block = f"{prefix}encoder.layer.{{layer}}"
        for number in (1, 2):
            yield Rule(f"{block}.lambda_{number}", f"encoder/scale{number}/scale")
        target = "relative_bias/table"
        yield Rule(f"{block}.attention.attention.{TABLE}", f"encoder/attention/{target}")
        yield Rule(f"{prefix}encoder.{TABLE}", target)
        if model.norm_place == "pooled":
            yield from norm(f"{prefix}pooler.layernorm", "encoder_norm")
        yield from hf_vit.around(prefix, model)
        yield from hf_vit.layer(block, OLDER)

    def expresses(self, spec: ModelSpec) -> bool:
        """Whether a model has parts that BEiT has and ViT has not, as keys without a bias."""
        model = spec.model
        keyless = "key" in model.biasless and "query" not in model.biasless
        other = model.registers > 0 or model.distillation or model.stem_norm or model.qk_norm
        other = other or model.rotary is not None or model.mlp != "plain"
        same = model.pooling in ("gap", "token") and models.has_class_token(model)
        return model.relative_bias != "none" or (keyless and same and not other)

    def check(self, spec: ModelSpec) -> None:
        """Raises WeightsError for a model that a BEiT cannot be."""
        super().check(spec)
        model, (height, width) = spec.model, spec.data.image_size
        mean = model.pooling == "gap" and model.norm_place == "pooled"
        wrong = {
            "biasless": "key" not in model.biasless,
            "pooling": model.pooling not in ("gap", "token"),
            "norm_place": model.pooling == "gap" and not mean,
            "class_token": not models.has_class_token(model),
            "class_position": model.position != "none" and not model.class_position,
            "registers": model.registers > 0,
            "distillation": model.distillation,
            "stem_norm": model.stem_norm,
            "qk_norm": model.qk_norm,
            "mlp": model.mlp != "plain",
        }
        refuse_options(model, wrong, "Hugging Face's BEiT")
        if height != width:
            raise WeightsError(
                f"data.image_size={height},{width}: Hugging Face's BEiT takes squares only"
            )

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        """The name of the class, the model_type, and the other fields of config.json."""
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
        """Only keys lack a bias, and always."""
        return (frozenset(("key",)),)


def _options(arrays: ArraySpecs, given: Fields, prefix: str) -> dict[str, Any]:
    """The options that BEiT has and ViT has not; raises WeightsError."""
    if "lm_head.weight" in arrays:
        raise WeightsError(
            "contains a BeitForMaskedImageModeling, whose layers end in no norm that a classifier "
            "reads; take the weights that were fine-tuned from it"
        )
    own = f"{prefix}encoder.layer.0.attention.attention.{TABLE}" in arrays
    shared = f"{prefix}encoder.{TABLE}" in arrays
    if own and shared:
        raise WeightsError("contains biases of offsets of each layer and shared; one is supported")
    height, width = json_fields.pair(given, "image_size", 224)
    if (own or shared) and height != width:
        raise WeightsError(
            f"image_size={height},{width}: transformers mixes up the offsets of images that are no "
            "square"
        )
    mean = f"{prefix}pooler.layernorm.weight" in arrays
    scaled = f"{prefix}encoder.layer.0.lambda_1" in arrays
    initial = json_fields.real(given, "layer_scale_init_value", 0.1) or 0.1
    return {
        "biasless": ("key",),
        "relative_bias": "layers" if own else "shared" if shared else "none",
        "layer_scale": initial if scaled else None,
        "pooling": "gap" if mean else "token",
        "norm_place": "pooled" if mean else "tokens",
        "class_token": True if mean else None,
        "position": "learned_1d" if f"{prefix}embeddings.position_embeddings" in arrays else "none",
    }
