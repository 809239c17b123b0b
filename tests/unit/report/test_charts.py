"""Charts: numbers are where they belong, axes name round numbers, and strangers' words stay in their place."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.report.charts import Axis, Bar, Beyond, Interval, Key, Level, Line, Place, Row, bars, intervals, lines
from shoal.report.charts.frame import WIDTH, fitted, room_of
from shoal.report.charts.scales import log_ticks, scale_for, words
from shoal.report.colours import CLASSES, GREY, colour_of, colour_of_class
from unit.report.cases import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
BLUE = "#0072b2"


def elements(chart: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(chart).iter(f"{SVG}{name}"))


def texts(chart: str) -> list[str]:
    return [element.text or "" for element in elements(chart, "text")]


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.attrib[name])


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
def test_a_scale_holds_all_numbers_and_names_round_ones(low: float, span: float) -> None:
    high = low + span
    if high - low <= abs(low) * 1e-9:
        return
    scale = scale_for(Axis("x"), [low, high], 0.0, 100.0)
    assert scale.low <= low + span * 0.02 and scale.high >= high - span * 0.02
    assert 2 <= len(scale.ticks) <= 8
    assert all(-1e-6 <= scale.at(tick) <= 100 + 1e-6 for tick in scale.ticks)
    assert scale.at(low) < scale.at(high)
    assert len(set(words(scale.ticks, Axis("x")))) == len(scale.ticks) or span < abs(low) * 1e-5


def test_equal_factors_are_equal_steps_on_a_log_scale() -> None:
    scale = scale_for(Axis("epsilon", is_log=True, ticks=(0.5, 1.0, 2.0)), [0.5, 1.0, 2.0], 0.0, 100.0)
    assert [round(scale.at(x), 9) for x in (0.5, 1.0, 2.0)] == [0.0, 50.0, 100.0]
    assert log_ticks(0.001, 1000.0) == tuple(10.0**i for i in range(-3, 4))
    one = scale_for(Axis("epsilon", is_log=True), [3.0], 0.0, 100.0)
    assert math.isclose(one.at(3.0), 50.0)


def test_one_number_alone_is_in_the_middle() -> None:
    for value in (0.0, 4.0, -4.0):
        assert math.isclose(scale_for(Axis("x"), [value], 0.0, 100.0).at(value), 50.0, abs_tol=17)


def test_a_fixed_end_stays_and_what_is_beyond_is_drawn_at_the_edge() -> None:
    scale = scale_for(Axis("accuracy", "share", low=0.0, high=1.0), [0.4, 0.93], 10.0, 110.0)
    assert (scale.low, scale.high) == (0.0, 1.0)
    assert scale.at(7.0) == 110.0 and scale.at(-7.0) == 10.0
    assert words(scale.ticks, Axis("accuracy", "share")) == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]


def test_numbers_of_an_axis_are_written_alike() -> None:
    assert words([0.0, 0.0025], Axis("x")) == ["0.0000", "0.0025"]
    assert words([0.0, 2e6], Axis("x")) == ["0", "2e+06"]
    assert words([1e-5, 1.0], Axis("x", is_log=True)) == ["1e-05", "1"]


def test_bars_are_as_long_as_their_values_and_whiskers_reach_as_far() -> None:
    rows = [Row("a", [Bar(1.0, BLUE)]), Row("b", [Bar(0.5, BLUE, "dashed", (0.25, 0.75), truth=0.6, text="half")])]
    chart = bars("t", rows, axis=Axis("x", low=0.0, high=1.0), description="d")
    whole, half = elements(chart, "rect")
    assert math.isclose(number(half, "width"), number(whole, "width") / 2, abs_tol=0.02)
    assert "stroke-dasharray" in half.attrib and "stroke-dasharray" not in whole.attrib
    zero, length = number(whole, "x"), number(whole, "width")
    marks = [element for element in elements(chart, "line") if element.get("class") == "mark"]
    assert math.isclose(number(marks[0], "x1"), zero + 0.25 * length, abs_tol=0.02)
    assert math.isclose(number(marks[0], "x2"), zero + 0.75 * length, abs_tol=0.02)
    [truth] = [element for element in elements(chart, "line") if element.get("class") == "truth"]
    assert math.isclose(number(truth, "x1"), zero + 0.6 * length, abs_tol=0.02)
    assert {"a", "b", "half", "x"} <= set(texts(chart))


def test_a_negative_bar_ends_at_zero() -> None:
    chart = bars("t", [Row("a", [Bar(-1.0, BLUE), Bar(1.0, BLUE)])], axis=Axis("x"), description="d")
    down, up = elements(chart, "rect")
    assert math.isclose(number(down, "x") + number(down, "width"), number(up, "x"), abs_tol=0.02)
    assert math.isclose(number(down, "width"), number(up, "width"), abs_tol=0.02)


def test_curves_bands_levels_and_places() -> None:
    series = Line("private", [(1.0, 0.5), (2.0, 0.7), (4.0, 0.8)], BLUE, [(0.4, 0.6), (0.6, 0.8), (0.7, 0.9)])
    chart = lines(
        "t",
        [series],
        x=Axis("epsilon", is_log=True),
        y=Axis("accuracy", "share"),
        description="d",
        levels=[Level("guessing", 0.45, "dotted", GREY)],
        places=[Place("the study: 2", 2.0)],
    )
    [curve] = elements(chart, "polyline")
    spots = [tuple(map(float, pair.split(","))) for pair in curve.attrib["points"].split()]
    assert math.isclose(spots[1][0] - spots[0][0], spots[2][0] - spots[1][0], abs_tol=0.2)
    assert spots[0][1] > spots[1][1] > spots[2][1]
    assert len(elements(chart, "polygon")[0].attrib["points"].split()) == 6
    assert {"private", "guessing", "the study: 2", "epsilon", "accuracy"} <= set(texts(chart))
    [place] = [element for element in elements(chart, "line") if element.get("class") == "mark"]
    assert math.isclose(number(place, "x1"), spots[1][0], abs_tol=0.1)
    assert len(elements(chart, "circle")) == 3


def test_steps_hold_until_the_next_one() -> None:
    chart = lines("t", [Line("", [(0.0, 2.0), (1.0, 1.0), (2.0, 0.0)], BLUE, is_step=True)], x=Axis("x"), y=Axis("y"), description="d")
    [curve] = elements(chart, "polyline")
    spots = [tuple(map(float, pair.split(","))) for pair in curve.attrib["points"].split()]
    assert len(spots) == 5
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(spots))
    assert elements(chart, "circle") == []


def test_what_is_beyond_a_claim_is_drawn_open_and_what_has_no_bound_is_shaded() -> None:
    points = [(0.0, 1.0), (1.0, 1.2), (2.0, 2.0)]
    chart = lines(
        "t",
        [Line("n", points, BLUE, hollow=1)],
        x=Axis("x", low=0.0, high=4.0),
        y=Axis("y"),
        description="d",
        beyond=Beyond("no bound", 2.5),
    )
    dots = elements(chart, "circle")
    assert [dot.get("class") for dot in dots] == [None, None, "open"]
    assert len(elements(chart, "rect")) == 1 and "no bound" in texts(chart)


def test_whiskers_stand_at_single_points_and_a_diagonal_where_asked_for() -> None:
    one = Line("n", [(0.5, 0.5)], BLUE, [(0.4, 0.6)])
    two = Line("m", [(0.1, 0.2), (0.9, 0.8)], BLUE, [(0.1, 0.3), (0.7, 0.9)], is_whiskered=True)
    chart = lines("t", [one, two], x=Axis("x", low=0.0, high=1.0), y=Axis("y", low=0.0, high=1.0), description="d", diagonal="as it says")
    assert elements(chart, "polygon") == [] and "as it says" in texts(chart)
    upright = [element for element in elements(chart, "line") if element.get("stroke") == BLUE and element.get("x1") == element.get("x2")]
    assert len(upright) == 3


def test_many_points_have_no_dots() -> None:
    chart = lines("t", [Line("n", [(float(i), 1.0) for i in range(60)], BLUE)], x=Axis("x"), y=Axis("y"), description="d")
    assert elements(chart, "circle") == []


def test_intervals_are_where_they_say() -> None:
    rows = [Interval("one", 0.5, BLUE, (0.25, 0.75), "50 %"), Interval("two", 1.0, BLUE)]
    chart = intervals("t", rows, axis=Axis("x", low=0.0, high=1.0), description="d", levels=[Level("zero", 0.0, "dotted")])
    half, one = elements(chart, "circle")
    [bar] = [element for element in elements(chart, "line") if element.get("stroke-width") == "3"]
    assert math.isclose(number(half, "cx"), (number(bar, "x1") + number(bar, "x2")) / 2, abs_tol=0.02)
    assert number(one, "cx") > number(bar, "x2") and number(one, "cy") > number(half, "cy")
    assert {"one", "two", "50 %", "zero"} <= set(texts(chart))


@pytest.mark.parametrize("words_of_a_stranger", HOSTILE)
def test_strangers_words_stay_words_and_within_the_picture(words_of_a_stranger: str) -> None:
    hostile = words_of_a_stranger
    row, key = Row(hostile, [Bar(1.0, BLUE, text="1")]), Key(hostile, BLUE, shape="box")
    charts = [
        bars(hostile, [row], axis=Axis(hostile), description=hostile, keys=[key, Key(hostile, BLUE, shape="tick")]),
        lines(hostile, [Line(hostile, [(0.0, 1.0), (1.0, 2.0)], BLUE)], x=Axis(hostile), y=Axis(hostile), description=hostile),
        intervals(hostile, [Interval(hostile, 1.0, BLUE, (0.5, 1.5), "1")], axis=Axis(hostile), description=hostile),
    ]
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
            "svg",
            "title",
            "desc",
            "text",
            "rect",
            "line",
            "polyline",
            "circle",
        }
        assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
        assert all(room_of(element.text or "") <= WIDTH + 1 for element in root.iter(f"{SVG}text"))


def test_a_chart_says_what_it_is() -> None:
    root = ElementTree.fromstring(bars("A name", [Row("a", [Bar(1.0, BLUE)])], axis=Axis("x"), description="a: 1"))
    assert root.get("role") == "img"
    assert [(root[i].tag.removeprefix(SVG), root[i].text) for i in (0, 1)] == [("title", "A name"), ("desc", "a: 1")]


def test_words_are_cut_to_their_room() -> None:
    assert fitted("short", 100.0) == "short"
    assert fitted("a long name of a feature", 60.0).endswith("…") and room_of(fitted("x" * 500, 60.0)) <= 60.0


def test_every_protocol_has_its_colour_everywhere() -> None:
    assert [colour_of(name) for name in ("anonml", "ddml", "sdq", "pfds")] == ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]
    assert colour_of("guessing") == GREY == colour_of_class(len(CLASSES))
