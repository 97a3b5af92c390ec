"""What a finding consists of: trainings, claims about their measures, and a figure."""

import dataclasses
import math
from typing import Any

VALIDATION, TEST, FEW_SHOT, TRAINING = "top1", "test/top1", "fewshot", "train/top1"
Options = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measurement of a trained network, in addition to its splits.

    Attributes:
      kind: of `measures.measure`: `fewshot`, `training`, `attention` and so on.
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
      rates: learning rates to choose among on held-out images; `FindingsStudy.search` adds to them.
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

    It holds if the contrast's mean is shown to lie between `low` and `high`, fails if it is shown
    to lie outside, and is otherwise undecided; see `verdicts`.

    Attributes:
      text: the statement in words.
      terms: the contrast.
      low, high: bounds of the contrast, if the statement holds.
      unit: of the contrast: `points` for differences of shares, `%` for shares, `pixels`, or none.
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
      contradiction: the outcome that would contradict it.
      control: an effect that is known to exist; a study that does not find it decides nothing.
      claims: what is tested. The finding is reproduced if all of them hold, not if one fails.
      figure: what is drawn.
      out_of_scope: why this study cannot test it; it then has no control, claims or figure.
    """

    name: str
    statement: str
    place: str
    contradiction: str = ""
    control: Claim | None = None
    claims: tuple[Claim, ...] = ()
    figure: FindingFigure | None = None
    out_of_scope: str = ""

    @property
    def tested(self) -> tuple[Claim, ...]:
        """The control, if there is one, and the claims."""
        return (*([self.control] if self.control else []), *self.claims)

    @property
    def trainings(self) -> list[Training]:
        """Every training once, those that others begin with first."""
        used = [term.training for claim in self.tested for term in claim.terms]
        lines = self.figure.lines if self.figure else ()
        used += [training for line in lines for _, training, _ in line.points]
        found: dict[Training, None] = {}
        for training in used:
            chain = [training]
            while chain[-1].origin is not None:
                chain.append(chain[-1].origin)
            found |= dict.fromkeys(reversed(chain))
        return list(found)
