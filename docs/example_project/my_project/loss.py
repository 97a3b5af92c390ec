"""A loss: `--config.loss.name=squared`."""

import jax
import jax.numpy as jnp

import vit_jax


@vit_jax.register("loss", "squared")
class Squared:
    """Squared error of the softmax (the Brier score)."""

    def __call__(self, logits, targets):
        """The loss of each example (B,); both arguments are (B, K) float32."""
        return jnp.sum((jax.nn.softmax(logits) - targets) ** 2, axis=-1)

    def probabilities(self, logits):
        """Probabilities (B, K), as `predict` prints them; without this method, the softmax."""
        return jax.nn.softmax(logits)
