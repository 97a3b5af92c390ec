"""The picture of a run's curves."""

import io
import pathlib
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from vit_jax import logs
from vit_jax.reports import charts

# Okabe and Ito's blue, vermilion and green: safe for color-blind eyes.
TRAIN, *MEASURED = "#0072b2", "#d55e00", "#009e73"


def draw(
    metrics: pathlib.Path, output: pathlib.Path, splits: Sequence[str] = ("test",)
) -> pathlib.Path:
    """Draws loss, accuracy, learning rate and speed of a metrics.jsonl into a PNG.

    `splits` are the names of those that were measured, such as `validation` and `test`. Raises
    NotWritten where the picture cannot be written, as on a full disk.
    """
    lines = logs.read_metrics(metrics)
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy, rate, speed = figure.subplots(2, 2).flat
    losses = [f"{split}/loss" for split in ("train", *splits)]

    _plot(loss, lines, "train/loss", TRAIN, "train (augmented)")
    for split, color in zip(splits, MEASURED, strict=False):
        _plot(loss, lines, f"{split}/loss", color, split, marker="o")
    loss.set(title="Loss")
    _logarithmic(loss, [line[key] for line in lines for key in losses if line.get(key)])
    kinds = (("top1", "top-1", "-"), ("top5", "top-5", ":"), ("accuracy", "colors", "-"))
    for name, label, style in kinds:
        _plot(accuracy, lines, f"train/{name}", TRAIN, f"train {label}", style=style)
        for split, color in zip(splits, MEASURED, strict=False):
            _plot(
                accuracy, lines, f"{split}/{name}", color, f"{split} {label}",
                marker="o", style=style,
            )  # fmt: skip
    accuracy.set(title="Accuracy", ylim=(0, 1.02))
    _plot(rate, lines, "train/lr", TRAIN, "")
    rate.set(title="Learning rate", ylim=(0, None))
    _plot(speed, lines, "speed/images_per_second", TRAIN, "")
    speed.set(title="Images per second", ylim=(0, None))
    for axes in (loss, accuracy, rate, speed):
        axes.grid(alpha=0.3)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    encoded = io.BytesIO()
    figure.savefig(encoded, dpi=120, format="png")
    try:
        logs.write_atomically(output, encoded.getvalue())
    except OSError as error:
        raise logs.NotWritten(f"{output}: cannot be written: {error.strerror}") from error
    return output


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Makes y logarithmic for such values, with round numbers on it in plain decimals."""
    positive = [value for value in values if value > 0]
    if not positive:
        return
    scale = charts.Axis(positive, log=True, zero=False)
    axes.set_yscale("log")
    axes.set_ylim(scale.low, scale.high)
    axes.yaxis.set_major_locator(FixedLocator(scale.ticks(6)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: charts.number(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def _plot(
    axes: Axes,
    lines: Sequence[dict[str, Any]],
    key: str,
    color: str,
    label: str,
    *,
    marker: str = "",
    style: str = "-",
) -> None:
    points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), style, color=color, marker=marker, label=label)
