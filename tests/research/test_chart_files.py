"""Charts of docs/ as files: axes as the charts say, a legend of several series."""

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from research import chart_files
from vit_jax.pages.charts import Chart, Series

POINTS = [(1, 0.1), (10, 0.4)]


def axes_of(tmp_path, monkeypatch, **options):
    drawn = []
    subplots = Figure.subplots
    monkeypatch.setattr(
        Figure, "subplots", lambda figure: drawn.append(subplots(figure)) or drawn[0]
    )
    chart = Chart(title="a", series=[Series(name="a", points=POINTS)], **options)
    chart_files.draw_chart(chart, tmp_path / "a.png")
    assert isinstance(drawn[0], Axes)
    return drawn[0]


def test_axes_are_as_the_chart_says(tmp_path, monkeypatch):
    axes = axes_of(tmp_path, monkeypatch, percent=True, ticks=[(1, "one")])
    assert axes.yaxis.get_major_formatter()(0.25) == "25.0%"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one"]


def test_both_axes_may_be_logarithmic(tmp_path, monkeypatch):
    axes = axes_of(tmp_path, monkeypatch, log_y=True, log_x=True)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("count", [1, 2])
def test_several_series_have_a_legend(count, tmp_path, monkeypatch):
    legends = []
    monkeypatch.setattr(Figure, "legend", lambda self, **given: legends.append(given))
    series = [Series(name=str(k), points=[(1, 0.1)], color=k) for k in range(count)]
    chart_files.draw_chart(Chart(title="a", series=series), tmp_path / "a.png")
    assert len(legends) == (count > 1)
