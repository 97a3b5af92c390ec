"""Samples drawn by seed: each image as likely as another, none twice."""

import collections

import grain.experimental
import numpy as np
import pytest

from vit_jax.data import sampling


@pytest.mark.parametrize(("length", "count"), [(10, 3), (10, 10), (10, 50), (1, 1), (5, 0)])
def test_numbers_are_drawn_without_replacement(length, count):
    drawn = sampling.draw(length, count, 1)
    assert len(set(drawn)) == len(drawn) == min(length, count)
    assert set(drawn) <= set(range(length))


def test_a_seed_decides_and_more_begins_with_fewer():
    many = sampling.draw(1000, 1000, 3)
    assert sorted(many) == list(range(1000))
    assert many != list(range(1000))
    for count in (1, 7, 500):
        assert sampling.draw(1000, count, 3) == many[:count]
    assert sampling.draw(1000, 7, 4) != many[:7]


def test_every_number_is_as_likely():
    """Chi-squared over 4,000 draws of 2 of 8, in both places; 7 degrees of freedom."""
    for place in (0, 1):
        seen = collections.Counter(sampling.draw(8, 2, seed)[place] for seed in range(4000))
        expected = 4000 / 8
        chi = sum((seen[number] - expected) ** 2 / expected for number in range(8))
        assert chi < 24.3  # exceeded by chance once in 1,000


def test_a_split_of_any_length_takes_no_memory():
    assert len(sampling.draw(10**12, 5)) == 5


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
