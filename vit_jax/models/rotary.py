"""Rotary positions in two dimensions: queries and keys turn with their row and column.

Half of the pairs of features of a head turn with the row, the other half with the column, by angles
that fall geometrically. In DINOv3 rows and columns run from -1 to 1, and the first angle is 2 pi a
unit; in EVA-02 they count patches of a grid of reference, by one radian each. Either holds at any
image size. A pair is feature i and feature i + d/2.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config
from vit_jax.models.variants import prefix_tokens

# Grid, tokens before it, width of a head, base, span and reference: the arguments of `angles`.
Place = tuple[tuple[int, int], int, int, float, str, tuple[int, int] | None]


def place(model: config.Model, grid: tuple[int, int], features: int) -> Place | None:
    """Returns where tokens are for heads `features` wide, or None if nothing turns."""
    if model.rotary is None:
        return None
    return grid, prefix_tokens(model), features, model.rotary, model.rotary_span, model.rotary_grid


@functools.cache
def angles(
    grid: tuple[int, int],
    before: int,
    features: int,
    base: float,
    span: str = "separate",
    reference: tuple[int, int] | None = None,
) -> np.ndarray:
    """Returns the angle of every token and pair of features, (N, features / 2) float32.

    Args:
      grid: rows and columns of patches, in raster order.
      before: tokens before the patches, which do not turn.
      features: d, width of a head, a multiple of 4.
      base: angles of the i-th of d/4 features are base^(-4 i / d) times the first one.
      span: what -1 to 1 spans: each axis (`separate`), or the longer (`max`) or shorter (`min`).
      reference: rows and columns that positions count, from 0, instead of from -1 to 1.
    """
    frequencies = base ** -(np.arange(features // 4) * 4 / features)
    patches = np.indices(grid).reshape(2, -1).T
    if reference is not None:
        places = patches / grid * reference
    else:
        length = {"separate": np.array(grid), "max": max(grid), "min": min(grid)}[span]
        places, frequencies = 2 * (patches + 0.5) / length - 1, 2 * math.pi * frequencies
    turned = (places[:, :, None] * frequencies).reshape(len(places), -1)
    return np.pad(turned, ((before, 0), (0, 0))).astype(np.float32)


def rotate(x: jax.Array, at: Place) -> jax.Array:
    """Returns queries or keys (B, N, H, d), turned by their angles, in float32 until rounded."""
    turned = angles(*at)[None, :, None]
    cos, sin = np.cos(turned), np.sin(turned)
    one, other = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1).astype(x.dtype)
