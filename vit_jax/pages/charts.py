"""Charts as SVG. Colors come from the page's style sheet, so that they follow dark mode."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from vit_jax.pages.markup import Markup, element

Point = tuple[float, float]
WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 38
MOST_POINTS = 500  # of a line, more than the pixels it is drawn in
CAP = 3.5  # half the width of the ends of error bars
COLORS = 8  # in the style sheet; further series repeat them, dashed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """Points in one color, drawn as a line, marks, or both.

    Attributes:
      name: what the legend calls it; empty: it is not in the legend.
      points: (x, y) pairs, in drawing order.
      color: index of a color of the page.
      line: `solid`, `dashed`, `faint`, or `none`.
      marks: whether every point is marked.
      hollow: whether the marks are not filled.
      errors: half the length of each point's error bar; None: no bar.
    """

    name: str
    points: Sequence[Point]
    color: int = 0
    line: str = "solid"
    marks: bool = False
    hollow: bool = False
    errors: Sequence[float | None] = ()

    @property
    def reach(self) -> list[float]:
        """All y values to show: points and the ends of their error bars."""
        # Not strict: most series have no errors at all.
        bars = zip(self.points, self.errors, strict=False)
        ends = [y + sign * error for (_, y), error in bars if error for sign in (-1, 1)]
        return [y for _, y in self.points] + ends


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Series in one frame.

    Attributes:
      title: name of y.
      x: name of x.
      log_x, log_y: whether an axis is logarithmic.
      percent: whether y is a fraction, shown in %.
      zero: whether y begins at 0.
      ticks: (x, name) pairs that replace the numbers on x.
    """

    title: str
    series: Sequence[Series]
    x: str = "step"
    log_x: bool = False
    log_y: bool = False
    percent: bool = False
    zero: bool = False
    ticks: Sequence[tuple[float, str]] = ()

    @property
    def drawn(self) -> list[Series]:
        """The series without points that are not finite, or not positive on a logarithmic axis."""
        kept = []
        for one in self.series:
            shown = [i for i, point in enumerate(one.points) if self._shown(point)]
            if shown:
                points = [one.points[i] for i in shown]
                errors = [one.errors[i] for i in shown] if one.errors else ()
                kept.append(dataclasses.replace(one, points=points, errors=errors))
        return kept

    def _shown(self, point: Point) -> bool:
        x, y = point
        finite = math.isfinite(x) and math.isfinite(y)
        return finite and (x > 0 or not self.log_x) and (y > 0 or not self.log_y)


class Axis:
    """Maps values to positions in [0, 1], and places ticks."""

    def __init__(self, values: Iterable[float], *, log: bool, zero: bool) -> None:
        known = list(values)
        low, high = min(known), max(known)  # the caller has at least one value
        if zero:
            low = min(low, 0.0)
        # A constant needs an axis of some length.
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
        elif log:
            room = (high / low) ** 0.04  # 4 % of the axis on either side, as below
            low, high = low / room, high * room
        else:
            room = 0.04 * (high - low)
            # Nothing is drawn below an axis that starts at 0.
            low, high = low - (0.0 if zero and low == 0 else room), high + room
        self.log, self.low, self.high = log, low, high

    def place(self, value: float) -> float:
        """The position of a value in [0, 1]."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int, *, whole: bool = False) -> list[float]:
        """At most about `most` round values within the axis; `whole` ones where they are steps."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for factors in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8)):
                found = [f * 10.0**d for d in decades for f in factors]
                found = [v for v in found if self.low <= v <= self.high]
                if len(found) >= 3:  # the sparsest set of factors that gives a readable axis
                    # The stride is rounded up, so that at most `most` remain.
                    return found[:: -(-len(found) // most)]
        # Also a logarithmic axis that spans too little for three of the above.
        raw = (self.high - self.low) / most
        unit = 10.0 ** math.floor(math.log10(raw))
        # 0.9: rather one tick more than a step that is twice as long.
        step = unit * min(f for f in (1, 2, 5, 10) if f * unit >= 0.9 * raw)
        if whole:
            step = max(step, 1.0)
        first = math.ceil(self.low / step - 1e-9)  # 0.3 / 0.1 is below 3
        # Multiples, not repeated sums, whose rounding errors would show in the labels.
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def run_charts(points: Callable[[str], Sequence[Point]], splits: Sequence[str]) -> list[Chart]:
    """Loss, accuracy, learning rate and speed over the steps of a run.

    Args:
      points: gives the (step, value) pairs of a metric such as `train/loss`.
      splits: names of the splits that were evaluated, such as `validation` and `test`.
    """

    def train(key: str, name: str, line: str = "solid") -> Series:
        return Series(name=name, points=points(f"train/{key}"), line=line)

    def measured(key: str, label: str = "", line: str = "solid") -> list[Series]:
        return [
            Series(name=f"{split} {label}".strip(), points=points(f"{split}/{key}"),
                   color=color, line=line, marks=True)
            for color, split in enumerate(splits, start=1)
        ]  # fmt: skip

    accuracies = []
    # Masked patch prediction has `accuracy`, that of colors, in place of top-1 and top-5.
    kinds = (
        ("top1", "top-1", "solid"),
        ("top5", "top-5", "dashed"),
        ("accuracy", "colors", "solid"),
    )
    for key, label, line in kinds:
        accuracies += [train(key, f"train {label}", line), *measured(key, label, line)]
    errors = measured("mae")
    second = Chart(title="Accuracy", series=accuracies, percent=True, zero=True)
    # Numbers have no accuracy; classes in an order have both.
    if any(one.points for one in errors) and not any(one.points for one in accuracies):
        second = Chart(title="Mean absolute error", series=errors, zero=True)
    speed = Series(name="", points=points("speed/images_per_second"))
    losses = [train("loss", "train (augmented)"), *measured("loss")]
    return [
        Chart(title="Loss", series=losses, log_y=True),
        second,
        Chart(title="Learning rate", series=[train("lr", "")], zero=True),
        Chart(title="Images per second", series=[speed], zero=True),
    ]


def svg(chart: Chart) -> Markup:
    """The chart as SVG; one without points says so."""
    series = chart.drawn
    drawn: list[Markup] = []
    if series:
        across = [p[0] for s in series for p in s.points] + [at for at, _ in chart.ticks]
        x = Axis(across, log=chart.log_x, zero=False)
        # Of an error bar the lower end may be below 0, where a logarithmic axis has no place.
        reach = (y for s in series for y in s.reach if y > 0 or not chart.log_y)
        y = Axis(reach, log=chart.log_y, zero=chart.zero)
        drawn = [
            *_grid(chart, x, y),
            *(part for one in series for part in _series(chart, one, x, y)),
        ]
    else:
        drawn = [_text("nothing measured yet", WIDTH / 2, HEIGHT / 2, "tick middle")]
    return element(
        "svg", *drawn, class_="chart", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
        aria_label=_spoken(chart, series),
    )  # fmt: skip


def number(value: float, *, percent: bool = False) -> str:
    """A value as an axis label: `0.5`, `0.0003`, `20 %`, `15k`, `3e-5`."""
    if percent:
        return f"{100 * value:.4g} %"
    if abs(value) >= 1e6 or abs(value) < 1e-4:  # of which 0 is 0
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-")
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.4g}"


def _grid(chart: Chart, x: Axis, y: Axis) -> Iterable[Markup]:
    for value in y.ticks(5):
        at = _down(y.place(value))
        yield element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid")
        yield _text(number(value, percent=chart.percent), LEFT - 6, float(at) + 4, "tick end")
    ticks = chart.ticks or [(value, number(value)) for value in x.ticks(6, whole=chart.x == "step")]
    for value, name in ticks:
        at = _across(x.place(value))
        yield _text(name, float(at), HEIGHT - BOTTOM + 16, "tick middle")
    base = HEIGHT - BOTTOM
    yield element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="base")
    yield _text(chart.x, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, "tick middle")


