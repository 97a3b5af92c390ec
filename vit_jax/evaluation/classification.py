"""Exact top-1, top-5 and loss over a whole split: masks padded rows and divides the sums once."""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from vit_jax import config, models
from vit_jax.data.real_labels import NONE, Reassessed
from vit_jax.evaluation.multilabel import ranks
from vit_jax.evaluation.runner import Batch, Inputs, SplitRunner, means, needed
from vit_jax.training import losses, normalization


class Classification:
    """Evaluates parameters on a split with one label per image."""

    def __init__(
        self,
        model: models.Classifier,
        cfg: config.Config,
        split: SplitRunner,
        reassessed: Reassessed | None = None,
    ) -> None:
        """Takes the source of the split if it also provides ReaL labels."""
        self._split, self._reassessed = split, reassessed
        self._sums = functools.partial(_sums, model, cfg.data, cfg.loss)

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns `top1`, `top5`, `loss` (of cfg.loss, unsmoothed) and `count`.

        With ReaL labels, adds `real/top1` and `real/count` from the same predictions. The result
        covers every example exactly once, independent of the batch size and the number of
        devices; None if `stop()` turned true before the end.
        """
        function = functools.partial(self._sums, params)
        sums = self._split.outputs(function, stop=stop, inputs=self._inputs)
        if sums is None:
            return None
        results = means(sums, of=("top1", "top5", "loss"))
        if self._reassessed is not None:
            results |= means(sums, of=("real/top1",), count="real/count")
        return results

    def _inputs(self, batch: Batch) -> Inputs:
        inputs = needed(batch)
        if self._reassessed is None:
            return inputs
        label, right = self._reassessed.decode(batch["label"])
        return inputs | {"label": label, "right": right}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))  # compiled once for all splits
def _sums(
    model: models.Classifier,
    data: config.Data,
    loss: config.Loss,
    params: Any,
    batch: dict[str, jax.Array],
) -> dict[str, jax.Array]:
    logits, _ = model.apply(params, normalization.normalize_pixels(batch["image"], data))
    mask = batch["mask"]
    chex.assert_shape([batch["label"], mask], (logits.shape[0],))
    chex.assert_type([logits, batch["label"], mask], [jnp.float32, jnp.int32, bool])
    rank = losses.rank_of_label(logits, batch["label"])
    each = losses.cross_entropy(logits, batch["label"], loss=loss)
    sums = {
        "top1": jnp.sum(mask & (rank < 1)),
        "top5": jnp.sum(mask & (rank < 5)),
        "loss": jnp.sum(jnp.where(mask, each, 0.0)),
        "count": jnp.sum(mask),
    }
    if "right" in batch:
        scored = mask & (batch["right"] != NONE).any(axis=-1)
        right = ranks(logits, batch["right"]) < 1
        sums |= {"real/top1": jnp.sum(scored & right), "real/count": jnp.sum(scored)}
    return sums
