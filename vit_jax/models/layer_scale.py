"""LayerScale: a learned factor for each feature of a branch (Touvron et al. 2021, CaiT)."""

import jax
import jax.numpy as jnp
from flax import nnx


class LayerScale(nnx.Module):
    """One factor per feature, all `initial` at first, which are small in deep networks."""

    def __init__(self, width: int, initial: float):
        self.scale = nnx.Param(jnp.full((width,), initial, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns x (..., D) scaled, in its type."""
        scale = self.scale[...].astype(x.dtype)
        return x * jnp.expand_dims(scale, range(x.ndim - 1))
