"""Forward passes to measure: a model at an input size, compiled for one device."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from vit_jax import config, models
from vit_jax.training import normalization

PAPER = (  # ViT, figure 12
    "R50x1", "R50x2", "R152x4", "ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "ViT-H/14",
)  # fmt: skip
SMALL = ("ViT-Ti/16", "ViT-S/32", "ViT-S/16", "ViT-B/32")  # fast enough for a few CPU cores
SIZES = (64, 128, 224, 384, 512)  # ViT, appendix D.5
CLASSES = 1000
PIXELS = config.Data()  # how pixels are normalized


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forward:
    """A model at an input size.

    `side` is the multiple of the patch nearest to the `size` asked for; the network has 1,000
    classes.
    """

    model: str
    size: int
    side: int
    network: models.Classifier

    @property
    def name(self) -> str:
        """Label of a result line."""
        return f"{self.model} at {self.side}"

    def compile(self, batch: int, device: Any) -> jax.stages.Compiled:
        """The program from uint8 images (B, H, W, 3) to probabilities (B, 1000).

        Raises JaxRuntimeError if the compiler finds that it does not fit the device.
        """
        place = SingleDeviceSharding(device)
        images = jax.ShapeDtypeStruct((batch, self.side, self.side, 3), jnp.uint8, sharding=place)
        params = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            self.network.shapes(),
        )
        traced = jax.jit(functools.partial(_probabilities, self.network)).trace(params, images)
        return traced.lower(lowering_platforms=(device.platform,)).compile()


def create_forwards(names: Sequence[str], sizes: Sequence[int], platform: str) -> list[Forward]:
    """Every model at every size, in the compute type of a platform.

    Layers run in a loop, which compiles several times faster. Raises ConfigError for an unknown
    name.
    """
    dtype = "float32" if platform == "cpu" else "bfloat16"
    found = []
    for name in names:
        model = models.complete(config.Model(variant=name, num_classes=CLASSES))
        patch = max(models.find_architecture(model).multiple(model))
        for size in sizes:
            side = max(1, round(size / patch)) * patch
            network = models.create(model, image_size=(side, side), dtype=dtype)
            found.append(Forward(model=name, size=size, side=side, network=network))
    return found


def _probabilities(
    network: models.Classifier, params: models.Params, images: jax.Array
) -> jax.Array:
    logits, _ = network.apply(params, normalization.normalize_pixels(images, PIXELS))
    return jax.nn.softmax(logits)
