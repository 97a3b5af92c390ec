"""A model: `--config.model.architecture=convnet --config.model.filters=32`."""

import jax
import jax.numpy as jnp
from flax import nnx

import vit_jax
from vit_jax import models


class Network(nnx.Module):
    """A strided convolution, the mean over positions, a linear head if there are classes."""

    def __init__(self, channels, filters, classes, dtype, *, rngs):
        self.conv = nnx.Conv(channels, filters, (4, 4), strides=2, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(filters, classes, rngs=rngs) if classes else None

    def __call__(self, images, *, key=None, capture=False):
        """Logits, and what the head sees."""
        features = jnp.mean(jax.nn.gelu(self.conv(images)), axis=(1, 2), dtype=jnp.float32)
        logits = self.head(features) if self.head else jnp.zeros((images.shape[0], 0))
        return logits, {"pre_logits": features}


@vit_jax.register("model", "convnet")
class ConvNet(models.Architecture):
    """What vit_jax asks of an architecture; only `network` is required."""

    def __init__(self, filters: int = 32):
        self.filters = filters

    def network(self, model, image_size, channels, dtype, masked, *, rngs):
        """The network."""
        return Network(channels, self.filters, model.num_classes, dtype, rngs=rngs)
