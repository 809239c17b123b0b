"""Curves with bands, steps, and the levels and places that they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.report.charts.frame import AXIS, INK, WIDTH, Key, Look, bottom_axis, dashes, label, left_axis, legend, line, picture, room_of
from shoal.report.charts.scales import Axis, Scale, scale_for, words
from shoal.report.markup import Markup, tag

_PLOT = 190.0
_MOST_DOTS = 40


@dataclass(frozen=True)
class Line:
    """One curve.

    Parameters
    ----------
    name
        For the legend.
    points
        Pairs of x and y, by rising x.
    colour
        Of the curve and its band.
    band
        Low and high of each point; None where there is none.
    look
        Solid for what is private.
    is_step
        Whether a value holds until the next one.
    hollow
        How many of the last points lie beyond what is claimed, and are drawn open.
    is_whiskered
        Whether low and high are drawn at each point by themselves, since nothing lies between points.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    band: Sequence[tuple[float, float]] | None = None
    look: Look = "solid"
    is_step: bool = False
    hollow: int = 0
    is_whiskered: bool = False


@dataclass(frozen=True)
class Level:
    """A value that holds everywhere: drawn across the chart."""

    name: str
    value: float
    look: Look
    colour: str = INK


@dataclass(frozen=True)
class Beyond:
    """A place on the horizontal axis from which on nothing can be drawn, and why."""

    name: str
    at: float


@dataclass(frozen=True)
class Place:
    """A place on the horizontal axis that is marked, with its name."""

    name: str
    at: float


def lines(
    title: str,
    series: Sequence[Line],
    *,
    x: Axis,
    y: Axis,
    description: str,
    levels: Sequence[Level] = (),
    places: Sequence[Place] = (),
    beyond: Beyond | None = None,
    diagonal: str | None = None,
    height: float = _PLOT,
) -> Markup:
    """Curves over a horizontal axis.

    Parameters
    ----------
    title, description
        What the chart is, and what it shows in words.
    series
        The curves.
    x, y
        The axes.
    levels, places
        Values and places that the curves are held against.
    beyond
        Where there is nothing to draw any more.
    diagonal
        The name of the line on which y equals x, where it is to be drawn.
    """
    keys = [Key(one.name, one.colour, one.look) for one in series if one.name]
    keys += [Key(level.name, level.colour, level.look) for level in levels]
    keys += [Key(diagonal, AXIS, "dotted")] if diagonal else []
    parts, top = legend(keys, 0)
    top += 24
    heights = [v for one in series for _, v in one.points] + [level.value for level in levels]
    heights += [edge for one in series for pair in one.band or () for edge in pair]
    up = scale_for(y, heights, top + height, top)
    left = max(room_of(text) for text in words(up.ticks, y)) + 10
    across = scale_for(x, [v for one in series for v, _ in one.points] + [place.at for place in places], left, WIDTH - 16)
    parts += [left_axis(y, up, left, WIDTH - 16), bottom_axis(x, across, top, top + height)]
    parts += [] if beyond is None else _shade(beyond, across, up)
    for place in places:
        at = across.at(place.at)
        is_right = at > (left + WIDTH) / 2
        parts.append(line(at, top, at, top + height, INK, thick=1.2, of="mark"))
        parts.append(label(place.name, at + (-5 if is_right else 5), top + height - 7, anchor="end" if is_right else "start", small=True))
    if diagonal:
        low, high = max(across.low, up.low), min(across.high, up.high)
        parts.append(line(across.at(low), up.at(low), across.at(high), up.at(high), AXIS, look="dotted", thick=2, of="axis"))
    parts += [
        line(left, up.at(level.value), WIDTH - 16, up.at(level.value), level.colour, look=level.look, thick=1.8, of=_ink(level))
        for level in levels
    ]
    parts += [_band(one, across, up) for one in series if one.band and len(one.points) > 1 and not one.is_whiskered]
    for one in series:
        parts += [_curve(one, across, up), *_dots(one, across, up)]
    return picture(title, description, top + height + 44, parts)


def _ink(level: Level) -> str:
    return "mark" if level.colour == INK else ""


def _shade(beyond: Beyond, across: Scale, up: Scale) -> list[Markup]:
    start = across.at(beyond.at)
    room = tag("rect", x=start, y=up.end, width=across.end - start, height=up.start - up.end, fill=AXIS, fill_opacity=0.14)
    return [room, label(beyond.name, (start + across.end) / 2, (up.start + up.end) / 2, anchor="middle", soft=True)]


def _band(one: Line, across: Scale, up: Scale) -> Markup:
    band = one.band or ()
    there = [f"{across.at(x):.1f},{up.at(high):.1f}" for (x, _), (_, high) in zip(one.points, band, strict=True)]
    back = [f"{across.at(x):.1f},{up.at(low):.1f}" for (x, _), (low, _) in zip(one.points, band, strict=True)]
    return tag("polygon", points=" ".join([*there, *reversed(back)]), fill=one.colour, fill_opacity=0.16, stroke="none")


def _curve(one: Line, across: Scale, up: Scale) -> Markup:
    places = [(across.at(x), up.at(y)) for x, y in one.points]
    if one.is_step:
        places = places[:1] + [corner for (_, y), (x, to_y) in pairwise(places) for corner in ((x, y), (x, to_y))]
    return tag(
        "polyline",
        points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
        fill="none",
        stroke=one.colour,
        stroke_width=2.2,
        stroke_dasharray=dashes(one.look),
        stroke_linejoin="round",
    )


def _dots(one: Line, across: Scale, up: Scale) -> list[Markup]:
    """A dot for each point, where they are few; with a whisker where a single point has a band."""
    if len(one.points) > _MOST_DOTS or one.is_step:
        return []
    parts = []
    for i, (x, y) in enumerate(one.points):
        is_hollow = i >= len(one.points) - one.hollow
        if one.band and (one.is_whiskered or len(one.points) == 1):
            low, high = one.band[i]
            parts.append(line(across.at(x), up.at(low), across.at(x), up.at(high), one.colour, thick=1.6))
        parts.append(
            tag(
                "circle",
                cx=across.at(x),
                cy=up.at(y),
                r=3.6,
                fill="#ffffff" if is_hollow else one.colour,
                class_="open" if is_hollow else None,
                stroke=one.colour if is_hollow else None,
                stroke_width=1.8 if is_hollow else None,
            )
        )
    return parts
