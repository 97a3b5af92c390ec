"""Hugging Face's DINOv2, with and without registers.

dinov2.embeddings, dinov2.encoder.layer.0, classifier    Dinov2ForImageClassification
embeddings, encoder.layer.0                              Dinov2Model, Dinov2WithRegistersModel

The classifier reads the class token and the mean of all patches side by side.
"""

from typing import Any, ClassVar

from vit_jax import config
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import hf_vit, huggingface
from vit_jax.weights.families.hf_vit import PATCHES
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.family import Fields, refuse
from vit_jax.weights.mapping import ModelSpec, Shapes

KINDS = ("dinov2", "dinov2_with_registers")
TYPE = Type(
    "Bit", huggingface.IMAGENET | {"size": {"shortest_edge": 256}}, {"layer_norm_eps": 1e-6}
)
REGISTERS = "embeddings.register_tokens"
BLOCK = "encoder.layer.{layer}"
ATTENTION = {  # as saved, and as it is called while it runs
    **{f"attention.{name}": name for name in ("query", "key", "value")},
    "output.dense": "out",
    **{f"{name[0]}_proj": name for name in ("query", "key", "value", "out")},
}


class HuggingFaceDinoV2(huggingface.HuggingFace):
    """transformers' DINOv2."""

    types: ClassVar = dict.fromkeys(KINDS, TYPE)
    anchors = (*(f"{kind}.{PATCHES}" for kind in KINDS), PATCHES)
    names = (
        *hf_vit.AROUND,
        (REGISTERS, "registers"),
        *((f"{BLOCK}.norm{n}", f"encoder/norm{n}") for n in (1, 2)),
        *((f"{BLOCK}.layer_scale{n}.lambda1", f"encoder/scale{n}/scale") for n in (1, 2)),
        *((f"{BLOCK}.attention.{name}", f"encoder/attention/{target}")
          for name, target in ATTENTION.items()),
        *((f"{BLOCK}.mlp.{name}", f"encoder/mlp/{name}") for name in ("fc1", "fc2")),
        (f"{BLOCK}.mlp.weights_in", "encoder/mlp/gate|fc1"),
        (f"{BLOCK}.mlp.weights_out", "encoder/mlp/fc2"),
    )  # fmt: skip
    dropped = hf_vit.MASKED

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        made = super().options(fields, shapes)
        if made["mlp"] == "swiglu":  # whose activation no field changes
            made |= {"activation": "gelu", "gelu": "tanh"}
        # Of both models in transformers, only that with registers antialiases resized positions.
        smooth = fields["model_type"] == KINDS[1] or "registers" in shapes.has
        return made | {
            "layer_scale": json_fields.real(fields, "layerscale_value", 1.0) or 1.0,
            "position_resize": "antialiased_bicubic" if smooth else "bicubic",
            "pooling": "token" if shapes.headless else "token_gap",
        }

    def unwritten(self, spec: ModelSpec) -> tuple[str, ...]:
        plain = spec.model.mlp == "plain"
        return () if plain else tuple(f"{BLOCK}.mlp.{name}" for name in ("fc1", "fc2"))

    def expresses(self, spec: ModelSpec) -> bool:
        model = spec.model
        return model.layer_scale is not None or model.mlp != "plain" or model.registers > 0

    def validate_spec(self, spec: ModelSpec) -> None:
        super().validate_spec(spec)
        model = spec.model
        if model.layer_scale is None:
            has = "registers" if model.registers else "SwiGLU"
            refuse(model, "layer_scale", f"Hugging Face has {has} only with LayerScale")
        if model.distillation:
            refuse(model, "distillation", "Hugging Face's DINOv2 has no such token")
        if model.pooling != "token_gap" and not spec.headless:
            read = "the class token and the mean of all patches (token_gap)"
            refuse(model, "pooling", f"in Hugging Face's DINOv2 the head reads {read}")
        _ratio(model)

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
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
        # By default transformers creates a mask token, which the file has not.
        return f"Dinov2{task}", KINDS[0], made | {"use_mask_token": False}


def _ratio(model: config.Model) -> int:
    """The ratio from which transformers computes the width of the MLP."""
    width, wanted = model.width or 1, model.mlp_dim or 1

    def computed(ratio: int) -> int:
        whole = width * ratio
        # Dinov2SwiGLUFFN's: two thirds, rounded up to a multiple of 8.
        return (int(whole * 2 / 3) + 7) // 8 * 8 if model.mlp == "swiglu" else whole

    found = next((r for r in range(1, 2 * wanted // width + 1) if computed(r) == wanted), None)
    if found is None:
        raise WeightsError(
            f"model.mlp_dim={wanted}: Hugging Face's DINOv2 computes it from a whole ratio to "
            f"model.width {width}"
        )
    return found
