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
from vit_jax.weights.torch_rules import dense, norm, swiglu

Size = tuple[int, int]
# The models whose arguments give any size, by kind; that of EVA-02 has no norms inside its layers.
NAMES = {
    "dinov3": "vit_small_patch16_dinov3",
    "eva02": "eva02_tiny_patch14_224",
    "eva": "eva_giant_patch14_224",
    "beit": "beit_base_patch16_224",
}
KINDS = (  # by architecture
    (r".*_dinov3.*", "dinov3"),
    (r"eva02_(?!enormous).*|vit_\w+_rope_reg\d_gap_\d+", "eva02"),
    (r"eva_giant_.*", "eva"),
    (r"beit(v2)?_.*", "beit"),
)
# Others of the same class that compute something else, as no array shows.
ALIEN = re.compile(
    r"eva02_enormous.*|vit_pe_.*|vit_\w+_rope_.*|vit_\w+_(lingbot|sapiens2).*|beit3_.*"
)
META = "storage_tokens"
# Arrays that other models of timm with such names would make foreign.
OWN = re.compile(
    r"blocks\.\d+\.attn\.([qv]_bias|relative_position_bias_table)|rope_embed\.periods|"
    r"rel_pos_bias\.relative_position_bias_table"
)
TABLES = {
    "layers": "blocks.0.attn.relative_position_bias_table",
    "shared": "rel_pos_bias.relative_position_bias_table",
}
DROPPED = (
    (r"blocks\.\d+\.attn\.qkv\.bias_mask", "of the biases of keys, which are zero"),
    (r"rope_embed\.periods", "of rotary positions, which model.rotary gives"),
    (r"local_cls_norm\..*", "of small crops in pretraining"),
    (r".*relative_position_index", "numbers of offsets, no weights"),
)
HEADS = {4096: 32, 1408: 16}
BASES = {"dinov3": 100.0, "eva02": 10000.0}
REFERENCE = (16, 16)
# Arguments with one value that is supported, by kind; arrays reveal the others.
ROTATES = {"use_rot_pos_emb": True, "rope_rotate_half": False, "rope_type": "cat",
           "rope_grid_offset": 0, "rope_grid_indexing": "ij", "attn_type": "eva"}  # fmt: skip
FIXED: Mapping[str, Mapping[str, Any]] = {
    "dinov3": {"rope_type": "dinov3", "rope_rotate_half": True, "use_rot_pos_emb": True,
               "use_abs_pos_emb": False},
    "eva02": ROTATES,
    "eva": {"use_rot_pos_emb": False, "attn_type": "eva"},
}  # fmt: skip


def kind(specs: Mapping[str, Spec], given: Given) -> str:
    """Returns the kind of a model by config.json or else by names; empty for one that is none.

    Raises WeightsError for an architecture that computes what no array shows and no model here.
    """
    name = json_fields.text(given, "architecture", "")
    found = next((kind for pattern, kind in KINDS if re.fullmatch(pattern, name)), "")
    if ALIEN.fullmatch(name) and not found:
        raise WeightsError(f"architecture={name}: this model of timm is not supported")
    if name:
        return found
    if set(TABLES.values()) & specs.keys():
        return "beit"
    scaled = "blocks.0.gamma_1" in specs and "pos_embed" not in specs
    if META in specs or (scaled and "reg_token" in specs):
        return "dinov3" if META in specs or "cls_token" in specs else "eva02"
    if "blocks.0.attn.q_proj.weight" in specs:
        return "eva02"
    if "blocks.0.attn.q_bias" in specs and "blocks.0.attn.qkv.bias" not in specs:
        hidden, inner = (specs.get(f"blocks.0.mlp.fc{n}.weight") for n in (1, 2))
        packed = hidden is not None and inner is not None and hidden.shape[0] != inner.shape[1]
        return "eva02" if packed or "blocks.0.mlp.fc1_g.weight" in specs else "eva"
    return ""


