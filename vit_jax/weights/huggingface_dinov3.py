"""Hugging Face's DINOv3: how it differs from their ViT and DINOv2.

embeddings, layer.0, norm        DINOv3ViTModel, which has no class with a head

Version 5 of transformers names the layers model.layer.0 but still writes the older names.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import config
from vit_jax.weights import json_fields
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import CONVOLUTION, FLAT, Rule, array_shape, depth, linear
from vit_jax.weights.readers import Spec, WeightsError
from vit_jax.weights.torch_rules import biasless, dense, norm, registers

KIND = "dinov3_vit"  # of config.json
PATCHES = "embeddings.patch_embeddings.weight"
REGISTERS = "embeddings.register_tokens"
BIASES = {
    **{f"layer.0.attention.{part[0]}_proj": (part,) for part in ("query", "key", "value", "out")},
    "layer.0.mlp.up_proj": ("mlp",),
}
# By our names: the layers of both kinds of MLP.
MLPS = {
    "plain": {"fc1": "up_proj", "fc2": "down_proj"},
    "swiglu": {"gate": "gate_proj", "fc1": "up_proj", "fc2": "down_proj"},
}


def fields_read(given: Given) -> Given:
    """Returns the fields of config.json, with those that transformers leaves out."""
    gated = given.get("use_gated_mlp", False) is True
    if gated and json_fields.text(given, "hidden_act", "gelu") not in ("silu", "swish"):
        raise WeightsError(
            f"hidden_act={json_fields.shown(given.get('hidden_act'))}: of gated MLPs, only SwiGLU "
            "(silu) is supported"
        )
    own = {"num_attention_heads": 6, "layer_norm_eps": 1e-5, "rope_theta": 100.0}
    # Of a gated MLP the form of the activation is no option.
    return {**own, **json_fields.present(given), **({"hidden_act": "gelu_new"} if gated else {})}


def options(specs: Mapping[str, Spec], given: Given) -> dict[str, Any]:
    """Returns the options that arrays and config.json reveal; raises WeightsError."""
    width, _, *patch = array_shape(specs, PATCHES, 4)
    gated = "layer.0.mlp.gate_proj.weight" in specs
    return {
        "patch_size": (patch[0], patch[1]),
        "width": width,
        "depth": depth(specs, r"layer\.(\d{1,3})\."),
        "mlp": "swiglu" if gated else "plain",
        "mlp_dim": array_shape(specs, "layer.0.mlp.up_proj.weight", 2)[0],
        "layer_scale": json_fields.real(given, "layerscale_value", 1.0) or 1.0,
        "registers": registers(specs, REGISTERS),
        "biasless": biasless(specs, BIASES),
        "position": "none",
        "rotary": json_fields.real(given, "rope_theta"),
        "patch_remainder": "drop",
    }


def rules(model: config.Model) -> Iterator[Rule]:
    """Yields the rules of the whole model."""
    yield Rule("embeddings.cls_token", "cls")
    yield Rule(REGISTERS, "registers")
    yield from dense("embeddings.patch_embeddings", "embedding", CONVOLUTION)
    yield from norm("norm", "encoder_norm")
    for number in (1, 2):
        yield from norm(f"layer.{{layer}}.norm{number}", f"encoder/norm{number}")
        scale = f"layer.{{layer}}.layer_scale{number}.lambda1"
        yield Rule(scale, f"encoder/scale{number}/scale")
    for ours in ("query", "key", "value"):
        theirs = f"layer.{{layer}}.attention.{ours[0]}_proj"
        yield Rule(f"{theirs}.weight", f"encoder/attention/{ours}/kernel", linear())
        yield Rule(f"{theirs}.bias", f"encoder/attention/{ours}/bias", FLAT)
    yield from dense("layer.{layer}.attention.o_proj", "encoder/attention/out", linear(2))
    for ours, theirs in MLPS[model.mlp].items():
        yield from dense(f"layer.{{layer}}.mlp.{theirs}", f"encoder/mlp/{ours}")
    yield from dense("classifier", "head")  # which no file has


# Out


def check(model: config.Model, *, headless: bool) -> None:
    """Raises WeightsError for a model with rotary positions that they cannot be."""
    if not headless:
        raise WeightsError(
            f"model.rotary={model.rotary:g}: Hugging Face has DINOv3 without a head; write it "
            "with --to=timm"
        )
    if model.layer_scale is None:
        raise WeightsError("model.layer_scale=none: Hugging Face's DINOv3 has LayerScale")


def fields(model: config.Model, known: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Returns the names of the class and of the kind, and the fields of config.json."""
    kept = {k: v for k, v in known.items() if k != "qkv_bias" and "dropout_prob" not in k}
    gated = model.mlp == "swiglu"
    parts = {"query": "query", "key": "key", "value": "value", "out": "proj", "mlp": "mlp"}
    made = kept | {
        "rope_theta": model.rotary,
        "layerscale_value": model.layer_scale,
        "num_register_tokens": model.registers,
        "use_gated_mlp": gated,
        **({"hidden_act": "silu"} if gated else {}),
        **{f"{theirs}_bias": ours not in model.biasless for ours, theirs in parts.items()},
    }
    return "DINOv3ViTModel", KIND, made
