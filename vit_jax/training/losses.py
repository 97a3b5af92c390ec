"""Losses per example, and their weights by class."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import config
from vit_jax.config import components
from vit_jax.data.source import DataError, Source, read_labels, read_targets

Array = TypeVar("Array", jax.Array, np.ndarray)

SOFTMAX = config.Loss()
EFFECTIVE = 0.9999  # the usual beta of the effective number
RESOLVED = 1e-5  # smallest std, relative to the mean, that float32 resolves


def cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    *,
    loss: config.Loss = SOFTMAX,
    smoothing: float = 0.0,
    log_shares: jax.typing.ArrayLike | None = None,
) -> jax.Array:
    """The loss of each example.

    Args:
      logits: (B, K) float32.
      labels: (B,) int32 in [0, K), or (B, K) float32: the share of each class in the example.
      loss: softmax; sigmoid: binary cross-entropies summed over classes, the loss of the paper's
        ImageNet-21k and JFT pre-training (vision_transformer issue 34); focal: the softmax's
        weighted by (1 - p)^gamma; logit_adjusted: softmax with `log_shares`; emd: of classes in
        order, squared differences of cumulative probabilities, summed (Hou et al. 2016, arXiv
        1611.05916; the ranked probability score); or the loss of a plug-in, which gets the logits
        and the (B, K) targets.
      smoothing: mass taken from the true classes and spread evenly over all K.
      log_shares: (K,) of the training images, which logit adjustment adds while it trains.

    Returns:
      (B,) float32.
    """
    targets = (
        labels if labels.ndim == 2 else jax.nn.one_hot(labels, logits.shape[-1], dtype=jnp.float32)
    )
    targets = optax.smooth_labels(targets, smoothing)
    if loss.name not in components.built_in("loss"):
        made = components.make(loss, "loss.name")
        with components.calling("loss.name", loss.name):
            each = jnp.asarray(made(logits, targets))
        if each.shape != logits.shape[:1] or not jnp.issubdtype(each.dtype, jnp.floating):
            raise config.ConfigError(
                f"loss.name={loss.name}: returned {each.dtype} {each.shape}; must return the loss "
                f"of each example, floats {logits.shape[:1]}"
            )
        return each
    # In training alone: evaluation gives no shares, and ranks by the logits themselves.
    if isinstance(loss, config.LogitAdjusted) and log_shares is not None:
        logits = logits + loss.tau * jnp.asarray(log_shares, jnp.float32)[None]
    if isinstance(loss, config.Focal):
        log_p = jax.nn.log_softmax(logits)
        # The slope of (1 - p)^gamma is infinite at p = 1 for gamma < 1, so 1 - p stays positive.
        left = jnp.maximum(-jnp.expm1(log_p), jnp.finfo(jnp.float32).tiny)
        return -jnp.sum(targets * left**loss.gamma * log_p, axis=-1)
    if loss.name == "emd":
        apart = jnp.cumsum(jax.nn.softmax(logits) - targets, axis=-1)
        return jnp.sum(jnp.square(apart), axis=-1)
    if loss.meaning == "softmax":
        return optax.softmax_cross_entropy(logits, targets)
    return jnp.sum(optax.sigmoid_binary_cross_entropy(logits, targets), axis=-1)


def regression(outputs: jax.Array, numbers: jax.Array, loss: config.Regression) -> jax.Array:
    """The loss of each example, (B,) float32: the mean over columns, in standard deviations.

    Args:
      outputs: (B, K) float32 of the head.
      numbers: (B, K) float32, in their own units.
      loss: mse, l1 or huber, with the mean and std of each column.
    """
    mean, std = _scale(loss, np.float32)
    error = outputs - (numbers - mean) / std
    if isinstance(loss, config.Huber):
        each = optax.huber_loss(error, delta=loss.delta)
    else:
        each = jnp.square(error) if loss.name == "mse" else jnp.abs(error)
    return jnp.mean(each, axis=-1)


def scaled(outputs: Array, loss: config.Regression) -> Array:
    """Outputs of a head (B, K) in the units of the training images, in their own dtype."""
    mean, std = _scale(loss, outputs.dtype)
    return outputs * std + mean


def _scale(loss: config.Regression, dtype: np.typing.DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std (1, K), or (1, 1) of 0 and 1 where no data were measured."""
    mean, std = (np.reshape(one, (1, -1)) for one in (loss.mean or 0.0, loss.std or 1.0))
    return mean.astype(dtype), std.astype(dtype)


def with_scale(cfg: config.Config, source: Source) -> config.Config:
    """The config with mean and standard deviation of the training images' targets, if any.

    Raises DataError for a column that is constant, or so far from 0 that float32 cannot hold it.
    """
    if not isinstance(cfg.loss, config.Regression) or (cfg.loss.mean and cfg.loss.std):
        return cfg
    numbers = read_targets(source)
    mean, std = numbers.mean(axis=0), numbers.std(axis=0)
    for name, column, center, width in zip(source.classes, numbers.T, mean, std, strict=True):
        # Compared, as the deviation of equal numbers may be a rounding error: 1.4e-17 of 0.1 three
        # times.
        if (column == column[0]).all():
            raise DataError(
                f"data.targets={name}: is {column[0]:g} in each of the {len(column):,} training "
                "images, so there is nothing to learn; leave it out"
            )
        if width < RESOLVED * abs(center):
            raise DataError(
                f"data.targets={name}: spreads by {width:.3g} around {center:.6g}, which float32 "
                "cannot tell apart; subtract a constant in the file"
            )
    return config.with_scale(cfg, tuple(mean.tolist()), tuple(std.tolist()))


