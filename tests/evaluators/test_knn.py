"""Nearest neighbors: the votes as DINO counts them, by numpy in float64."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from vit_jax.evaluators import knn
from vit_jax.evaluators.features import PADDING, Features
from vit_jax.training import sharding


def by_hand(x, y, queries, classes, k):
    x, queries = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (x, queries))
    best = []
    for cosines in queries.astype(np.float64) @ x.T.astype(np.float64):
        votes = np.zeros(classes)
        for index in np.argsort(-cosines)[:k]:
            votes[y[index]] += np.exp(cosines[index] / 0.07)
        best.append(np.argsort(-votes, kind="stable"))
    return np.array(best)


@pytest.mark.parametrize("block", [64, 1000])
def test_votes_are_those_of_dino(block, monkeypatch):
    monkeypatch.setattr(knn, "BLOCK", block)
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(7, 6))
    y = rng.integers(0, 7, 150).astype(np.int32)
    x = (centers[y] + 0.6 * rng.normal(size=(150, 6))).astype(np.float32)
    labels = rng.integers(0, 7, 48).astype(np.int32)
    queries = (centers[labels] + 0.6 * rng.normal(size=(48, 6))).astype(np.float32)
    masked = np.where(np.arange(48) < 40, labels, PADDING).astype(np.int32)
    mesh = sharding.create_mesh(1)
    place = NamedSharding(mesh, sharding.BATCH)
    parts = [jax.device_put((queries[i : i + 24], masked[i : i + 24]), place) for i in (0, 24)]
    test = Features(mesh, [p[0] for p in parts], [p[1] for p in parts])
    found = knn.accuracies(x, y, test, 7, (1, 5, 20, 1000))
    for k in (1, 5, 20, 1000):
        best = by_hand(x, y, queries, 7, k)[:40]
        assert found[f"{k}nn/top1"] == np.mean(best[:, 0] == labels[:40])
        within = best[:, : min(5, k)] == labels[:40, None]
        assert found[f"{k}nn/top5"] == np.mean(within.any(axis=1))
    assert 0.5 < found["20nn/top1"] < 1
