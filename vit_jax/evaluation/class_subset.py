"""Top-1 and top-5 restricted to the classes present in the data set (ImageNet-A/-R).

ImageNet-A and ImageNet-R contain 200 of the 1,000 classes each; their authors use this metric
(Hendrycks et al., "Natural Adversarial Examples" and "The Many Faces of Robustness"). The labels
determine the classes, so the logits stay in memory until the end of the pass: N x K x 4 bytes over
all devices, 120 MB for ImageNet-R.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.evaluation.runner import SplitRunner, means
from vit_jax.training import losses, normalization, sharding


class ClassSubset:
    """Evaluates parameters on a split, restricted to the classes present in it."""

    def __init__(self, model: models.Classifier, cfg: config.Config, split: SplitRunner) -> None:
        self._split = split
        self._look = functools.partial(_look, model, cfg.data)

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns `top1`, `top5` and `count`; None if `stop()` turned true before the end."""
        seen = self._split.outputs(functools.partial(self._look, params), stop=stop)
        if seen is None:
            return None
        logits, labels, masks, present = zip(*seen, strict=True)
        every = np.any(jax.device_get(present), axis=0)
        mesh = self._split.mesh
        with jax.set_mesh(mesh):
            among = jax.device_put(every, NamedSharding(mesh, P()))
            sums = [_sums(*batch, among) for batch in zip(logits, labels, masks, strict=True)]
        return means(sums, of=("top1", "top5"))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _look(
    model: models.Classifier, data: config.Data, params: Any, batch: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns logits (B, K), labels, mask, and the classes present, (K,) bool."""
    logits, _ = model.apply(params, normalization.normalize_pixels(batch["image"], data))
    label, mask = batch["label"], batch["mask"]
    chex.assert_shape([label, mask], (logits.shape[0],))
    chex.assert_type([logits, label, mask], [jnp.float32, jnp.int32, bool])
    present = jnp.zeros(logits.shape[-1], bool).at[label].max(mask)
    logits = jax.lax.with_sharding_constraint(logits, sharding.BATCH)
    return logits, label, mask, jax.lax.with_sharding_constraint(present, P())


@jax.jit
def _sums(
    logits: jax.Array, label: jax.Array, mask: jax.Array, among: jax.Array
) -> dict[str, jax.Array]:
    rank = losses.rank_of_label(jnp.where(among[None], logits, -jnp.inf), label)
    return {
        "top1": jnp.sum(mask & (rank < 1)),
        "top5": jnp.sum(mask & (rank < 5)),
        "count": jnp.sum(mask),
    }
