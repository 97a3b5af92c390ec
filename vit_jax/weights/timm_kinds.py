"""The families of timm's models that are built here, each with what only its code says.

Names and shapes of arrays do not tell some families from others that compute something else: norms
after attention and MLP, other rotary positions. So timm's architectures are accepted by name, and
of a file without a name everything that its arrays leave open is an assumption.
"""

import dataclasses
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.weights import json_fields
from vit_jax.weights.json_fields import Given
from vit_jax.weights.readers import Spec, WeightsError

Specs = Mapping[str, Spec]

HALF = ((0.5,), (0.5,))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# Heads are 64 wide, except in models of these widths.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
EVA_HEADS = {4096: 32, 1408: 16}
SIZES = (
    r"vit_(?:tiny|wee|xsmall|small|little|medium|mediumd|betwixt|base|large|huge|giant|giantopt|"
    r"gigantic|so150m2?|so400m)"
)
META = "storage_tokens"  # registers in Meta's DINOv3
TABLES = {  # biases of attention by offset
    "layers": "blocks.0.attn.relative_position_bias_table",
    "shared": "rel_pos_bias.relative_position_bias_table",
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """A family of timm's models that differ in sizes, tokens and parts that arrays show.

    Attributes:
      title: its name in messages.
      names: a pattern of its architectures in timm.
      recognizes: whether a file without a name is one, by its arrays.
      pixels: mean and deviation of the images that its weights were trained on.
      epsilon: of LayerNorm.
      pooling: timm's default where there are a class token and a norm of all tokens.
      heads: numbers of heads by width, where heads are not 64 wide.
      eva: whether its class in timm is Eva or Beit.
      rotary: base of its rotary positions.
      written: the architecture that exports name, whose arguments give any size.
      fixed: arguments with the one value that is built here.
    """

    title: str
    names: str
    recognizes: Callable[[Specs], bool]
    pixels: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET
    epsilon: float = 1e-6
    pooling: str = "token"
    heads: Mapping[int, int] = dataclasses.field(
        default_factory=lambda: types.MappingProxyType(HEADS)
    )
    eva: bool = False
    rotary: float | None = None
    written: str = ""
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def unsaid(self) -> str:
        """Why an option that this family decides is assumed."""
        return f"as {self.title}'s; the file does not say"


def _bare(specs: Specs) -> bool:
    """Whether there is LayerScale by EVA's names and no table of positions."""
    return "blocks.0.gamma_1" in specs and "pos_embed" not in specs


def _is_dinov3(specs: Specs) -> bool:
    named = _bare(specs) and "reg_token" in specs and "cls_token" in specs
    return named or META in specs


def _is_eva02(specs: Specs) -> bool:
    if _bare(specs) and "reg_token" in specs:  # timm's own with rotary positions
        return True
    hidden, inner = (specs.get(f"blocks.0.mlp.fc{n}.weight") for n in (1, 2))
    packed = hidden is not None and inner is not None and hidden.shape[:1] != inner.shape[1:]
    gated = packed or "blocks.0.mlp.fc1_g.weight" in specs
    return "blocks.0.attn.q_proj.weight" in specs or (_keyless(specs) and gated)


def _keyless(specs: Specs) -> bool:
    return "blocks.0.attn.q_bias" in specs and "blocks.0.attn.qkv.bias" not in specs


def _has_layer_scale(specs: Specs) -> bool:
    scaled = {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} & specs.keys()
    return bool(scaled) and "cls_token" in specs


VIT = Kind(
    title="ViT",
    names=rf"{SIZES}_patch\d+(?:_36x1|_plus|_reg\d+)*(?:_gap|_map)?_\d+(?:_miil)?|test_vit[234]?|"
    rf"{SIZES}_r(?:26|50)?_s\d+(?:_p8)?_\d+|flexivit_(?:small|base|large)|eva_large_patch14_\d+",
    recognizes=lambda specs: True,
    pixels=HALF,
    written="vit_base_patch16_224",
)
# In the order in which files without a name are tried.
KINDS = (
    Kind(
        title="BEiT",
        names=r"beit(?:v2)?_(?:base|large)_patch16_\d+",
        recognizes=lambda specs: bool(set(TABLES.values()) & specs.keys()),
        pixels=HALF,
        heads=EVA_HEADS,
        eva=True,
        written="beit_base_patch16_224",
    ),
    Kind(
        title="DINOv3",
        names=r"vit_\w+_patch16_dinov3(?:_qkvb)?",
        recognizes=_is_dinov3,
        epsilon=1e-5,
        pooling="avg",
        heads=EVA_HEADS,
        eva=True,
        rotary=100.0,
        written="vit_small_patch16_dinov3",
        fixed={"rope_type": "dinov3", "rope_rotate_half": True, "use_rot_pos_emb": True,
               "use_abs_pos_emb": False},
    ),
    Kind(
        title="EVA-02",
        names=r"eva02_(?:tiny|small|base|large)_patch1[46]_(?:clip_)?\d+|"
        r"vit_\w+_patch16_rope_reg\d_gap_\d+",
        recognizes=_is_eva02,
        pixels=OPENAI,
        heads=EVA_HEADS,
        eva=True,
        rotary=10000.0,
        written="eva02_tiny_patch14_224",  # which has no norms inside its layers
        fixed={"use_rot_pos_emb": True, "rope_rotate_half": False, "rope_type": "cat",
               "rope_grid_offset": 0, "rope_grid_indexing": "ij", "attn_type": "eva"},
    ),
    Kind(
        title="EVA",
        names=r"eva_giant_patch14_(?:clip_)?\d+",
        recognizes=_keyless,
        pixels=OPENAI,
        heads=EVA_HEADS,
        eva=True,
        written="eva_giant_patch14_224",
        fixed={"use_rot_pos_emb": False, "attn_type": "eva"},
    ),
    Kind(
        title="CLIP",
        names=rf"{SIZES}_patch\d+(?:_plus)?_clip_(?:quickgelu_)?\d+",
        recognizes=lambda specs: "norm_pre.weight" in specs,
        pixels=OPENAI,
        epsilon=1e-5,
        written="vit_base_patch16_clip_224",
    ),
    Kind(
        title="BEiT-3",
        names=r"beit3_(?:base|large|giant)_patch\d+_\d+",
        recognizes=lambda specs: "blocks.0.attn.norm.weight" in specs,
        epsilon=1e-5,
    ),
    Kind(
        title="SigLIP",
        names=rf"{SIZES}_patch\d+_siglip_(?:gap_)?\d+",
        recognizes=lambda specs: "attn_pool.latent" in specs,
        pixels=HALF,
    ),
    Kind(
        title="DeiT",
        names=r"deit_(?:tiny|small|base)_(?:distilled_)?patch16_\d+",
        recognizes=lambda specs: "dist_token" in specs,
        written="deit_base_distilled_patch16_224",
    ),
    Kind(
        title="TIPSv2",
        names=rf"{SIZES}_patch14_reg1_tipsv2",
        recognizes=lambda specs: False,  # as DINOv2
        pixels=((0.0,), (1.0,)),
    ),
    Kind(
        title="DINOv2 or DeiT-III",
        names=rf"{SIZES}_patch14_(?:reg4_)?dinov2|deit3_(?:small|medium|base|large|huge)_\w+",
        recognizes=_has_layer_scale,
    ),
    VIT,
)  # fmt: skip
BEIT, DINOV3, EVA02, EVA, CLIP, *_, DEIT, _, _, _ = KINDS
BIT = re.compile(r"resnetv2_\d+x\d_bitm?")
# Why architectures are refused whose arrays look like those of the above.
OTHERWISE = (
    (r".*_rpn_.*|eva02_enormous_.*", "its layers normalize after attention and MLP, not before"),
    (r"vit_pe_.*", "its rotary positions are those of Perception Encoder"),
    (r"vit_.*_rope_.*", "its rotary positions are those of RoPE-ViT"),
)


def architecture(given: Given) -> str:
    """The architecture in config.json, without a tag of its weights; empty if it says none."""
    name = json_fields.text(given, "architecture", "").partition(".")[0]
    return re.sub(r"_(?:in2[12](?:k|ft1k)|dino|sam)$", "", name)  # tags before timm 0.9


def recognize(specs: Specs, given: Given) -> Kind:
    """The family of a Vision Transformer, by config.json or else by its arrays.

    Raises WeightsError for an architecture that is not known to compute what is built here.
    """
    name = architecture(given)
    if not name:
        return next(kind for kind in KINDS if kind.recognizes(specs))
    found = next((kind for kind in KINDS if re.fullmatch(kind.names, name)), None)
    if found is None:
        why = next((why for pattern, why in OTHERWISE if re.fullmatch(pattern, name)), None)
        plain = f"if it is a ViT of other sizes, let config.json say {VIT.written}"
        raise WeightsError(
            f"architecture={name[:80]}: this model of timm is not supported"
            f"{f', as {why}' if why else f'; {plain}'}"
        )
    return found
