"""The figures of findings as PNG, for Markdown."""

import io
import pathlib

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
    ScalarFormatter,
)

from vit_jax.pages.charts import Chart
from vit_jax.utils import storage

# Okabe and Ito's, safe for color-blind eyes.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def draw(chart: Chart, output: pathlib.Path) -> None:
    """Draws a chart with error bars; raises OSError."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for one in chart.drawn:
        errors = [error or 0.0 for error in one.errors]
        x, y = zip(*one.points, strict=True)
        axes.errorbar(
            x,
            y,
            yerr=errors,
            color=COLORS[one.color % len(COLORS)],
            marker="o",
            linestyle="-" if one.line == "solid" else "",
            capsize=3,
            label=one.name or None,
        )
    _style(axes, chart)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        # Outside: among points, its marks look like more of them.
        figure.legend(loc="outside right upper", frameon=False)
    encoded = io.BytesIO()
    figure.savefig(encoded, dpi=100, format="png", metadata={"Software": None})
    output.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(output, encoded.getvalue())


def _style(axes: Axes, chart: Chart) -> None:
    axes.set(title=chart.title, xlabel=chart.x)
    if chart.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if chart.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10)))
    if chart.ticks:
        axes.xaxis.set_major_locator(FixedLocator([x for x, _ in chart.ticks]))
        axes.set_xticklabels([name for _, name in chart.ticks])
        axes.margins(x=0.12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
