"""timm's Eva and Beit: DINOv3, EVA and EVA-02, timm's own with rotary positions, and BEiT.

blocks.0.attn.q_bias, blocks.0.gamma_1, reg_token                       DINOv3, timm's own
blocks.0.attn.qkv.bias_mask, blocks.0.ls1.gamma, storage_tokens         DINOv3 of Meta, read only
blocks.0.attn.q_proj, blocks.0.mlp.norm, pos_embed                      EVA-02, base and large
blocks.0.attn.q_bias, blocks.0.mlp.fc1, pos_embed                       EVA-02 with SwiGLU, EVA
blocks.0.attn.relative_position_bias_table, rel_pos_bias                BEiT, BEiT v2

All but Meta's have queries and values with a bias and keys without. EVA-02 turns features 2i and
2i + 1 of a head together, where the models here turn i and i + d/2: an import sorts the features of
queries and keys, which changes no product of the two.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from vit_jax import config, models
from vit_jax.models import variants
from vit_jax.weights import json_fields
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import timm
from vit_jax.weights.families.timm_vit import (
    BLOCK,
    FREQUENCIES,
    META,
    NO_LAST_NORM,
    TABLES,
    Assumed,
    TimmViT,
    mlp_ratio,
    registers,
)
from vit_jax.weights.families.torch_rules import QKV, SWIGLU, Names
from vit_jax.weights.family import CLIP, HALF, Fields, refuse_options, set_otherwise
from vit_jax.weights.mapping import (
    FLAT,
    ArrayLayout,
    ArraySpecs,
    ModelSpec,
    Rule,
    Size,
    array_shape,
)

# DINOv3's 7B has heads 128 wide, EVA's giant 88.
HEADS = {4096: 32, 1408: 16}
# EVA-02 was pretrained at 224 pixels with patches of 14.
REFERENCE = (16, 16)
POOLING_HEADS = 8  # of Perception Encoder
SCALES = tuple((f"{BLOCK}.gamma_{n}", f"encoder/scale{n}/scale") for n in (1, 2))
TURNING = re.compile("encoder/attention/(query|key)(_norm)?/")  # but not values
# By axis of the image, columns first, then by layer.
OF_LAYERS = ArrayLayout(
    lambda shape: (shape[1], shape[0], *shape[2:]),
    lambda array, _: array[::-1].swapaxes(0, 1),
    lambda array: array.swapaxes(0, 1)[::-1],
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TimmEva(TimmViT):
    """Models of timm's Eva."""

    usual_heads: ClassVar = HEADS
    gated_heads: ClassVar = HEADS
    packs: ClassVar = False
    side: int = 16  # rows and columns of patches of the images that its weights were trained on
    # Whether it may have attention pooling, which sees the class token too.
    pools: ClassVar[bool] = False

    @property
    def why(self) -> str:
        return f"as {self.title}'s; the file does not say"

    def _check_given(self, arrays: ArraySpecs, given: Fields) -> None:
        timm.check_arguments(given, self.fixed)
        if "attn_pool.latent" in arrays and not self.pools:
            raise WeightsError("global_pool=map: in timm's Eva it sees the class token too")

    def options(self, arrays: ArraySpecs, given: Fields) -> tuple[dict[str, Any], Assumed]:
        if arrays.keys() >= set(TABLES.values()):
            raise WeightsError(f"contains both {' and '.join(TABLES.values())}; one is supported")
        made: dict[str, Any] = {}
        name, biases = timm.architecture(given), "blocks.0.attn.qkv.bias"
        if name and biases in arrays and META not in arrays:
            raise WeightsError(f"architecture={name[:80]}: has no {biases}, as the file has")
        if "blocks.0.attn.qkv.bias_mask" in arrays:  # Meta's, with zeros for the biases of keys
            made["biasless"] = ("key",)
        if self.rotary is None:
            return made, {}
        arguments = json_fields.section(given, "model_args")
        made["rotary"] = json_fields.real(arguments, "rope_temperature", self.rotary)
        return made, {} if "architecture" in given else {"model.rotary": self.why}

    def image_size(
        self, arrays: ArraySpecs, patch: list[int], sizes: tuple[Size | None, Size | None]
    ) -> tuple[Size | None, Assumed]:
        if "pos_embed" in arrays:
            return sizes[0], {}
        given = [size for size in sizes if size is not None]
        count = next((arrays[table].shape[0] for table in TABLES.values() if table in arrays), None)
        if count is None:  # rotary positions fit any
            usual = self.side * patch[0], self.side * patch[1]
            return (given[0], {}) if given else (usual, {"data.image_size": self.why})
        for size in given:
            rows, columns = (side // one for side, one in zip(size, patch, strict=True))
            # Three biases more: of the class token to patches, of patches to it, and to itself.
            if (2 * rows - 1) * (2 * columns - 1) + 3 == count:
                return size, {}
        side = math.isqrt(max(count - 3, 0))
        # Offsets along a side of n patches run from -(n - 1) to n - 1: their number is odd.
        if side % 2 == 0 or side * side != count - 3:
            return (given[0] if given else None), {}
        side = (side + 1) // 2
        why = f"offsets of {side} x {side} patches; the file does not say"
        return (side * patch[0], side * patch[1]), {"data.image_size": why}

    def own_names(self, spec: ModelSpec | None) -> Names:
        attn, target = f"{BLOCK}.attn", "encoder/attention"
        separate = [(f"{attn}.{name[0]}_proj", f"{target}/{name}") for name in QKV]
        biases = [(f"{attn}.{name[0]}_bias", f"{target}/{name}/bias", FLAT) for name in QKV]
        fused = [*biases, (f"{attn}.qkv", f"{target}/query|key|value")]
        apart = spec is not None and _apart(spec.model)
        return (
            *((*separate, *fused) if apart else (*fused, *separate)),
            *SCALES,
            (f"{attn}.relative_position_bias_table", f"{target}/relative_bias/table"),
            ("rel_pos_bias.relative_position_bias_table", "relative_bias/table"),
        )

    def columns_first(self, model: config.Model) -> bool | None:
        """Whether neighboring features turn with columns, then rows; None: no neighbors turn."""
        return None if model.rotary_grid is None else False

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        swapped = None if spec is None else self.columns_first(spec.model)
        for rule in super().rules(arrays, spec):
            if swapped is not None and TURNING.match(rule.target):
                rule = rule._replace(layout=_sorted(rule.layout, swapped=swapped))
            yield rule

    def mlp_names(
        self, arrays: ArraySpecs | None, spec: ModelSpec | None
    ) -> Iterable[tuple[str, str]]:
        names = super().mlp_names(arrays, spec)
        if arrays is None and spec is not None and spec.model.mlp == "swiglu":
            # In timm the gate and fc1 are one array, unless a norm or an alignment keeps them
            # apart.
            packed = spec.model.rotary_grid is not None and "mlp" not in spec.model.sub_norm
            return names if packed else SWIGLU.items()
        return names

    def validate_spec(self, spec: ModelSpec) -> None:
        refuse_options(spec.model, self.wrong(spec.model), f"timm's {self.title}")
        super().validate_spec(spec)

    def wrong(self, model: config.Model) -> dict[str, bool]:
        """Options, each with whether the model has there what none of this kind can have."""
        return {
            "distillation": model.distillation,
            "pooling": model.pooling == "map",
            "biasless": "key" not in model.biasless,
            "resnet_units": model.resnet_units is not None,
        }

    def arguments(self, model: config.Model) -> dict[str, Any]:
        return self.shared_arguments(model) | {
            "class_token": models.has_class_token(model),
            "num_reg_tokens": model.registers,
            **({"rope_temperature": model.rotary} if model.rotary is not None else {}),
            **({"use_pre_transformer_norm": True} if model.stem_norm else {}),
        }

    def shared_arguments(self, model: config.Model) -> dict[str, Any]:
        """The arguments that Beit has too."""
        return {
            "use_fc_norm": model.norm_place == "pooled",
            "qkv_bias": "query" not in model.biasless,
            **({} if model.layer_scale is None else {"init_values": model.layer_scale}),
            **({"swiglu_mlp": True} if model.mlp == "swiglu" else {}),
            **({"scale_mlp": True} if "mlp" in model.sub_norm else {}),
            **({"scale_attn_inner": True} if "attention" in model.sub_norm else {}),
        }

    def bias_groups(self, spec: ModelSpec) -> tuple[frozenset[str], ...]:
        lacking = frozenset(QKV) <= set(spec.model.biasless)
        return (frozenset(QKV) if lacking else frozenset(("key",)),)


class Beit(TimmEva):
    """Models of timm's Beit."""

    def wrong(self, model: config.Model) -> dict[str, bool]:
        return super().wrong(model) | {
            "pooling": model.pooling not in ("token", "gap"),
            "registers": model.registers > 0,
            "class_token": not models.has_class_token(model),
            **set_otherwise(model, "stem_norm", "qk_norm"),
        }

    def arguments(self, model: config.Model) -> dict[str, Any]:
        return self.shared_arguments(model) | {
            "init_values": model.layer_scale or 0,  # timm takes null for the default
            "use_abs_pos_emb": model.position != "none",
            "use_rel_pos_bias": model.relative_bias == "layers",
            "use_shared_rel_pos_bias": model.relative_bias == "shared",
        }


class DinoV3(TimmEva):
    """DINOv3."""

    def wrong(self, model: config.Model) -> dict[str, bool]:
        more = {"position": model.position != "none", "layer_scale": model.layer_scale is None}
        return super().wrong(model) | more

    def arguments(self, model: config.Model) -> dict[str, Any]:
        # With an alignment timm builds the SwiGLU of two separate layers, DINOv3's; 1 rounds no
        # width up.
        align = {"swiglu_align_to": 1} if model.mlp == "swiglu" else {}
        return super().arguments(model) | align


class Eva02(TimmEva):
    """EVA-02, and timm's own models with such rotary positions: of a grid of reference, scaled."""

    def options(self, arrays: ArraySpecs, given: Fields) -> tuple[dict[str, Any], Assumed]:
        made, assumed = super().options(arrays, given)
        arguments = json_fields.section(given, "model_args")
        grid = json_fields.pair(arguments, "ref_feat_shape", REFERENCE)
        unsaid = {} if "architecture" in given else {"model.rotary_grid": self.why}
        return made | {"rotary_grid": grid}, assumed | unsaid

    def arguments(self, model: config.Model) -> dict[str, Any]:
        return super().arguments(model) | {
            # In full, as the architecture of the export has its own default for each.
            "swiglu_mlp": model.mlp == "swiglu",
            "qkv_fused": not _apart(model),
            "ref_feat_shape": list(model.rotary_grid or REFERENCE),
            **_position_arguments(model),
        }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ColumnsFirst(TimmEva):
    """Perception Encoder without pooling, and RoPE-ViT: keys have biases, columns turn first."""

    usual_heads: ClassVar = {1536: 16}
    gated_heads: ClassVar = usual_heads
    span: str = "separate"  # `model.rotary_span`
    offset: float = 0.0  # `model.rotary_offset`

    def options(self, arrays: ArraySpecs, given: Fields) -> tuple[dict[str, Any], Assumed]:
        arguments = json_fields.section(given, "model_args")
        made: dict[str, Any] = {
            "rotary": json_fields.real(arguments, "rope_temperature", self.rotary),
            "rotary_span": self.span,
            "rotary_offset": self.offset,
        }
        if self.span == "separate":
            grid = self.grid(given)
            made["rotary_grid"] = json_fields.pair(arguments, "ref_feat_shape", grid)
        if FREQUENCIES not in arrays:
            return made, {}
        named = "architecture" in given
        return made | {"rotary_learned": True}, {} if named else {"model.rotary_span": self.why}

    def grid(self, given: Fields) -> Size:
        """The grid of reference that an architecture's name implies."""
        # The last numbers of a name such as vit_pe_spatial_base_patch16_512.
        size, patch = (int(n) for n in re.findall(r"\d+", timm.architecture(given))[::-1][:2])
        return size // patch, size // patch

    def own_names(self, spec: ModelSpec | None) -> Names:
        return (*SCALES, (FREQUENCIES, "encoder/attention/frequencies", OF_LAYERS))

    def columns_first(self, model: config.Model) -> bool | None:
        return not model.rotary_learned  # those that are learned belong to no axis

    def wrong(self, model: config.Model) -> dict[str, bool]:
        more = set_otherwise(model, "sub_norm", "mlp", "qk_norm")
        return {**super().wrong(model), "biasless": False, **more}

    def arguments(self, model: config.Model) -> dict[str, Any]:
        grid = {} if model.rotary_grid is None else {"ref_feat_shape": list(model.rotary_grid)}
        return super().arguments(model) | {
            **_position_arguments(model),
            "use_post_transformer_norm": model.norm_place == "tokens",
            **grid,
        }

    def bias_groups(self, spec: ModelSpec) -> tuple[frozenset[str], ...]:
        patches = (frozenset(("patches",)),) if spec.model.stem_norm else ()
        return frozenset(QKV), *patches


class Core(ColumnsFirst):
    """Perception Encoder with its pooling, whose attention has heads of its own."""

    pools: ClassVar[bool] = True

    def options(self, arrays: ArraySpecs, given: Fields) -> tuple[dict[str, Any], Assumed]:
        made, assumed = super().options(arrays, given)
        if "attn_pool.latent" not in arrays:
            return made, assumed
        arguments = json_fields.section(given, "model_args")
        heads = json_fields.whole(arguments, "attn_pool_num_heads", POOLING_HEADS)
        hidden, own = (
            array_shape(arrays, f"{part}.mlp.fc1.weight", 2)[0]
            for part in ("blocks.0", "attn_pool")
        )
        prefix = "cls_token" in arrays or registers(arrays) > 0
        made |= {"pooling_heads": heads, "pooling_prefix": prefix}
        return made | ({} if own == hidden else {"pooling_mlp_dim": own}), assumed

    def wrong(self, model: config.Model) -> dict[str, bool]:
        seen = model.pooling_prefix or not variants.prefix_tokens(model)
        return super().wrong(model) | {
            "pooling": False,
            "pooling_prefix": not seen,
            "norm_place": model.norm_place != "tokens",
        }

    def arguments(self, model: config.Model) -> dict[str, Any]:
        return super().arguments(model) | {
            "attn_pool_num_heads": model.pooling_heads or model.heads,
            "attn_pool_mlp_ratio": mlp_ratio(
                model.width or 0, model.pooling_mlp_dim or model.mlp_dim or 0
            ),
        }


def _position_arguments(model: config.Model) -> dict[str, bool]:
    learned = model.position != "none"
    apart = learned and not models.has_class_position(model)
    return {"use_abs_pos_emb": learned, **({"no_embed_class": True} if apart else {})}


def _sorted(layout: ArrayLayout, *, swapped: bool) -> ArrayLayout:
    """The layout of a layer's queries or keys whose pairs of features are neighbors.

    `swapped`: half of the pairs turn with the column, then half with the row.
    """

    def halves(array: np.ndarray) -> np.ndarray:
        return np.roll(array, array.shape[-1] // 2, axis=-1) if swapped else array

    def read(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        found = layout.read(array, shape)
        return np.concatenate([halves(found[..., ::2]), halves(found[..., 1::2])], axis=-1)

    def write(array: np.ndarray) -> np.ndarray:
        pairs = np.stack([halves(one) for one in np.split(array, 2, axis=-1)], axis=-1)
        return layout.write(pairs.reshape(array.shape))

    return ArrayLayout(layout.shape, read, write, layout.axes)


def _apart(model: config.Model) -> bool:
    """Whether EVA-02's sizes with such norms keep queries, keys and values apart."""
    return model.rotary_grid is not None and "mlp" in model.sub_norm


def _bare(arrays: ArraySpecs) -> bool:
    """Whether there is LayerScale by EVA's names and no table of positions."""
    return "blocks.0.gamma_1" in arrays and "pos_embed" not in arrays


def _keyless(arrays: ArraySpecs) -> bool:
    return "blocks.0.attn.q_bias" in arrays and "blocks.0.attn.qkv.bias" not in arrays


def _is_dinov3(arrays: ArraySpecs) -> bool:
    named = _bare(arrays) and "reg_token" in arrays and "cls_token" in arrays
    return named or META in arrays


def _is_eva02(arrays: ArraySpecs) -> bool:
    hidden, inner = (arrays.get(f"blocks.0.mlp.fc{n}.weight") for n in (1, 2))
    packed = hidden is not None and inner is not None and hidden.shape[:1] != inner.shape[1:]
    gated = packed or "blocks.0.mlp.fc1_g.weight" in arrays
    return "blocks.0.attn.q_proj.weight" in arrays or (_keyless(arrays) and gated)


def _is_eva(model: config.Model) -> bool:
    """Whether a model without rotary positions and biases of offsets has keys without a bias."""
    keyless = "key" in model.biasless and "query" not in model.biasless
    plain = model.gelu == "erf" and model.activation == "gelu" and model.mlp == "plain"
    odd = model.distillation or model.stem_norm or model.resnet_units is not None
    odd = odd or model.norm_epsilon != 1e-6 or model.pooling == "map" or model.qk_norm
    odd = odd or model.rotary is not None or model.relative_bias != "none"
    return keyless and plain and not odd and models.has_class_position(model)


ROPE = {
    "use_rot_pos_emb": True,
    "rope_rotate_half": False,
    "rope_type": "cat",
    "rope_grid_offset": 0,
    # Of the pairs of features, those of rows come first; with xy those of columns.
    "rope_grid_indexing": "ij",
    "attn_type": "eva",
}
ROPE_XY = ROPE | {"rope_grid_indexing": "xy", "attn_type": "rope"}
CORE = Core(
    title="Perception Encoder",
    names=r"vit_pe_core_(?:tiny|small|base|large)_patch\d+_\d+",
    pixels=HALF,
    epsilon=1e-5,
    rotary=10000.0,
    offset=1.0,
    written="vit_pe_core_tiny_patch16_384",
    expressed=lambda model: model.rotary_grid is not None and model.rotary_offset == 1,
    fixed=ROPE_XY | {"rope_grid_offset": 1},
)
# In the order in which files that name no architecture are tried.
FAMILIES = (
    Beit(
        title="BEiT",
        names=r"beit(?:v2)?_(?:base|large)_patch16_\d+",
        looks_like=lambda arrays: bool(set(TABLES.values()) & arrays.keys()),
        pixels=HALF,
        written="beit_base_patch16_224",
        expressed=lambda model: model.relative_bias != "none" and model.rotary is None,
    ),
    DinoV3(
        title="DINOv3",
        names=r"vit_\w+_patch16_dinov3(?:_qkvb)?",
        looks_like=_is_dinov3,
        epsilon=1e-5,
        pooling="avg",
        rotary=100.0,
        written="vit_small_patch16_dinov3",
        expressed=lambda model: (
            model.rotary is not None
            and model.rotary_grid is None
            and model.rotary_span != "patches"
        ),
        fixed={
            "rope_type": "dinov3",
            "rope_rotate_half": True,
            "use_rot_pos_emb": True,
            "use_abs_pos_emb": False,
        },
    ),
    ColumnsFirst(
        title="Perception Encoder",
        names=r"vit_pe_(?:spatial|lang)_(?:tiny|small|base|large|gigantic)_patch\d+_\d+",
        pixels=HALF,
        epsilon=1e-5,
        pooling="avg",
        rotary=10000.0,
        odd=(NO_LAST_NORM,),
        offset=1.0,
        written="vit_pe_spatial_tiny_patch16_512",
        expressed=lambda model: (
            model.rotary_grid is not None and model.rotary_offset == 1 and model.pooling != "map"
        ),
        fixed=ROPE_XY | {"rope_grid_offset": 1},
    ),
    CORE,
    dataclasses.replace(
        CORE,
        names=r"vit_pe_core_gigantic_patch\d+_\d+",
        # The largest counts rows and columns from 0, the others from 1.
        offset=0.0,
        written="vit_pe_core_gigantic_patch14_448",
        expressed=lambda model: model.rotary_grid is not None and model.pooling == "map",
        fixed=ROPE_XY,
    ),
    ColumnsFirst(
        title="RoPE-ViT",
        names=r"vit_(?:small|base|large)_patch16_rope_mixed_(?:ape_)?\d+",
        looks_like=lambda arrays: FREQUENCIES in arrays,
        rotary=10.0,
        span="patches",
        side=14,
        written="vit_small_patch16_rope_mixed_224",
        expressed=lambda model: model.rotary_learned,
        fixed=ROPE_XY | {"rope_type": "mixed"},
    ),
    ColumnsFirst(
        title="RoPE-ViT",
        names=r"vit_(?:small|base|large)_patch16_rope_(?:ape_)?\d+",
        rotary=100.0,
        span="patches",
        written="vit_small_patch16_rope_224",
        expressed=lambda model: model.rotary is not None and model.rotary_span == "patches",
        fixed=ROPE_XY | {"ref_feat_shape": None},
    ),
    Eva02(
        title="timm",
        names=r"vit_\w+_patch16_rope_reg\d_gap_\d+",
        looks_like=lambda arrays: _bare(arrays) and "reg_token" in arrays,
        pixels=HALF,
        rotary=10000.0,
        fixed=ROPE,
    ),
    Eva02(
        title="EVA-02",
        names=r"eva02_(?:tiny|small|base|large)_patch1[46]_(?:clip_)?\d+",
        looks_like=_is_eva02,
        pixels=CLIP,
        rotary=10000.0,
        written="eva02_tiny_patch14_224",  # which has no norms inside its layers
        expressed=lambda model: model.rotary is not None and model.rotary_grid is not None,
        fixed=ROPE,
    ),
    TimmEva(
        title="EVA",
        names=r"eva_giant_patch14_(?:clip_)?\d+",
        looks_like=_keyless,
        pixels=CLIP,
        written="eva_giant_patch14_224",
        expressed=_is_eva,
        fixed={"use_rot_pos_emb": False, "attn_type": "eva"},
    ),
)
