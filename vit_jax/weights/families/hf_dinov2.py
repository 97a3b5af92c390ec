"""Hugging Face's DINOv2, with and without registers.

dinov2.embeddings, dinov2.encoder.layer.0, classifier    Dinov2ForImageClassification
embeddings, encoder.layer.0                              Dinov2Model, Dinov2WithRegistersModel

The classifier reads the class token and the mean of all patches side by side.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from vit_jax import config
from vit_jax.weights import json_fields
from vit_jax.weights.families import hf_vit, huggingface
from vit_jax.weights.families.hf_vit import PATCHES
from vit_jax.weights.families.torch_rules import (
    dense,
    hidden,
    mlp,
    norm,
    query_key_value,
    registers,
    swiglu,
)
from vit_jax.weights.family import Fields, Hints
from vit_jax.weights.mapping import ArraySpecs, ModelSpec, Rule, array_shape, depth, linear
from vit_jax.weights.readers import WeightsError

KINDS = ("dinov2", "dinov2_with_registers")
PROCESSOR = ("Bit", huggingface.IMAGENET | {"size": {"shortest_edge": 256}})
REGISTERS = "embeddings.register_tokens"
# Queries, keys, values and output projection, as saved, and as they are called while it runs.
ATTENTION = (
    (*(f"attention.{name}" for name in ("query", "key", "value")), "output.dense"),
    tuple(f"{name}_proj" for name in "qkvo"),
)


class HuggingFaceDinoV2(huggingface.HuggingFace):
    """transformers' DINOv2."""

    types: ClassVar = dict.fromkeys(KINDS, PROCESSOR)
    anchors = (*(f"{kind}.{PATCHES}" for kind in KINDS), PATCHES)
    dropped = hf_vit.MASKED

    def model_spec(self, arrays: ArraySpecs, given: Fields, hints: Hints) -> ModelSpec:
        """Infers the model from names, shapes and config.json; raises WeightsError."""
        prefix = self.prefix(arrays)
        width, channels, *patch = array_shape(arrays, prefix + PATCHES, 4)
        options = huggingface.encoder_options(given, width, pooler=False, epsilon=1e-6)
        kind, features = hidden(arrays, f"{prefix}encoder.layer.0.mlp")
        name = f"{prefix}{REGISTERS}"
        smooth = given.get("model_type") == KINDS[1] or name in arrays
        if kind == "swiglu":  # whose activation no field changes
            options |= {"activation": "gelu", "gelu": "tanh"}
        model = config.Model(
            patch_size=(patch[0], patch[1]),
            width=width,
            depth=depth(arrays, r"(?:\w+\.)?encoder\.layer\.(\d{1,3})\."),
            mlp=kind,
            mlp_dim=features,
            layer_scale=json_fields.real(given, "layerscale_value", 1.0) or 1.0,
            registers=registers(arrays, name),
            patch_remainder="drop",
            position_resize="antialiased_bicubic" if smooth else "bicubic",
            pooling="token_gap" if "classifier.weight" in arrays else "token",
            **options,
        )
        size = json_fields.pair(given, "image_size", 224)
        return huggingface.describe(arrays, model, size, channels, hints, "classifier.weight")

    def rules_below(self, prefix: str, model: config.Model) -> Iterator[Rule]:
        """Yields the rules below a prefix, and of the head."""
        yield from hf_vit.around(prefix, model)
        block = f"{prefix}encoder.layer.{{layer}}"
        yield Rule(f"{prefix}{REGISTERS}", "registers")
        for number in (1, 2):
            yield from norm(f"{block}.norm{number}", f"encoder/norm{number}")
            yield Rule(f"{block}.layer_scale{number}.lambda1", f"encoder/scale{number}/scale")
        for names in ATTENTION:
            queries = [f"{block}.attention.{name}" for name in names[:3]]
            yield from query_key_value(queries, "encoder/attention")
            yield from dense(f"{block}.attention.{names[3]}", "encoder/attention/out", linear(2))
        if model.mlp == "swiglu":
            yield from swiglu(f"{block}.mlp", "encoder/mlp", first="weights_in")
        else:
            yield from mlp(f"{block}.mlp", "encoder/mlp")

    def expresses(self, spec: ModelSpec) -> bool:
        """Whether a model has parts that DINOv2 has and ViT has not."""
        model = spec.model
        return model.layer_scale is not None or model.mlp != "plain" or model.registers > 0

    def check(self, spec: ModelSpec) -> None:
        """Raises WeightsError for a model that a DINOv2 cannot be."""
        super().check(spec)
        model = spec.model
        if model.layer_scale is None:
            has = "registers" if model.registers else "SwiGLU"
            raise WeightsError(
                f"model.layer_scale=none: Hugging Face has {has} only with LayerScale"
            )
        if model.distillation:
            raise WeightsError("model.distillation=true: Hugging Face's DINOv2 has no such token")
        if model.pooling != "token_gap" and not spec.headless:
            raise WeightsError(
                f"model.pooling={model.pooling}: in Hugging Face's DINOv2 the head reads the class "
                "token and the mean of all patches (token_gap)"
            )
        _ratio(model)

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        """The name of the class, the model_type, and the other fields of config.json."""
        model = spec.model
        made = huggingface.encoder_fields(spec) | {
            "mlp_ratio": _ratio(model),
            "layerscale_value": model.layer_scale,
            "use_swiglu_ffn": model.mlp == "swiglu",
        }
        task = "Model" if spec.headless else "ForImageClassification"
        if model.registers:
            made["num_register_tokens"] = model.registers
            return f"Dinov2WithRegisters{task}", KINDS[1], made
        return f"Dinov2{task}", KINDS[0], made | {"use_mask_token": False}


def _ratio(model: config.Model) -> int:
    """The ratio of widths from which transformers computes that of the MLP."""
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
