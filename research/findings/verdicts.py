"""Verdicts: intervals of contrasts over seeds, and whether they support a claim."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from research.findings.declaration import Claim, Finding, Training
from research.findings.planning import FindingsStudy
from vit_jax.utils import intervals

SUPPORTED, REFUTED, UNDECIDED, NOT_RUN = "supported", "refuted", "undecided", "not run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim with its contrast.

    Attributes:
      claim: the claim.
      values: the contrast with each seed that all its runs have finished.
      mean: over seeds; None without values.
      half: half the 95 % interval of the mean; None for fewer than two values.
      verdict: `supported`, `refuted`, `undecided` or `not run`.
    """

    claim: Claim
    values: tuple[float, ...]
    mean: float | None
    half: float | None
    verdict: str


def measured(study: FindingsStudy, training: Training, measure: str) -> dict[int, float]:
    """A measure of the finished runs at the chosen rate, by seed."""
    every = finished(study, training).items()
    return {seed: float(found[measure]) for seed, found in every if measure in found}


def finished(study: FindingsStudy, training: Training) -> dict[int, Mapping[str, float]]:
    """All measures of the finished runs at the chosen rate, by seed."""
    cells = {cell.cfg.seed: study.records.measures(cell) for cell in study.cells(training)}
    return {seed: found for seed, found in cells.items() if found is not None}


def judge(study: FindingsStudy, claim: Claim) -> Judged:
    """A claim with its contrast, paired by seed, and its verdict."""
    each = [(term.weight, measured(study, term.training, term.measure)) for term in claim.terms]
    seeds = [seed for seed in study.size.seeds if all(seed in values for _, values in each)]
    contrast = [sum(weight * values[seed] for weight, values in each) for seed in seeds]
    half = intervals.half_width(contrast)
    return Judged(
        claim=claim,
        values=tuple(contrast),
        mean=statistics.fmean(contrast) if contrast else None,
        half=half,
        verdict=verdict(claim, contrast, needed=len(study.size.seeds)),
    )


def verdict(claim: Claim, values: Sequence[float], *, needed: int) -> str:
    """The verdict on a claim from the contrast of each seed.

    With fewer than `needed` values, the number of seeds declared, it is `undecided`: to stop when
    the interval measurements good would be choosing the verdict. `not run` without any.
    """
    if not values:
        return NOT_RUN
    half = intervals.half_width(values)
    if half is None or len(values) < needed:
        return UNDECIDED
    low, high = statistics.fmean(values) - half, statistics.fmean(values) + half
    if claim.low < low and high < claim.high:
        return SUPPORTED
    if high < claim.low or claim.high < low:
        return REFUTED
    return UNDECIDED


def overall(finding: Finding, judged: Sequence[Judged]) -> str:
    """The verdict on a finding: refuted if one claim is, supported if all are."""
    found = {one.verdict for one in judged}
    assert len(judged) == len(finding.claims)
    if found == {NOT_RUN}:
        return NOT_RUN
    if REFUTED in found:
        return REFUTED
    return SUPPORTED if found == {SUPPORTED} else UNDECIDED
