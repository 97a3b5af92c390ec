"""Multi-head attention and what tells it where tokens are (ViT, appendix A).

The letters are those of `layers`.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models import norms, positions, rotary
from vit_jax.models.norms import normalize
from vit_jax.models.variants import required

xavier_uniform = nnx.initializers.xavier_uniform()


def attention_weights(
    query: jax.Array,
    key: jax.Array,
    relative: jax.Array | None = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Returns softmax(q k^T / sqrt(d)) in float32, (B, H, Q, N), of (B, Q, H, d) and (B, N, H, d).

    `relative` (Q, N, d) holds further keys, one for each offset; what they give is added to the
    logits (ViT, appendix D.4). `bias` (H, Q, N) float32 is added to them as it is.
    """
    query = query * (1 / math.sqrt(query.shape[-1]))
    # The product leaves the matmul in the compute type: asking for float32 there costs memory
    # traffic, while the softmax itself is fused and free to be exact.
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    if relative is not None:
        logits = logits + jnp.einsum("bqhd,qkd->bhqk", query, relative.astype(query.dtype))
    logits = logits.astype(jnp.float32)
    return jax.nn.softmax(logits if bias is None else logits + bias[None], axis=-1)


def _mixed(
    kind: str,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    relative: jax.Array | None,
    bias: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
    """Returns the values (B, Q, H, d) that queries attend to and, where `explicit`, the weights."""
    if kind == "explicit":
        weights = attention_weights(query, key, relative, bias)
        return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value), weights
    implementation = "cudnn" if kind == "cudnn" else "xla"
    return jax.nn.dot_product_attention(query, key, value, implementation=implementation), None


class Attention(nnx.Module):
    """Multi-head attention, to the tokens themselves unless told otherwise (ViT, appendix A)."""

    def __init__(
        self,
        model: config.Model,
        dtype: jnp.dtype,
        *,
        grid: tuple[int, int] | None = None,
        tokens: int | None = None,
        rngs: nnx.Rngs,
    ):
        self.kind = model.attention
        self.recomputed, self.unrolled = model.remat == "attention", model.unroll > 1
        width = required(model.width)
        heads = (required(model.heads), width // required(model.heads))
        self.normed = model.qk_norm
        if model.qk_norm:
            self.query_norm = norms.create(model, heads[1], rngs=rngs)
            self.key_norm = norms.create(model, heads[1], rngs=rngs)
        self.place = None if grid is None else rotary.place(model, grid, heads[1])
        linear = functools.partial(
            nnx.LinearGeneral, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs
        )
        self.query, self.key, self.value = (
            linear(width, heads, use_bias=name not in model.biasless)
            for name in ("query", "key", "value")
        )
        self.out = linear(heads, width, axis=(-2, -1), use_bias="out" not in model.biasless)
        self.inner = "attention" in model.sub_norm
        if self.inner:
            self.sub_norm = norms.create(model, width, rngs=rngs)
        self.relative = tokens is not None
        if tokens is not None:
            self.offsets = positions.RelativePositions(tokens, heads[1], rngs=rngs)
        self.biased = grid is not None and model.relative_bias == "layers"
        if grid is not None and self.biased:
            self.relative_bias = positions.RelativeBias(model, grid, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        *,
        to: jax.Array | None = None,
        bias: jax.Array | None = None,
        capture: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns what x (B, Q, D) attends to, (B, Q, D); on request the weights (B, H, Q, N).

        Args:
          x: where the queries come from.
          to: where keys and values come from, (B, N, D); None means x itself.
          bias: added to the logits, (H, Q, N) float32, in addition to its own table.
          capture: whether to return the weights, float32.
        """
        to = x if to is None else to
        query, key, value = self.query(x), self.key(to), self.value(to)
        if self.normed:
            query, key = normalize(self.query_norm, query), normalize(self.key_norm, key)
        if self.place is not None:
            query, key = rotary.rotate(query, self.place), rotary.rotate(key, self.place)
        # The other kinds never return weights.
        mix = functools.partial(_mixed, "explicit" if capture else self.kind)
        if self.recomputed:
            mix = jax.checkpoint(mix, prevent_cse=self.unrolled)
        bias = self.relative_bias() if self.biased else bias
        mixed, weights = mix(query, key, value, self.offsets() if self.relative else None, bias)
        if self.inner:
            flat = mixed.reshape(*mixed.shape[:2], -1)
            mixed = normalize(self.sub_norm, flat).reshape(mixed.shape)
        return self.out(mixed), weights if capture else None
