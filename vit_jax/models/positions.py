"""Position encodings: learned and sinusoidal embeddings (ViT, appendix D.4), relative, rotary.

Grids are (rows, columns) of patches in raster order. Those of `Sequences` differ by image.
"""

import dataclasses
import functools
import math
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import config
from vit_jax.models.variants import placed_tokens, prefix_tokens, required

# DINOv2 adds this to the sides it asks torch for, against rounding errors; torch scales by them.
OFFSET = 0.1
TEMPERATURE = 10_000.0  # of fixed embeddings: their lowest frequency is its inverse

normal = nnx.initializers.normal(0.02, dtype=jnp.float32)  # as in BERT and Google's ViT code


class Sequences(NamedTuple):
    """Images of unlike grids as sequences of P patches in raster order, padded at the end.

    Attributes:
      grids: rows and columns of patches of each image, (B, 2) int32.
      rows: the row of each patch in its grid, (B, P) int32; of padding, the last.
      columns: its column, likewise.
    """

    grids: jax.Array
    rows: jax.Array
    columns: jax.Array

    @classmethod
    def from_grids(cls, grids: jax.Array, patches: int) -> "Sequences":
        """Sequences padded to `patches`, for images with these grids (B, 2)."""
        index = jnp.arange(patches, dtype=jnp.int32)[None]
        rows = jnp.minimum(index // grids[:, 1:], grids[:, :1] - 1)
        return cls(grids, rows, index % grids[:, 1:])

    @property
    def lengths(self) -> jax.Array:
        """Patches of each image, without padding, (B,) int32."""
        return self.grids[:, 0] * self.grids[:, 1]

    @property
    def mask(self) -> jax.Array:
        """Which patches are the image's, not padding, (B, P) bool."""
        index = jnp.arange(self.rows.shape[1], dtype=jnp.int32)[None]
        return index < self.lengths[:, None]

    def weights(self, grid: tuple[int, int], method: str) -> tuple[jax.Array, jax.Array]:
        """How patches read the rows and columns of a `grid`: (B, P, R) and (B, P, C) float32."""
        lengths = self.grids.astype(jnp.float32)
        if method == "bicubic_offset":
            # DINOv2 adds the offset where it resizes; at its own grid the table is read as it is.
            same = jnp.all(self.grids == np.array([grid]), axis=1, keepdims=True)
            lengths, method = jnp.where(same, lengths, lengths + OFFSET), "bicubic"
        rows = interpolation(self.rows, lengths[:, :1], grid[0], method)
        return rows, interpolation(self.columns, lengths[:, 1:], grid[1], method)


class Positions(nnx.Module):
    """Learned embedding: one row per token, or one half-width row per grid row and grid column.

    In both, the class and distillation tokens have rows of their own unless `model.class_position`
    is false. Tokens without a row, such as registers, have position zero.
    """

    def __init__(self, model: config.Model, grid: tuple[int, int], *, rngs: nnx.Rngs):
        self.grid, width, self.resize = grid, required(model.width), model.position_resize
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

    def __call__(self, sequences: Sequences | None = None) -> jax.Array:
        """The embedding of every token, (1, N, D) float32, class token first.

        Of `sequences`, (B, N, D): resized to the grid of each image.
        """
        if sequences is not None:
            return self._resized(sequences)
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

    def _resized(self, sequences: Sequences) -> jax.Array:
        rows, columns = sequences.weights(self.grid, self.resize)
        # At the default precision TPUs would round positions to bfloat16.
        product = functools.partial(jnp.einsum, "bpk,kd->bpd", precision="highest")
        if self.two_d:
            x = [product(columns, self.columns[...]), product(rows, self.rows[...])]
            table, first = jnp.concatenate(x, axis=2), self.cls[...] if self.placed else None
        else:
            # (B, P, R C): a patch's weights of all entries of the table, which are in raster order.
            both = (rows[:, :, :, None] * columns[:, :, None]).reshape(*rows.shape[:2], -1)
            table, first = product(both, self.table[0, self.placed :]), self.table[0, : self.placed]
        shape = len(table), self.bare, table.shape[2]
        parts = [jnp.zeros(shape, table.dtype), table]
        if self.placed:
            assert first is not None
            parts = [jnp.broadcast_to(first[None], (len(table), *first.shape)), *parts]
        return jnp.concatenate(parts, axis=1)


class RelativePositions(nnx.Module):
    """A learned key per offset between two tokens, shared by all heads (ViT, appendix D.4)."""

    def __init__(self, tokens: int, features: int, *, rngs: nnx.Rngs):
        self.tokens = tokens
        self.table = nnx.Param(normal(rngs.params(), (2 * tokens - 1, features)))

    def __call__(self) -> jax.Array:
        """The vector for every query and key position, (N, N, d) float32."""
        index = np.arange(self.tokens)
        # Offsets begin at 1 - N, rows of the table at 0.
        return self.table[...][index[:, None] - index[None] + self.tokens - 1]


class RelativeBias(nnx.Module):
    """A learned attention logit per head and offset between patches (BEiT), initially zero."""

    def __init__(self, model: config.Model, grid: tuple[int, int], *, rngs: nnx.Rngs):
        self.grid, self.prefix = grid, prefix_tokens(model)
        # Without tokens before the patches the table lacks their three rows.
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
    # Offsets begin at 1 - side in either direction; shifted to begin at 0, they are numbered
    # row by row of a map of (2 rows - 1) x (2 columns - 1).
    patches = np.indices(grid).reshape(2, -1)
    down, right = patches[:, :, None] - patches[:, None] + np.reshape(grid, (2, 1, 1)) - 1
    offsets = down * (2 * grid[1] - 1) + right
    offsets = np.pad(offsets, ((prefix, 0), (prefix, 0))).astype(np.int32)
    count = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    # From left to right: the corner lies in both strips, and is written last.
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
      span: what -1 to 1 covers: each axis (`separate`), or the longer (`max`) or shorter (`min`);
        `patches`: rows and columns count from 0, one radian each, in any grid.
      reference: a grid whose patches are counted from 0, in place of -1 to 1.
      offset: added to rows and columns.
    """

    grid: tuple[int, int]
    prefix: int
    features: int
    base: float
    span: str = "separate"
    reference: tuple[int, int] | None = None
    offset: float = 0.0

    @functools.cached_property
    def angles(self) -> np.ndarray:
        """The angle of every token and pair of features, (1, N, d/2) float32."""
        # In numpy: float64 until the last cast, and a constant of the compiled program.
        positions = np.indices(self.grid).reshape(2, -1).T[None]
        return self._angles(positions, np.array([[self.grid]]), np).astype(np.float32)

    @functools.cached_property
    def frequencies(self) -> np.ndarray:
        """Radians per unit of row or column, (d/4,) float64."""
        fixed = self.reference is not None or self.span == "patches"
        unit = 1 if fixed else 2 * math.pi
        return unit * self.base ** -(np.arange(self.features // 4) * 4 / self.features)

    def initial(self, heads: int, *, rngs: nnx.Rngs) -> jax.Array:
        """Frequencies to learn, (2, H, d/2) float32: radians per row, then per column.

        As RoPE-ViT's code draws them (Heo et al. 2024): those of the base, along two axes at right
        angles, which point anywhere in each head.
        """
        axes = 2 * math.pi * jax.random.uniform(rngs.params(), (heads, 1), jnp.float32)
        axes = jnp.concatenate([axes, axes + math.pi / 2], axis=1)
        directions = jnp.stack([jnp.sin(axes), jnp.cos(axes)])
        frequencies = jnp.asarray(self.frequencies, jnp.float32)
        return (directions[..., None] * frequencies[None, None, None]).reshape(2, heads, -1)

    def _scaled(self, positions: Any, grids: Any) -> Any:
        """Rows and columns (B, P, 2) of grids (B, 1, 2) in the units of `frequencies`."""
        positions = positions + self.offset
        if self.reference is not None:
            return positions / grids * np.array([[self.reference]], positions.dtype)
        if self.span == "patches":
            return positions
        sides = {"max": grids.max(-1, keepdims=True), "min": grids.min(-1, keepdims=True)}
        return 2 * (positions + 0.5) / sides.get(self.span, grids) - 1

    def _angles(self, positions: Any, grids: Any, xp: types.ModuleType) -> Any:
        """The angles of tokens at rows and columns (B, P, 2) of grids (B, 1, 2), (B, N, d/2)."""
        positions = self._scaled(positions, grids)
        angles = positions[..., None] * self.frequencies.astype(positions.dtype)[None, None, None]
        angles = angles.reshape(*positions.shape[:2], -1)
        return xp.pad(angles, ((0, 0), (self.prefix, 0), (0, 0)))

    def _learned_angles(self, positions: Any, grids: Any, frequencies: jax.Array) -> jax.Array:
        """The angles of tokens in each head, (B, N, H, d/2) float32; positions as in `_angles`."""
        rows, columns = jnp.split(self._scaled(positions, grids).astype(jnp.float32), 2, axis=-1)
        # No matrix product, which bfloat16 would round on TPUs.
        angles = (
            rows[..., None] * frequencies[None, None, 0]
            + columns[..., None] * frequencies[None, None, 1]
        )
        return jnp.pad(angles, ((0, 0), (self.prefix, 0), (0, 0), (0, 0)))

    def rotate(
        self,
        x: jax.Array,
        sequences: Sequences | None = None,
        frequencies: jax.Array | None = None,
    ) -> jax.Array:
        """Rotates queries or keys (B, N, H, d), in float32, rounded once to their dtype.

        `frequencies` (2, H, d/2) float32 are learned ones, in place of those of the base.
        """
        # Fixed angles, whose cosines and sines are constants of the compiled program.
        if sequences is None and frequencies is None:
            angles = self.angles[:, :, None]
            cos, sin = np.cos(angles), np.sin(angles)
        else:
            if sequences is None:
                places: Any = np.indices(self.grid).reshape(2, -1).T[None]
                grids: Any = np.array([[self.grid]])
            else:
                places = jnp.stack([sequences.rows, sequences.columns], axis=-1)
                places, grids = (x.astype(jnp.float32) for x in (places, sequences.grids[:, None]))
            if frequencies is None:
                angles = self._angles(places, grids, jnp)[:, :, None]
            else:
                angles = self._learned_angles(places, grids, frequencies)
            cos, sin = jnp.cos(angles), jnp.sin(angles)
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def sincos_1d(tokens: int, features: int) -> jax.Array:
    """Fixed embedding of a sequence (Vaswani et al. 2017, section 3.5), (tokens, features) float32.

    Feature 2i is sin(p / TEMPERATURE^(2i / features)), feature 2i + 1 its cosine; `features` must
    be even.
    """
    exponents = jnp.arange(0, features, 2, dtype=jnp.float32) / features
    angles = jnp.outer(
        jnp.arange(tokens, dtype=jnp.float32), jnp.exp(-math.log(TEMPERATURE) * exponents)
    )
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(tokens, features)


def sincos_2d(height: int, width: int, features: int, *, whole: bool = True) -> jax.Array:
    """Fixed embedding of a grid, (height * width, features) float32.

    A quarter of the features each for sin(x w), cos(x w), sin(y w), cos(y w), with frequencies w
    in geometric steps from 1 to 1/TEMPERATURE, inclusive if `whole` as in big_vision, else not as
    in MoCo v3 and MAE; `features` must be a multiple of 4.
    """
    rows, columns = jnp.indices((height, width), dtype=jnp.float32).reshape(2, 1, -1)
    return _sincos_at(rows, columns, features, whole)[0]


def _sincos_at(rows: jax.Array, columns: jax.Array, features: int, whole: bool) -> jax.Array:
    """`sincos_2d` at rows and columns (B, P) float32, (B, P, features) float32."""
    quarter = features // 4
    steps = quarter - 1 if whole else quarter
    # Of four features there is one frequency, 1; without the limit it would be 0 / 0.
    exponents = jnp.arange(quarter, dtype=jnp.float32) / max(steps, 1)
    frequencies = jnp.exp(-math.log(TEMPERATURE) * exponents)
    y, x = (axis[..., None] * frequencies[None, None] for axis in (rows, columns))
    return jnp.concatenate([jnp.sin(x), jnp.cos(x), jnp.sin(y), jnp.cos(y)], axis=2)


def fixed(
    position: str, grid: tuple[int, int], features: int, sequences: Sequences | None = None
) -> jax.Array | None:
    """The table of a parameter-free `model.position`, (1, P, features) float32, else None.

    Args:
      position: sincos_1d, sincos_2d or sincos_2d_mae.
      grid: rows and columns of patches.
      features: D.
      sequences: of images with other grids; the table is then (B, P, features).
    """
    if position == "sincos_1d":
        patches = grid[0] * grid[1] if sequences is None else sequences.rows.shape[1]
        return sincos_1d(patches, features)[None]
    if position in ("sincos_2d", "sincos_2d_mae"):
        whole = position == "sincos_2d"
        if sequences is None:
            return sincos_2d(*grid, features, whole=whole)[None]
        rows, columns = (x.astype(jnp.float32) for x in (sequences.rows, sequences.columns))
        return _sincos_at(rows, columns, features, whole)
    return None


def interpolation(
    index: Any, length: Any, old: int, method: str, xp: types.ModuleType = jnp
) -> Any:
    """Interpolation weights (..., old) of positions on an axis resized from `old` ones.

    Args:
      index: positions on the new axis, (...) whole numbers.
      length: of the new axis, likewise or to broadcast.
      old: length of the old axis.
      method: `model.position_resize`, or torch's `bilinear`; that of a `bicubic_offset` is bicubic
        with a `length` greater by OFFSET.
      xp: jax.numpy, for float32 under `jit`, or numpy, for float64.
    """
    dtype = np.float64 if xp is np else np.float32
    index, length = (xp.asarray(x).astype(dtype)[..., None] for x in (index, length))
    # torch repeats the edge, into which positions beyond it are summed at the end.
    repeated = method == "bicubic"
    # Two on each side, as far as the cubic kernel reaches.
    known = np.arange(-2, old + 2) if repeated else np.arange(old)
    antialiased = method.startswith("antialiased")
    scale = None
    if method == "aligned":  # scipy.ndimage.zoom of order 1, in the released code
        center = index * (old - 1) / xp.maximum(length - 1, 1)
    else:
        scale = old / length
        center = (index + 0.5) * scale - 0.5
    # Beyond the outermost centers torch takes the edge itself.
    if method == "bilinear":
        center = center.clip(0, old - 1)
    far = xp.abs(xp.asarray(known, dtype).reshape((1,) * (index.ndim - 1) + (-1,)) - center)
    if antialiased:  # the kernel widened where the grid shrinks, as in Pillow and torch
        far = far / xp.maximum(scale, 1)
    # Keys' a: -0.75 in torch, but -0.5 in Pillow and where torch antialiases.
    if "bicubic" in method:
        weights = cubic(far, -0.5 if antialiased else -0.75, xp)
    else:
        weights = xp.maximum(1 - far, 0)
    # Pillow and torch leave out what is beyond the edge, and scale up the rest.
    if antialiased:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    if repeated:
        edges = np.eye(old, dtype=dtype)[known.clip(0, old - 1)]
        weights = xp.matmul(weights, edges, **({} if xp is np else {"precision": "highest"}))
    return weights


def cubic(far: Any, a: float, xp: types.ModuleType) -> Any:
    """Keys' cubic kernel at distances from 0; `a` is its slope at 1."""
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    outer = a * (((far - 5) * far + 8) * far - 4)
    return xp.where(far <= 1, near, xp.where(far < 2, outer, 0))
