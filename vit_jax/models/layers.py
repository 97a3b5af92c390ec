"""The parts a Vision Transformer is built from.

Letters, here and in every other file:

    B batch     H W C  image height, width and channels, always in the order B H W C
    N tokens    D      width of a token       L  layers, stacked on one leading axis
    H heads     d      width of a head, D/H   M  hidden width of the MLP
    K classes   R      width of the layer before the head

Modules hold parameters only, in float32; a dropout key is an argument, and None means no dropout.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from vit_jax import config
from vit_jax.models.variants import known

xavier_uniform = nnx.initializers.xavier_uniform()

BATCH_AXES = ("data", "fsdp")


def constrain_batch(x: jax.Array) -> jax.Array:
    """Returns x split over the mesh by its first axis only; unchanged where no mesh is set.

    Without it the partitioner may split the width of a scanned encoder instead of its batch, at
    several times the memory.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(BATCH_AXES))


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Returns x with a share `rate` of its elements zeroed and the others scaled up to match."""
    return nnx.Dropout(rate)(x, deterministic=key is None, rngs=key)


def normalise(norm: nnx.LayerNorm, x: jax.Array) -> jax.Array:
    """Returns LayerNorm of x, computed in float32 and rounded to the type of x once."""
    return norm(x.astype(jnp.float32)).astype(x.dtype)


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


def attention_weights(query: jax.Array, key: jax.Array) -> jax.Array:
    """Returns softmax(q k^T / sqrt(d)) in float32, (B, H, N, N), for q and k of (B, N, H, d)."""
    query = query * (1 / math.sqrt(query.shape[-1]))
    # The product leaves the matmul in the compute type: asking for float32 there costs memory
    # traffic, while the softmax itself is fused and free to be exact.
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
    return jax.nn.softmax(logits, axis=-1)


class Attention(nnx.Module):
    """Multi-head self-attention (ViT, appendix A)."""

    def __init__(self, model: config.Model, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        self.kind = model.attention
        width = known(model.width)
        heads = (known(model.heads), width // known(model.heads))
        linear = functools.partial(
            nnx.LinearGeneral, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs
        )
        self.query = linear(width, heads)
        self.key = linear(width, heads)
        self.value = linear(width, heads)
        self.out = linear(heads, width, axis=(-2, -1))

    def __call__(self, x: jax.Array, capture: bool = False) -> tuple[jax.Array, jax.Array | None]:
        """Returns the tokens (B, N, D) and, on request, the weights (B, H, N, N) float32."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        weights = None
        if capture or self.kind == "explicit":  # the other kinds never return weights
            weights = attention_weights(query, key)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)
        else:
            mixed = jax.nn.dot_product_attention(
                query, key, value, implementation="cudnn" if self.kind == "cudnn" else "xla"
            )
        return self.out(mixed), weights if capture else None


class Mlp(nnx.Module):
    """Two dense layers with GELU between them."""

    def __init__(self, model: config.Model, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        self.tanh_gelu, self.rate = model.gelu == "tanh", model.dropout
        linear = functools.partial(
            nnx.Linear,
            kernel_init=xavier_uniform,
            bias_init=nnx.initializers.normal(1e-6),
            dtype=dtype,
            rngs=rngs,
        )
        self.fc1 = linear(known(model.width), known(model.mlp_dim))
        self.fc2 = linear(known(model.mlp_dim), known(model.width))

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Returns (B, N, D) for (B, N, D), with dropout after the GELU."""
        x = nnx.gelu(self.fc1(x), approximate=self.tanh_gelu)
        return self.fc2(dropout(x, self.rate, key))


class EncoderBlock(nnx.Module):
    """Pre-norm attention and MLP, each added to its input (ViT, equations 2 and 3)."""

    def __init__(self, model: config.Model, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        width, self.rate = known(model.width), model.dropout
        self.norm1 = nnx.LayerNorm(width, epsilon=model.norm_epsilon, rngs=rngs)
        self.attention = Attention(model, dtype, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, epsilon=model.norm_epsilon, rngs=rngs)
        self.mlp = Mlp(model, dtype, rngs=rngs)

    def __call__(
        self, x: jax.Array, key: jax.Array | None, capture: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the tokens (B, N, D) and, on request, the weights (B, H, N, N) float32.

        Dropout falls on the three dense outputs of a block (ViT, appendix B.1): the attention's
        projection and both layers of the MLP; never on the attention weights.
        """
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        y, weights = self.attention(normalise(self.norm1, x), capture)
        x = x + dropout(y, self.rate, keys[0])
        y = self.mlp(normalise(self.norm2, x), keys[1])
        return x + dropout(y, self.rate, keys[2]), weights
