"""The picture of a run's curves."""

import io
import pathlib
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from vit_jax.pages import charts, run_charts
from vit_jax.runtime import logs
from vit_jax.utils import storage
from vit_jax.utils.errors import NotWritten

# Okabe and Ito's, safe for color-blind eyes: training, then the splits.
COLORS = ("#0072b2", "#d55e00", "#009e73")
STYLES = {"solid": "-", "dashed": ":"}


def draw(
    metrics: pathlib.Path, output: pathlib.Path, splits: Sequence[str] = ("test",)
) -> pathlib.Path:
    """Draws loss, accuracy, learning rate and speed of a metrics.jsonl into a PNG.

    `splits` are the names of those that were measured, such as `validation` and `test`. Raises
    NotWritten where the picture cannot be written, as on a full disk.
    """
    lines = logs.read_metrics(metrics)

    def points(key: str) -> list[charts.Point]:
        return [(line["step"], line[key]) for line in lines if line.get(key) is not None]

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = run_charts.charts(points, splits[: len(COLORS) - 1])
    for axes, chart in zip(figure.subplots(2, 2).flat, panels, strict=True):
        _draw(axes, chart)
    encoded = io.BytesIO()
    figure.savefig(encoded, dpi=120, format="png")
    with storage.errors_as(NotWritten, f"{output}: cannot be written"):
        storage.write_atomically(output, encoded.getvalue())
    return output


def _draw(axes: Axes, chart: charts.Chart) -> None:
    for one in chart.drawn:
        axes.plot(
            *zip(*one.points, strict=True), STYLES[one.line], color=COLORS[one.color],
            marker="o" if one.marks else "", label=one.name,
        )  # fmt: skip
    axes.set(title=chart.title, xlabel=chart.x)
    if chart.log_y:
        _logarithmic(axes, [y for one in chart.drawn for _, y in one.points])
    if chart.zero:
        axes.set_ylim(0, 1.02 if chart.percent else None)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", frameon=False)


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Makes y logarithmic for such values, with round numbers on it in plain decimals."""
    if not values:
        return
    scale = charts.Axis(values, log=True, zero=False)
    axes.set_yscale("log")
    axes.set_ylim(scale.low, scale.high)
    axes.yaxis.set_major_locator(FixedLocator(scale.ticks(6)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: charts.number(value)))
    axes.yaxis.set_minor_locator(NullLocator())