def _series(chart: Chart, one: Series, x: Axis, y: Axis) -> Iterable[Markup]:
    def place(point: Point) -> tuple[str, str]:
        return _across(x.place(point[0])), _down(y.place(point[1]))

    color = f"c{one.color % COLORS}"
    line = "dashed" if one.line == "solid" and one.color >= COLORS else one.line
    if line != "none" and len(one.points) > 1:
        path = " ".join(",".join(place(p)) for p in _thin(one.points))
        yield element("polyline", points=path, class_=f"line {line} {color}")
    for point, error in zip(one.points, one.errors, strict=False):
        if error:
            yield from _error_bar(point, error, x, y, color)
    # A line of one point cannot be seen, so that is marked.
    if not one.marks and len(one.points) > 1:
        return
    for index, point in enumerate(one.points):
        said = f"{one.name or chart.title}: {number(point[1], percent=chart.percent)}"
        if one.errors and one.errors[index]:
            said += f" ± {number(one.errors[index] or 0.0, percent=chart.percent)}"
        # Browsers show an SVG title as a tooltip.
        where = dict(chart.ticks).get(point[0], f"{chart.x} {number(point[0])}")
        cx, cy = place(point)
        yield element(
            "circle", element("title", f"{said} ({where})"), cx=cx, cy=cy, r=2.8,
            class_=f"mark {'hollow ' if one.hollow else ''}{color}",
        )  # fmt: skip


def _error_bar(point: Point, error: float, x: Axis, y: Axis, color: str) -> Iterable[Markup]:
    """An error bar with caps, clipped to the axis."""
    at = float(_across(x.place(point[0])))
    low, high = (_down(y.place(max(point[1] + e, y.low))) for e in (-error, error))
    kind = f"error {color}"
    yield element("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=low, y2=high, class_=kind)
    for end in (low, high):
        left, right = f"{at - CAP:.1f}", f"{at + CAP:.1f}"
        yield element("line", x1=left, x2=right, y1=end, y2=end, class_=kind)


def _spoken(chart: Chart, series: Sequence[Series]) -> str:
    """The chart in words, for screen readers."""
    parts = []
    for one in series:
        first, last = one.points[0][1], one.points[-1][1]
        shown = number(last, percent=chart.percent)
        if len(one.points) > 1:
            shown = f"{number(first, percent=chart.percent)} to {shown}"
        parts.append(f"{one.name} {shown}".strip())
    return f"{chart.title} by {chart.x}: {'; '.join(parts) or 'no points'}"


def _thin(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MOST_POINTS` points, evenly spread, including the last."""
    # Counted from the end, so that the last point, the newest, is always drawn.
    every = -(-len(points) // MOST_POINTS)
    return points[(len(points) - 1) % every :: every]


def _across(share: float) -> str:
    return f"{LEFT + share * (WIDTH - LEFT - RIGHT):.1f}"


def _down(share: float) -> str:
    return f"{TOP + (1 - share) * (HEIGHT - TOP - BOTTOM):.1f}"


def _text(text: str, x: float, y: float, kind: str) -> Markup:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=kind)
