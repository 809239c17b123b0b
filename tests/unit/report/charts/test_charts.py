"""Charts: positions, round ticks, and untrusted text that stays in its place."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.report.charts import (
    Axis,
    AxisMark,
    Bar,
    BarRow,
    Curve,
    IntervalRow,
    LegendKey,
    Overlays,
    ReferenceLine,
    UnboundedRegion,
    draw_bars,
    draw_curves,
    draw_intervals,
)
from shoal.report.charts.axes import (
    WIDTH,
    estimate_text_width,
    fit_text,
    format_ticks,
    list_log_ticks,
    make_scale,
)
from shoal.report.formatting import CLASS_COLOURS, GREY, get_class_colour, get_protocol_colour
from tests.unit.report.cases import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
BLUE = "#0072b2"


def find_elements(chart: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(chart).iter(f"{SVG}{name}"))


def list_texts(chart: str) -> list[str]:
    return [element.text or "" for element in find_elements(chart, "text")]


def read_number(element: ElementTree.Element, name: str) -> float:
    return float(element.attrib[name])


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
def test_scale_contains_all_numbers_and_has_round_ticks(low: float, span: float) -> None:
    high = low + span
    if high - low <= abs(low) * 1e-9:
        return
    scale = make_scale(Axis("x"), [low, high], 0.0, 100.0)
    assert scale.low <= low + span * 0.02 and scale.high >= high - span * 0.02
    assert 2 <= len(scale.ticks) <= 8
    assert all(-1e-6 <= scale.to_position(tick) <= 100 + 1e-6 for tick in scale.ticks)
    assert scale.to_position(low) < scale.to_position(high)
    assert (
        len(set(format_ticks(scale.ticks, Axis("x")))) == len(scale.ticks) or span < abs(low) * 1e-5
    )


def test_log_scale_maps_equal_factors_to_equal_steps() -> None:
    scale = make_scale(
        Axis("epsilon", is_log=True, ticks=(0.5, 1.0, 2.0)), [0.5, 1.0, 2.0], 0.0, 100.0
    )
    assert [round(scale.to_position(x), 9) for x in (0.5, 1.0, 2.0)] == [0.0, 50.0, 100.0]
    assert list_log_ticks(0.001, 1000.0) == tuple(10.0**i for i in range(-3, 4))
    one = make_scale(Axis("epsilon", is_log=True), [3.0], 0.0, 100.0)
    assert math.isclose(one.to_position(3.0), 50.0)


def test_scale_puts_a_single_number_in_the_middle() -> None:
    for value in (0.0, 4.0, -4.0):
        assert math.isclose(
            make_scale(Axis("x"), [value], 0.0, 100.0).to_position(value), 50.0, abs_tol=17
        )


def test_scale_keeps_fixed_ends_and_clamps_values() -> None:
    scale = make_scale(Axis("accuracy", "share", low=0.0, high=1.0), [0.4, 0.93], 10.0, 110.0)
    assert (scale.low, scale.high) == (0.0, 1.0)
    assert scale.to_position(7.0) == 110.0 and scale.to_position(-7.0) == 10.0
    assert format_ticks(scale.ticks, Axis("accuracy", "share")) == [
        "0 %",
        "20 %",
        "40 %",
        "60 %",
        "80 %",
        "100 %",
    ]


def test_ticks_of_an_axis_have_one_format() -> None:
    assert format_ticks([0.0, 0.0025], Axis("x")) == ["0.0000", "0.0025"]
    assert format_ticks([0.0, 2e6], Axis("x")) == ["0", "2e+06"]
    assert format_ticks([1e-5, 1.0], Axis("x", is_log=True)) == ["1e-05", "1"]
    close = [1.192e-07, 1.194e-07, 1.2e-07]
    assert format_ticks(close, Axis("x")) == ["1.192e-07", "1.194e-07", "1.2e-07"]


def test_bars_and_whiskers_are_in_proportion_to_values() -> None:
    rows = [
        BarRow("a", [Bar(1.0, BLUE)]),
        BarRow("b", [Bar(0.5, BLUE, "dashed", (0.25, 0.75), truth=0.6, text="half")]),
    ]
    chart = draw_bars("t", rows, axis=Axis("x", low=0.0, high=1.0), description="d")
    whole, half = find_elements(chart, "rect")
    assert math.isclose(read_number(half, "width"), read_number(whole, "width") / 2, abs_tol=0.02)
    assert "stroke-dasharray" in half.attrib and "stroke-dasharray" not in whole.attrib
    zero, length = read_number(whole, "x"), read_number(whole, "width")
    marks = [element for element in find_elements(chart, "line") if element.get("class") == "mark"]
    assert math.isclose(read_number(marks[0], "x1"), zero + 0.25 * length, abs_tol=0.02)
    assert math.isclose(read_number(marks[0], "x2"), zero + 0.75 * length, abs_tol=0.02)
    [truth] = [
        element for element in find_elements(chart, "line") if element.get("class") == "truth"
    ]
    assert math.isclose(read_number(truth, "x1"), zero + 0.6 * length, abs_tol=0.02)
    assert {"a", "b", "half", "x"} <= set(list_texts(chart))


def test_negative_bar_ends_at_zero() -> None:
    chart = draw_bars(
        "t", [BarRow("a", [Bar(-1.0, BLUE), Bar(1.0, BLUE)])], axis=Axis("x"), description="d"
    )
    down, up = find_elements(chart, "rect")
    assert math.isclose(
        read_number(down, "x") + read_number(down, "width"), read_number(up, "x"), abs_tol=0.02
    )
    assert math.isclose(read_number(down, "width"), read_number(up, "width"), abs_tol=0.02)


def test_curves_have_bands_reference_lines_and_marks() -> None:
    series = Curve(
        "private", [(1.0, 0.5), (2.0, 0.7), (4.0, 0.8)], BLUE, [(0.4, 0.6), (0.6, 0.8), (0.7, 0.9)]
    )
    chart = draw_curves(
        "t",
        [series],
        x=Axis("epsilon", is_log=True),
        y=Axis("accuracy", "share"),
        description="d",
        reference_lines=[ReferenceLine("guessing", 0.45, "dotted", GREY)],
        overlays=Overlays(marks=[AxisMark("the study: 2", 2.0)]),
    )
    [curve] = find_elements(chart, "polyline")
    spots = [tuple(map(float, pair.split(","))) for pair in curve.attrib["points"].split()]
    assert math.isclose(spots[1][0] - spots[0][0], spots[2][0] - spots[1][0], abs_tol=0.2)
    assert spots[0][1] > spots[1][1] > spots[2][1]
    assert len(find_elements(chart, "polygon")[0].attrib["points"].split()) == 6
    assert {"private", "guessing", "the study: 2", "epsilon", "accuracy"} <= set(list_texts(chart))
    [place] = [
        element for element in find_elements(chart, "line") if element.get("class") == "mark"
    ]
    assert math.isclose(read_number(place, "x1"), spots[1][0], abs_tol=0.1)
    assert len(find_elements(chart, "circle")) == 3


def test_step_curve_is_constant_between_points() -> None:
    chart = draw_curves(
        "t",
        [Curve("", [(0.0, 2.0), (1.0, 1.0), (2.0, 0.0)], BLUE, is_step=True)],
        x=Axis("x"),
        y=Axis("y"),
        description="d",
    )
    [curve] = find_elements(chart, "polyline")
    spots = [tuple(map(float, pair.split(","))) for pair in curve.attrib["points"].split()]
    assert len(spots) == 5
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(spots))
    assert find_elements(chart, "circle") == []


def test_hollow_points_and_unbounded_region_are_drawn() -> None:
    points = [(0.0, 1.0), (1.0, 1.2), (2.0, 2.0)]
    chart = draw_curves(
        "t",
        [Curve("n", points, BLUE, n_hollow=1)],
        x=Axis("x", low=0.0, high=4.0),
        y=Axis("y"),
        description="d",
        overlays=Overlays(unbounded=UnboundedRegion("no bound", 2.5)),
    )
    dots = find_elements(chart, "circle")
    assert [dot.get("class") for dot in dots] == [None, None, "open"]
    assert len(find_elements(chart, "rect")) == 1 and "no bound" in list_texts(chart)


def test_whiskers_and_diagonal_are_drawn() -> None:
    one = Curve("n", [(0.5, 0.5)], BLUE, [(0.4, 0.6)])
    two = Curve("m", [(0.1, 0.2), (0.9, 0.8)], BLUE, [(0.1, 0.3), (0.7, 0.9)], has_whiskers=True)
    chart = draw_curves(
        "t",
        [one, two],
        x=Axis("x", low=0.0, high=1.0),
        y=Axis("y", low=0.0, high=1.0),
        description="d",
        overlays=Overlays(diagonal="as it says"),
    )
    assert find_elements(chart, "polygon") == [] and "as it says" in list_texts(chart)
    upright = [
        element
        for element in find_elements(chart, "line")
        if element.get("stroke") == BLUE and element.get("x1") == element.get("x2")
    ]
    assert len(upright) == 3


def test_curves_with_many_points_have_no_dots() -> None:
    chart = draw_curves(
        "t",
        [Curve("n", [(float(i), 1.0) for i in range(60)], BLUE)],
        x=Axis("x"),
        y=Axis("y"),
        description="d",
    )
    assert find_elements(chart, "circle") == []


def test_intervals_are_drawn_at_their_positions() -> None:
    rows = [IntervalRow("one", 0.5, BLUE, (0.25, 0.75), "50 %"), IntervalRow("two", 1.0, BLUE)]
    chart = draw_intervals(
        "t",
        rows,
        axis=Axis("x", low=0.0, high=1.0),
        description="d",
        reference_lines=[ReferenceLine("zero", 0.0, "dotted")],
    )
    half, one = find_elements(chart, "circle")
    [bar] = [
        element for element in find_elements(chart, "line") if element.get("stroke-width") == "3"
    ]
    assert math.isclose(
        read_number(half, "cx"), (read_number(bar, "x1") + read_number(bar, "x2")) / 2, abs_tol=0.02
    )
    assert read_number(one, "cx") > read_number(bar, "x2") and read_number(one, "cy") > read_number(
        half, "cy"
    )
    assert {"one", "two", "50 %", "zero"} <= set(list_texts(chart))


def test_reference_lines_do_not_cross_names() -> None:
    names = [f"a method with a long name {i}" for i in range(3)]
    chart = draw_intervals(
        "t",
        [IntervalRow(name, 0.5, BLUE, (0.4, 0.6), "50 %") for name in names],
        axis=Axis("x", low=0.0, high=1.0),
        description="d",
        reference_lines=[ReferenceLine("guessing", 0.2, "dotted")],
    )
    baselines = [
        read_number(text, "y") for text in find_elements(chart, "text") if text.text in names
    ]
    spans = [
        (read_number(line, "y1"), read_number(line, "y2"))
        for line in find_elements(chart, "line")
        if line.get("stroke-width") == "1.8"
    ]
    assert len(baselines) == len(names) <= len(spans)
    assert not any(y1 < y and y - 10 < y2 for y1, y2 in spans for y in baselines)


@pytest.mark.parametrize("hostile_text", HOSTILE)
def test_hostile_text_stays_text_within_the_picture(hostile_text: str) -> None:
    hostile = hostile_text
    row, key = BarRow(hostile, [Bar(1.0, BLUE, text="1")]), LegendKey(hostile, BLUE, shape="box")
    charts = [
        draw_bars(
            hostile,
            [row],
            axis=Axis(hostile),
            description=hostile,
            keys=[key, LegendKey(hostile, BLUE, shape="tick")],
        ),
        draw_curves(
            hostile,
            [Curve(hostile, [(0.0, 1.0), (1.0, 2.0)], BLUE)],
            x=Axis(hostile),
            y=Axis(hostile),
            description=hostile,
        ),
        draw_intervals(
            hostile,
            [IntervalRow(hostile, 1.0, BLUE, (0.5, 1.5), "1")],
            axis=Axis(hostile),
            description=hostile,
        ),
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
        assert not [
            name for element in root.iter() for name in element.attrib if name.startswith("on")
        ]
        assert all(
            estimate_text_width(element.text or "") <= WIDTH + 1
            for element in root.iter(f"{SVG}text")
        )


def test_chart_has_a_title_and_a_description() -> None:
    root = ElementTree.fromstring(
        draw_bars("A name", [BarRow("a", [Bar(1.0, BLUE)])], axis=Axis("x"), description="a: 1")
    )
    assert root.get("role") == "img"
    assert [(root[i].tag.removeprefix(SVG), root[i].text) for i in (0, 1)] == [
        ("title", "A name"),
        ("desc", "a: 1"),
    ]


def test_fit_text_cuts_text_to_the_width() -> None:
    assert fit_text("short", 100.0) == "short"
    assert (
        fit_text("a long name of a feature", 60.0).endswith("…")
        and estimate_text_width(fit_text("x" * 500, 60.0)) <= 60.0
    )


def test_each_protocol_has_a_fixed_colour() -> None:
    assert [get_protocol_colour(name) for name in ("anonml", "ddml", "sdq", "pfds")] == [
        "#0072b2",
        "#d55e00",
        "#009e73",
        "#cc79a7",
    ]
    assert get_protocol_colour("guessing") == GREY == get_class_colour(len(CLASS_COLOURS))
