"""Confidence intervals of means over a few runs, by Student's t."""

import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

LEVEL = 0.95


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % confidence interval of the mean.

    The values are taken as independent and about normal, their deviation as unknown (Student's t
    with n - 1 degrees of freedom). None for fewer than two: one run says nothing of its spread.
    """
    if len(values) < 2:
        return None
    return quantile(len(values) - 1) * standard_error(values)


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of two or more values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def spread(values: Sequence[float]) -> dict[str, Any]:
    """The values with their mean, sample standard deviation and 95 % interval.

    `ci95` is half the width of the confidence interval of the mean; it and `std` are None for a
    single value.
    """
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "ci95": half_width(values),
        "values": list(values),
    }


@functools.cache
def quantile(freedom: int) -> float:
    """Half of a 95 % interval in standard errors, by degrees of freedom."""
    from scipy import special  # jax brings it; a report without intervals need not wait for it

    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))
