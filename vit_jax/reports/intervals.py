"""Confidence intervals of means over a few runs, and paired differences, by Student's t."""

import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.95


class Difference(NamedTuple):
    """The mean difference of pairs.

    Attributes:
      mean: of first - second.
      half_width: of its 95 % confidence interval.
      p: the two-sided p-value of the paired t-test.
      count: the number of pairs.
    """

    mean: float
    half_width: float
    p: float
    count: int

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.mean) > self.half_width


def half_width(values: Sequence[float]) -> float | None:
    """Returns half the width of the 95 % confidence interval of the mean.

    The values are taken as independent and about normal, their deviation as unknown (Student's t
    with n - 1 degrees of freedom). None for fewer than two: one run says nothing of its spread.
    """
    if len(values) < 2:
        return None
    return quantile(len(values) - 1) * standard_error(values)


def standard_error(values: Sequence[float]) -> float:
    """Returns the standard error of the mean of two or more values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def paired(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Returns the paired t-test of two or more pairs, such as runs of two networks by seed.

    Raises ValueError where there are not as many of each, or fewer than two.
    """
    from scipy import special  # jax brings it; a report without intervals need not wait for it

    each = [a - b for a, b in zip(first, second, strict=True)]
    if len(each) < 2:
        raise ValueError(f"{len(each)} pairs: a paired test needs at least 2")
    mean, error = statistics.fmean(each), standard_error(each)
    if error:
        p = 2 * float(special.stdtr(len(each) - 1, -abs(mean) / error))
    else:
        p = 0.0 if mean else 1.0
    return Difference(mean, quantile(len(each) - 1) * error, p, len(each))


@functools.cache
def quantile(freedom: int) -> float:
    """Returns how many standard errors half of a 95 % interval is, by degrees of freedom."""
    from scipy import special

    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))
