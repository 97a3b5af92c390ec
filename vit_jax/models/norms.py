"""The normalization that a network uses throughout: LayerNorm, or RMSNorm."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config


def create(model: config.Model, features: int, *, rngs: nnx.Rngs) -> nnx.LayerNorm | nnx.RMSNorm:
    """Returns the norm of `model.norm` over a last axis of so many features."""
    kind = nnx.RMSNorm if model.norm == "rms" else nnx.LayerNorm
    return kind(features, epsilon=model.norm_epsilon, rngs=rngs)


def normalize(norm: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Returns the norm of x, computed in float32 and rounded to the type of x once."""
    return norm(x.astype(jnp.float32)).astype(x.dtype)
