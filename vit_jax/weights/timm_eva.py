"""timm's Eva and Beit: DINOv3, EVA and EVA-02, timm's own with rotary positions, and BEiT.

blocks.0.attn.q_bias, blocks.0.gamma_1, reg_token                       DINOv3, timm's own
blocks.0.attn.qkv.bias_mask, blocks.0.ls1.gamma, storage_tokens         DINOv3 of Meta, read only
blocks.0.attn.q_proj, blocks.0.mlp.norm, pos_embed                      EVA-02, base and large
blocks.0.attn.q_bias, blocks.0.mlp.fc1, pos_embed                       EVA-02 with SwiGLU, EVA
blocks.0.attn.relative_position_bias_table, rel_pos_bias                BEiT, BEiT v2

All but Meta's have queries and values with a bias and keys without. EVA-02 turns features 2i and
2i + 1 of a head together, where we turn i and i + d/2: an import sorts the features of queries and
keys, which changes no product of the two.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax import config, models
from vit_jax.weights import json_fields
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import FLAT, SAME, Form, Rule, linear
from vit_jax.weights.readers import Spec, WeightsError
from vit_jax.weights.timm_kinds import BEIT, DINOV3, EVA, EVA02, TABLES, Kind
from vit_jax.weights.torch_rules import dense, norm, swiglu

Size = tuple[int, int]
# Arrays that other models of timm with such names would make foreign.
OWN = re.compile(
    r"blocks\.\d+\.attn\.([qv]_bias|relative_position_bias_table)|rope_embed\.periods|"
    r"rel_pos_bias\.relative_position_bias_table"
)
DROPPED = (
    (r"blocks\.\d+\.attn\.qkv\.bias_mask", "of the biases of keys, which are zero"),
    (r"rope_embed\.periods", "of rotary positions, which model.rotary gives"),
    (r"local_cls_norm\..*", "of small crops in pretraining"),
    (r".*relative_position_index", "numbers of offsets, no weights"),
)
REFERENCE = (16, 16)


def options(
    specs: Mapping[str, Spec], given: Given, kind: Kind
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the options that these have and ViT has not, and the assumptions made."""
    if "attn_pool.latent" in specs:
        raise WeightsError("global_pool=map: in timm's Eva it sees the class token too")
    made: dict[str, Any] = {"relative_bias": "none"}
    for where, table in TABLES.items():
        if table in specs:
            made["relative_bias"] = where
    if specs.keys() >= set(TABLES.values()):
        raise WeightsError(f"contains both {' and '.join(TABLES.values())}; one is supported")
    if kind.rotary is None:
        return made, {}
    arguments = json_fields.section(given, "model_args")
    made["rotary"] = json_fields.real(arguments, "rope_temperature", kind.rotary)
    keys = ["model.rotary"]
    if kind is EVA02:
        made["rotary_grid"] = json_fields.pair({"r": REFERENCE, **_reference(arguments)}, "r")
        keys.append("model.rotary_grid")
    return made, {} if "architecture" in given else dict.fromkeys(keys, kind.unsaid)


def _reference(arguments: Given) -> Given:
    said = arguments.get("ref_feat_shape")
    return {} if said is None else {"r": said}


def biasless(specs: Mapping[str, Spec]) -> tuple[str, ...]:
    """Returns which of queries, keys and values lack a bias, as `model.biasless`."""
    if "blocks.0.attn.qkv.bias" in specs:  # Meta's, with zeros for keys where there is a mask
        return ("key",) if "blocks.0.attn.qkv.bias_mask" in specs else ()
    biased = {"blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias"} & specs.keys()
    return ("key",) if biased else ("query", "key", "value")