def probabilities(logits: jax.typing.ArrayLike, loss: config.Loss) -> jax.Array:
    """Converts logits (B, K) to probabilities for the given loss.

    A plugged-in loss may bring its own `probabilities(logits)`; without it, softmax.
    """
    if loss.name == "sigmoid":
        return jax.nn.sigmoid(logits)
    own = own_probabilities(loss)
    return jax.nn.softmax(logits) if own is None else own(logits)


def most_probable(logits: jax.Array, loss: config.Loss, count: int) -> tuple[jax.Array, jax.Array]:
    """The highest probabilities of logits (B, K) and their classes, (B, count) each."""
    _, classes = jax.lax.top_k(ranked(logits, loss), count)
    return jnp.take_along_axis(probabilities(logits, loss), classes, axis=-1), classes


def ranked(logits: jax.Array, loss: config.Loss) -> jax.Array:
    """Scores (B, K) that order the classes of an image: logits, or a plug-in's probabilities."""
    own = own_probabilities(loss)
    # By the logits: of those from 17 on, all sigmoids are 1 in float32, and none would be first.
    return logits if own is None else own(logits)


def own_probabilities(loss: config.Loss) -> Callable[[jax.typing.ArrayLike], jax.Array] | None:
    """The method `probabilities(logits)` of a plug-in's loss, or None."""
    if loss.name in components.built_in("loss"):
        return None
    own = getattr(components.make(loss, "loss.name"), "probabilities", None)
    if own is None:
        return None

    def checked(logits: jax.typing.ArrayLike) -> jax.Array:
        with components.calling("loss.name", loss.name):
            found = jnp.asarray(own(logits))
        if found.shape != jnp.shape(logits):
            raise config.ConfigError(
                f"loss.name={loss.name}: probabilities returned {found.shape}; must return the "
                f"shape of the logits, {jnp.shape(logits)}"
            )
        return found

    return checked


def best_is_right(logits: jax.Array, labels: jax.Array, *, several: bool = False) -> jax.Array:
    """Whether the example's class has the highest score, (B,) bool.

    Args:
      logits: (B, K) float32.
      labels: as in `cross_entropy`; with shares, the class with the largest is correct.
      several: whether any class with a share is correct.
    """
    if several:
        best = jnp.argmax(logits, axis=-1)[:, None]
        right = jnp.take_along_axis(labels, best, axis=-1)[:, 0] > 0
        # argmax takes a NaN for the largest logit.
        return right & ~jnp.isnan(logits).any(axis=-1)
    return rank_of_label(logits, labels if labels.ndim == 1 else jnp.argmax(labels, axis=-1)) == 0


def rank_of_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The rank of the true class among the logits, (B,) int32; 0 is correct.

    Ties go to the lower class index, as in argmax, so a constant output only counts as class 0. An
    output with a NaN ranks behind every class: otherwise, with three classes, it would still be in
    the top 5.
    """
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)
    earlier = jnp.arange(logits.shape[-1])[None, :] < labels[:, None]
    rank = jnp.sum((logits > own) | ((logits == own) & earlier), axis=-1)
    return jnp.where(jnp.isnan(logits).any(axis=-1), jnp.iinfo(rank.dtype).max, rank)


class ClassCounts(NamedTuple):
    """The training images of each class.

    Attributes:
      names: of the classes.
      images: (K,) of each output of the head, of which the last may have no class.
    """

    names: tuple[str, ...]
    images: np.ndarray

    @property
    def log_shares(self) -> np.ndarray:
        """The logarithm of each class's share of the images; an empty class counts as one image."""
        return np.log(np.maximum(self.images, 1) / self.images.sum())

    def weights(self, asked: Sequence[str]) -> np.ndarray:
        """The weights (K,) of `train.class_weights`; raises ConfigError for an unknown class.

        `balanced` divides by the images of a class, so that all have the same sum, and the mean
        over images is 1. `effective` divides by (1 - b^n) / (1 - b), the effective number of n
        images with b = 0.9999, and adds up to K (Cui et al. 2019). A class without an image has 0
        in both and is not counted in K. Classes not named have 1.
        """
        some, found = self.images > 0, np.zeros(len(self.images))
        images = self.images[some].astype(np.float64)
        if asked == ("balanced",):
            found[some] = images.sum() / (len(images) * images)
            return found
        if asked == ("effective",):
            # 1 - b^n: of few images b^n is so near 1 that the difference would lose digits.
            each = 1 / -np.expm1(images * np.log(EFFECTIVE))
            found[some] = each * len(images) / each.sum()
            return found
        found = np.ones(len(self.images))
        for name, _, weight in (text.rpartition(":") for text in asked):
            if name not in self.names:
                raise config.ConfigError(
                    f"train.class_weights={name}:{weight}: the data has no class {name}"
                    f"{config.suggest(name, self.names)}"
                )
            found[self.names.index(name)] = float(weight)
        if not (found * self.images).any():
            raise config.ConfigError(
                f"train.class_weights={config.show(tuple(asked))}: leaves no class to learn; give "
                "one a weight above 0"
            )
        return found


def count_classes(cfg: config.Config, source: Source) -> ClassCounts | None:
    """Counts of the training images by class, if the config's loss needs them."""
    if not cfg.train.class_weights and not isinstance(cfg.loss, config.LogitAdjusted):
        return None
    # A head may have more outputs than the data have classes.
    outputs = max(len(source.classes), cfg.model.num_classes or 0)
    images = np.bincount(read_labels(source), minlength=outputs)
    return ClassCounts(tuple(source.classes), images)
