"""Weighted nearest neighbors on frozen features, as in DINO (Caron et al. 2021, appendix F.1).

Features are scaled to length 1. The k training images of the largest cosine vote for their classes,
each with exp(cosine / 0.07). DINO prints k = 10, 20, 100 and 200; its figures are those of 20.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config, models
from vit_jax.evaluators.features import PADDING, Extractor, Features
from vit_jax.evaluators.linear_data import Pair

TEMPERATURE = 0.07
BLOCK = 2**14  # training images compared at a time


class Neighbors:
    """Evaluates features on pairs of splits, with the options of `evaluation`."""

    def __init__(
        self, model: models.Classifier, cfg: config.Config, pairs: Mapping[str, Pair]
    ) -> None:
        self._extract = Extractor(model, cfg.data)
        self._neighbors, self._pairs = cfg.evaluation.neighbors, pairs

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns `SET/20nn/top1` and `SET/20nn/top5` for each k; None if `stop()` was true."""
        results: dict[str, float] = {}
        for name, pair in self._pairs.items():
            train = self._extract(params, pair.train, stop=stop)
            test = train and self._extract(params, pair.test, stop=stop)
            if train is None or test is None:
                return None
            found = accuracies(*train.gathered(), test, pair.classes, self._neighbors)
            results |= {f"{name}/{key}": value for key, value in found.items()}
        return results


def accuracies(
    x: np.ndarray, y: np.ndarray, test: Features, classes: int, neighbors: tuple[int, ...]
) -> dict[str, float]:
    """Returns `20nn/top1` and `20nn/top5` for each k.

    Args:
      x: training features (N, D).
      y: their labels (N,).
      test: features to classify.
      classes: their number.
      neighbors: the values of k; at most N count.
    """
    most = min(max(neighbors), len(x))
    # In whole blocks, at least one of them as long as the list of neighbors.
    block = max(min(BLOCK, len(x)), most)
    rows = -len(x) % block
    x = np.pad(_scaled(x), ((0, rows), (0, 0))).reshape(-1, block, x.shape[1])
    y = np.pad(y, (0, rows), constant_values=PADDING).reshape(-1, block)
    place = NamedSharding(test.mesh, P())
    held = jax.device_put((x, y.astype(np.int32)), place)
    count = functools.partial(_hits, classes, tuple(min(k, most) for k in neighbors), *held)
    with jax.set_mesh(test.mesh):
        sums = [count(*batch) for batch in zip(test.values, test.labels, strict=True)]
    *hits, total = np.array(jax.device_get(sums), np.int64).sum(axis=0)
    names = [f"{k}nn/top{n}" for k in neighbors for n in (1, 5)]
    return {name: float(right / total) for name, right in zip(names, hits, strict=True)}


def _scaled(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _hits(
    classes: int,
    neighbors: tuple[int, ...],
    x: jax.Array,
    y: jax.Array,
    values: jax.Array,
    labels: jax.Array,
) -> jax.Array:
    """Returns right predictions, top-1 and top-5 of each k, and the examples of a batch."""
    chex.assert_shape(values, (labels.shape[0], x.shape[2]))
    lengths = jnp.linalg.norm(values, axis=1, keepdims=True)
    values, most = values / jnp.maximum(lengths, 1e-12), max(neighbors)

    def nearer(best: tuple[jax.Array, jax.Array], block: tuple[jax.Array, jax.Array]) -> Any:
        features, owners = block
        cosines = jnp.dot(values, features.T, precision=jax.lax.Precision.HIGHEST)
        cosines = jnp.where(owners[None] == PADDING, -jnp.inf, cosines)
        every = jnp.concatenate([best[0], cosines], axis=1)
        owners = jnp.broadcast_to(owners[None], cosines.shape)
        found, place = jax.lax.top_k(every, most)
        theirs = jnp.concatenate([best[1], owners], axis=1)
        return (found, jnp.take_along_axis(theirs, place, axis=1)), None

    shape = (labels.shape[0], most)
    nothing = jnp.full(shape, -jnp.inf), jnp.full(shape, PADDING, jnp.int32)
    (cosines, owners), _ = jax.lax.scan(nearer, nothing, (x, y))
    votes, sums = jnp.exp(cosines / TEMPERATURE), []  # 0 of padding
    tally = jax.vmap(lambda owner, vote: jnp.zeros(classes).at[owner].add(vote))
    for k in neighbors:
        scores = tally(owners[:, :k], votes[:, :k])
        _, best = jax.lax.top_k(scores, min(5, k, classes))
        right = best == labels[:, None]
        sums += [jnp.sum(right[:, :1]), jnp.sum(right)]
    counted = jnp.stack([*sums, jnp.sum(labels != PADDING)])
    return jax.lax.with_sharding_constraint(counted, P())