def options(
    specs: Mapping[str, Spec], given: Given, kind: str
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
    if kind not in BASES:
        return made, {}
    arguments = json_fields.section(given, "model_args")
    made["rotary"] = json_fields.real(arguments, "rope_temperature", BASES[kind])
    keys = ["model.rotary"]
    if kind == "eva02":
        made["rotary_grid"] = json_fields.pair({"r": REFERENCE, **_reference(arguments)}, "r")
        keys.append("model.rotary_grid")
    return made, {} if given else dict.fromkeys(keys, unsaid(kind))


def _reference(arguments: Given) -> Given:
    return {"r": arguments["ref_feat_shape"]} if "ref_feat_shape" in arguments else {}


def unsaid(kind: str) -> str:
    """Returns why an option of a kind is assumed."""
    named = {"dinov3": "DINOv3", "eva02": "EVA-02", "beit": "BEiT"}.get(kind, "EVA")
    return f"as {named}'s; the file does not say"


def biasless(specs: Mapping[str, Spec]) -> tuple[str, ...]:
    """Returns which of queries, keys and values lack a bias, as `model.biasless`."""
    if "blocks.0.attn.qkv.bias" in specs:  # Meta's, with zeros for keys where there is a mask
        return ("key",) if "blocks.0.attn.qkv.bias_mask" in specs else ()
    biased = {"blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias"} & specs.keys()
    return ("key",) if biased else ("query", "key", "value")


def image_size(
    specs: Mapping[str, Spec], kind: str, patch: Sequence[int], sizes: Sequence[Size | None]
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
        return (given[0], {}) if given else (usual, {"data.image_size": unsaid(kind)})
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


def written_kind(model: config.Model) -> str:
    """Returns the kind that a model is written as; empty for one of timm's ViTs."""
    if model.rotary is not None:
        return "dinov3" if model.rotary_grid is None else "eva02"
    if model.relative_bias != "none":
        return "beit"
    keyless = "key" in model.biasless and "query" not in model.biasless
    plain = model.gelu == "erf" and model.activation == "gelu" and model.mlp == "plain"
    odd = model.distillation or model.stem_norm or model.resnet_units is not None
    odd = odd or model.norm_epsilon != 1e-6 or model.pooling == "map" or model.qk_norm
    return "eva" if keyless and plain and not odd and models.has_class_position(model) else ""


def check(model: config.Model) -> None:
    """Raises WeightsError for a model that `written_kind` names and that such cannot be."""
    kind = written_kind(model)
    wrong = {
        "distillation": model.distillation,
        "pooling": model.pooling == "map",
        "biasless": "key" not in model.biasless,
        "resnet_units": model.resnet_units is not None,
    }
    if kind == "dinov3":
        wrong |= {"position": model.position != "none", "layer_scale": model.layer_scale is None}
    if kind == "beit":
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
            raise WeightsError(f"model.{key}={said}: timm's {_called(kind)} has no equivalent")


def _called(kind: str) -> str:
    return {"dinov3": "DINOv3", "beit": "BEiT"}.get(kind, "EVA-02")


def arguments(model: config.Model) -> dict[str, Any]:
    """Returns the arguments from which timm builds a model, besides those of every ViT.

    Args:
      model: passes `check`.
    """
    kind = written_kind(model)
    gated, inner = model.mlp == "swiglu", model.sub_norm
    shared = {
        "use_fc_norm": model.norm_place == "pooled",
        "qkv_bias": "query" not in model.biasless,
        **({} if model.layer_scale is None else {"init_values": model.layer_scale}),
        **({"swiglu_mlp": gated} if gated or kind == "eva02" else {}),
        **({"scale_mlp": True} if "mlp" in inner else {}),
        **({"scale_attn_inner": True} if "attention" in inner else {}),
    }
    if kind == "beit":
        return shared | {
            "init_values": model.layer_scale or 0,  # timm takes null for the default
            "use_abs_pos_emb": model.position != "none",
            "use_rel_pos_bias": model.relative_bias == "layers",
            "use_shared_rel_pos_bias": model.relative_bias == "shared",
        }
    shared |= {
        "class_token": models.has_class_token(model),
        "num_reg_tokens": model.registers,
        **({"swiglu_align_to": 1} if kind == "dinov3" and gated else {}),
        **({"rope_temperature": model.rotary} if model.rotary is not None else {}),
        **({"use_pre_transformer_norm": True} if model.stem_norm else {}),
    }
    if kind == "eva02":
        learned = model.position != "none"
        apart = learned and not models.has_class_position(model)
        shared |= {
            "qkv_fused": not _apart(model),
            "ref_feat_shape": list(model.rotary_grid or REFERENCE),
            "use_abs_pos_emb": learned,
            **({"no_embed_class": True} if apart else {}),
        }
    return shared
