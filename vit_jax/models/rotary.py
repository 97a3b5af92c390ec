"""Rotary positions in two dimensions: queries and keys turn with their row and column (DINOv3).

Half of the pairs of features of a head turn with the row, the other half with the column, by angles
that fall geometrically from 2 pi per unit; rows and columns run from -1 to 1 at any image size. A
pair is feature i and feature i + d/2.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config
from vit_jax.models.variants import prefix_tokens

# Grid, tokens before it, width of a head, base and span: the arguments of `angles`.
Place = tuple[tuple[int, int], int, int, float, str]


def place(model: config.Model, grid: tuple[int, int], features: int) -> Place | None:
    """Returns where tokens are for heads `features` wide, or None if nothing turns."""
    if model.rotary is None:
        return None
    return grid, prefix_tokens(model), features, model.rotary, model.rotary_span


@functools.cache
def angles(
    grid: tuple[int, int], before: int, features: int, base: float, span: str = "separate"
) -> np.ndarray:
    """Returns the angle of every token and pair of features, (N, features / 2) float32.

    Args:
      grid: rows and columns of patches, in raster order.
      before: tokens before the patches, which do not turn.
      features: d, width of a head, a multiple of 4.
      base: angles of the i-th of d/4 features are 2 pi / base^(4 i / d) per unit.
      span: what -1 to 1 spans: each axis (`separate`), or the longer (`max`) or shorter (`min`).
    """
    frequencies = 2 * math.pi * base ** -(np.arange(features // 4) * 4 / features)
    length = {"separate": np.array(grid), "max": max(grid), "min": min(grid)}[span]
    places = 2 * (np.indices(grid).reshape(2, -1).T + 0.5) / length - 1
    turned = (places[:, :, None] * frequencies).reshape(len(places), -1)
    return np.pad(turned, ((before, 0), (0, 0))).astype(np.float32)


def rotate(x: jax.Array, at: Place) -> jax.Array:
    """Returns queries or keys (B, N, H, d), turned by their angles, in float32 until rounded."""
    turned = angles(*at)[None, :, None]
    cos, sin = np.cos(turned), np.sin(turned)
    one, other = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1).astype(x.dtype)
