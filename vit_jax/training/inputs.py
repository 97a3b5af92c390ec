"""Batches of a run: what loads them, and what moves them to the devices."""

from collections.abc import Callable

import jax
from jax.sharding import Mesh

from vit_jax import config
from vit_jax.data import pipeline, prefetch, transforms
from vit_jax.data.source import Source
from vit_jax.runtime import preemption
from vit_jax.training import sharding


def create(
    source: Source, cfg: config.Config, mesh: Mesh, steps: int, stop: preemption.Stop
) -> tuple[
    Callable[[int], prefetch.BatchIterator], Callable[[prefetch.Batch], dict[str, jax.Array]]
]:
    """Returns what loads this host's rows after a step, and what moves them to the devices."""
    rows = sharding.host_rows(mesh, cfg.train.batch_size)

    def batches(first: int) -> prefetch.BatchIterator:
        loaded = pipeline.batches(
            source,
            transforms.train_transforms(cfg.data),
            cfg.data,
            seed=cfg.seed,
            batch_size=cfg.train.batch_size,
            rows=rows,
            train=True,
            start_step=first,
            stop_step=steps,
        )
        return prefetch.Prefetcher(loaded, stop)

    def put(batch: prefetch.Batch) -> dict[str, jax.Array]:
        inputs = {"image": batch["image"], "label": batch["label"]}
        return sharding.put_batch(inputs, mesh, cfg.train.batch_size, rows)

    return batches, put
