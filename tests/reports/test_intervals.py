"""Intervals and paired differences beside scipy.stats, and values of the table of Student's t."""

import numpy as np
import pytest
from scipy import stats

from vit_jax.reports import intervals

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


@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_paired_test_is_scipys(count):
    rng = np.random.default_rng(count)
    shared = rng.normal(0, 0.1, count)
    first, second = shared + rng.normal(0.02, 0.01, count), shared + rng.normal(0, 0.01, count)
    found, wanted = intervals.paired(first, second), stats.ttest_rel(first, second)
    low, high = wanted.confidence_interval(0.95)
    assert found.p == pytest.approx(wanted.pvalue, rel=1e-9)
    assert found.mean == pytest.approx((low + high) / 2, rel=1e-9)
    assert found.half_width == pytest.approx((high - low) / 2, rel=1e-9)
    assert found.count == count
    assert found.significant == (wanted.pvalue < 0.05)


def test_what_pairs_share_cancels():
    found = intervals.paired([0.1, 0.5, 0.9], [0.0, 0.4, 0.8])
    assert found.mean == pytest.approx(0.1)
    assert found.significant
    assert intervals.paired([1.0, 2.0], [1.0, 2.0])[:3] == (0.0, 0.0, 1.0)
    assert not intervals.paired([1.0, 2.0], [2.0, 1.0]).significant
    with pytest.raises(ValueError, match="1 pairs"):
        intervals.paired([1.0], [2.0])
    with pytest.raises(ValueError, match="shorter"):
        intervals.paired([1.0, 2.0], [2.0])
