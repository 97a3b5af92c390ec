"""Mixup: training on blends of two images and of their labels (Zhang et al. 2018).

As in big_vision, one ratio serves the whole batch, and of each blend it is the larger part that
counts as the row's own. Rows are blended with their neighbor, 2i with 2i + 1, instead of with the
row before: where a device holds an even number of rows nothing moves between devices, where it does
not the result is the same, and a microbatch made of whole pairs blends what the whole batch would.
The price: a pair of images gives both of its two blends, so a batch has half as many pairs.
"""

import jax
import jax.numpy as jnp

STREAM = 3  # of keys folded into the seed's: initialization draws from 0, dropout from 1


def own_share(seed: int, step: jax.Array, p: float) -> jax.Array:
    """Returns the part of the row's own image in the blends of a step, float32 in [0.5, 1].

    It is the larger of lambda and 1 - lambda, lambda ~ Beta(p, p): a function of (seed, step) only.
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), STREAM), step)
    drawn = jax.random.beta(key, p, p)
    return jnp.maximum(drawn, 1 - drawn)


def blend(x: jax.Array, share: jax.Array) -> jax.Array:
    """Returns `share` of every row of float `x` (B, ...), B even, and the rest of its neighbor."""
    neighbors = x.reshape(x.shape[0] // 2, 2, *x.shape[1:])[:, ::-1].reshape(x.shape)
    return share * x + (1 - share) * neighbors
