"""Axial attention (ViT, appendix D.6): along one axis of the map, then along the other."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models.layers import EncoderBlock, normalize
from vit_jax.models.positions import RelativePositions
from vit_jax.models.resnet import GROUPS, Middle, ResNet, UnitShape
from vit_jax.models.vit import MaskedViT, ViT

# Both as in scenic's axial_resnet.py, which authors of the paper published later.
HEADS = 8  # of the attention in a ResNet
NORM_EPSILON = 1e-4  # of its GroupNorm


class AxisBlock(EncoderBlock):
    """An encoder block whose tokens attend only to those of their own row or column."""

    def __init__(
        self,
        model: config.Model,
        grid: tuple[int, int],
        dtype: jnp.dtype,
        *,
        columns: bool,
        rngs: nnx.Rngs,
    ):
        super().__init__(model, grid, dtype, rngs=rngs)
        self.grid, self.columns = grid, columns

    def attend(
        self, x: jax.Array, capture: bool, bias: jax.Array | None, sequences: None = None
    ) -> tuple[jax.Array, None]:
        """Attends within lines of tokens (B, N, D); returns no weights, as they are not N x N."""
        del capture, bias
        lines = x.reshape(x.shape[0], *self.grid, x.shape[2])
        if self.columns:
            lines = lines.swapaxes(1, 2)
        # Lines become images of the batch, so that any implementation of attention will do.
        y, _ = self.attention(lines.reshape(-1, *lines.shape[2:]))
        y = y.reshape(lines.shape)
        return (y.swapaxes(1, 2) if self.columns else y).reshape(x.shape), None


class AxialBlock(nnx.Module):
    """The layer of AxialViT: two encoder blocks, the first along rows, the second along columns.

    It therefore has one MLP more than a layer of ViT. The paper says nothing of dropout and
    stochastic depth here; both blocks have them. Positions of a layer are added once.
    """

    def __init__(
        self, model: config.Model, grid: tuple[int, int], dtype: jnp.dtype, *, rngs: nnx.Rngs
    ):
        self.row = AxisBlock(model, grid, dtype, columns=False, rngs=rngs)
        # A layer's positions are added by its first block; "stem" keeps the second from doing so
        # again.
        unpositioned = dataclasses.replace(model, position_place="stem")
        self.column = AxisBlock(unpositioned, grid, dtype, columns=True, rngs=rngs)

    def __call__(
        self, x: jax.Array, key: jax.Array | None, share: jax.Array, capture: bool = False
    ) -> tuple[jax.Array, None]:
        """Applies both blocks to tokens x (B, N, D); see `EncoderBlock`."""
        keys = (None, None) if key is None else jax.random.split(key)
        x, _ = self.row(x, keys[0], share, capture)
        x, _ = self.column(x, keys[1], share, capture)
        return x, None


class AxialViT(ViT):
    """A Vision Transformer of axial blocks."""

    block = AxialBlock

    @property
    def positioned_blocks(self) -> AxisBlock:
        """The blocks along rows: positions are added once per layer."""
        return self.encoder.row


class MaskedAxialViT(MaskedViT, AxialViT):
    """An AxialViT that predicts masked patches."""


class LineAttention(nnx.Module):
    """Attention within every line of a map, with relative positions.

    The offset from key to query has three learned vectors, shared by all heads: one each to go with
    the query, with the key and with the value (Wang et al. 2020, "Axial-DeepLab").
    """

    def __init__(self, features: int, length: int, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        width = features // HEADS
        self.project = nnx.Linear(features, 2 * features, use_bias=False, dtype=dtype, rngs=rngs)
        self.norm = nnx.GroupNorm(2 * features, GROUPS, epsilon=NORM_EPSILON, rngs=rngs)
        self.query_offsets = RelativePositions(length, width // 2, rngs=rngs)
        self.key_offsets = RelativePositions(length, width // 2, rngs=rngs)
        self.value_offsets = RelativePositions(length, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (B, lines, length, features) to the same shape."""
        features = x.shape[-1]
        projected = normalize(self.norm, self.project(x))
        query, key, value = (
            part.reshape(*part.shape[:-1], HEADS, -1)
            # Queries and keys are half as wide as values.
            for part in jnp.split(projected, [features // 2, features], axis=-1)
        )
        query_r, key_r, value_r = (
            offsets().astype(query.dtype)
            for offsets in (self.query_offsets, self.key_offsets, self.value_offsets)
        )
        logits = (
            jnp.einsum("blqhd,blkhd->blhqk", query, key)
            + jnp.einsum("blqhd,qkd->blhqk", query, query_r)
            + jnp.einsum("blkhd,qkd->blhqk", key, key_r)
        )
        logits = logits.astype(jnp.float32) / math.sqrt(query.shape[-1])
        weights = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
        mixed = jnp.einsum("blhqk,blkhd->blqhd", weights, value)
        mixed = mixed + jnp.einsum("blhqk,qkd->blqhd", weights, value_r)
        return mixed.reshape(x.shape)


class AxialLayer(nnx.Module):
    """Attention along the height of a map, then along its width: a unit's layer for conv2.

    A stride of 2 takes the mean of 2 x 2 positions at the end.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        model: config.Model,
        unit: UnitShape,
        dtype: jnp.dtype,
        *,
        rngs: nnx.Rngs,
    ):
        del model
        height, width = (-(-side // unit.reduction) for side in image_size)
        self.stride = unit.stride
        self.height = LineAttention(unit.features, height, dtype, rngs=rngs)
        self.width = LineAttention(unit.features, width, dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (B, h, w, features) to (B, ceil(h / stride), ceil(w / stride), features)."""
        # LineAttention attends along axis 2, so columns become lines, (B, w, h, features).
        x = self.height(x.swapaxes(1, 2)).swapaxes(1, 2)
        x = self.width(x)
        if self.stride == 1:
            return x
        window = (self.stride, self.stride)
        # SAME pads maps of odd sides with zeros, which must not count.
        mean = nnx.avg_pool(x.astype(jnp.float32), window, window, "SAME", count_include_pad=False)
        return mean.astype(x.dtype)


class AxialResNet(ResNet):
    """A ResNet with axial attention for every 3 x 3 convolution (AxialResNet50 of the paper).

    The paper says that rows and columns attend, with relative positions; eight heads, queries and
    keys half as wide as values, an epsilon of 1e-4 and the pooling follow the code that its authors
    published later. Our own choices: one projection for queries, keys and values, normalized once
    by GroupNorm and never again before the unit's own norm; logits divided by the root of a query's
    width; offsets that begin as normal(0.02); on odd sides the last mean covers only positions
    inside the map.
    """

    def middle(self, image_size: tuple[int, int]) -> Middle:
        """The constructor of every unit's axial layer, for images of this height and width."""
        return functools.partial(AxialLayer, image_size)
