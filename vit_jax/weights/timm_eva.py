"""timm's DINOv3, one of its EVA models, and DINOv3 under the names of Meta's code.

blocks.0.attn.q_bias, blocks.0.gamma_1, reg_token                       timm
blocks.0.attn.qkv.bias_mask, blocks.0.ls1.gamma, storage_tokens         Meta, read only

Other models of EVA rotate otherwise, and are refused.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import config, models
from vit_jax.weights import json_fields
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import FLAT, Rule
from vit_jax.weights.readers import Spec, WeightsError
from vit_jax.weights.torch_rules import swiglu

NAME = "vit_small_patch16_dinov3"  # whose arguments give any size
META = "storage_tokens"
# Arrays that other models of timm with such names would make foreign.
OWN = re.compile(r"blocks\.\d+\.attn\.[qv]_bias|rope_embed\.periods")
DROPPED = (
    (r"blocks\.\d+\.attn\.qkv\.bias_mask", "of the biases of keys, which are zero"),
    (r"rope_embed\.periods", "of rotary positions, which model.rotary gives"),
    (r"local_cls_norm\..*", "of small crops in pretraining"),
)
HEADS = {4096: 32}
BASE = 100.0
UNSAID = "as DINOv3's; the file does not say"


def recognizes(specs: Mapping[str, Spec], given: Given) -> bool:
    """Returns whether names, or config.json if there is one, are those of DINOv3."""
    name = json_fields.text(given, "architecture", "")
    scaled = "blocks.0.gamma_1" in specs and "pos_embed" not in specs
    return "_dinov3" in name if name else META in specs or (scaled and "reg_token" in specs)


def options(specs: Mapping[str, Spec], given: Given) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the options that these have and ViT has not, and the assumptions made."""
    if "attn_pool.latent" in specs:
        raise WeightsError("global_pool=map: in timm's DINOv3 it sees the class token too")
    arguments = json_fields.section(given, "model_args")
    base = json_fields.real(arguments, "rope_temperature", BASE)
    unsaid = {} if given else {"model.rotary": UNSAID}
    return {"rotary": base, "biasless": _biasless(specs)}, unsaid


def _biasless(specs: Mapping[str, Spec]) -> tuple[str, ...]:
    if "blocks.0.attn.qkv.bias" in specs:  # Meta's, with zeros for keys where there is a mask
        return ("key",) if "blocks.0.attn.qkv.bias_mask" in specs else ()
    return ("key",) if "blocks.0.attn.q_bias" in specs else ("query", "key", "value")


def rules(block: str, model: config.Model) -> Iterator[Rule]:
    """Yields the rules of a layer that come before those of ViT."""
    for ours in ("query", "value"):
        yield Rule(f"{block}.attn.{ours[0]}_bias", f"encoder/attention/{ours}/bias", FLAT)
    for number in (1, 2):
        yield Rule(f"{block}.gamma_{number}", f"encoder/scale{number}/scale")
    if model.mlp == "swiglu":
        yield from swiglu(f"{block}.mlp", "encoder/mlp", first="fc1_g")


# Out


def check(model: config.Model) -> None:
    """Raises WeightsError for a model with rotary positions that these cannot be."""
    wrong = {
        "position": model.position != "none",
        "distillation": model.distillation,
        "pooling": model.pooling == "map",
        "biasless": "key" not in model.biasless,
        "resnet_units": model.resnet_units is not None,
    }
    for key, odd in wrong.items():
        if odd:
            said = config.show(getattr(model, key)).lower()
            raise WeightsError(f"model.{key}={said}: timm's DINOv3 has no equivalent")


def arguments(model: config.Model) -> dict[str, Any]:
    """Returns the arguments from which timm builds a model, besides those of every ViT.

    Args:
      model: passes `check`.
    """
    return {
        **({"swiglu_mlp": True, "swiglu_align_to": 1} if model.mlp == "swiglu" else {}),
        "class_token": models.has_class_token(model),
        "num_reg_tokens": model.registers,
        "use_fc_norm": model.norm_place == "pooled",
        "init_values": model.layer_scale,
        "qkv_bias": "query" not in model.biasless,
        "rope_temperature": model.rotary,
    }
