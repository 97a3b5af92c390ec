"""Nearest neighbors of frozen features, against numpy in float64; splits are read once."""

import functools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toys
from vit_jax.evaluation import features, knn


def passed(x, y, batch_size=8):
    return toys.passing(toys.Toy(x, y), toys.configure(batch_size))


def evaluator(neighbors, train, test):
    measure = functools.partial(knn.measure, neighbors=neighbors)
    extract = features.Extractor(toys.Echo(), toys.configure(8).data)
    return features.on_features(measure, extract, [features.Pair("toy", train, test, 7)])


def reference(x, y, test_x, test_y, k, classes):
    """Top-1 and top-5 as DINO's evaluation computes them."""
    x, test_x = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, test_x))
    hits = np.zeros(2)
    for features_, label in zip(test_x, test_y, strict=True):
        cosines = x @ features_
        nearest = np.argsort(-cosines, kind="stable")[:k]
        votes = np.zeros(classes)
        np.add.at(votes, y[nearest], np.exp(cosines[nearest] / 0.07))
        order = np.argsort(-votes, kind="stable")
        hits += [order[0] == label, label in order[: min(5, k)]]
    return hits / len(test_y)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    centers = rng.integers(60, 190, (7, 4))
    found = []
    for count in (5, 4):
        y = rng.permutation(np.repeat(np.arange(7), count))
        found.append(((centers[y] + rng.normal(0, 40, (len(y), 4))).clip(0, 255), y))
    return found


def test_votes_are_dinos(data):
    neighbors = (1, 3, 10, 35, 36)  # of 35 training images
    (x, y), (test_x, test_y) = data
    measure = evaluator(neighbors, passed(x, y), passed(test_x, test_y))
    ours = measure(jnp.float32(0), stop=lambda: False)
    seen = [np.asarray(z, np.uint8) / 127.5 - 1 for z in (x, test_x)]
    expected = {
        f"toy/{k}nn/{top}": value
        for k in (1, 3, 10, 35)
        for top, value in zip(
            ("top1", "top5"), reference(seen[0], y, seen[1], test_y, k, 7), strict=True
        )
    }
    assert ours == pytest.approx(expected, abs=1e-12)
    assert list(ours) == list(expected)
    assert len({value for key, value in ours.items() if key.endswith("top1")}) > 1
    assert measure(jnp.float32(0), stop=lambda: True) is None


def test_two_batches_at_most_are_queued(data, monkeypatch):
    """Processes of several CPU devices that queued all of them waited for each other forever."""
    (x, y), (test_x, test_y) = data
    waited = []
    monkeypatch.setattr(jax, "block_until_ready", lambda outputs: waited.append(len(outputs)))
    measure = evaluator((1,), passed(x, y), passed(test_x, test_y))
    measure(jnp.float32(0), stop=lambda: False)
    # Batches of both splits, and those of the test split among their neighbors.
    assert waited == [0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1]


def test_few_training_images_all_vote(data, caplog):
    """The metric that may choose the best checkpoint is there whatever their number."""
    (x, y), (test_x, test_y) = data
    measure = evaluator((10, 20, 50), passed(x[:12], y[:12]), passed(test_x, test_y))
    ours = measure(jnp.float32(0), stop=lambda: False)
    seen = [np.asarray(z, np.uint8) / 127.5 - 1 for z in (x[:12], test_x)]
    for k, voting in ((10, 10), (20, 12)):
        expected = reference(seen[0], y[:12], seen[1], test_y, voting, 7)
        assert [ours.pop(f"toy/{k}nn/{top}") for top in ("top1", "top5")] == expected.tolist()
    assert not ours
    assert "evaluation.neighbors=20: toy has 12 training images; all of them vote" in caplog.text


def test_classes_without_a_training_image_are_said(data, caplog):
    (x, y), (test_x, test_y) = data
    kept, tested = ~np.isin(y, (2, 6)), test_y != 6
    measure = evaluator((1,), passed(x[kept], y[kept]), passed(test_x[tested], test_y[tested]))
    found = measure(jnp.float32(0), stop=lambda: False)
    assert found["toy/1nn/top1"] == found["toy/1nn/top5"] > 0
    assert [record.getMessage() for record in caplog.records] == [
        "evaluation.knn=toy: 4 of 24 test images are of classes without a training image (1 of 7), "
        "so top-1 counts them as wrong"
    ]


def test_a_shared_split_is_read_once_and_then_let_go(data):
    (x, y), _ = data
    split, reads = passed(x, y), []
    outputs = split.outputs
    split.outputs = lambda *args, **kwargs: reads.append(1) or outputs(*args, **kwargs)
    extract = features.Extractor(toys.Echo(), toys.configure(8).data, {split: 3})
    params = jnp.float32(0)

    def read(params, stopped=False):
        return extract(params, split, stop=lambda: stopped)

    first = read(params)
    assert read(params) is first
    assert read(params) is first
    assert len(reads) == 1
    kept = weakref.ref(first.values[0])
    del first
    assert kept() is None  # after the last reader, memory is free
    again = read(params)  # of the next evaluation
    other = read(jnp.float32(1))  # features of other parameters do not count
    assert len(reads) == 3
    assert other is not again
    kept = weakref.ref(other.values[0])
    del other
    assert read(jnp.float32(2), stopped=True) is None
    assert kept() is None
