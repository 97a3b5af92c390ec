"""The picture of a run's curves, and a disk that has no room for it."""

import json

import cv2
import pytest
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
    curves._draw_chart(axes, Chart(title="a", series=series, percent=True, ticks=[(1, "one")]))
    colors = [container[0].get_color() for container in axes.containers]
    assert colors == [curves.COLORS[0], curves.COLORS[2]]
    assert axes.get_legend_handles_labels()[1] == ["0", "6"]
    assert (axes.get_title(), axes.get_xlabel()) == ("a", "step")
    assert axes.yaxis.get_major_formatter()(0.25) == "25.0%"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one"]
    axes = Figure().subplots()
    curves._draw_chart(axes, Chart(title="a", series=series, log_y=True, log_x=True))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    curves._draw_chart(Figure().subplots(), Chart(title="a", series=[], log_y=True))


@pytest.mark.parametrize("count", [1, 2])
def test_several_series_have_a_legend(count, tmp_path, monkeypatch):
    legends = []
    monkeypatch.setattr(Figure, "legend", lambda self, **given: legends.append(given))
    series = [Series(name=str(k), points=[(1, 0.1)], color=k) for k in range(count)]
    curves.draw_chart(Chart(title="a", series=series), tmp_path / "a.png")
    assert len(legends) == (count > 1)
