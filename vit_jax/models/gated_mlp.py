"""SwiGLU: an MLP whose activation is a gate (Shazeer 2020), as in DINOv2 and DINOv3."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models import norms
from vit_jax.models.dropping import dropout
from vit_jax.models.norms import normalize
from vit_jax.models.variants import required


class SwiGlu(nnx.Module):
    """silu(gate(x)) times fc1(x), then fc2: three dense layers, always separate arrays."""

    def __init__(self, model: config.Model, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        self.rate = model.dropout
        width, hidden = required(model.width), required(model.mlp_dim)
        linear = functools.partial(
            nnx.Linear,
            kernel_init=nnx.initializers.xavier_uniform(),
            use_bias="mlp" not in model.biasless,
            dtype=dtype,
            rngs=rngs,
        )
        self.gate = linear(width, hidden)
        self.fc1 = linear(width, hidden)
        self.inner = "mlp" in model.sub_norm
        if self.inner:
            self.sub_norm = norms.create(model, hidden, rngs=rngs)
        self.fc2 = linear(hidden, width)

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Returns (B, N, D) for (B, N, D), with dropout before the last layer."""
        x = dropout(nnx.silu(self.gate(x)) * self.fc1(x), self.rate, key)
        return self.fc2(normalize(self.sub_norm, x) if self.inner else x)
