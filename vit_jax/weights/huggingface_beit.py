"""Hugging Face's BEiT: how it differs from their ViT.

beit.embeddings, beit.encoder.layer.0, beit.pooler.layernorm    BeitForImageClassification
embeddings, encoder.layer.0, pooler.layernorm                   BeitModel

The head reads the normalized mean of all patches, or with use_mean_pooling=false the class token.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import config, models
from vit_jax.weights import json_fields
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import Facts, Rule
from vit_jax.weights.readers import Spec, WeightsError
from vit_jax.weights.torch_rules import norm

KIND = "beit"  # of config.json
TABLE = "relative_position_bias.relative_position_bias_table"
DROPPED = ((r".*relative_position_index", "numbers of offsets, no weights"),)


def options(specs: Mapping[str, Spec], given: Given, prefix: str) -> dict[str, Any]:
    """Returns the options that arrays and config.json reveal; raises WeightsError."""
    if "lm_head.weight" in specs:
        raise WeightsError(
            "contains a BeitForMaskedImageModeling, whose layers end in no norm that a classifier "
            "reads; take the weights that were fine-tuned from it"
        )
    own = f"{prefix}encoder.layer.0.attention.attention.{TABLE}" in specs
    shared = f"{prefix}encoder.{TABLE}" in specs
    if own and shared:
        raise WeightsError("contains biases of offsets of each layer and shared; one is supported")
    height, width = json_fields.pair(given, "image_size", 224)
    if (own or shared) and height != width:
        raise WeightsError(
            f"image_size={height},{width}: transformers mixes up the offsets of images that are no "
            "square"
        )
    mean = f"{prefix}pooler.layernorm.weight" in specs
    scaled = f"{prefix}encoder.layer.0.lambda_1" in specs
    initial = json_fields.real(given, "layer_scale_init_value", 0.1) or 0.1
    return {
        "biasless": ("key",),
        "relative_bias": "layers" if own else "shared" if shared else "none",
        "layer_scale": initial if scaled else None,
        "pooling": "gap" if mean else "token",
        "norm_place": "pooled" if mean else "tokens",
        "class_token": True if mean else None,
        "position": "learned_1d" if f"{prefix}embeddings.position_embeddings" in specs else "none",
    }


def rules(prefix: str, model: config.Model) -> Iterator[Rule]:
    """Yields the rules of what ViT has not."""
    block = f"{prefix}encoder.layer.{{layer}}"
    for number in (1, 2):
        yield Rule(f"{block}.lambda_{number}", f"encoder/scale{number}/scale")
    ours = "relative_bias/table"
    yield Rule(f"{block}.attention.attention.{TABLE}", f"encoder/attention/{ours}")
    yield Rule(f"{prefix}encoder.{TABLE}", ours)
    if model.norm_place == "pooled":
        yield from norm(f"{prefix}pooler.layernorm", "encoder_norm")


# Out


def expresses(model: config.Model) -> bool:
    """Returns whether a model has parts that BEiT has and ViT has not, as keys without a bias."""
    keyless = "key" in model.biasless and "query" not in model.biasless
    other = model.registers > 0 or model.distillation or model.stem_norm or model.qk_norm
    other = other or model.rotary is not None or model.mlp != "plain"
    same = model.pooling in ("gap", "token") and models.has_class_token(model)
    return model.relative_bias != "none" or (keyless and same and not other)


def check(facts: Facts) -> None:
    """Raises WeightsError for a model that `expresses` but that a BEiT cannot be."""
    model, (height, width) = facts.model, facts.data.image_size
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
    for key, odd in wrong.items():
        if odd:
            said = config.show(getattr(model, key)).lower()
            raise WeightsError(f"model.{key}={said}: Hugging Face's BEiT has no equivalent")
    if height != width:
        raise WeightsError(
            f"data.image_size={height},{width}: Hugging Face's BEiT takes squares only"
        )


def fields(model: config.Model) -> tuple[str, str, dict[str, Any]]:
    """Returns the names of the class and of the kind, and the fields of config.json."""
    made = {
        "use_relative_position_bias": model.relative_bias == "layers",
        "use_shared_relative_position_bias": model.relative_bias == "shared",
        "use_absolute_position_embeddings": model.position != "none",
        "use_mean_pooling": model.pooling == "gap",
        "use_mask_token": False,
        "layer_scale_init_value": model.layer_scale or 0.0,
    }
    return "Beit", KIND, made
