"""Bits flipped anywhere in a step are found; `research/corruption.py` flips a thousand."""

import jax.numpy as jnp
import numpy as np
import pytest

import stepping
from research import corruption


@pytest.fixture(scope="module")
def trainer():
    found = stepping.Stepper(stepping.configure(**corruption.CFG), devices=2)
    found.run(20)
    return found


@pytest.mark.slow
def test_flips_in_every_place_are_found(trainer):
    compiled = corruption.faulty_step(trainer)
    lines = [{"flips": corruption.strike(trainer, compiled, 40, np.random.default_rng(0))}]
    counts, _, _ = corruption.totals(lines)
    assert counts.keys() == {*corruption.WITHIN, *corruption.BETWEEN}
    for place, found in counts.items():
        assert 0 < found["changed"] == found["found"], place
        assert found["false alarms"] == found["saved wrong"] == 0, place
    assert sum(found["ended the run"] for found in counts.values()) > 5


def test_a_flip_within_a_program():
    x = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
    flipped = np.asarray(corruption.flip_within(x, np.uint32(10), np.uint32(1 << 31)))
    np.testing.assert_array_equal(flipped, [[0, 1, 2], [3, -4, 5]])  # element 10 modulo 6
