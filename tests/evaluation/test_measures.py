"""Measures of outputs and labels, by hand and by definition."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import config
from vit_jax.data import datasets
from vit_jax.data.real_labels import NONE
from vit_jax.evaluation import evaluators, measures
from vit_jax.training import losses


def listed(values):
    return {name: np.asarray(value).tolist() for name, value in values.items()}


def test_the_fifth_counts_and_the_sixth_does_not():
    logits = jnp.asarray(np.tile(np.arange(10.0, dtype=np.float32)[::-1], (3, 1)))
    found = listed(measures.classification(logits, jnp.array([0, 4, 5]), config.Loss()))
    assert (found["top1"], found["top5"]) == ([True, False, False], [True, True, False])
    log_p = np.arange(10)[::-1] - np.log(np.exp(np.arange(10.0)).sum())
    np.testing.assert_allclose(found["loss"], -log_p[[0, 4, 5]], rtol=1e-6)


def test_any_of_several_classes_is_right():
    """An image without a right class does not count; a NaN is never right, of few classes too."""
    logits = jnp.asarray(np.tile(np.arange(10.0, dtype=np.float32)[::-1], (5, 1)))
    logits = logits.at[4, 1].set(jnp.nan)
    right = jnp.array([[4, 9], [5, NONE], [7, 0], [NONE, NONE], [0, 1]])
    values, counted = measures.several_right(logits, right)
    assert listed(values) == {
        "top1": [False, False, True, False, False],
        "top5": [True, False, True, False, False],
    }
    assert counted.tolist() == [True, True, True, False, True]
    values, _ = measures.several_right(logits[4:, :3], right[4:, :1])
    assert listed(values) == {"top1": [False], "top5": [False]}


def test_images_are_ranked_by_probabilities_or_what_has_their_order(monkeypatch):
    """Sigmoids of 40 and 50 are both 1 in float64."""
    logits = np.float32([[40, 41], [50, 10]])
    for name, first in (("softmax", 1 / (1 + np.exp([1, -40]))), ("sigmoid", [40, 50])):
        found = measures.scores(logits, config.Loss(name=name))
        np.testing.assert_allclose(found[:, 0], first, rtol=1e-12)
    monkeypatch.setattr(losses, "probabilities", lambda logits, loss: jnp.exp(logits))
    plugged_in = types.SimpleNamespace(name="own", meaning="own")
    found = measures.scores(logits, plugged_in)
    np.testing.assert_allclose(found, np.exp(logits), rtol=1e-6)


def test_classes_are_those_that_predict_shows(monkeypatch):
    monkeypatch.setattr(losses, "own_probabilities", lambda loss: lambda logits: 1 / (1 + logits))
    distances, loss = np.float32([[3, 0, 2], [1, 5, 0.5]]), config.Loss()
    best = losses.most_probable(jnp.asarray(distances), loss, 1)[1][:, 0]
    assert best.tolist() == measures.predicted(distances, loss, several=False).tolist() == [1, 2]
    assert measures.classification(jnp.asarray(distances), best, loss)["top1"].all()
    several = measures.predicted(distances, loss, several=True)
    np.testing.assert_array_equal(several, distances < 1)


def test_only_classes_that_occur_compete():
    """Of 1 and 3, predicted are 1, 3, 1, 3, 1, 1."""
    rows = [
        [0, 9, 80, 1],
        [70, 2, 3, 60],
        [5, 90, 4, 3],
        [1, 2, 3, 50],
        [8, 7, 60, 0],
        [9, 9, 1, 2],
    ]
    labels = np.array([3, 3, 1, 3, 1, 1], np.int32)
    found = measures.class_subset(np.float32(rows), labels)
    assert found == {"top1": 5 / 6, "top5": 1.0, "count": 6}
    assert measures.class_subset(np.zeros((0, 4), np.float32), labels[:0]) == {"count": 0}
    # Of eight classes that occur, the one in the sixth place is not among the first five.
    every = np.arange(8, dtype=np.int32)
    found = measures.class_subset(np.tile(np.arange(9, 0, -1, np.float32), (8, 1)), every)
    assert found == {"top1": 1 / 8, "top5": 5 / 8, "count": 8}


def test_label_sets_by_hand():
    logits = np.float32([[0, 2, 1, 0], [3, 0, 0, 1], [0, 0, 1, 2]])
    labels = np.float32([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
    # The image of class 0 is last of three, those of 1 first and third, that of 2 is last of three.
    # No image has class 3, and one has no class. Of draws, one has the first image twice, the next
    # nothing but the last.
    draws = np.array([[1, 1, 1], [2, 0, 1], [0, 0, 3]])
    found = measures.label_sets(logits, labels, draws)
    expected = np.mean([1 / 3, (1 + 2 / 3) / 2, 1 / 3]), np.mean([2 / 3, 1]), np.nan
    np.testing.assert_allclose(found["map"], expected)
    np.testing.assert_array_equal(found["top1"], [1 / 2, 1, np.nan])
    logits[1, 0], labels[1, 0] = np.nan, 1
    lost = measures.label_sets(logits, labels, draws[:1])
    assert (lost["top1"], np.isnan(lost["map"])) == (1 / 2, True)
    assert not measures.label_sets(logits, np.zeros_like(labels), draws)


def test_label_sets_have_a_loss_and_intervals():
    logits = np.float32([[0, 2, 1, 0], [3, 0, 0, 1], [0, 0, 1, 2]])
    labels = np.float32([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
    batch = [jnp.asarray(part) for part in (logits, labels, np.arange(3), np.ones(3, bool))]
    split = types.SimpleNamespace(mesh=None, outputs=lambda *_, **__: [batch])
    cfg = config.Config(
        evaluation=config.Evaluation(metrics=("intervals",)), loss=config.Loss(name="sigmoid")
    )
    found = evaluators.label_sets(None, cfg, split)(None, stop=lambda: False)
    each = np.logaddexp(0, np.where(labels > 0, -logits, logits).astype(float)).sum(axis=1)
    assert found["loss"] == pytest.approx(each.mean(), rel=1e-6)
    assert found["loss/low"] == pytest.approx(each.min(), rel=1e-6)
    assert [found[f"top1{end}"] for end in ("/low", "", "/high")] == [0, 1 / 2, 1]
    assert found["map/low"] < found["map"] < found["map/high"]
    assert found["count"] == 3


def test_the_corruption_error_of_alexnet_is_1():
    every = [(k, s) for k in measures.ALEXNET for s in datasets.SEVERITIES]
    top1 = {f"{kind}_{severity}": 1 - measures.ALEXNET[kind] for kind, severity in every}
    assert measures.mean_corruption_error(top1) == pytest.approx(1, rel=1e-12)
    # Half the error on one of fifteen; other corruptions do not count.
    top1 |= {f"fog_{severity}": 1 - 0.819324 / 2 for severity in datasets.SEVERITIES}
    top1 |= {"saturate_2": 0.5, "snow_5": 1.0}
    assert measures.mean_corruption_error(top1) == pytest.approx(14.3 / 15, rel=1e-12)
    del top1["snow_4"]
    assert measures.mean_corruption_error(top1) is None
    assert tuple(measures.ALEXNET) == datasets.CORRUPTIONS[:15]
