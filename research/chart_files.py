"""Charts as PNG files, by matplotlib: the figures of docs/."""

import io
import pathlib

from matplotlib import ticker
from matplotlib.figure import Figure

from vit_jax.pages import curves
from vit_jax.pages.charts import Chart
from vit_jax.utils import storage


def draw_chart(chart: Chart, output: pathlib.Path) -> None:
    """Draws one chart with its error bars; raises OSError."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    curves.draw_axes(axes, chart)
    if chart.log_x:
        # First: setting the scale replaces all locators and formatters.
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        # Matplotlib also labels minor ticks where an axis spans less than a decade or so.
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    if chart.percent and not chart.zero:
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=1))
        axes.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=(1, 2, 5, 10)))
    if chart.ticks:
        # Matplotlib warns of labels that are set without fixed ticks.
        axes.xaxis.set_major_locator(ticker.FixedLocator([x for x, _ in chart.ticks]))
        axes.set_xticklabels([name for _, name in chart.ticks])
        axes.margins(x=0.12)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        # Outside: among points, its marks look like more of them.
        figure.legend(loc="outside right upper", frameon=False)
    encoded = io.BytesIO()
    # Without matplotlib's version in it, a new one does not change the files of docs/.
    figure.savefig(encoded, dpi=100, format="png", metadata={"Software": None})
    output.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(output, encoded.getvalue())
