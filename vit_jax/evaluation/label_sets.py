"""Mean average precision over a whole split of images that have any number of classes."""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.evaluation.runner import SplitRunner
from vit_jax.training import losses, normalization


class LabelSets:
    """Evaluates parameters on a split with a set of classes for each image."""

    def __init__(
        self,
        model: models.Classifier,
        cfg: config.Config,
        split: SplitRunner,
        annotated: tuple[int, ...] | None = None,
    ) -> None:
        """Takes the outputs whose classes the images are labeled with; None: all of them.

        Nobody knows which images have one of the other classes, so those outputs are left out.
        """
        self._split = split
        self._scores = functools.partial(_scores, model, cfg.data, cfg.loss, split.mesh, annotated)

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns `map`, `top1`, `loss` (of cfg.loss, unsmoothed) and `count`.

        `map` is the mean over the classes that an image has of `average_precision`, `top1` the
        share of the images with a class whose highest score is one of theirs. Every example counts
        once, and all scores of the split are held: 4 bytes for each image and class. None if
        `stop()` turned true before the end.
        """
        outputs = self._split.outputs(functools.partial(self._scores, params), stop=stop)
        if outputs is None:
            return None
        batches = [jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), o) for o in outputs]
        scores, labels, loss, mask = (np.concatenate(part) for part in zip(*batches, strict=True))
        scores, labels, loss = scores[mask], labels[mask] > 0, loss[mask]
        count = len(scores)
        if not count:
            return {"count": 0}
        results = {"loss": float(loss.mean(dtype=np.float64)), "count": count}
        some = labels.any(axis=1)
        if some.any():
            best = np.argmax(scores[some], axis=1)[:, None]
            right = np.take_along_axis(labels[some], best, axis=1)
            present = np.flatnonzero(labels.any(axis=0))
            each = [average_precision(scores[:, k], labels[:, k]) for k in present]
            results = {"map": float(np.mean(each)), "top1": float(right.mean()), **results}
        return results


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    """Returns the area under the steps of the precision-recall curve, without interpolation.

    It is the mean, over the positive examples, of the precision among all examples that score at
    least as high; equal scores have one threshold. This is what VOC from 2010 on interpolates.

    Args:
      scores: (N,), not NaN.
      positive: (N,) bool, at least one of them true.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], positive[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    found = np.cumsum(hits)[last]
    precision = found / (last + 1)
    return float(np.sum(precision * np.diff(found, prepend=0)) / found[-1])


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _scores(
    model: models.Classifier,
    data: config.Data,
    loss: config.Loss,
    mesh: Mesh,
    annotated: tuple[int, ...] | None,
    params: Any,
    batch: dict[str, jax.Array],
) -> tuple[jax.Array, ...]:
    """Returns scores, labels, losses and mask of a batch, whole on every device."""
    logits, _ = model.apply(params, normalization.normalize_pixels(batch["image"], data))
    labels, mask = batch["label"], batch["mask"]
    chex.assert_equal_shape([logits, labels])
    chex.assert_type([logits, labels, mask], [jnp.float32, jnp.float32, bool])
    if annotated is not None:
        logits, labels = (x[:, np.array(annotated)] for x in (logits, labels))
    each = losses.cross_entropy(logits, labels, loss=loss)
    whole = NamedSharding(mesh, P())
    return jax.lax.with_sharding_constraint((logits, labels, each, mask), whole)
