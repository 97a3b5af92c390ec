"""Cross-entropies per example."""

import jax
import jax.numpy as jnp
import optax

from vit_jax import config
from vit_jax.config import components

SOFTMAX = config.Loss()


def cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    *,
    loss: config.Loss = SOFTMAX,
    smoothing: float = 0.0,
) -> jax.Array:
    """The loss of each example.

    Args:
      logits: (B, K) float32.
      labels: (B,) int32 in [0, K), or (B, K) float32: what share of the example is each class.
      loss: softmax, or sigmoid: binary cross-entropies summed over classes, the loss of the
        paper's ImageNet-21k and JFT pre-training (vision_transformer issue 34); or the loss of a
        plug-in, which gets the logits and the (B, K) targets.
      smoothing: mass taken from the true classes and spread evenly over all K.

    Returns:
      (B,) float32.
    """
    targets = (
        labels if labels.ndim == 2 else jax.nn.one_hot(labels, logits.shape[-1], dtype=jnp.float32)
    )
    targets = optax.smooth_labels(targets, smoothing)
    if loss.name not in components.built_in("loss"):
        each = components.make(loss, "loss.name")(logits, targets)
        if each.shape != logits.shape[:1] or not jnp.issubdtype(each.dtype, jnp.floating):
            raise config.ConfigError(
                f"loss.name={loss.name}: returned {each.dtype} {each.shape}; must return the loss "
                f"of each example, floats {logits.shape[:1]}"
            )
        return each
    if loss.name == "softmax":
        return optax.softmax_cross_entropy(logits, targets)
    return jnp.sum(optax.sigmoid_binary_cross_entropy(logits, targets), axis=-1)


def probabilities(logits: jax.Array, loss: config.Loss) -> jax.Array:
    """Converts logits (B, K) to probabilities for the given loss.

    A plugged-in loss may bring its own `probabilities(logits)`; without it, softmax.
    """
    if loss.name == "sigmoid":
        return jax.nn.sigmoid(logits)
    own = None
    if loss.name != "softmax":
        own = getattr(components.make(loss, "loss.name"), "probabilities", None)
    return jax.nn.softmax(logits) if own is None else own(logits)


def best_is_right(logits: jax.Array, labels: jax.Array, *, several: bool = False) -> jax.Array:
    """Whether the highest score is that of the example's class, (B,) bool.

    Args:
      logits: (B, K) float32.
      labels: as in `cross_entropy`; of shares, the class with the largest counts.
      several: whether any class with a share counts.
    """
    if several:
        best = jnp.argmax(logits, axis=-1)[:, None]
        return jnp.take_along_axis(labels, best, axis=-1)[:, 0] > 0
    return rank_of_label(logits, labels if labels.ndim == 1 else jnp.argmax(labels, axis=-1)) == 0


def rank_of_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """How many classes are predicted before the true one, (B,) int32; 0 is correct.

    Ties go to the lower class index, as in argmax, so that top-1 of a constant output is that of
    class 0 and no more. An output with a NaN ranks last.
    """
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)
    earlier = jnp.arange(logits.shape[-1])[None, :] < labels[:, None]
    rank = jnp.sum((logits > own) | ((logits == own) & earlier), axis=-1)
    return jnp.where(jnp.isnan(logits).any(axis=-1), logits.shape[-1], rank)
