"""Hugging Face's DINOv2, with and without registers: how it differs from their ViT.

dinov2.embeddings, dinov2.encoder.layer.0, classifier    Dinov2ForImageClassification
embeddings, encoder.layer.0                              Dinov2Model, Dinov2WithRegistersModel

The classifier reads the class token and the mean of all patches side by side.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import config
from vit_jax.weights import huggingface_beit, json_fields
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import FLAT, Rule, linear
from vit_jax.weights.readers import Spec, WeightsError
from vit_jax.weights.torch_rules import dense, hidden, mlp, norm, registers, swiglu

KINDS = ("dinov2", "dinov2_with_registers")  # of config.json
REGISTERS = "embeddings.register_tokens"
# Queries, keys, values and output projection, as saved, and as they are called while it runs.
ATTENTION = (
    (*(f"attention.{name}" for name in ("query", "key", "value")), "output.dense"),
    tuple(f"{name}_proj" for name in "qkvo"),
)


def options(specs: Mapping[str, Spec], given: Given, prefix: str) -> dict[str, Any]:
    """Returns the options that these models have and ViT has not; raises WeightsError."""
    kind, features = hidden(specs, f"{prefix}encoder.layer.0.mlp")
    name = f"{prefix}{REGISTERS}"
    smooth = given.get("model_type") == KINDS[1] or name in specs
    made = {
        "mlp": kind,
        "mlp_dim": features,
        "layer_scale": json_fields.real(given, "layerscale_value", 1.0) or 1.0,
        "registers": registers(specs, name),
        "position_resize": "antialiased_bicubic" if smooth else "bicubic",
        "pooling": "token_gap" if "classifier.weight" in specs else "token",
    }
    unread = {"activation": "gelu", "gelu": "tanh"}
    return made | (unread if kind == "swiglu" else {})


def rules(prefix: str, model: config.Model) -> Iterator[Rule]:
    """Yields the rules of all layers."""
    block = f"{prefix}encoder.layer.{{layer}}"
    yield Rule(f"{prefix}{REGISTERS}", "registers")
    for number in (1, 2):
        yield from norm(f"{block}.norm{number}", f"encoder/norm{number}")
        yield Rule(f"{block}.layer_scale{number}.lambda1", f"encoder/scale{number}/scale")
    for names in ATTENTION:
        for theirs, ours in zip(names, ("query", "key", "value"), strict=False):
            name = f"{block}.attention.{theirs}"
            yield Rule(f"{name}.weight", f"encoder/attention/{ours}/kernel", linear())
            yield Rule(f"{name}.bias", f"encoder/attention/{ours}/bias", FLAT)
        yield from dense(f"{block}.attention.{names[3]}", "encoder/attention/out", linear(2))
    gated = model.mlp == "swiglu"
    if gated:  # first, since it is what an export writes
        yield from swiglu(f"{block}.mlp", "encoder/mlp", first="weights_in")
    else:
        yield from mlp(f"{block}.mlp", "encoder/mlp")


# Out


def expresses(model: config.Model) -> bool:
    """Returns whether a model has parts that these have and ViT has not."""
    parts = model.layer_scale is not None or model.mlp != "plain" or model.registers > 0
    return parts and model.rotary is None and not huggingface_beit.expresses(model)


def check(model: config.Model, *, headless: bool) -> None:
    """Raises WeightsError for a model that `expresses` but that they cannot be."""
    if model.layer_scale is None:
        has = "registers" if model.registers else "SwiGLU"
        raise WeightsError(f"model.layer_scale=none: Hugging Face has {has} only with LayerScale")
    if model.distillation:
        raise WeightsError("model.distillation=true: Hugging Face's DINOv2 has no such token")
    if model.pooling != "token_gap" and not headless:
        raise WeightsError(
            f"model.pooling={model.pooling}: in Hugging Face's DINOv2 the head reads the class "
            "token and the mean of all patches (token_gap)"
        )
    _ratio(model)


def fields(model: config.Model) -> tuple[str, str, dict[str, Any]]:
    """Returns the names of the class and of the kind, and the fields of config.json."""
    made: dict[str, Any] = {
        "mlp_ratio": _ratio(model),
        "layerscale_value": model.layer_scale,
        "use_swiglu_ffn": model.mlp == "swiglu",
    }
    if model.registers:
        named = "Dinov2WithRegisters", "dinov2_with_registers"
        return *named, made | {"num_register_tokens": model.registers}
    return "Dinov2", "dinov2", made | {"use_mask_token": False}


def _ratio(model: config.Model) -> int:
    """Returns the ratio of widths from which transformers computes that of the MLP."""
    width, wanted = model.width or 1, model.mlp_dim or 1

    def computed(ratio: int) -> int:
        whole = width * ratio
        return (int(whole * 2 / 3) + 7) // 8 * 8 if model.mlp == "swiglu" else whole

    found = next((r for r in range(1, 2 * wanted // width + 3) if computed(r) == wanted), None)
    if found is None:
        raise WeightsError(
            f"model.mlp_dim={wanted}: Hugging Face's DINOv2 computes it from a whole ratio to "
            f"model.width {width}"
        )
    return found
