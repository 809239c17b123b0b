"""Line charts with bands, steps, reference lines and marks.

Sections of the report draw them with `draw_curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.report.charts.axes import (
    AXIS,
    INK,
    WIDTH,
    Axis,
    LegendKey,
    LineStyle,
    Scale,
    draw_bottom_axis,
    draw_chart,
    draw_label,
    draw_left_axis,
    draw_legend,
    draw_line,
    estimate_text_width,
    format_ticks,
    get_dash_pattern,
    make_scale,
)
from shoal.report.html import Markup, tag

_PLOT, _SQUARE_PLOT = 190.0, 220.0
"""Height of a plot, and of one with a diagonal."""
_MAX_DOTS = 40


@dataclass(frozen=True)
class Curve:
    """One curve.

    Parameters
    ----------
    points
        Pairs of x and y, in increasing order of x.
    band
        Low and high end at each point.
    style
        Solid for private values.
    is_step
        True if a value is valid until the next one.
    n_hollow
        Number of last points that are beyond the claim; they are drawn hollow.
    has_whiskers
        True if low and high ends are drawn at each point, because there are no values in between.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    band: Sequence[tuple[float, float]] | None = None
    style: LineStyle = "solid"
    is_step: bool = False
    n_hollow: int = 0
    has_whiskers: bool = False


@dataclass(frozen=True)
class ReferenceLine:
    """A constant value, drawn across the chart."""

    name: str
    value: float
    style: LineStyle
    colour: str = INK


@dataclass(frozen=True)
class UnboundedRegion:
    """The part of the horizontal axis without a value, and its label."""

    name: str
    start: float


@dataclass(frozen=True)
class AxisMark:
    """A marked position on the horizontal axis, and its label."""

    name: str
    position: float


@dataclass(frozen=True)
class Overlays:
    """Further elements of a line chart.

    Parameters
    ----------
    marks
        Positions to compare the curves with.
    unbounded
        The region in which there is nothing to draw.
    diagonal
        The name of the line on which y equals x; None to omit it.
    """

    marks: Sequence[AxisMark] = ()
    unbounded: UnboundedRegion | None = None
    diagonal: str | None = None


def draw_curves(
    title: str,
    series: Sequence[Curve],
    *,
    x: Axis,
    y: Axis,
    description: str,
    reference_lines: Sequence[ReferenceLine] = (),
    overlays: Overlays | None = None,
) -> Markup:
    """Draw curves over a horizontal axis.

    Parameters
    ----------
    description
        The content of the chart for readers who do not see it.
    reference_lines
        Values to compare the curves with.
    """
    overlays = overlays or Overlays()
    marks, unbounded, diagonal = overlays.marks, overlays.unbounded, overlays.diagonal
    height = _SQUARE_PLOT if diagonal else _PLOT
    keys = [LegendKey(curve.name, curve.colour, curve.style) for curve in series if curve.name]
    keys += [LegendKey(level.name, level.colour, level.style) for level in reference_lines]
    keys += [LegendKey(diagonal, AXIS, "dotted")] if diagonal else []
    parts, top = draw_legend(keys, 0)
    top += 24
    heights = [v for curve in series for _, v in curve.points] + [
        level.value for level in reference_lines
    ]
    heights += [edge for curve in series for pair in curve.band or () for edge in pair]
    up = make_scale(y, heights, top + height, top)
    left = max(estimate_text_width(text) for text in format_ticks(up.ticks, y)) + 10
    across = make_scale(
        x,
        [v for curve in series for v, _ in curve.points] + [mark.position for mark in marks],
        left,
        WIDTH - 16,
    )
    parts += [
        draw_left_axis(y, up, left, WIDTH - 16),
        draw_bottom_axis(x, across, top, top + height),
    ]
    parts += [] if unbounded is None else _draw_region(unbounded, across, up)
    for mark in marks:
        at = across.to_position(mark.position)
        is_right = at > (left + WIDTH) / 2
        parts.append(draw_line((at, top, at, top + height), INK, thickness=1.2, css_class="mark"))
        parts.append(
            draw_label(
                mark.name,
                at + (-5 if is_right else 5),
                top + height - 7,
                anchor="end" if is_right else "start",
                small=True,
            )
        )
    if diagonal:
        low, high = max(across.low, up.low), min(across.high, up.high)
        parts.append(
            draw_line(
                (
                    across.to_position(low),
                    up.to_position(low),
                    across.to_position(high),
                    up.to_position(high),
                ),
                AXIS,
                style="dotted",
                thickness=2,
                css_class="axis",
            )
        )
    parts += [
        draw_line(
            (left, up.to_position(level.value), WIDTH - 16, up.to_position(level.value)),
            level.colour,
            style=level.style,
            thickness=1.8,
            css_class=_choose_css_class(level),
        )
        for level in reference_lines
    ]
    parts += [
        _draw_band(curve, across, up)
        for curve in series
        if curve.band and len(curve.points) > 1 and not curve.has_whiskers
    ]
    for curve in series:
        parts += [_draw_curve(curve, across, up), *_draw_dots(curve, across, up)]
    return draw_chart(title, description, top + height + 44, parts)


