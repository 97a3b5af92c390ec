"""The curves of a run as a PNG, by matplotlib."""

import io
import pathlib
from collections.abc import Sequence

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.pages import charts
from vit_jax.runtime import logs
from vit_jax.utils import storage
from vit_jax.utils.errors import NotWritten

# Okabe and Ito's, safe for color-blind eyes; in curves: training, then the splits.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
STYLES = {"solid": "-", "dashed": ":", "none": ""}
MOST_SPLITS = 2  # more lines in a panel hide each other


def draw_curves(
    metrics: pathlib.Path, output: pathlib.Path, splits: Sequence[str] = ("test",)
) -> pathlib.Path:
    """Draws loss, accuracy, learning rate and speed of a metrics.jsonl into a PNG.

    `splits` names the evaluated splits, such as `validation` and `test`. Raises NotWritten if the
    file cannot be written, as on a full disk.
    """
    lines = logs.read_metrics(metrics)

    def points(key: str) -> list[charts.Point]:
        return [(line["step"], line[key]) for line in lines if line.get(key) is not None]

    # Not pyplot, which keeps every figure in a global list until it is closed.
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = charts.run_charts(points, splits[:MOST_SPLITS])
    for axes, chart in zip(figure.subplots(2, 2).flat, panels, strict=True):
        draw_axes(axes, chart)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", frameon=False)
    # Encoded in memory, so that a reader never sees half a file.
    encoded = io.BytesIO()
    figure.savefig(encoded, dpi=120, format="png")
    with storage.errors_as(NotWritten, f"{output}: cannot be written"):
        storage.write_atomically(output, encoded.getvalue())
    return output


def draw_axes(axes: Axes, chart: charts.Chart) -> None:
    """Draws the series of a chart, their error bars and the scale of y."""
    for one in chart.drawn:
        x, y = zip(*one.points, strict=True)
        axes.errorbar(
            x, y, yerr=[error or 0.0 for error in one.errors] or None, capsize=3,
            linestyle=STYLES[one.line], color=COLORS[one.color % len(COLORS)],
            marker="o" if one.marks else "", label=one.name or None,
        )  # fmt: skip
    axes.set(title=chart.title, xlabel=chart.x)
    if chart.x == "step":
        # By default at least two ticks are enforced, by fractions of a step if need be.
        axes.xaxis.set_major_locator(
            ticker.MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True, min_n_ticks=1)
        )
    if chart.log_y:
        _logarithmic(axes, [y for one in chart.drawn for _, y in one.points])
    if chart.zero:
        # Above 1, so that a mark at 100 % is not cut in half.
        axes.set_ylim(0, 1.02 if chart.percent else None)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    if not values:
        return
    scale = charts.Axis(values, log=True, zero=False)
    axes.set_yscale("log")
    axes.set_ylim(scale.low, scale.high)
    axes.yaxis.set_major_locator(ticker.FixedLocator(scale.ticks(6)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: charts.number(value)))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
