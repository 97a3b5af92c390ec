"""Confident learning, by its definition and as cleanlab finds it."""

import numpy as np

from vit_jax.inference.doctor import label_errors


def draw(count=40, classes=3):
    random = np.random.default_rng(5)
    labels = np.concatenate([np.arange(classes), random.integers(0, classes, count - classes)])
    logits = random.normal(size=(count, classes)) + 1.5 * np.eye(classes)[labels]
    odds = np.exp(logits)
    return labels, odds / odds.sum(axis=1, keepdims=True)


def test_the_definition():
    labels, p = draw()
    found, errors = label_errors.find(labels, p)
    thresholds = [np.mean([p[i, k] for i in range(40) if labels[i] == k]) for k in range(3)]
    for i in range(40):
        above = [k for k in range(3) if p[i, k] >= thresholds[k]]
        belongs = max(above, key=lambda k: p[i, k]) if above else labels[i]
        assert found[i] == belongs
        assert errors[i] == (belongs != labels[i] and max(p[i]) > p[i, labels[i]])


def test_the_errors_are_those_of_cleanlab():
    """`find_label_issues(labels, p, filter_by="confident_learning")` of cleanlab 2.9.0."""
    _, errors = label_errors.find(*draw())
    assert np.flatnonzero(errors).tolist() == CLEANLAB


CLEANLAB = [12, 18]
