"""Multi-label accuracy (ObjectNet): a prediction is correct if it is in the label set.

Images with an empty label set count in neither numerator nor denominator.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.data.real_labels import NONE
from vit_jax.evaluation.runner import Batch, Inputs, SplitRunner, means
from vit_jax.training import losses, normalization


def ranks(logits: jax.Array, right: jax.Array) -> jax.Array:
    """Returns the number of classes ranked above the first correct one, (B,) int32.

    `right` is (B, M) int32, padded with NONE; without a right class it is the number of classes.
    """
    chex.assert_rank([logits, right], 2)
    chex.assert_equal_shape_prefix([logits, right], 1)
    chex.assert_type([logits, right], [float, int])
    each = jax.vmap(losses.rank_of_label, in_axes=(None, 1), out_axes=1)
    known = right != NONE
    found = each(logits, jnp.where(known, right, 0))
    return jnp.min(jnp.where(known, found, logits.shape[-1]), axis=-1)


class MultiLabel:
    """Evaluates parameters on a split whose labels map to several classes of the head."""

    def __init__(
        self, model: models.Classifier, cfg: config.Config, split: SplitRunner, right: np.ndarray
    ) -> None:
        """Takes the correct classes of each label, (labels, M) int32, padded with NONE."""
        self._split, self._right = split, right
        self._sums = functools.partial(_sums, model, cfg.data)

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns `top1`, `top5` and `count` over all 1,000 outputs; None if `stop()` was true."""
        function = functools.partial(self._sums, params)
        sums = self._split.outputs(function, stop=stop, inputs=self._inputs)
        return None if sums is None else means(sums, of=("top1", "top5"))

    def _inputs(self, batch: Batch) -> Inputs:
        right = np.where(batch["mask"][:, None], self._right[batch["label"]], NONE)
        return {"image": batch["image"], "right": right.astype(np.int32)}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sums(
    model: models.Classifier, data: config.Data, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    logits, _ = model.apply(params, normalization.normalize_pixels(batch["image"], data))
    rank = ranks(logits, batch["right"])
    scored = (batch["right"] != NONE).any(axis=-1)
    return {
        "top1": jnp.sum(scored & (rank < 1)),
        "top5": jnp.sum(scored & (rank < 5)),
        "count": jnp.sum(scored),
    }
