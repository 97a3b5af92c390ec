"""Position encodings: learned and sinusoidal embeddings (ViT, appendix D.4), relative, rotary.

Grids are (rows, columns) of patches in raster order.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import config
from vit_jax.models.variants import placed_tokens, prefix_tokens, required

normal = nnx.initializers.normal(0.02, dtype=jnp.float32)  # as in BERT and Google's ViT code


class Positions(nnx.Module):
    """Learned embedding: one row per token, or one half-width row per grid row and grid column.

    In both, the class and distillation tokens have rows of their own unless `model.class_position`
    is false. Tokens without a row, such as registers, have position zero.
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
        """The embedding of every token, (1, N, D) float32, class token first."""
        if self.two_d:
            shape = (*self.grid, self.rows.shape[1])
            rows = jnp.broadcast_to(self.rows[...][:, None], shape)
            columns = jnp.broadcast_to(self.columns[...][None], shape)
            # X before Y, in the order in which the paper names them.
            table = jnp.concatenate([columns, rows], axis=2).reshape(-1, 2 * shape[2])
        else:
            table = self.table[...][0]
        if self.two_d and self.placed:
            table = jnp.concatenate([self.cls[...], table])
        if self.bare:
            nothing = jnp.zeros((self.bare, table.shape[1]), table.dtype)
            table = jnp.concatenate([table[: self.placed], nothing, table[self.placed :]])
        return table[None]


class RelativePositions(nnx.Module):
    """A learned key per offset between two tokens, shared by all heads (ViT, appendix D.4)."""

    def __init__(self, tokens: int, features: int, *, rngs: nnx.Rngs):
        self.tokens = tokens
        self.table = nnx.Param(normal(rngs.params(), (2 * tokens - 1, features)))

    def __call__(self) -> jax.Array:
        """The vector for every query and key position, (N, N, d) float32."""
        index = np.arange(self.tokens)
        return self.table[...][index[:, None] - index[None] + self.tokens - 1]


class RelativeBias(nnx.Module):
    """A learned attention logit per head and offset between patches (BEiT), initially zero."""

    def __init__(self, model: config.Model, grid: tuple[int, int], *, rngs: nnx.Rngs):
        self.grid, self.prefix = grid, prefix_tokens(model)
        rows = int(relative_offsets(self.grid, self.prefix).max()) + 1
        self.table = nnx.Param(jnp.zeros((rows, required(model.heads)), jnp.float32))

    def __call__(self) -> jax.Array:
        """The bias of the attention logits, (H, N, N) float32."""
        offsets = relative_offsets(self.grid, self.prefix)
        return self.table[...][offsets].transpose(2, 0, 1)


@functools.cache
def relative_offsets(grid: tuple[int, int], prefix: int) -> np.ndarray:
    """Row of the `RelativeBias` table for every query and key, (N, N) int32.

    The last three rows belong to the `prefix` tokens before the patches: from them to any token,
    from any token to them, and among themselves.
    """
    patches = np.indices(grid).reshape(2, -1)
    down, right = patches[:, :, None] - patches[:, None] + np.reshape(grid, (2, 1, 1)) - 1
    offsets = down * (2 * grid[1] - 1) + right
    offsets = np.pad(offsets, ((prefix, 0), (prefix, 0))).astype(np.int32)
    count = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    offsets[:prefix], offsets[:, :prefix], offsets[:prefix, :prefix] = count, count + 1, count + 2
    return offsets


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary position embedding in two dimensions.

    Half of a head's feature pairs turn with the row, half with the column; features i and i + d/2
    are a pair.
    DINOv3 scales rows and columns to -1 to 1 and turns the first pair by 2 pi per unit; EVA-02
    counts patches of a reference grid, one radian each. Both carry over to any image size.

    Attributes:
      grid: rows and columns of patches.
      prefix: tokens before the patches, which do not turn.
      features: d, width of a head, a multiple of 4.
      base: of d/4 frequencies, the i-th is base^(-4 i / d) times the first.
      span: what -1 to 1 covers: each axis (`separate`), or the longer (`max`) or shorter (`min`).
      reference: a grid whose patches are counted from 0, in place of -1 to 1.
    """

    grid: tuple[int, int]
    prefix: int
    features: int
    base: float
    span: str = "separate"
    reference: tuple[int, int] | None = None

    @functools.cached_property
    def angles(self) -> np.ndarray:
        """The angle of every token and pair of features, (N, d/2) float32."""
        # In numpy: float64 until the last cast, and a constant of the compiled program.
        frequencies = self.base ** -(np.arange(self.features // 4) * 4 / self.features)
        positions = np.indices(self.grid).reshape(2, -1).T
        if self.reference is not None:
            positions = positions / self.grid * self.reference
        else:
            spans = {"separate": np.array(self.grid), "max": max(self.grid), "min": min(self.grid)}
            positions = 2 * (positions + 0.5) / spans[self.span] - 1
            frequencies = 2 * math.pi * frequencies
        angles = (positions[:, :, None] * frequencies).reshape(len(positions), -1)
        return np.pad(angles, ((self.prefix, 0), (0, 0))).astype(np.float32)

    def rotate(self, x: jax.Array) -> jax.Array:
        """Rotates queries or keys (B, N, H, d), in float32, rounded once to their dtype."""
        angles = self.angles[None, :, None]
        cos, sin = np.cos(angles), np.sin(angles)
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def sincos_1d(tokens: int, features: int, temperature: float = 10_000.0) -> jax.Array:
    """Fixed embedding of a sequence (Vaswani et al. 2017, section 3.5), (tokens, features) float32.

    Feature 2i is sin(p / temperature^(2i / features)), feature 2i + 1 its cosine; `features` must
    be even.
    """
    exponents = jnp.arange(0, features, 2, dtype=jnp.float32) / features
    angles = jnp.outer(
        jnp.arange(tokens, dtype=jnp.float32), jnp.exp(-math.log(temperature) * exponents)
    )
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(tokens, features)


def sincos_2d(
    height: int,
    width: int,
    features: int,
    temperature: float = 10_000.0,
    *,
    whole: bool = True,
) -> jax.Array:
    """Fixed embedding of a grid, (height * width, features) float32.

    A quarter of the features each for sin(x w), cos(x w), sin(y w), cos(y w), with frequencies w
    in geometric steps from 1 to 1/temperature, inclusive if `whole` as in big_vision, else not as
    in MoCo v3 and MAE; `features` must be a multiple of 4.
    """
    quarter = features // 4
    steps = quarter - 1 if whole else quarter
    exponents = jnp.arange(quarter, dtype=jnp.float32) / max(steps, 1)
    frequencies = jnp.exp(-math.log(temperature) * exponents)
    rows, columns = jnp.indices((height, width), dtype=jnp.float32)
    y, x = (jnp.outer(axis.ravel(), frequencies) for axis in (rows, columns))
    return jnp.concatenate([jnp.sin(x), jnp.cos(x), jnp.sin(y), jnp.cos(y)], axis=1)


def fixed(position: str, grid: tuple[int, int], features: int) -> jax.Array | None:
    """The table of a parameter-free `model.position`, (P, features) float32, else None.

    Args:
      position: sincos_1d, sincos_2d or sincos_2d_mae.
      grid: rows and columns of patches.
      features: D.
    """
    if position == "sincos_1d":
        return sincos_1d(grid[0] * grid[1], features)
    if position in ("sincos_2d", "sincos_2d_mae"):
        return sincos_2d(*grid, features, whole=position == "sincos_2d")
    return None
