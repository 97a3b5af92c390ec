"""Hugging Face's DINOv3.

embeddings, layer.0, norm        DINOv3ViTModel, which has no class with a head

Version 5 of transformers names the layers model.layer.0 but still writes the older names.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from vit_jax import config
from vit_jax.weights import json_fields
from vit_jax.weights.families import hf_vit, huggingface
from vit_jax.weights.families.torch_rules import (
    QKV,
    biasless,
    dense,
    norm,
    query_key_value,
    registers,
)
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

PATCHES = "embeddings.patch_embeddings.weight"
REGISTERS = "embeddings.register_tokens"
BIASES = {
    **{f"layer.0.attention.{part[0]}_proj": (part,) for part in (*QKV, "out")},
    "layer.0.mlp.up_proj": ("mlp",),
}
# The layers of both kinds of MLP, by the names of parameters.
MLPS = {
    "plain": {"fc1": "up_proj", "fc2": "down_proj"},
    "swiglu": {"gate": "gate_proj", "fc1": "up_proj", "fc2": "down_proj"},
}


class HuggingFaceDinoV3(huggingface.HuggingFace):
    """transformers' DINOv3."""

    types: ClassVar = {"dinov3_vit": ("DINOv3", {})}
    anchors = (PATCHES,)
    dropped = hf_vit.MASKED

    def model_spec(self, arrays: ArraySpecs, given: Fields, hints: Hints) -> ModelSpec:
        """Infers the model from names, shapes and config.json; raises WeightsError."""
        fields = _with_defaults(given)
        width, channels, *patch = array_shape(arrays, PATCHES, 4)
        gated = "layer.0.mlp.gate_proj.weight" in arrays
        options = huggingface.encoder_options(fields, width, pooler=False) | {
            "patch_size": (patch[0], patch[1]),
            "width": width,
            "depth": depth(arrays, r"layer\.(\d{1,3})\."),
            "mlp": "swiglu" if gated else "plain",
            "mlp_dim": array_shape(arrays, "layer.0.mlp.up_proj.weight", 2)[0],
            "layer_scale": json_fields.real(fields, "layerscale_value", 1.0) or 1.0,
            "registers": registers(arrays, REGISTERS),
            "biasless": biasless(arrays, BIASES),
            "position": "none",
            "rotary": json_fields.real(fields, "rope_theta"),
            "patch_remainder": "drop",
        }
        size = json_fields.pair(given, "image_size", 224)
        model = config.Model(**options)
        return huggingface.describe(arrays, model, size, channels, hints, "none")

    def rules_below(self, prefix: str, model: config.Model) -> Iterator[Rule]:
        """Yields the rules of the whole model."""
        yield Rule("embeddings.cls_token", "cls")
        yield Rule(REGISTERS, "registers")
        yield from dense("embeddings.patch_embeddings", "embedding", CONVOLUTION)
        yield from norm("norm", "encoder_norm")
        block = "layer.{layer}"
        for number in (1, 2):
            yield from norm(f"{block}.norm{number}", f"encoder/norm{number}")
            yield Rule(f"{block}.layer_scale{number}.lambda1", f"encoder/scale{number}/scale")
        queries = [f"{block}.attention.{name[0]}_proj" for name in QKV]
        yield from query_key_value(queries, "encoder/attention")
        yield from dense(f"{block}.attention.o_proj", "encoder/attention/out", linear(2))
        for target, source in MLPS[model.mlp].items():
            yield from dense(f"{block}.mlp.{source}", f"encoder/mlp/{target}")
        yield from dense("classifier", "head")  # which no file has

    def expresses(self, spec: ModelSpec) -> bool:
        """Whether a model has rotary positions."""
        return spec.model.rotary is not None

    def check(self, spec: ModelSpec) -> None:
        """Raises WeightsError for a model that a DINOv3 cannot be."""
        super().check(spec)
        if not spec.headless:
            raise WeightsError(
                f"model.rotary={spec.model.rotary:g}: Hugging Face has DINOv3 without a head; "
                "write it with --to=timm"
            )
        if spec.model.layer_scale is None:
            raise WeightsError("model.layer_scale=none: Hugging Face's DINOv3 has LayerScale")

    def fields(self, spec: ModelSpec) -> tuple[str, str, dict[str, Any]]:
        """The name of the class, the model_type, and the other fields of config.json."""
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
        """Each part lacks a bias by itself."""
        return tuple(frozenset((part,)) for part in (*QKV, "out", "mlp"))


def _with_defaults(given: Fields) -> Fields:
    """The fields of config.json, with those that transformers leaves out."""
    gated = given.get("use_gated_mlp", False) is True
    if gated and json_fields.text(given, "hidden_act", "gelu") not in ("silu", "swish"):
        raise WeightsError(
            f"hidden_act={json_fields.shown(given.get('hidden_act'))}: of gated MLPs, only SwiGLU "
            "(silu) is supported"
        )
    own = {"num_attention_heads": 6, "layer_norm_eps": 1e-5, "rope_theta": 100.0}
    # Of a gated MLP the form of the activation is no option.
    return {**own, **json_fields.present(given), **({"hidden_act": "gelu_new"} if gated else {})}
