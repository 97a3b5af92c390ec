"""Axial attention (ViT, appendix D.6): along rows, then along columns."""

from vit_jax.models.layers import EncoderBlock
from vit_jax.models.resnet import ResNet


class AxialBlock(EncoderBlock):
    """To be built."""


class AxialResNet(ResNet):
    """To be built."""
