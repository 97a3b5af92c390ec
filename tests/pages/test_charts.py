"""Charts: where points, ticks and labels are, by hand."""

import pytest
from matplotlib.figure import Figure

import pages
from vit_jax.pages import charts, curves
from vit_jax.pages.charts import Chart, Series


def drawn(chart):
    return pages.Page(charts.svg(chart))


def lines(page):
    return [
        [tuple(map(float, p.split(","))) for p in attrs["points"].split()]
        for tag, attrs in page.elements
        if tag == "polyline"
    ]


def test_a_line_goes_through_its_points():
    points = [(0, 0.0), (50, 0.5), (100, 1.0)]
    (line,) = lines(drawn(Chart(title="t", series=[Series(name="a", points=points)], zero=True)))
    # x has a margin of 4 % on both sides, y above only.
    inner = charts.WIDTH - charts.LEFT - charts.RIGHT
    height = charts.HEIGHT - charts.TOP - charts.BOTTOM
    for (x, y), (px, py) in zip(points, line, strict=True):
        assert px == pytest.approx(charts.LEFT + inner * (x + 4) / 108, abs=0.051)
        assert py == pytest.approx(charts.TOP + height * (1 - y / 1.04), abs=0.051)


def test_a_logarithmic_axis_puts_the_geometric_mean_in_the_middle():
    points = [(0, 0.01), (1, 1.0), (2, 100.0)]
    (line,) = lines(drawn(Chart(title="t", series=[Series(name="a", points=points)], log_y=True)))
    ys = [y for _, y in line]
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2, abs=0.1)


@pytest.mark.parametrize(
    ("values", "log", "most", "ticks"),
    [
        ((0, 100), False, 5, [0, 20, 40, 60, 80, 100]),
        ((0, 450), False, 5, [0, 100, 200, 300, 400]),
        ((0.6, 0.9), False, 3, [0.6, 0.7, 0.8, 0.9]),
        ((7, 7), False, 5, [6.6, 6.8, 7.0, 7.2, 7.4]),
        ((1, 1000), True, 5, [1, 10, 100, 1000]),
        ((0.6, 2.4), True, 5, [0.6, 0.7, 0.8, 1, 2]),
    ],
)
def test_ticks_are_round(values, log, most, ticks):
    found = charts.Axis(values, log=log, zero=False).ticks(most)
    assert found == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("steps", "ticks"), [((1, 2), [1, 2]), ((7, 7), [7]), ((0, 3), [0, 1, 2, 3])]
)
def test_there_is_no_half_step(steps, ticks):
    axis = charts.Axis(steps, log=False, zero=False)
    assert axis.ticks(6, whole=True) == ticks
    axes = Figure().subplots()
    curves.draw_axes(
        axes, Chart(title="a", series=[Series(name="a", points=[(x, 1) for x in steps])])
    )
    assert all(tick.is_integer() for tick in axes.get_xticks())


@pytest.mark.parametrize(
    ("value", "percent", "text"),
    [(0.5, True, "50 %"), (0.875, True, "87.5 %"), (15000, False, "15k"), (450, False, "450"),
     (0, False, "0"), (0.0003, False, "0.0003"), (3e-5, False, "3e-5"), (2.5e6, False, "2.5e6")],
)  # fmt: skip
def test_numbers_are_short(value, percent, text):
    assert charts.number(value, percent=percent) == text


def test_what_is_not_finite_or_off_the_axis_is_left_out():
    points = [(0, float("nan")), (1, 2.0), (2, 0.0), (3, float("inf")), (4, 3.0)]
    (line,) = lines(drawn(Chart(title="t", series=[Series(name="a", points=points)], log_y=True)))
    assert len(line) == 2
    empty = drawn(Chart(title="t", series=[Series(name="a", points=[(1, float("nan"))])]))
    assert empty.text == "nothing measured yet"


def test_an_error_stays_with_its_point():
    series = Series(name="", points=[(0, 1.0), (1, 0.0), (2, 3.0)], errors=[0.1, 0.2, 0.3])
    (both,) = Chart(title="t", series=[series], log_x=True, log_y=True).drawn
    assert (both.points, both.errors) == ([(2, 3.0)], [0.3])


def test_colors_begin_again_dashed():
    series = [Series(name="a", points=[(0, 1.0), (1, 2.0)], color=color) for color in (1, 9)]
    page = drawn(Chart(title="t", series=series))
    kinds = [attrs["class"] for tag, attrs in page.elements if tag == "polyline"]
    assert len(kinds) == 2
    assert all("c1" in kind.split() for kind in kinds)
    assert ["dashed" in kind for kind in kinds] == [False, True]


