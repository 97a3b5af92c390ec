"""Position embeddings (ViT, appendix D.4): learned, relative, and sinusoidal; relative biases."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import config
from vit_jax.models.variants import placed_tokens, prefix_tokens, required

normal = nnx.initializers.normal(0.02, dtype=jnp.float32)  # as BERT, says the released code


class Positions(nnx.Module):
    """A learned table: one row per token, or one half-width row per grid row and grid column.

    The class token has a row of its own in both, and so has a distillation token, unless
    `model.class_position` is false: then nothing is added to them, and nothing learned. Nor is
    anything added to registers.
    """

    def __init__(self, model: config.Model, grid: tuple[int, int], *, rngs: nnx.Rngs):
        self.grid, width = grid, required(model.width)
        self.two_d, self.placed = model.position == "learned_2d", placed_tokens(model)
        self.bare = prefix_tokens(model) - self.placed
        if self.two_d:
            self.rows = nnx.Param(normal(rngs.params(), (grid[0], width // 2)))
            self.columns = nnx.Param(normal(rngs.params(), (grid[1], width // 2)))
            if self.placed:
                self.cls = nnx.Param(normal(rngs.params(), (self.placed, width)))
        else:
            tokens = grid[0] * grid[1] + self.placed
            self.table = nnx.Param(normal(rngs.params(), (1, tokens, width)))

    def __call__(self) -> jax.Array:
        """Returns the embedding of every token, (1, N, D) float32, class token first."""
        table = self._of_patches() if self.two_d else self.table[...][0]
        if self.two_d and self.placed:
            table = jnp.concatenate([self.cls[...], table])
        if self.bare:
            nothing = jnp.zeros((self.bare, table.shape[1]), table.dtype)
            table = jnp.concatenate([table[: self.placed], nothing, table[self.placed :]])
        return table[None]

    def _of_patches(self) -> jax.Array:
        """Returns the embedding of every patch of a `learned_2d`, (P, D) float32."""
        height, width = self.grid
        half = self.rows.shape[1]
        rows = jnp.broadcast_to(self.rows[...][:, None], (height, width, half))
        columns = jnp.broadcast_to(self.columns[...][None], (height, width, half))
        return jnp.concatenate([columns, rows], axis=2).reshape(height * width, 2 * half)


class RelativePositions(nnx.Module):
    """Relative positions: a learned key per offset between two tokens, shared by all heads."""

    def __init__(self, tokens: int, features: int, *, rngs: nnx.Rngs):
        self.tokens = tokens
        self.table = nnx.Param(normal(rngs.params(), (2 * tokens - 1, features)))

    def __call__(self) -> jax.Array:
        """Returns the key of every query and key position, (N, N, d) float32."""
        index = np.arange(self.tokens)
        return self.table[...][index[:, None] - index[None] + self.tokens - 1]


class RelativeBias(nnx.Module):
    """Relative position bias: a learned logit per head and offset between patches (BEiT).

    The last three rows of the table are of the tokens before the patches: from them to any token,
    from any to them, and among themselves. All are zero at first.
    """

    def __init__(self, model: config.Model, grid: tuple[int, int], *, rngs: nnx.Rngs):
        self.grid, self.before = grid, prefix_tokens(model)
        rows = int(relative_offsets(self.grid, self.before).max()) + 1
        self.table = nnx.Param(jnp.zeros((rows, required(model.heads)), jnp.float32))

    def __call__(self) -> jax.Array:
        """Returns what is added to the logits of attention, (H, N, N) float32."""
        offsets = relative_offsets(self.grid, self.before)
        return self.table[...][offsets].transpose(2, 0, 1)


@functools.cache
def relative_offsets(grid: tuple[int, int], before: int) -> np.ndarray:
    """Returns the row of `RelativeBias` for every query and key, (N, N) int32.

    Args:
      grid: rows and columns of patches, in raster order.
      before: tokens before the patches.
    """
    places = np.indices(grid).reshape(2, -1)
    down, right = places[:, :, None] - places[:, None] + np.reshape(grid, (2, 1, 1)) - 1
    between = down * (2 * grid[1] - 1) + right
    found = np.pad(between, ((before, 0), (before, 0))).astype(np.int32)
    count = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    found[:before], found[:, :before], found[:before, :before] = count, count + 1, count + 2
    return found


def sincos_1d(tokens: int, features: int, temperature: float = 10_000.0) -> jax.Array:
    """Returns the Transformer's fixed positions of a sequence, (tokens, features) float32.

    Feature 2i is sin(p / temperature^(2i / features)), feature 2i + 1 its cosine (Vaswani et al.
    2017, section 3.5); `features` must be even.
    """
    exponents = jnp.arange(0, features, 2, dtype=jnp.float32) / features
    angles = jnp.outer(
        jnp.arange(tokens, dtype=jnp.float32), jnp.exp(-math.log(temperature) * exponents)
    )
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(tokens, features)


def sincos_2d(height: int, width: int, features: int, temperature: float = 10_000.0) -> jax.Array:
    """Returns the fixed position embedding of a grid, (height * width, features) float32.

    A quarter of the features each for sin(x w), cos(x w), sin(y w), cos(y w), with frequencies w
    falling geometrically from 1 to 1/temperature (MoCo v3, and big_vision's ViT); `features` must
    be a multiple of 4. Patches are in raster order.
    """
    quarter = features // 4
    exponents = jnp.arange(quarter, dtype=jnp.float32) / max(quarter - 1, 1)
    frequencies = jnp.exp(-math.log(temperature) * exponents)
    rows, columns = jnp.indices((height, width), dtype=jnp.float32)
    y, x = (jnp.outer(axis.ravel(), frequencies) for axis in (rows, columns))
    return jnp.concatenate([jnp.sin(x), jnp.cos(x), jnp.sin(y), jnp.cos(y)], axis=1)
