"""Verdicts: contrasts over seeds, corrected for their number, decided only where a control passes.

A claim is decided by Student's t over the seeds. The p-values of every claim and control of a
scale are corrected together (Holm), so that more claims do not mean more false verdicts. A claim
stays undecided while a learning rate it rests on is the end of its grid: a better one may lie
beyond. A finding stays undecided while its control does not hold: a study that misses an effect
known to exist says nothing about others.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

from research.findings.declaration import Claim, Finding, Training
from research.findings.planning import FindingsStudy
from vit_jax.utils import intervals

HOLDS, FAILS, UNDECIDED, NOT_RUN = "holds", "fails", "undecided", "not run"
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced at this scale"
OUT_OF_SCOPE = "out of scope"
ALPHA = 1 - intervals.LEVEL
POWER = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim with its contrast.

    Attributes:
      values: the contrast with each seed that all its runs have finished.
      mean: over seeds; None without values.
      half: half the 95 % interval of the mean; None for fewer than two values.
      p: Holm's p-value of `verdict`; None for fewer than two values.
      detectable: the distance from a bound that a claim tested alone, with these seeds and this
        spread, would notice with 80 % power; None for fewer than two values.
      verdict: `holds`, `fails`, `undecided` or `not run`.
      reason: why it is undecided, where the interval does not say.
    """

    claim: Claim
    values: tuple[float, ...]
    mean: float | None
    half: float | None
    p: float | None
    detectable: float | None
    verdict: str
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedFinding:
    """A finding with its claims.

    The control is None, and the reason says why, where it is out of scope.
    """

    finding: Finding
    control: JudgedClaim | None
    claims: tuple[JudgedClaim, ...]
    verdict: str
    reason: str = ""


def measured(study: FindingsStudy, training: Training, measure: str) -> dict[int, float]:
    """A measure of the finished runs at the best rate, by seed."""
    every = finished(study, training).items()
    return {seed: float(found[measure]) for seed, found in every if measure in found}


def finished(study: FindingsStudy, training: Training) -> dict[int, Mapping[str, float]]:
    """All measures of the finished runs at the best rate, by seed."""
    cells = {cell.cfg.seed: study.records.measures(cell) for cell in study.cells(training)}
    return {seed: found for seed, found in cells.items() if found is not None}


def judge(study: FindingsStudy) -> list[JudgedFinding]:
    """The verdict on each selected finding; all that are declared count in Holm's correction."""
    claims = list(dict.fromkeys(c for finding in study.declared for c in finding.tested))
    contrasts = {claim: contrast(study, claim) for claim in claims}
    corrected = dict(zip(claims, holm([p_value(c, contrasts[c]) for c in claims]), strict=True))
    found = {c: _judged(study, c, contrasts[c], corrected[c]) for c in claims}
    return [overall(one, [found[claim] for claim in one.tested]) for one in study.findings]


def contrast(study: FindingsStudy, claim: Claim) -> tuple[float, ...]:
    """The contrast of a claim with each seed that all its runs have finished."""
    each = [(term.weight, measured(study, term.training, term.measure)) for term in claim.terms]
    seeds = [seed for seed in study.size.seeds if all(seed in values for _, values in each)]
    return tuple(sum(weight * values[seed] for weight, values in each) for seed in seeds)


def tails(claim: Claim, values: Sequence[float]) -> tuple[float, float]:
    """One-sided p-values that a claim holds, and that it fails, of two or more values.

    To hold, the mean must be above `low` and below `high`, so the larger of both p-values counts
    (two one-sided tests); to fail, beyond one of them, so the smaller does.
    """
    mean, error = statistics.fmean(values), intervals.standard_error(values)
    t = stats.t(len(values) - 1)
    low, high = _ratio(mean - claim.low, error), _ratio(mean - claim.high, error)
    return max(t.sf(low), t.cdf(high)), min(t.cdf(low), t.sf(high))


def _ratio(difference: float, error: float) -> float:
    """A t statistic; of equal values, whose error is 0, the sign of the difference without end."""
    if error or not difference:
        return difference / (error or 1.0)
    return math.copysign(math.inf, difference)


def p_value(claim: Claim, values: Sequence[float]) -> float:
    """The two-sided p-value of the likelier of holding and failing; 1.0 for fewer than two."""
    return min(1.0, 2 * min(tails(claim, values))) if len(values) > 1 else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number.

    S. Holm, A simple sequentially rejective multiple test procedure, 1979: the k-th smallest of m
    is multiplied by m - k + 1, and none is smaller than the one before it.
    """
    corrected, largest = [1.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = largest
    return corrected


def _judged(
    study: FindingsStudy, claim: Claim, values: tuple[float, ...], corrected: float
) -> JudgedClaim:
    trainings = dict.fromkeys(term.training for term in claim.terms)
    verdict, reason = decide(claim, values, corrected, needed=len(study.size.seeds))
    if verdict != NOT_RUN and (ends := [o for one in trainings if (o := study.at_an_end(one))]):
        verdict, reason = UNDECIDED, f"learning rate of {ends[0].label} not bracketed"
    some = len(values) > 1
    return JudgedClaim(
        claim=claim,
        values=values,
        mean=statistics.fmean(values) if values else None,
        half=intervals.half_width(values),
        p=corrected if some else None,
        detectable=detectable(values) if some else None,
        verdict=verdict,
        reason=reason,
    )


def decide(
    claim: Claim, values: Sequence[float], corrected: float, *, needed: int
) -> tuple[str, str]:
    """The verdict on a claim from the contrast of each seed, and a reason.

    With fewer than `needed` values, the number of seeds declared, it is `undecided`: to stop when
    the interval looks good would be choosing the verdict. `not run` without any. `corrected` is
    Holm's p-value.
    """
    if not values:
        return NOT_RUN, ""
    if len(values) < max(needed, 2):
        return UNDECIDED, f"{len(values)} of {needed} seeds"
    if corrected < ALPHA:
        holds, fails = tails(claim, values)
        return (HOLDS if holds < fails else FAILS), ""
    return UNDECIDED, "Holm's correction" if p_value(claim, values) < ALPHA else ""


def detectable(values: Sequence[float]) -> float:
    """The distance from a bound that a two-sided t test would notice with 80 % power.

    The usual approximation: the quantiles of both errors, times the standard error.
    """
    t = stats.t(len(values) - 1)
    return (t.ppf(1 - ALPHA / 2) + t.ppf(POWER)) * intervals.standard_error(values)


def overall(finding: Finding, judged: Sequence[JudgedClaim]) -> JudgedFinding:
    """The verdict on a finding: not reproduced if one claim fails, reproduced if all hold.

    Judged are those it tests, in that order: the control, then the claims.
    """
    control, claims = (judged[0], tuple(judged[1:])) if finding.control else (None, tuple(judged))
    verdicts, reason = {one.verdict for one in claims}, ""
    if finding.out_of_scope:
        verdict, reason = OUT_OF_SCOPE, finding.out_of_scope
    elif verdicts == {NOT_RUN}:
        verdict = NOT_RUN
    elif control is None or control.verdict != HOLDS:
        states = [control.verdict, control.reason] if control else ["not declared"]
        verdict, reason = UNDECIDED, f"its control: {', '.join(filter(None, states))}"
    elif FAILS in verdicts:
        verdict = NOT_REPRODUCED
    else:
        verdict = REPRODUCED if verdicts == {HOLDS} else UNDECIDED
    return JudgedFinding(
        finding=finding, control=control, claims=claims, verdict=verdict, reason=reason
    )