def test_the_charts_of_a_run():
    loss, *others = charts.run_charts(lambda key: [(1, 0.5)], ["validation"])
    assert (loss.title, loss.log_y) == ("Loss", True)
    assert [one.name for one in loss.series] == ["train (augmented)", "validation"]
    assert not any(one.log_y for one in others)
    # Classes in an order have a mean absolute error too.
    for measured, title in ((("top1", "mae"), "Accuracy"), (("mae",), "Mean absolute error")):
        points = {f"test/{name}": [(1, 0.5)] for name in measured}
        assert charts.run_charts(lambda key, of=points: of.get(key, []), ["test"])[1].title == title


def test_named_ticks_are_inside_the_frame():
    series = Series(name="", points=[(0.01, 0.5)], marks=True)
    ticks = [(0.001, "0.001"), (0.01, "0.01"), (0.1, "0.1")]
    page = drawn(Chart(title="t", series=[series], log_x=True, ticks=ticks))
    places = {attrs.get("x") for tag, attrs in page.elements if tag == "text"}
    (mark,) = (float(attrs["cx"]) for tag, attrs in page.elements if tag == "circle")
    middle = charts.LEFT + (charts.WIDTH - charts.LEFT - charts.RIGHT) / 2
    assert mark == pytest.approx(middle, abs=0.1)
    assert all(0 < float(x) < charts.WIDTH for x in places)


def test_long_lines_are_thinned_and_keep_their_end():
    points = [(i, i % 7) for i in range(12_345)]
    (line,) = lines(drawn(Chart(title="t", series=[Series(name="a", points=points)])))
    assert charts.MOST_POINTS / 2 < len(line) <= charts.MOST_POINTS
    (ends,) = lines(
        drawn(Chart(title="t", series=[Series(name="a", points=[points[0], (12_344, 6)])]))
    )
    assert line[-1][0] == ends[-1][0]


def test_marks_say_their_number():
    series = Series(name="o<s", points=[(1, 0.5), (3, 0.75)], line="none", marks=True)
    chart = Chart(title="t", series=[series], percent=True, ticks=[(1, "small"), (3, "large")])
    page = drawn(chart)
    assert page.count("circle") == 2
    assert not lines(page)
    for words in ("o<s: 50 % (small)", "o<s: 75 % (large)", "small", "large"):
        assert words in page.words
    (svg,) = (attrs for tag, attrs in page.elements if tag == "svg")
    assert svg["aria-label"] == "t by step: o<s 50 % to 75 %"


def test_error_bars():
    points, errors = [(0, 0.5), (50, 0.5), (100, 1.0)], [0.25, None, 0.0]
    series = Series(name="a", points=points, marks=True, errors=errors)
    page = drawn(Chart(title="t", series=[series], zero=True, percent=True))
    bars = [attrs for tag, attrs in page.elements if attrs.get("class") == "error c0"]
    assert len(bars) == 3  # a bar and its caps, of the one point that has an error
    height = charts.HEIGHT - charts.TOP - charts.BOTTOM
    low, high = (charts.TOP + height * (1 - y / 1.04) for y in (0.25, 0.75))
    assert float(bars[0]["y1"]) == pytest.approx(low, abs=0.051)
    assert float(bars[0]["y2"]) == pytest.approx(high, abs=0.051)
    assert bars[0]["x1"] == bars[0]["x2"]
    assert float(bars[1]["x2"]) - float(bars[1]["x1"]) == pytest.approx(2 * charts.CAP, abs=0.11)
    assert any("a: 50 % ± 25 %" in word for word in page.words)
    # They are within the frame, which a mean alone would not reach.
    (wide,) = Chart(title="t", series=[Series(name="a", points=[(1, 0.5)], errors=[0.4])]).drawn
    assert sorted(wide.reach) == pytest.approx([0.1, 0.5, 0.9])
    # On a logarithmic axis one that would reach below 0 ends at the frame.
    log = Series(name="a", points=[(1, 0.0), (2, 1.0), (3, 10.0)], errors=[1.0, 2.0, 3.0])
    page = drawn(Chart(title="t", series=[log], log_y=True))
    ends = [float(a["y1"]) for _, a in page.elements if a.get("class") == "error c0"]
    assert max(ends) == charts.TOP + height


def test_an_error_bar_that_reaches_zero_is_drawn_on_a_logarithmic_axis():
    series = [Series(name="a", points=[(1, 0.5), (2, 5.0)], errors=[0.5, None])]
    (line,) = lines(drawn(Chart(title="t", series=series, log_y=True)))
    plain = [Series(name="a", points=[(1, 0.5), (2, 5.0), (3, 1.0)])]
    (other,) = lines(drawn(Chart(title="t", series=plain, log_y=True)))
    assert [y for _, y in line] == [y for _, y in other][:2]  # the axis begins at what is above 0
