"""`bench infer` as files: every number in a CSV, and the two panels of the paper's figure 12."""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from vit_jax.benchmarks.infer import Measured
from vit_jax.benchmarks.max_batch import Largest
from vit_jax.utils import storage

# Okabe and Ito's colors without yellow, which is too light for lines; one marker each.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
MARKERS = "osD^vPX*"
DPI = 150

Lines = Mapping[str, Sequence[tuple[int, float]]]  # points by model


def check(folder: pathlib.Path) -> None:
    """Raises ConfigError for a folder that cannot be made; that costs no minutes of measuring."""
    with storage.writing("--output", folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_measured(
    results: Sequence[Measured], folder: pathlib.Path, where: str
) -> list[pathlib.Path]:
    """Writes infer.csv and infer.png; returns their paths."""
    rows = [
        (one.model, one.size, one.side, timed.batch, f"{timed.seconds:.6g}", f"{timed.rate:.6g}")
        for one in results
        for timed in one.timed
    ]
    header = ("model", "size", "pixels", "batch", "seconds", "images_per_second")
    rates = _lines([(one.model, one.side, one.best.rate) for one in results if one.best])
    batches = _lines([(one.model, one.side, float(one.batch)) for one in results if one.batch])
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, rates, "images/s, best batch")
    _panel(right, batches, "largest batch that ran")
    return _write(header, rows, figure, left, folder, where)


def write_fits(found: Sequence[Largest], folder: pathlib.Path, where: str) -> list[pathlib.Path]:
    """Writes infer.csv and infer.png of batches that were only compiled; returns their paths."""
    rows = [(one.model, one.size, one.side, one.batch, f"{one.peak:.0f}") for one in found]
    header = ("model", "size", "pixels", "largest_batch_per_device", "peak_bytes")
    batches = _lines([(one.model, one.side, float(one.batch)) for one in found if one.batch])
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.subplots()
    _panel(axes, batches, "largest batch per device")
    return _write(header, rows, figure, axes, folder, where)


def _lines(points: Sequence[tuple[str, int, float]]) -> Lines:
    return {
        model: sorted((side, value) for name, side, value in points if name == model)
        for model in dict.fromkeys(name for name, _, _ in points)
    }


def _panel(axes: Axes, lines: Lines, label: str) -> None:
    for index, (model, points) in enumerate(lines.items()):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        dashes = "--" if model.startswith("R") and "+" not in model else "-"
        axes.plot(*zip(*points, strict=True), dashes, color=color, marker=marker, label=model)
    axes.set(xlabel="input size [pixels]", ylabel=label, yscale="log", xscale="log")
    sides = sorted({side for points in lines.values() for side, _ in points})
    axes.set_xticks(_apart(sides), [str(side) for side in _apart(sides)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _apart(sides: Sequence[int]) -> list[int]:
    """Returns sides whose labels do not overlap, the first of nearly equal ones."""
    kept: list[int] = []
    for side in sides:
        if not kept or side > 1.15 * kept[-1]:
            kept.append(side)
    return kept


def _write(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    figure: Figure,
    labeled: Axes,
    folder: pathlib.Path,
    where: str,
) -> list[pathlib.Path]:
    FigureCanvasAgg(figure)
    handles, names = labeled.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside right upper", frameon=False)
    figure.suptitle(where, fontsize=10)
    table, picture = folder / "infer.csv", folder / "infer.png"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    storage.write_atomically(table, text.getvalue())
    encoded = io.BytesIO()
    figure.savefig(encoded, dpi=DPI, format="png")
    storage.write_atomically(picture, encoded.getvalue())
    return [table, picture]
