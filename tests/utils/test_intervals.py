"""Intervals beside scipy.stats, and values of the table of Student's t."""

import numpy as np
import pytest
from scipy import stats

from vit_jax.utils import intervals

# Two-sided 95 %, degrees of freedom 1, 2, 4, 9, 29, 120: as tables print them.
PRINTED = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 29: 2.045, 120: 1.980}


@pytest.mark.parametrize(("freedom", "printed"), PRINTED.items())
def test_quantiles(freedom, printed):
    assert intervals.quantile(freedom) == pytest.approx(printed, abs=5e-4)
    assert intervals.quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 10, 200])
def test_an_interval_is_scipys(count):
    values = np.random.default_rng(count).normal(0.8, 0.05, count)
    low, high = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    half = intervals.half_width(list(values))
    assert half == pytest.approx((high - low) / 2, rel=1e-12)


def test_one_value_has_no_interval():
    assert intervals.half_width([0.5]) is None
    assert intervals.half_width([]) is None


def test_a_spread_by_hand():
    assert intervals.spread([5.0]) == {"mean": 5.0, "std": None, "ci95": None, "values": [5.0]}
    found = intervals.spread([1.0, 3.0])
    assert found["mean"] == 2.0
    assert found["std"] == pytest.approx(2**0.5)
    assert found["ci95"] == pytest.approx(12.706, abs=5e-4)  # standard error 1