def _choose_css_class(level: ReferenceLine) -> str:
    return "mark" if level.colour == INK else ""


def _draw_region(region: UnboundedRegion, across: Scale, up: Scale) -> list[Markup]:
    start = across.to_position(region.start)
    area = tag(
        "rect",
        x=start,
        y=up.end,
        width=across.end - start,
        height=up.start - up.end,
        fill=AXIS,
        fill_opacity=0.14,
    )
    return [
        area,
        draw_label(
            region.name,
            (start + across.end) / 2,
            (up.start + up.end) / 2,
            anchor="middle",
            soft=True,
        ),
    ]


def _draw_band(curve: Curve, across: Scale, up: Scale) -> Markup:
    band = curve.band or ()
    upper = [
        f"{across.to_position(x):.1f},{up.to_position(high):.1f}"
        for (x, _), (_, high) in zip(curve.points, band, strict=True)
    ]
    lower = [
        f"{across.to_position(x):.1f},{up.to_position(low):.1f}"
        for (x, _), (low, _) in zip(curve.points, band, strict=True)
    ]
    return tag(
        "polygon",
        points=" ".join([*upper, *reversed(lower)]),
        fill=curve.colour,
        fill_opacity=0.16,
        stroke="none",
    )


def _draw_curve(curve: Curve, across: Scale, up: Scale) -> Markup:
    places = [(across.to_position(x), up.to_position(y)) for x, y in curve.points]
    if curve.is_step:
        places = places[:1] + [
            corner for (_, y), (x, to_y) in pairwise(places) for corner in ((x, y), (x, to_y))
        ]
    return tag(
        "polyline",
        points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
        fill="none",
        stroke=curve.colour,
        stroke_width=2.2,
        stroke_dasharray=get_dash_pattern(curve.style),
        stroke_linejoin="round",
    )


def _draw_dots(curve: Curve, across: Scale, up: Scale) -> list[Markup]:
    """Draw a dot for each of few points, with a whisker if a single point has a band."""
    if len(curve.points) > _MAX_DOTS or curve.is_step:
        return []
    parts = []
    for i, (x, y) in enumerate(curve.points):
        is_hollow = i >= len(curve.points) - curve.n_hollow
        if curve.band and (curve.has_whiskers or len(curve.points) == 1):
            low, high = curve.band[i]
            parts.append(
                draw_line(
                    (
                        across.to_position(x),
                        up.to_position(low),
                        across.to_position(x),
                        up.to_position(high),
                    ),
                    curve.colour,
                    thickness=1.6,
                )
            )
        parts.append(
            tag(
                "circle",
                cx=across.to_position(x),
                cy=up.to_position(y),
                r=3.6,
                fill="#ffffff" if is_hollow else curve.colour,
                class_="open" if is_hollow else None,
                stroke=curve.colour if is_hollow else None,
                stroke_width=1.8 if is_hollow else None,
            )
        )
    return parts
