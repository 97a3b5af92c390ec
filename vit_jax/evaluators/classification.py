"""Top-1, top-5 and loss over a whole split, exactly: padded rows are masked, sums divided once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.training import loop, losses, sharding, step


class Classification:
    """Measures parameters on the batches of one split."""

    def __init__(
        self,
        model: models.Classifier,
        cfg: config.Config,
        mesh: Mesh,
        batches: Callable[[], loop.Batches],
    ) -> None:
        """Takes `batches`, which starts a pass over the split in global batches of one size."""
        self._mesh, self._batches = mesh, batches
        self._rows = cfg.evaluation.batch_size or cfg.train.batch_size
        self._local = sharding.host_rows(mesh, self._rows)
        self._sums = jax.jit(_sums, static_argnums=(0, 1, 2))
        self._static = (model, cfg.data, cfg.train.loss)

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns `top1`, `top5`, `loss` (of cfg.train.loss, unsmoothed) and `count`.

        The result is that of one pass over every example, whatever the batch size and the
        number of devices; None if `stop()` turned true before the end.
        """
        totals: dict[str, float] = {"top1": 0, "top5": 0, "loss": 0.0, "count": 0}
        batches = self._batches()
        try:
            with jax.set_mesh(self._mesh):
                pending = None
                for batch in batches:
                    inputs = {key: batch[key] for key in ("image", "label", "mask")}
                    placed = sharding.put_batch(inputs, self._mesh, self._rows, self._local)
                    sums = self._sums(*self._static, params, placed)
                    # One batch behind, so that the device has the next one before we look.
                    _add(totals, pending)
                    pending = sums
                    if stop():
                        return None
                _add(totals, pending)
        finally:
            batches.close()
        count = totals["count"]
        assert count, "an evaluation split is never empty"
        return {
            "top1": totals["top1"] / count,
            "top5": totals["top5"] / count,
            "loss": totals["loss"] / count,
            "count": count,
        }


def _sums(
    model: models.Classifier, data: config.Data, loss: str, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    logits, _ = model.apply(params, step.normalise(batch["image"], data))
    mask = batch["mask"]
    rank = losses.rank_of_label(logits, batch["label"])
    each = losses.cross_entropy(logits, batch["label"], kind=loss)
    return {
        "top1": jnp.sum(mask & (rank < 1)),
        "top5": jnp.sum(mask & (rank < 5)),
        "loss": jnp.sum(jnp.where(mask, each, 0.0)),
        "count": jnp.sum(mask),
    }


def _add(totals: dict[str, float], sums: dict[str, jax.Array] | None) -> None:
    if sums is not None:
        for key, value in jax.device_get(sums).items():
            totals[key] += value.item()
