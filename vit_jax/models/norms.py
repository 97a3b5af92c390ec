"""The normalization that a network uses throughout: LayerNorm, or RMSNorm."""

from flax import nnx

from vit_jax import config


def create(model: config.Model, features: int, *, rngs: nnx.Rngs) -> nnx.LayerNorm | nnx.RMSNorm:
    """Returns the norm of `model.norm` over a last axis of so many features."""
    kind = nnx.RMSNorm if model.norm == "rms" else nnx.LayerNorm
    return kind(features, epsilon=model.norm_epsilon, rngs=rngs)
