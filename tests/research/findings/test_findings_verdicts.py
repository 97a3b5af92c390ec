import dataclasses
import math

import pytest
from scipy import stats

from helpers.toy_findings import Runner, finding, study, training
from research.findings import verdicts
from research.findings.declaration import Claim

VALUES = (0.012, 0.031, 0.008, 0.022, 0.019)
LEADS = (0.05, 0.02, 0.03)


def best_inside(cell, lead=LEADS):
    """Results whose best rate is the middle one; the first training leads by seed."""
    ahead = lead[cell.cfg.seed] if cell.cfg.train.clip_norm is None else 0.0
    return 0.5 + 0.01 * cell.cfg.seed + ahead - (0.1 if cell.lr != 0.1 else 0.0)


def toy_study(tmp_path, result=best_inside, **bounds):
    pair = training("one", train__clip_norm=None), training("two", train__clip_norm=1.0)
    toy = study(tmp_path, finding(*pair, **bounds))
    toy.perform(run=Runner(result))
    return toy


def test_the_interval_and_the_p_value_are_those_of_a_paired_t_test(tmp_path):
    (judged,) = verdicts.judge(toy_study(tmp_path))
    (one,) = judged.claims
    first = [0.5 + 0.011 * seed + lead for seed, lead in enumerate(LEADS)]
    second = [0.5 + 0.011 * seed for seed in range(3)]
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval(0.95)
    assert one.mean - one.half == pytest.approx(interval.low, abs=1e-12)
    assert one.mean + one.half == pytest.approx(interval.high, abs=1e-12)
    # Two claims in all, and the control's p-value is smaller: this one is not multiplied.
    assert one.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert one.verdict == "undecided"  # at p = 0.067


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, math.inf, "holds"),
        (0.01, math.inf, "undecided"),
        (0.04, math.inf, "fails"),
        (-math.inf, 0.0, "fails"),
        (-0.05, 0.05, "holds"),
        (-0.02, 0.02, "undecided"),
        (-0.002, 0.002, "fails"),
    ],
)
def test_decide(low, high, expected):
    assert decided(Claim(text="", terms=(), low=low, high=high)) == expected


def decided(claim, values=VALUES, needed=5):
    verdict, _ = verdicts.decide(claim, values, verdicts.p_value(claim, values), needed=needed)
    return verdict


def test_bounds_just_inside_and_outside_the_interval_decide():
    low, high = stats.ttest_1samp(VALUES, 0.0).confidence_interval(0.95)
    for bound, expected in ((low - 1e-9, "holds"), (low + 1e-9, "undecided"),
                            (high - 1e-9, "undecided"), (high + 1e-9, "fails")):  # fmt: skip
        assert decided(Claim(text="", terms=(), low=bound)) == expected


def test_a_bound_at_the_end_of_the_interval_decides_nothing():
    """Equal values have an interval of one point."""
    for bounds in ({"low": 1.0}, {"high": 1.0}, {"low": 0.5, "high": 1.0}):
        assert decided(Claim(text="", terms=(), **bounds), (1.0, 1.0, 1.0), 3) == "undecided"
    assert decided(Claim(text="", terms=(), low=0.5), (1.0, 1.0, 1.0), 3) == "holds"
    assert decided(Claim(text="", terms=(), low=1.5), (1.0, 1.0, 1.0), 3) == "fails"


def test_fewer_seeds_than_declared_decide_nothing():
    claim = Claim(text="", terms=())
    assert verdicts.decide(claim, VALUES[:4], 0.0, needed=5) == ("undecided", "4 of 5 seeds")
    assert verdicts.decide(claim, (1.0,), 0.0, needed=1) == ("undecided", "1 of 1 seeds")
    assert verdicts.decide(claim, (), 1.0, needed=5) == ("not run", "")


def test_holm_is_statsmodels():
    """The values of statsmodels 0.14's multipletests(..., method="holm")."""
    found = verdicts.holm([0.01, 0.04, 0.03, 0.005, 0.9])
    assert found == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.9])
    assert verdicts.holm([]) == []


def test_what_only_the_correction_leaves_open_says_so():
    claim = Claim(text="", terms=())
    assert verdicts.decide(claim, VALUES, 0.06, needed=5) == ("undecided", "Holm's correction")


def test_the_detectable_distance_has_80_percent_power():
    """By the noncentral t distribution; the approximation is within 3 points at five seeds."""
    distance, error = verdicts.detectable(VALUES), stats.sem(VALUES)
    noncentral = stats.nct(4, distance / error)
    assert noncentral.sf(stats.t(4).ppf(0.975)) == pytest.approx(0.8, abs=0.03)


def test_every_declared_finding_counts_in_the_correction(tmp_path):
    one = toy_study(tmp_path)
    claims = one.declared[0].claims
    more = [dataclasses.replace(one.declared[0], name=f"other {n}", control=None,
                                claims=(dataclasses.replace(claims[0], low=0.03 + 0.001 * n),))
            for n in range(1, 4)]  # fmt: skip
    only = type(one)(one.size, [*one.declared, *more], one.records, tmp_path, only=["toy"])
    (alone,), (beside,) = verdicts.judge(one), verdicts.judge(only)
    assert [found.finding.name for found in (alone, beside)] == ["toy", "toy"]
    assert beside.control.p == pytest.approx(2.5 * alone.control.p)  # the smallest: x5, not x2


@pytest.mark.parametrize("best", [0.05, 0.2])
def test_a_rate_at_the_end_of_its_grid_decides_nothing(tmp_path, best):
    """However far it was extended: every step beyond is better than the one before."""

    def result(cell):
        further = math.log(cell.lr) * (1 if best == 0.2 else -1)
        ahead = 0.3 + 0.001 * cell.cfg.seed if cell.cfg.train.clip_norm is None else 0.0
        return 0.5 + 0.01 * further + ahead

    (judged,) = verdicts.judge(toy_study(tmp_path, result))
    assert judged.verdict == "undecided"
    assert judged.claims[0].reason == "learning rate of one not bracketed"


def overall(control, *claims):
    toy = finding(training("one"), training("two", train__clip_norm=1.0))
    judged = [
        verdicts.JudgedClaim(claim=toy.claims[0], values=(), mean=None, half=None, p=None,
                             detectable=None, verdict=verdict)
        for verdict in (control, *claims)
    ]  # fmt: skip
    found = verdicts.overall(dataclasses.replace(toy, claims=toy.claims * len(claims)), judged)
    return found.verdict, found.reason


def test_a_finding_is_reproduced_by_all_claims_and_not_if_one_fails():
    assert overall("holds", "holds", "holds") == ("reproduced", "")
    assert overall("holds", "holds", "undecided") == ("undecided", "")
    assert overall("holds", "undecided", "fails", "holds") == ("not reproduced at this scale", "")
    assert overall("holds", "not run", "holds") == ("undecided", "")
    assert overall("holds", "not run", "not run") == ("not run", "")


@pytest.mark.parametrize("control", ["fails", "undecided", "not run"])
def test_a_finding_whose_control_does_not_hold_is_undecided(control):
    assert overall(control, "holds") == ("undecided", f"its control: {control}")
    assert overall(control, "fails") == ("undecided", f"its control: {control}")


def test_what_is_out_of_scope_says_why(tmp_path):
    (judged,) = verdicts.judge(study(tmp_path, verdicts.Finding(
        name="far", statement="It is.", place="nowhere", out_of_scope="too large")))  # fmt: skip
    assert (judged.verdict, judged.reason, judged.claims) == ("out of scope", "too large", ())
