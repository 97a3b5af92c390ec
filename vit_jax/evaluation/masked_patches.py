"""Masked patch prediction over a whole split: fixed corruption per image, sums divided once."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.evaluation.runner import Batch, Inputs, SplitRunner, means
from vit_jax.models.variants import required
from vit_jax.training import masked_objective, normalization


class MaskedPatches:
    """Evaluates parameters on a split, ignoring its labels."""

    def __init__(self, model: models.Classifier, cfg: config.Config, split: SplitRunner) -> None:
        self._split = split
        self._sums = functools.partial(_sums, model, cfg.data)

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns `loss`, `error` and `count` of images, of colors `accuracy` and its `count`.

        `masked.measure` defines them. The corruption depends only on an image's index in its split,
        so the results do not depend on the batch size, the number of devices or the seed of the
        run; None if `stop()` turned true before the end.
        """
        function = functools.partial(self._sums, params)
        sums = self._split.outputs(function, stop=stop, inputs=_inputs)
        if sums is None:
            return None
        results = means(sums, of=("loss", "error"))
        if sums and "accuracy" in sums[0]:
            results |= means(sums, of=("accuracy",), count="accuracy/count")
        return results


def _inputs(batch: Batch) -> Inputs:
    return {
        "image": batch["image"],
        "mask": batch["mask"],
        "index": batch["index"].astype(np.int32),
    }


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sums(
    model: models.Classifier, data: config.Data, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    images, mask = batch["image"], batch["mask"]
    keys = masked_objective.keys_of_examples(batch["index"])
    corruption = masked_objective.corrupt(keys, model.patches, model.masked)
    outputs = model.predict_masked(
        params, normalization.normalize_pixels(images, data), **corruption
    )
    patch, target = required(model.config.patch_size), required(model.masked.target)
    found = masked_objective.measure(outputs, images, corruption["masked"], patch, target, data)
    sums = {key: jnp.sum(jnp.where(mask, found[key], 0.0)) for key in ("loss", "error")}
    sums["count"] = jnp.sum(mask)
    if "accuracy" in found:
        right = found["accuracy"]
        sums["accuracy"] = jnp.sum(right & mask[:, None, None])
        sums["accuracy/count"] = sums["count"] * (right.shape[1] * right.shape[2])
    return sums
