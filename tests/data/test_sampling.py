"""Samples drawn by seed: each image as likely as another, none twice."""

import grain.experimental
import numpy as np
import pytest

from vit_jax.data import sampling


@pytest.mark.parametrize(
    ("length", "count"), [(10, 3), (10, 10), (10, 50), (1, 1), (5, 0), (10**12, 5)]
)
def test_numbers_are_drawn_without_replacement(length, count):
    """Of any length, which takes no memory."""
    drawn = sampling.draw_indices(length, count, 1)
    assert len(set(drawn)) == len(drawn) == min(length, count)
    assert all(0 <= one < length for one in drawn)


def test_a_seed_decides_and_more_begins_with_fewer():
    many = sampling.draw_indices(1000, 1000, 3)
    assert sorted(many) == list(range(1000))
    assert many != list(range(1000))
    for count in (1, 7, 500):
        assert sampling.draw_indices(1000, count, 3) == many[:count]
    assert sampling.draw_indices(1000, 7, 4) != many[:7]


def test_the_order_of_an_epoch():
    """NumPy's up to 2^16 - 1 examples, then Grain's: another order would be another run."""
    for total in (20, 2**16 - 1):
        expected = np.random.default_rng((3, 5)).permutation(total)
        for offset in (0, 1, total - 1):
            assert sampling.shuffled(3, 5, offset, total) == expected[offset]
    seed = int(np.random.SeedSequence((3, 5)).generate_state(1)[0])
    for total in (2**16, 10**6):
        for offset in (0, 1, total - 1):
            assert sampling.shuffled(3, 5, offset, total) == grain.experimental.index_shuffle(
                offset, max_index=total - 1, seed=seed, rounds=4
            )


LABELS = np.repeat([0, 1, 3], [60, 9, 1])  # of a long tail; class 2 has no image


@pytest.mark.parametrize(("kind", "power"), [("balanced", 0.0), ("sqrt", 0.5)])
def test_classes_have_their_share_of_every_epoch(kind, power):
    draw = sampling.ByClass(3, LABELS, kind)
    share = np.array([60, 9, 1]) ** power
    exact = 70 * share / share.sum()
    found = np.array([np.bincount(LABELS[draw.order(epoch)])[[0, 1, 3]] for epoch in range(400)])
    assert (found.sum(axis=1) == 70).all()
    assert (np.abs(found - exact) < 1).all()  # rounded up or down
    np.testing.assert_allclose(found.mean(axis=0), exact, atol=0.1)


def test_a_class_gives_every_image_before_one_comes_twice():
    draw = sampling.ByClass(0, LABELS, "balanced")
    for epoch in range(5):
        counts = np.bincount(draw.order(epoch), minlength=70)
        assert counts[:60].max() == 1
        assert set(counts[60:69]) <= {2, 3}
    seen = np.concatenate([draw.order(epoch)[LABELS[draw.order(epoch)] == 0] for epoch in range(9)])
    assert len(set(seen)) > 55  # another part of the large class each time
