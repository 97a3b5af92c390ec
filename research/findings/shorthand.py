"""Short forms of what several findings declare."""

import dataclasses
from typing import Any

from research.findings.arms import Arms, sorted_options
from research.findings.declaration import TEST, Claim, FindingFigure, Line, Term, Training

MARGIN = 0.02  # differences below two points of accuracy count as alike
OWN = "top-1, its own test images"
COMPUTE = "compute of the pre-training, petaFLOPs"


def changed(training: Training, label: str, **more: Any) -> Training:
    """A training with other options, by dotted names with `__` for the dot."""
    options = dict(training.options) | {k.replace("__", "."): v for k, v in more.items()}
    few_shot = tuple(m for m in training.measurements if m.kind == "fewshot")
    return dataclasses.replace(
        training, label=label, options=sorted_options(options), measurements=few_shot
    )


def difference(text: str, better: Training, worse: Training, **bounds: Any) -> Claim:
    """The claim that one training is ahead of another on test images, or within bounds of it."""
    terms = (Term(weight=1.0, training=better, measure=TEST),
             Term(weight=-1.0, training=worse, measure=TEST))  # fmt: skip
    return Claim(text=text, terms=terms, **bounds)


def line(name: str, trainings: list[tuple[float, Training]]) -> Line:
    """A line of a figure, of top-1 on test images."""
    return Line(name=name, points=tuple((x, training, TEST) for x, training in trainings))


def named(points: dict[str, tuple[Training, str]], title: str = OWN) -> FindingFigure:
    """A figure of trainings with a measure of each, by name."""
    places = tuple((float(x), training, measure)
                   for x, (training, measure) in enumerate(points.values()))  # fmt: skip
    ticks = tuple((float(x), name) for x, name in enumerate(points))
    return FindingFigure(title=title, x="", lines=(Line(name="", points=places),), ticks=ticks)


def single(text: str, training: Training, measures: dict[str, float], **more: Any) -> Claim:
    """A claim about the weighted measures of one training."""
    terms = tuple(Term(weight=weight, training=training, measure=measure)
                  for measure, weight in measures.items())  # fmt: skip
    return Claim(text=text, terms=terms, **more)


def trained(arms: Arms) -> Claim:
    """The control of what is read off a network: it has learned its task."""
    least = arms.size.learned
    return single(f"the ViT M classifies {least:.0%} of its own test images or more", arms.base,
                  {TEST: 1.0}, low=least, unit="%")  # fmt: skip
