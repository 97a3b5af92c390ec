"""The built-in families, one file for each architecture of a project."""

from vit_jax.weights.families import (
    bit,
    deit3_jax,
    google,
    hf_aimv2,
    hf_beit,
    hf_dinov2,
    hf_dinov3,
    hf_towers,
    hf_vit,
    huggingface,
    naflex,
    open_clip,
    timm_eva,
    timm_vit,
    tips,
    torchvision,
)
from vit_jax.weights.family import FAMILIES

# The first that recognizes a file reads it, and the first that expresses a model writes it. So the
# special ones come before the plain ViTs, which take what is left.
FAMILIES += [
    tips.Tips(),
    deit3_jax.DeiT3Jax(),
    bit.GoogleBit(),
    google.Google(),
    bit.TimmBit(),
    *timm_eva.FAMILIES,
    naflex.TIMM,
    *timm_vit.FAMILIES,
    bit.HuggingFaceBit(),
    hf_aimv2.HuggingFaceAimv2(),
    hf_beit.HuggingFaceBeit(),
    hf_dinov3.HuggingFaceDinoV3(),
    naflex.HuggingFaceNaFlex(),
    hf_towers.HuggingFaceTower(),
    hf_dinov2.HuggingFaceDinoV2(),
    hf_vit.HuggingFaceIJepa(),
    hf_vit.HuggingFaceViT(),
    huggingface.UnknownHuggingFace(),
    open_clip.OpenClip(),
    torchvision.Torchvision(),
]
