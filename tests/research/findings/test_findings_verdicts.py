import math

import pytest
from scipy import stats

from helpers.toy_findings import Runner, finding, study, training
from research.findings import verdicts
from research.findings.declaration import Claim

VALUES = (0.012, 0.031, 0.008, 0.022, 0.019)


def test_the_interval_is_that_of_a_paired_t_test(tmp_path):
    one, two = training("one", rates=(0.1,)), training("two", rates=(0.3,), train__clip_norm=1.0)
    lead = dict(zip(range(3), (0.05, 0.02, 0.03), strict=True))
    toy = study(tmp_path, finding(one, two))
    results = Runner(
        lambda cell: 0.5 + 0.01 * cell.cfg.seed + lead[cell.cfg.seed] * (cell.lr == 0.1)
    )
    toy.perform(run=results)
    judged = verdicts.judge(toy, toy.findings[0].claims[0])
    first = [0.5 + 0.011 * seed + lead[seed] for seed in lead]
    second = [0.5 + 0.011 * seed for seed in lead]
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert judged.mean is not None
    assert judged.half is not None
    assert judged.mean - judged.half == pytest.approx(expected.low, abs=1e-12)
    assert judged.mean + judged.half == pytest.approx(expected.high, abs=1e-12)


def interval():
    return stats.ttest_1samp(VALUES, 0.0).confidence_interval(0.95)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, math.inf, "supported"),
        (0.01, math.inf, "undecided"),
        (0.04, math.inf, "refuted"),
        (-math.inf, 0.0, "refuted"),
        (-0.05, 0.05, "supported"),
        (-0.02, 0.02, "undecided"),
        (-0.002, 0.002, "refuted"),
    ],
)
def test_verdict(low, high, expected):
    assert verdicts.verdict(Claim(text="", terms=(), low=low, high=high), VALUES, needed=5) == (
        expected
    )


def test_bounds_just_inside_and_outside_the_interval_decide():
    low, high = interval()
    for bound, expected in ((low - 1e-9, "supported"), (low + 1e-9, "undecided")):
        claim = Claim(text="", terms=(), low=bound)
        assert verdicts.verdict(claim, VALUES, needed=5) == expected
    for bound, expected in ((high - 1e-9, "undecided"), (high + 1e-9, "refuted")):
        claim = Claim(text="", terms=(), low=bound)
        assert verdicts.verdict(claim, VALUES, needed=5) == expected


def test_a_bound_at_the_end_of_the_interval_decides_nothing():
    """Equal values have an interval of one point."""
    for bounds in ({"low": 1.0}, {"high": 1.0}, {"low": 0.5, "high": 1.0}):
        claim = Claim(text="", terms=(), **bounds)
        assert verdicts.verdict(claim, (1.0, 1.0, 1.0), needed=3) == "undecided"


def test_fewer_seeds_than_declared_decide_nothing():
    claim = Claim(text="", terms=())
    assert verdicts.verdict(claim, VALUES[:4], needed=5) == "undecided"
    assert verdicts.verdict(claim, (1.0,), needed=1) == "undecided"
    assert verdicts.verdict(claim, (), needed=5) == "not run"


def test_a_finding_is_refuted_by_one_claim_and_supported_by_all(tmp_path):
    toy = finding(training("one"), training("two", train__clip_norm=1.0))

    def overall(*found):
        claims = toy.claims * len(found)
        judged = [
            verdicts.Judged(claim=c, values=(), mean=None, half=None, verdict=v)
            for c, v in zip(claims, found, strict=True)
        ]
        import dataclasses

        return verdicts.overall(dataclasses.replace(toy, claims=claims), judged)

    assert overall("supported", "supported") == "supported"
    assert overall("supported", "undecided") == "undecided"
    assert overall("undecided", "refuted", "supported") == "refuted"
    assert overall("not run", "supported") == "undecided"
    assert overall("not run", "not run") == "not run"
