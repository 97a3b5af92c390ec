"""The linear probe: its head is the minimum, by scipy in float64; its l2 is chosen held out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import toys
from vit_jax.data import sources
from vit_jax.evaluation import features, fewshot, probe
from vit_jax.training import sharding


@pytest.fixture(scope="module")
def digits():
    """Pixels of 500 digits as features."""
    source = sources.Digits("train[:500]", "")
    images = np.stack([source[index].image.reshape(-1) for index in range(500)])
    return images.astype(np.float32), np.array([source[index].label for index in range(500)])


def test_the_minimum(digits, monkeypatch):
    x, y = digits
    monkeypatch.setattr(probe, "BLOCK", 64)
    monkeypatch.setattr(probe, "STRENGTHS", (0.1,))
    mesh = sharding.create_mesh(1)
    head, l2 = probe.learn(x, y, 10, mesh, stop=lambda: False)
    assert l2 == 0.1
    np.testing.assert_allclose(head.mean, x.mean(0, np.float64), rtol=1e-12)
    np.testing.assert_allclose(head.scale, x.std(0, dtype=np.float64) + 1e-5, rtol=1e-12)
    inputs = (x - head.mean) / head.scale

    def objective(flat):
        weights, bias = flat[:640].reshape(64, 10), flat[640:]
        scores = inputs @ weights + bias
        log_p = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        wrong = np.exp(log_p) - np.eye(10)[y]
        gradient = [inputs.T @ wrong / 500 + l2 * weights, wrong.mean(0)]
        value = -log_p[np.arange(500), y].mean() + l2 / 2 * (weights**2).sum()
        return value, np.concatenate([part.ravel() for part in gradient])

    best = scipy.optimize.minimize(
        objective, np.zeros(650), jac=True, method="L-BFGS-B", options={"gtol": 1e-9, "ftol": 0}
    )
    ours = np.concatenate([head.weights.ravel(), head.bias])
    assert objective(ours)[0] == pytest.approx(best.fun, rel=1e-6)
    np.testing.assert_allclose(ours, best.x, rtol=0, atol=2e-4)


def test_accuracy_is_that_of_test_images(monkeypatch, caplog):
    split = toys.passing(toys.Toy(np.eye(4) * 200, [0, 1, 2, 2]), toys.configure(8))
    extract = features.Extractor(toys.Echo(), toys.configure(8).data)
    test = extract(0.0, split, stop=lambda: False)
    train = test._replace(labels=[jnp.full_like(part, 3) for part in test.labels])
    head = fewshot.Linear(np.zeros(4), np.ones(4), np.eye(4), np.zeros(4)), 0.1
    monkeypatch.setattr(probe, "learn", lambda *_, **__: head)
    found = probe.measure(train, test, features.Pair("x", split, split, 4), stop=lambda: False)
    assert found == {"top1": 3 / 4, "log10_l2": -1}
    assert "evaluation.probe=x: 4 of 4 test images are of classes without a" in caplog.text


def test_a_fifth_of_each_class_is_held_out():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 3, 4], [50, 4, 23]))
    parts = probe.fifths(labels)
    assert np.unique(labels[parts == 4], return_counts=True)[1].tolist() == [10, 4]
    assert np.unique(labels[parts == 0], return_counts=True)[1].tolist() == [10, 1, 5]
    np.testing.assert_array_equal(parts, probe.fifths(labels))


def test_of_a_small_class_one_image_is_held_out():
    labels = np.repeat([0, 1, 2, 5], [10, 4, 2, 1])
    held_out = probe.held_out_images(labels)
    assert np.unique(labels[held_out], return_counts=True)[1].tolist() == [2, 1, 1]
    assert not held_out[-1]  # without its only image, a class could not be learned


def test_of_single_images_none_is_held_out(caplog):
    """The head is then that of the largest l2, which is said."""
    x = np.eye(3, dtype=np.float32)
    mesh = sharding.create_mesh(1, jax.devices()[:1])
    head, l2 = probe.learn(x, np.arange(3), 3, mesh, stop=lambda: False)
    assert l2 == probe.STRENGTHS[0]
    scores = ((x - head.mean) / head.scale) @ head.weights + head.bias
    assert scores.argmax(axis=1).tolist() == [0, 1, 2]
    assert "no class has two training images" in caplog.text


def test_the_largest_of_equal_strengths_and_stopping(digits, monkeypatch):
    x, y = digits
    monkeypatch.setattr(probe, "minimize", lambda head, *_: head)
    monkeypatch.setattr(probe, "STRENGTHS", (1.0, 0.5))
    monkeypatch.setattr(probe.fewshot, "accuracy", lambda linear, test: 0.5)
    mesh = sharding.create_mesh(1, jax.devices()[:1])
    _, l2 = probe.learn(x, y, 10, mesh, stop=lambda: False)
    assert l2 == 1.0
    assert probe.learn(x, y, 10, mesh, stop=lambda: True) is None


@pytest.mark.slow
def test_an_image_is_judged_by_a_head_that_never_saw_its_label(digits, monkeypatch):
    x, y = digits
    monkeypatch.setattr(probe, "STRENGTHS", (0.1,))
    mesh, done = sharding.create_mesh(1, jax.devices()[:1]), []
    found = probe.cross_validate(x, y, 10, mesh, say=done.append)
    assert done == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert (found.argmax(axis=1) == y).mean() > 0.9
    rows = probe.fifths(y) == 3
    inputs = (x - x.mean(0)) / (x.std(0) + 1e-5)

    def objective(flat):
        scores = inputs[~rows] @ flat[:640].reshape(64, 10) + flat[640:]
        log_p = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        wrong = (np.exp(log_p) - np.eye(10)[y[~rows]]) / (~rows).sum()
        gradient = [inputs[~rows].T @ wrong + 0.1 * flat[:640].reshape(64, 10), wrong.sum(0)]
        value = -log_p[np.arange(len(log_p)), y[~rows]].mean() + 0.05 * (flat[:640] ** 2).sum()
        return value, np.concatenate([part.ravel() for part in gradient])

    best = scipy.optimize.minimize(
        objective, np.zeros(650), jac=True, method="L-BFGS-B", options={"gtol": 1e-9, "ftol": 0}
    ).x
    scores = inputs[rows] @ best[:640].reshape(64, 10) + best[640:]
    expected = np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))
    np.testing.assert_allclose(found[rows], expected, atol=2e-3)