def image_size(
    specs: Mapping[str, Spec], kind: Kind, patch: Sequence[int], sizes: Sequence[Size | None]
) -> tuple[Size | None, dict[str, str]]:
    """Returns the image size of a model without learned positions, and the assumptions made.

    Args:
      specs: arrays of the file.
      kind: of the model.
      patch: height and width of a patch.
      sizes: from config.json and from the caller, if they have any.
    """
    given = [size for size in sizes if size is not None]
    count = next((specs[table].shape[0] for table in TABLES.values() if table in specs), None)
    if count is None:  # rotary positions fit any
        usual = 16 * patch[0], 16 * patch[1]
        return (given[0], {}) if given else (usual, {"data.image_size": kind.unsaid})
    for size in given:
        rows, columns = (side // one for side, one in zip(size, patch, strict=True))
        if (2 * rows - 1) * (2 * columns - 1) + 3 == count:
            return size, {}
    side = math.isqrt(max(count - 3, 0))
    if side % 2 == 0 or side * side != count - 3:
        return (given[0] if given else None), {}
    side = (side + 1) // 2
    why = f"offsets of {side} x {side} patches; the file does not say"
    return (side * patch[0], side * patch[1]), {"data.image_size": why}


# In and out

INNER = {"attn": "attention", "mlp": "mlp"}  # by timm's names, ours


def sub_norm(specs: Mapping[str, Spec]) -> tuple[str, ...]:
    """Returns which parts of a layer have a norm inside, as `model.sub_norm`, of any of timm's."""
    return tuple(INNER[part] for part in INNER if f"blocks.0.{part}.norm.weight" in specs)


def _sorted(form: Form) -> Form:
    """Returns the form of a layer's queries or keys whose pairs of features are neighbors."""

    def read(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        ours = form.read(array, shape)
        return np.concatenate([ours[..., ::2], ours[..., 1::2]], axis=-1)

    def write(array: np.ndarray) -> np.ndarray:
        pairs = np.stack(np.split(array, 2, axis=-1), axis=-1)
        return form.write(pairs.reshape(array.shape))

    return Form(form.shape, read, write)


def rules(block: str, model: config.Model) -> Iterator[Rule]:
    """Yields the rules of a layer that come before those of ViT."""
    turned = model.rotary_grid is not None
    kernel, bias, scale = (_sorted(f) if turned else f for f in (linear(), FLAT, SAME))
    ours = "encoder/attention"
    separate = [
        Rule(f"{block}.attn.{name[0]}_proj.{part}", f"{ours}/{name}/{leaf}", form)
        for name in ("query", "key", "value")
        for part, leaf, form in (("weight", "kernel", kernel), ("bias", "bias", bias))
        if name != "value"
    ]
    separate += dense(f"{block}.attn.v_proj", f"{ours}/value")
    separate[-1] = separate[-1]._replace(form=FLAT)
    fused = [
        *(Rule(f"{block}.attn.{name[0]}_bias", f"{ours}/{name}/bias", form)
          for name, form in (("query", bias), ("value", FLAT))),
        *(Rule(f"{block}.attn.qkv.weight", f"{ours}/{name}/kernel", form, part, 3)
          for part, (name, form) in enumerate((("query", kernel), ("key", kernel),
                                               ("value", linear())))),
    ]  # fmt: skip
    yield from (*separate, *fused) if _apart(model) else (*fused, *separate)
    for name in ("query", "key"):
        for part, leaf in (("weight", "scale"), ("bias", "bias")):
            yield Rule(f"{block}.attn.{name[0]}_norm.{part}", f"{ours}/{name}_norm/{leaf}", scale)
    for number in (1, 2):
        yield Rule(f"{block}.gamma_{number}", f"encoder/scale{number}/scale")
    yield Rule(f"{block}.attn.relative_position_bias_table", f"{ours}/relative_bias/table")
    yield Rule("rel_pos_bias.relative_position_bias_table", "relative_bias/table")
    if model.mlp == "swiglu":
        packed = turned and "mlp" not in model.sub_norm
        yield from swiglu(f"{block}.mlp", "encoder/mlp", first="fc1" if packed else "fc1_g")


def inner_norms(block: str) -> Iterator[Rule]:
    """Yields the rules of norms inside a layer, of any of timm's."""
    for part, ours in INNER.items():
        yield from norm(f"{block}.{part}.norm", f"encoder/{ours}/sub_norm")


def _apart(model: config.Model) -> bool:
    """Returns whether EVA-02's sizes with such norms keep queries, keys and values apart."""
    return model.rotary_grid is not None and "mlp" in model.sub_norm


# Out


def written_kind(model: config.Model) -> Kind | None:
    """Returns the kind that a model is written as; None for one of timm's ViTs."""
    if model.rotary is not None:
        return DINOV3 if model.rotary_grid is None else EVA02
    if model.relative_bias != "none":
        return BEIT
    keyless = "key" in model.biasless and "query" not in model.biasless
    plain = model.gelu == "erf" and model.activation == "gelu" and model.mlp == "plain"
    odd = model.distillation or model.stem_norm or model.resnet_units is not None
    odd = odd or model.norm_epsilon != 1e-6 or model.pooling == "map" or model.qk_norm
    return EVA if keyless and plain and not odd and models.has_class_position(model) else None


def check(model: config.Model, kind: Kind) -> None:
    """Raises WeightsError for a model that `written_kind` names and that such cannot be."""
    wrong = {
        "distillation": model.distillation,
        "pooling": model.pooling == "map",
        "biasless": "key" not in model.biasless,
        "resnet_units": model.resnet_units is not None,
    }
    if kind is DINOV3:
        wrong |= {"position": model.position != "none", "layer_scale": model.layer_scale is None}
    if kind is BEIT:
        wrong |= {
            "pooling": model.pooling not in ("token", "gap"),
            "registers": model.registers > 0,
            "class_token": not models.has_class_token(model),
            "stem_norm": model.stem_norm,
            "qk_norm": model.qk_norm,
        }
    for key, odd in wrong.items():
        if odd:
            said = config.show(getattr(model, key)).lower()
            raise WeightsError(f"model.{key}={said}: timm's {kind.title} has no equivalent")


def arguments(model: config.Model, kind: Kind) -> dict[str, Any]:
    """Returns the arguments from which timm builds a model, besides those of every ViT.

    Args:
      model: passes `check`.
      kind: its `written_kind`.
    """
    gated, inner = model.mlp == "swiglu", model.sub_norm
    shared = {
        "use_fc_norm": model.norm_place == "pooled",
        "qkv_bias": "query" not in model.biasless,
        **({} if model.layer_scale is None else {"init_values": model.layer_scale}),
        **({"swiglu_mlp": gated} if gated or kind is EVA02 else {}),
        **({"scale_mlp": True} if "mlp" in inner else {}),
        **({"scale_attn_inner": True} if "attention" in inner else {}),
    }
    if kind is BEIT:
        return shared | {
            "init_values": model.layer_scale or 0,  # timm takes null for the default
            "use_abs_pos_emb": model.position != "none",
            "use_rel_pos_bias": model.relative_bias == "layers",
            "use_shared_rel_pos_bias": model.relative_bias == "shared",
        }
    shared |= {
        "class_token": models.has_class_token(model),
        "num_reg_tokens": model.registers,
        **({"swiglu_align_to": 1} if kind is DINOV3 and gated else {}),
        **({"rope_temperature": model.rotary} if model.rotary is not None else {}),
        **({"use_pre_transformer_norm": True} if model.stem_norm else {}),
    }
    if kind is EVA02:
        learned = model.position != "none"
        apart = learned and not models.has_class_position(model)
        shared |= {
            "qkv_fused": not _apart(model),
            "ref_feat_shape": list(model.rotary_grid or REFERENCE),
            "use_abs_pos_emb": learned,
            **({"no_embed_class": True} if apart else {}),
        }
    return shared
