"""The mean corruption error, by hand, and sets that are missing."""

import pytest

import toys
from vit_jax.data import datasets
from vit_jax.evaluation import corruptions

AT = [f"{kind}_{severity}" for kind in corruptions.ALEXNET for severity in datasets.SEVERITIES]


def test_the_fifteen_corruptions_come_first():
    assert tuple(corruptions.ALEXNET) == datasets.CORRUPTIONS[:15]
    assert len(AT) == 75


def test_alexnet_itself():
    top1 = {name: 1 - corruptions.ALEXNET[name[:-2]] for name in AT}
    assert corruptions.mean_corruption_error(top1) == pytest.approx(1, rel=1e-12)
    # Half the error on one of fifteen, whatever the severity it is at.
    top1 |= {f"fog_{severity}": 1 - 0.819324 / 2 for severity in datasets.SEVERITIES}
    assert corruptions.mean_corruption_error(top1) == pytest.approx(14.5 / 15, rel=1e-12)
    top1["snow_5"] = 1.0
    assert corruptions.mean_corruption_error(top1) == pytest.approx(14.3 / 15, rel=1e-12)


def test_sets_that_are_missing():
    every = {name: toys.always({"top1": 0.5, "count": 3}) for name in [*AT, "saturate_2"]}
    results = corruptions.Corruptions(every)(None, stop=lambda: False)
    expected = sum(0.5 / error for error in corruptions.ALEXNET.values()) / 15
    assert results["mce"] == pytest.approx(expected, rel=1e-12)
    assert results["saturate_2/count"] == 3
    exactly = {name: every[name] for name in AT}
    assert "mce" in corruptions.Corruptions(exactly)(None, stop=lambda: False)
    del every["snow_4"]
    results = corruptions.Corruptions(every)(None, stop=lambda: False)
    assert "mce" not in results
    assert len(results) == 2 * 75
    assert corruptions.Corruptions(every)(None, stop=lambda: True) is None
