import types

import jax
import numpy as np
import pytest

from vit_jax import config
from vit_jax.training import losses

LOGITS = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32) * 3
LABELS = np.array([0, 6, 3, 3, 1], np.int32)
MINE = types.SimpleNamespace(name="mine")  # the section of a plug-in's loss


def targets(smoothing):
    return np.eye(7)[LABELS] * (1 - smoothing) + smoothing / 7


def test_a_loss_of_ones_own_gets_targets(monkeypatch):
    def mine(logits, targets):
        return (logits * targets).sum(-1)

    monkeypatch.setattr(losses.components, "make", lambda *names: mine)
    found = losses.cross_entropy(LOGITS, LABELS, loss=MINE)
    np.testing.assert_allclose(found, LOGITS[np.arange(5), LABELS], rtol=1e-6)


@pytest.mark.parametrize(
    "returned", [np.zeros(5, np.int32), np.zeros((5, 7), np.float32), np.float32(1)]
)
def test_a_loss_that_is_none_of_each_example(returned, monkeypatch):
    monkeypatch.setattr(losses.components, "make", lambda *names: lambda *given: returned)
    with pytest.raises(config.ConfigError, match=r"must return the loss of each example, floats"):
        losses.cross_entropy(LOGITS, LABELS, loss=MINE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_against_float64(smoothing):
    x = LOGITS.astype(np.float64)
    log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
    expected = -(targets(smoothing) * log_p).sum(-1)
    ours = losses.cross_entropy(
        LOGITS, LABELS, loss=config.Loss(name="softmax"), smoothing=smoothing
    )
    np.testing.assert_allclose(ours, expected, rtol=2e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sigmoid_against_float64(smoothing):
    p = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    t = targets(smoothing)
    expected = -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum(-1)
    ours = losses.cross_entropy(
        LOGITS, LABELS, loss=config.Loss(name="sigmoid"), smoothing=smoothing
    )
    np.testing.assert_allclose(ours, expected, rtol=2e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_shares_of_classes_against_float64(kind, smoothing):
    loss = config.Loss(name=kind)
    labels = np.random.default_rng(1).dirichlet(np.full(7, 0.3), size=5).astype(np.float32)
    t = labels * (1 - smoothing) + smoothing / 7
    x = LOGITS.astype(np.float64)
    if kind == "softmax":
        expected = -(t * (x - np.log(np.exp(x).sum(-1, keepdims=True)))).sum(-1)
    else:
        p = 1 / (1 + np.exp(-x))
        expected = -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum(-1)
    ours = losses.cross_entropy(LOGITS, labels, loss=loss, smoothing=smoothing)
    np.testing.assert_allclose(ours, expected, rtol=2e-6)
    certain = np.eye(7, dtype=np.float32)[LABELS]
    np.testing.assert_array_equal(
        losses.cross_entropy(LOGITS, certain, loss=loss, smoothing=smoothing),
        losses.cross_entropy(LOGITS, LABELS, loss=loss, smoothing=smoothing),
    )


def test_rank_of_label():
    logits = np.array(
        [
            [3, 2, 1, 0],
            [0, 0, 0, 0],
            [0, 0, 0, 0],
            [1, 5, 5, 2],
            [np.nan, 1, 2, 3],
            [0, np.inf, 1, 2],
        ],
        np.float32,
    )
    labels = np.array([0, 0, 3, 2, 3, 1], np.int32)
    # A tie goes to the lower index, as argmax has it; NaN is never right.
    expected = [0, 0, 3, 1, 4, 0]
    np.testing.assert_array_equal(jax.jit(losses.rank_of_label)(logits, labels), expected)
    clean = logits[[0, 1, 2, 3, 5]]
    np.testing.assert_array_equal(
        np.asarray(losses.rank_of_label(clean, labels[[0, 1, 2, 3, 5]])) == 0,
        clean.argmax(-1) == labels[[0, 1, 2, 3, 5]],
    )
