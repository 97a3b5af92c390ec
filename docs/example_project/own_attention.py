"""Attention of your own in the built-in ViT: `--config.model.architecture=cosine_vit`.

Its argument is an option of the model: `--config.model.scale=5`.

Everything else of the ViT stays: its options, FLOPs, sharding, figures and prediction.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import vit_jax
from vit_jax.models.architectures import ViTArchitecture
from vit_jax.models.layers import Attention, EncoderBlock
from vit_jax.models.vit import ViT


class CosineAttention(Attention):
    """Softmax of cosine similarities, with a learned scale for each head."""

    def __init__(self, model, dtype, scale, *, rngs):
        super().__init__(model, dtype, rngs=rngs)  # makes the projections query, key, value, out
        self.scale = nnx.Param(jnp.full((model.heads,), scale, jnp.float32))

    def __call__(self, x, *, capture=False, **_):
        """The output (B, N, D) and, on request, the attention weights (B, H, N, N)."""
        query, key, value = self.query(x), self.key(x), self.value(x)  # (B, N, H, d)
        query, key = (t / jnp.linalg.norm(t, axis=-1, keepdims=True) for t in (query, key))
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
        weights = jax.nn.softmax(self.scale[...].reshape(1, -1, 1, 1) * logits)
        if self.gate is not None:  # factors of the weights, by which `inspect saliency` sees them
            weights = weights * self.gate[...]
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)
        return self.out(mixed), weights if capture else None


@vit_jax.register("model", "cosine_vit")
class CosineViT(ViTArchitecture):
    """ViT with cosine attention; `model.scale` is its argument."""

    maskable, weights = False, None  # no other project has its weights
    unread = ("attention", "qk_norm", "rotary", "rotary_span", "rotary_grid")  # options that it
    unread += ("sub_norm", "relative_bias")  # ignores

    def __init__(self, scale: float = 10.0):
        def block(model, grid, dtype, *, rngs):
            layer = EncoderBlock(model, grid, dtype, rngs=rngs)
            layer.attention = CosineAttention(model, dtype, scale, rngs=rngs)
            return layer

        self.network_class = type("CosineViT", (ViT,), {"block": staticmethod(block)})

    def networks(self):
        """The network's class, and none that predicts masked patches."""
        return self.network_class, None
