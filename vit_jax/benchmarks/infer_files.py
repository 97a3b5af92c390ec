"""`bench infer` as files: every number in a CSV, and the panels of the paper's figure 12."""

import csv
import io
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from vit_jax.benchmarks import Table
from vit_jax.utils import storage

# Okabe and Ito's colors without yellow, which is too light for lines; one marker each.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
MARKERS = "osD^vPX*"
DPI = 150


class Panel(NamedTuple):
    """A line for each model over input sizes: (model, pixels, value)."""

    label: str
    points: list[tuple[str, int, float]]


def write_chart(
    folder: pathlib.Path, where: str, rows: Table, panels: Sequence[Panel]
) -> list[pathlib.Path]:
    """Writes infer.csv and infer.png, titled with what was measured, and returns their paths."""
    text = io.StringIO()
    # By default csv ends lines with \r\n.
    csv.writer(text, lineterminator="\n").writerows([rows[0], *rows[1]])
    figure = Figure(figsize=(1.8 + 4.6 * len(panels), 4.6), layout="constrained")
    # squeeze=False: otherwise one panel is no array.
    drawn = list(figure.subplots(1, len(panels), squeeze=False)[0])
    for axes, panel in zip(drawn, panels, strict=True):
        _draw_panel(axes, panel)
    handles, names = drawn[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside right upper", frameon=False)
    figure.suptitle(where, fontsize=10)
    encoded = io.BytesIO()
    figure.savefig(encoded, dpi=DPI, format="png")
    table, picture = folder / "infer.csv", folder / "infer.png"
    storage.write_atomically(table, text.getvalue())
    storage.write_atomically(picture, encoded.getvalue())
    return [table, picture]


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for index, model in enumerate(dict.fromkeys(model for model, _, _ in panel.points)):
        points = sorted((side, value) for name, side, value in panel.points if name == model)
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        # ResNets are dashed; R50+ViT is a hybrid.
        dashes = "--" if model.startswith("R") and "+" not in model else "-"
        axes.plot(*zip(*points, strict=True), dashes, color=color, marker=marker, label=model)
    axes.set(xlabel="input size [pixels]", ylabel=panel.label, yscale="log", xscale="log")
    labeled: list[int] = []
    for side in sorted({side for _, side, _ in panel.points}):
        if not labeled or side > 1.15 * labeled[-1]:  # else the labels would overlap
            labeled.append(side)
    # After the scale, which resets ticks.
    axes.set_xticks(labeled, [str(side) for side in labeled])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
