"""What a finding consists of: trainings, claims about their measures, and a figure."""

import dataclasses
import math
from typing import Any

VALIDATION, TEST, FEW_SHOT = "top1", "test/top1", "fewshot"
Options = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measurement of a trained network, in addition to its splits.

    Attributes:
      kind: `fewshot`, `attention` or `positions`; see `measures`.
      options: options of the run to measure with, by dotted name.
    """

    kind: str
    options: Options = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A run that is repeated with several rates and seeds; findings that name equal ones share it.

    Attributes:
      label: what tables call it.
      options: of its config, by dotted name.
      rates: learning rates to choose among on held-out images.
      origin: the training whose weights initialize it, seed by seed.
      measurements: additional measurements.
    """

    label: str
    options: Options
    rates: tuple[float, ...]
    origin: "Training | None" = None
    measurements: tuple[Measurement, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
    """One part of a contrast: a weight times a measure of a training."""

    weight: float
    training: Training
    measure: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement about a contrast, the weighted sum of measures of runs with the same seed.

    It is supported if the 95 % interval of the contrast's mean lies between `low` and `high`,
    refuted if it lies wholly outside, and otherwise undecided.

    Attributes:
      text: the statement in words.
      terms: the contrast.
      low, high: bounds of the contrast, if the statement holds.
      unit: of the contrast: `points` for differences of shares, `pixels`, or none.
    """

    text: str
    terms: tuple[Term, ...]
    low: float = 0.0
    high: float = math.inf
    unit: str = "points"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a figure: the means of measures of trainings over x."""

    name: str
    points: tuple[tuple[float, Training, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FindingFigure:
    """The figure of a finding: lines with error bars.

    Attributes:
      title: what y is.
      x: what x is.
      lines: the lines.
      log_x: whether the x axis is logarithmic.
      ticks: names of places on x, instead of numbers.
      percent: whether y is a share, shown in %.
    """

    title: str
    x: str
    lines: tuple[Line, ...]
    log_x: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    percent: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding of the paper, written down before it is run.

    Attributes:
      name: its identifier on the command line.
      statement: what the paper finds.
      place: the section, figure or table that says so.
      refuted_by: the outcome that would refute it.
      claims: what is tested. The finding is supported if all of them are, refuted if one is.
      figure: what is drawn.
    """

    name: str
    statement: str
    place: str
    refuted_by: str
    claims: tuple[Claim, ...]
    figure: FindingFigure

    @property
    def trainings(self) -> list[Training]:
        """Every training once, those that others begin with first."""
        used = [term.training for claim in self.claims for term in claim.terms]
        used += [training for line in self.figure.lines for _, training, _ in line.points]
        found: dict[Training, None] = {}
        for training in used:
            chain = [training]
            while chain[-1].origin is not None:
                chain.append(chain[-1].origin)
            found |= dict.fromkeys(reversed(chain))
        return list(found)
