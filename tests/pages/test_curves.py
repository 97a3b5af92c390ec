"""The picture of a run's curves, and a disk that has no room for it."""

import json

import cv2
from matplotlib.figure import Figure

from vit_jax.pages import curves
from vit_jax.pages.charts import Chart, Series


def test_the_picture_is_whole(tmp_path):
    lines = [{"step": step, "train/loss": 2.0 / step} for step in range(1, 9)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = curves.draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    assert cv2.imread(str(output)).shape == (840, 1320, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_charts_are_drawn_as_they_say():
    series = [
        Series(name=str(k), points=[(1, 0.1), (10, 0.4)], color=k, marks=k == 0) for k in (0, 6)
    ]
    axes = Figure().subplots()
    curves.draw_axes(axes, Chart(title="a", series=series))
    colors = [container[0].get_color() for container in axes.containers]
    assert colors == [curves.COLORS[0], curves.COLORS[2]]
    assert axes.get_legend_handles_labels()[1] == ["0", "6"]
    assert (axes.get_title(), axes.get_xlabel()) == ("a", "step")
    axes = Figure().subplots()
    curves.draw_axes(axes, Chart(title="a", series=series, log_y=True))
    assert axes.get_yscale() == "log"
    curves.draw_axes(Figure().subplots(), Chart(title="a", series=[], log_y=True))
