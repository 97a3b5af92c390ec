"""k nearest neighbors of frozen features, weighted as in DINO's evaluation (arXiv 2104.14294).

Features are divided by their length. Each of a test image's k most similar training images votes
for its class with exp(cosine / 0.07). Training features stay spread over the devices; a batch of
test images sees them one batch at a time, and keeps its nearest.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from vit_jax.data import split_roles
from vit_jax.evaluation import features, runner
from vit_jax.evaluation.features import PADDING, Features, Pair
from vit_jax.runtime import logs
from vit_jax.training import losses, sharding

TEMPERATURE = 0.07


def measure(
    train: Features,
    test: Features,
    pair: Pair,
    *,
    neighbors: Sequence[int],
    stop: Callable[[], bool],
) -> dict[str, float] | None:
    """`20nn/top1` and `20nn/top5`, by number of neighbors; None if `stop()` turned true.

    Numbers beyond that of the training images are left out, but for the one that stands for a run
    (`split_roles.representative`): then all of them vote.
    """
    count = features.count_training_images("knn", train, test, pair)
    usual = split_roles.representative(neighbors)
    numbers = tuple(k for k in neighbors if k <= count or k == usual)
    if usual > count:
        logs.log.warning(
            "evaluation.neighbors=%d: %s has %d training images; all of them vote",
            usual, pair.name, count,
        )  # fmt: skip
    sums = []
    with jax.set_mesh(test.mesh):
        for values, labels in zip(test.values, test.labels, strict=True):
            sums.append(_hits(numbers, pair.classes, train.values, train.labels, values, labels))
            runner.wait_for_last(sums)
            if stop():
                return None
    hits = np.array(jax.device_get(sums), np.int64).sum(axis=0)  # (numbers + 1, 2)
    return {
        f"{k}nn/{top}": float(hits[row, column] / hits[-1, column])
        for row, k in enumerate(numbers)
        for column, top in enumerate(("top1", "top5"))
    }


@functools.partial(jax.jit, static_argnums=(0, 1))
def _hits(
    numbers: tuple[int, ...],
    classes: int,
    train: list[jax.Array],
    train_labels: list[jax.Array],
    values: jax.Array,
    labels: jax.Array,
) -> jax.Array:
    """Correct predictions, top-1 and top-5, by number, then the examples: (n + 1, 2) int32."""
    queries = _unit(values)
    most = max(numbers)

    def closer(
        best: tuple[jax.Array, jax.Array], part: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        # Gathers this batch of training features on every device; all of them at once may not fit.
        rows, kinds = jax.lax.with_sharding_constraint(part, P())
        # By default, TPUs multiply float32 matrices in bfloat16.
        cosines = jnp.dot(queries, _unit(rows).T, precision=jax.lax.Precision.HIGHEST)
        cosines = jnp.where(kinds[None] == PADDING, -jnp.inf, cosines)
        cosines = jnp.concatenate([best[0], cosines], axis=1)
        kinds = jnp.concatenate([best[1], jnp.broadcast_to(kinds, (len(values), len(kinds)))], 1)
        nearest, where = jax.lax.top_k(cosines, most)  # of equals the first, so the earlier image
        return (nearest, jnp.take_along_axis(kinds, where, axis=1)), None

    # No neighbors yet: at -inf their weight is 0, so PADDING, -1, adds no vote to the last class.
    none = (
        jnp.full((len(values), most), -jnp.inf, jnp.float32),
        jnp.full((len(values), most), PADDING, jnp.int32),
    )
    none = jax.lax.with_sharding_constraint(none, sharding.BATCH)
    (cosines, kinds), _ = jax.lax.scan(closer, none, (jnp.stack(train), jnp.stack(train_labels)))
    weights = jnp.exp((cosines - cosines[:, :1]) / TEMPERATURE)  # relative to the nearest
    example = labels != PADDING
    found = []
    for k in numbers:
        rows = jnp.arange(len(values))[:, None]
        votes = (
            jnp.zeros((len(values), classes), jnp.float32)
            .at[rows, kinds[:, :k]]
            .add(weights[:, :k])
        )
        rank = losses.rank_of_label(votes, jnp.maximum(labels, 0))
        # As in DINO's code: k images vote for k classes at most.
        found.append([jnp.sum(example & (rank < min(top, k))) for top in (1, 5)])
    found.append([jnp.sum(example)] * 2)
    sums = jnp.stack([jnp.stack(row) for row in found])
    return jax.lax.with_sharding_constraint(sums, P())


def _unit(x: jax.Array) -> jax.Array:
    # `tiny` keeps a vector of zeros from 0 / 0.
    lengths = jnp.linalg.norm(x, axis=1, keepdims=True)
    return x / jnp.maximum(lengths, jnp.finfo(x.dtype).tiny)
