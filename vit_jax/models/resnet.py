"""ResNets with GroupNorm and weight standardisation (Big Transfer)."""

from flax import nnx


class Backbone(nnx.Module):
    """To be built."""


class ResNet(nnx.Module):
    """To be built."""
