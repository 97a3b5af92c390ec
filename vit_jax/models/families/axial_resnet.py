"""AxialResNet: axial attention in place of 3 x 3 convolutions (ViT, appendix D.6)."""

from typing import Any

from vit_jax.models import flop_count
from vit_jax.models.families.resnet import ResNetFamily


class AxialResNetFamily(ResNetFamily):
    """AxialResNet50."""

    weights = None

    def middle_macs(self, size: flop_count.Map, features: int, stride: int) -> int:
        """Returns the multiply-accumulates of attention along columns, then rows, before pooling.

        Queries and keys have half the features of the values. Relative positions add a product
        with the queries, one with the keys and one with the weights.
        """
        n, half = size[0] * size[1], features // 2
        projections = n * features * (half + half + features)
        return 2 * projections + n * (size[0] + size[1]) * (3 * half + 2 * features)

    def network_class(self) -> Any:
        """Returns the network's class."""
        from vit_jax.models.axial import AxialResNet

        return AxialResNet
