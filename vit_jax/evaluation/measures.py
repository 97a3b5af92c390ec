"""Pure measures: functions of outputs and labels; `evaluators` runs them over a split.

Letters as in `models.layers`. Values are per image; the caller averages those that count.
"""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config
from vit_jax.data.datasets import SEVERITIES
from vit_jax.data.real_labels import NONE
from vit_jax.evaluation import metrics
from vit_jax.training import losses

# AlexNet's top-1 error on each corruption, averaged over the severities, which normalizes the mean
# corruption error (Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common
# Corruptions and Perturbations"; the values are those of github.com/hendrycks/robustness). It
# excludes the other four corruptions of TFDS.
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}


def classification(logits: jax.Array, label: jax.Array, loss: config.Loss) -> dict[str, jax.Array]:
    """`top1` and `top5` (B,) bool, and the unsmoothed `loss` (B,) float32.

    Of logits (B, K) float32 and labels (B,) int32, by the loss that the model was trained with.
    """
    chex.assert_shape(label, (logits.shape[0],))
    chex.assert_type([logits, label], [jnp.float32, jnp.int32])
    rank = losses.rank_of_label(losses.ranked(logits, loss), label)
    each = losses.cross_entropy(logits, label, loss=loss)
    return {"top1": rank < 1, "top5": rank < 5, "loss": each}


def scores(logits: np.ndarray, loss: config.Loss) -> np.ndarray:
    """Scores (N, K) float64 of logits, by which metrics rank the images of a class.

    A softmax ranks them by the logits of other classes too, so that it is no measure of a head
    whose outputs are sigmoids.
    """
    if loss.name == "sigmoid" or loss.meaning == "softmax":
        return metrics.scores(logits, several=loss.name == "sigmoid")
    return np.asarray(losses.probabilities(logits, loss), np.float64)  # of a plug-in


def predicted(logits: np.ndarray, loss: config.Loss, *, several: bool) -> np.ndarray:
    """The classes of logits (N, K), as `metrics.predicted`; a plug-in's by its probabilities."""
    own = losses.own_probabilities(loss)
    scores = logits if own is None else np.asarray(own(logits))
    return scores > 0.5 if several and own else metrics.predicted(scores, several=several)


def several_right(logits: jax.Array, right: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """`top1` and `top5` (B,) bool where any of several classes is right (ReaL, ObjectNet).

    Args:
      logits: (B, K) float32.
      right: the right classes of each image, (B, M) int32, padded with NONE.

    Returns:
      The values, and which images have a right class, (B,) bool: the others do not count.
    """
    chex.assert_rank([logits, right], 2)
    chex.assert_equal_shape_prefix([logits, right], 1)
    chex.assert_type([logits, right], [float, int])
    known = right != NONE
    each = jax.vmap(losses.rank_of_label, in_axes=(None, 1), out_axes=1)
    ranks = each(logits, jnp.where(known, right, 0))
    # `initial` is the rank of an image without a right class, which does not count.
    best = jnp.min(ranks, axis=-1, where=known, initial=jnp.iinfo(ranks.dtype).max)
    return {"top1": best < 1, "top5": best < 5}, known.any(axis=-1)


def class_subset(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """`top1`, `top5` and `count` among the classes that occur (ImageNet-A and -R).

    These contain 200 of the 1,000 classes each; their authors let only those compete (Hendrycks et
    al., "Natural Adversarial Examples" and "The Many Faces of Robustness"). Logits (N, K) float32
    and labels (N,) int32 are of a whole split.
    """
    count = len(labels)
    if not count:
        return {"count": 0}
    absent = ~np.isin(np.arange(logits.shape[1]), labels)
    # Behind all others, so that they are never predicted.
    among = jnp.asarray(np.where(absent, np.float32(-np.inf), logits))
    rank = np.asarray(losses.rank_of_label(among, jnp.asarray(labels)))
    return {f"top{k}": int((rank < k).sum()) / count for k in (1, 5)} | {"count": count}


def label_sets(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> metrics.Arrays:
    """`map` and `top1` of images with any number of classes, (R,) each; none if none has a class.

    `map` is the mean over the classes that an image has of average precision, without
    interpolation; `top1` is the share of images, of those with a class, whose highest score is that
    of one of their classes. Logits and labels are (N, K) float32, labels above 0 for each class of
    an image; weights (R, N) as in `metrics`.
    """
    chex.assert_equal_shape([logits, labels])
    labels = labels > 0
    some = labels.any(axis=1)
    if not some.any():
        return {}
    best = metrics.predicted(logits, several=False)
    right = (best >= 0) & labels[np.arange(len(best)), best]
    pairs = zip(logits.T, labels.T, strict=True)
    areas = np.stack([metrics.curve_areas(*pair, weights)[1] for pair in pairs], axis=-1)
    known = weights @ labels > 0  # draws may lack a class
    with np.errstate(invalid="ignore"):
        return {
            "map": np.where(known, areas, 0).sum(axis=1) / known.sum(axis=1),
            "top1": weights @ right / (weights @ some),
        }


def mean_corruption_error(top1: Mapping[str, float]) -> float | None:
    """The mean over corruptions of error / AlexNet's error: 1 matches AlexNet.

    Args:
      top1: the accuracy on each set, such as `fog_3`; None is returned unless all 75 are there.
    """
    if not {f"{kind}_{severity}" for kind in ALEXNET for severity in SEVERITIES} <= set(top1):
        return None
    each = [
        # The mean over severities first, as in the paper: a ratio of means, not a mean of ratios.
        np.mean([1 - top1[f"{kind}_{severity}"] for severity in SEVERITIES]) / alexnet
        for kind, alexnet in ALEXNET.items()
    ]
    return float(np.mean(each))
