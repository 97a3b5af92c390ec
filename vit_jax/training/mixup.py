"""Mixup and CutMix: blends pairs of images and their labels.

Mixup blends them (Zhang et al. 2018), CutMix puts a box of one into the other (Yun et al. 2019).

As in big_vision, the whole batch shares one ratio, and a row's own image is the larger part of its
blend. Rows 2i and 2i + 1 are blended with each other, instead of each row with the one before:
nothing moves between devices that hold an even number of rows (the result does not depend on it),
and a microbatch of whole pairs is blended as in the whole batch. The price: both blends of a pair
show the same two images, so a batch has half as many different pairs.

The box of CutMix is drawn as in timm: its area follows Beta(p, p), its center is uniform over the
image, and the part outside the image is cut off, in the labels too. With both set, each step picks
one at random.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import config
from vit_jax.training import streams


class Mix(NamedTuple):
    """The share of its own image that each row keeps in a step; the rest is its neighbor's.

    Attributes:
      labels: share of the label, float32.
      pixels: share of the pixels, one number or one for each, (H, W, 1).
    """

    labels: jax.Array
    pixels: jax.Array


def draw_mix(seed: int, step: jax.Array, train: config.Train, size: tuple[int, int]) -> Mix | None:
    """Draws how a step mixes images of a height and width: a function of (seed, step) only.

    None without mixup and CutMix.
    """
    blended = None
    if train.mixup:
        share = own_share(seed, step, train.mixup)
        blended = Mix(share, share)
    if not train.cutmix:
        return blended
    key = streams.key(seed, streams.CUTMIX, step)
    cut = _cut(key, train.cutmix, size)
    if blended is None:
        return cut
    # Key 1 draws the box, key 2 the choice: mixup beside CutMix then leaves the boxes unchanged.
    coin = jax.random.bernoulli(jax.random.fold_in(key, 2))
    return Mix(
        jnp.where(coin, cut.labels, blended.labels), jnp.where(coin, cut.pixels, blended.pixels)
    )


def _cut(key: jax.Array, p: float, size: tuple[int, int]) -> Mix:
    """The row's own part around a random box."""
    first, second = jax.random.split(jax.random.fold_in(key, 1))
    # The box has the share 1 - lambda of the area, lambda ~ Beta(p, p).
    side = jnp.sqrt(1 - jax.random.beta(first, p, p, dtype=jnp.float32))
    inside = jnp.ones((), bool)
    for axis, (length, one) in enumerate(zip(size, jax.random.split(second), strict=True)):
        half = (length * side).astype(jnp.int32) // 2
        center = jax.random.randint(one, (), 0, length, jnp.int32)
        place = jnp.arange(length, dtype=jnp.int32)
        along = (place >= center - half) & (place < center + half)
        inside = inside & jnp.expand_dims(along, (1 - axis, 2))
    outside = 1 - inside.astype(jnp.float32)
    # The share of the box inside the image, as with timm's correct_lam.
    return Mix(jnp.mean(outside), outside)


def own_share(seed: int, step: jax.Array, p: float) -> jax.Array:
    """The share of the row's own image in the blends of a step, float32 in [0.5, 1].

    It is the larger of lambda and 1 - lambda, lambda ~ Beta(p, p): a function of (seed, step) only.
    """
    key = streams.key(seed, streams.MIXUP, step)
    drawn = jax.random.beta(key, p, p, dtype=jnp.float32)
    return jnp.maximum(drawn, 1 - drawn)


def blend(x: jax.Array, share: jax.Array) -> jax.Array:
    """Blends `share` of every row of float `x` (B, ...), B even, with the rest of its neighbor.

    `share` is one number, or as many as broadcast against a row.
    """
    neighbors = x.reshape(x.shape[0] // 2, 2, *x.shape[1:])[:, ::-1].reshape(x.shape)
    share = share if share.ndim == 0 else share[None]
    return share * x + (1 - share) * neighbors
