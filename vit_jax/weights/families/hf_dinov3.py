"""Hugging Face's DINOv3.

embeddings, layer.0, norm        DINOv3ViTModel, which has no class with a head

Version 5 of transformers names the layers model.layer.0 but still writes the older names.
"""

from typing import Any, ClassVar

from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import hf_vit, huggingface
from vit_jax.weights.families.huggingface import Type
from vit_jax.weights.families.torch_rules import QKV
from vit_jax.weights.family import Fields, refuse, refuse_other_model
from vit_jax.weights.mapping import ModelSpec, Shapes

PATCHES = "embeddings.patch_embeddings.weight"
DEFAULTS = {"num_attention_heads": 6, "layer_norm_eps": 1e-5, "rope_theta": 100.0}
MLP = {"gate_proj": "gate", "up_proj": "fc1", "down_proj": "fc2"}


class HuggingFaceDinoV3(huggingface.HuggingFace):
    """transformers' DINOv3."""

    types: ClassVar = {"dinov3_vit": Type("DINOv3", {}, DEFAULTS)}
    anchors = (PATCHES,)
    names = (
        ("embeddings.cls_token", "cls"),
        ("embeddings.register_tokens", "registers"),
        ("embeddings.patch_embeddings", "embedding"),
        ("norm", "encoder_norm"),
        *((f"layer.{{layer}}.norm{n}", f"encoder/norm{n}") for n in (1, 2)),
        *((f"layer.{{layer}}.layer_scale{n}.lambda1", f"encoder/scale{n}/scale") for n in (1, 2)),
        *((f"layer.{{layer}}.attention.{part[0]}_proj", f"encoder/attention/{part}")
          for part in (*QKV, "out")),
        *((f"layer.{{layer}}.mlp.{name}", f"encoder/mlp/{target}") for name, target in MLP.items()),
    )  # fmt: skip
    outer = ()
    biases = (*QKV, "out", "mlp")
    dropped = hf_vit.MASKED

    def read_fields(self, given: Fields, model_type: str) -> Fields:
        rope = json_fields.section(given, "rope_parameters")  # of transformers 5
        if (kind := json_fields.text(rope, "rope_type", "default")) != "default":
            raise WeightsError(f"rope_type={kind[:80]}: only default is supported")
        known = {key: value for key, value in rope.items() if key == "rope_theta"}
        fields = super().read_fields({**given, **json_fields.present(known)}, model_type)
        if given.get("use_gated_mlp", False) is not True:
            return fields
        if json_fields.text(given, "hidden_act", "gelu") not in ("silu", "swish"):
            raise WeightsError(
                f"hidden_act={json_fields.shown(given.get('hidden_act'))}: of gated MLPs, only "
                "SwiGLU (silu) is supported"
            )
        # The name of the default, so that an option that nothing reads keeps it.
        return {**fields, "hidden_act": "gelu_new"}  # of a gated MLP the activation is no option

    def options(self, fields: Fields, shapes: Shapes) -> dict[str, Any]:
        made = super().options(fields, shapes)
        refuse_other_model(fields, {"use_gated_mlp": made["mlp"] == "swiglu"})
        made |= {
            "layer_scale": json_fields.real(fields, "layerscale_value", 1.0) or 1.0,
            "rotary": json_fields.real(fields, "rope_theta"),
        }
        del made["position_resize"]  # there is no table
        return made

    def expresses(self, spec: ModelSpec) -> bool:
        return spec.model.rotary is not None

    def validate_spec(self, spec: ModelSpec) -> None:
        super().validate_spec(spec)
        if not spec.headless:
            why = "Hugging Face has DINOv3 without a head; write it with --to=timm"
            refuse(spec.model, "rotary", why)
        if spec.model.layer_scale is None:
            refuse(spec.model, "layer_scale", "Hugging Face's DINOv3 has LayerScale")

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        model = spec.model
        gated = model.mlp == "swiglu"
        parts = {"query": "query", "key": "key", "value": "value", "out": "proj", "mlp": "mlp"}
        made = huggingface.without_dropout(huggingface.encoder_fields(spec)) | {
            "rope_theta": model.rotary,
            "layerscale_value": model.layer_scale,
            "num_register_tokens": model.registers,
            "use_gated_mlp": gated,
            **({"hidden_act": "silu"} if gated else {}),
            **{f"{field}_bias": part not in model.biasless for part, field in parts.items()},
        }
        return "DINOv3ViTModel", "dinov3_vit", made

    def bias_groups(self, spec: ModelSpec) -> tuple[frozenset[str], ...]:
        # Each has its own field: query_bias, key_bias, value_bias, proj_bias and mlp_bias.
        return tuple(frozenset((part,)) for part in (*QKV, "out", "mlp"))
