"""Horizontal bars: as many in a row as belong together, each with its error and the truth beside it where they are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.report.charts.frame import AXIS, INK, WIDTH, Key, Look, bottom_axis, box, fitted, label, legend, line, picture, room_of
from shoal.report.charts.scales import Axis, scale_for
from shoal.report.markup import Markup

_THICK, _ROOM = 18.0, 0.42
"""Height of a bar that stands alone; the share of the width that names may take."""


@dataclass(frozen=True)
class Bar:
    """One bar.

    Parameters
    ----------
    value
        Its length.
    colour, look
        Solid for what is private.
    interval
        Low and high, drawn as a whisker.
    truth
        What it would be if everything were known, drawn as a mark.
    text
        Written behind it.
    """

    value: float
    colour: str
    look: Look = "solid"
    interval: tuple[float, float] | None = None
    truth: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Row:
    """Bars that belong together, with their name."""

    name: str
    bars: Sequence[Bar]


def bars(title: str, rows: Sequence[Row], *, axis: Axis, description: str, keys: Sequence[Key] = ()) -> Markup:
    """Rows of horizontal bars over one axis.

    Parameters
    ----------
    title, description
        What the chart is, and what it shows in words.
    rows
        From top to bottom.
    axis
        What a length means; zero is always on it.
    keys
        The legend.
    """
    parts, top = legend(keys, 0)
    names = min(max(room_of(row.name) for row in rows), _ROOM * WIDTH)
    behind = max((room_of(bar.text) + 8 for row in rows for bar in row.bars if bar.text), default=12.0)
    every = [bar for row in rows for bar in row.bars]
    values = [0.0, *(bar.value for bar in every), *(edge for bar in every for edge in bar.interval or ())]
    scale = scale_for(axis, [*values, *(bar.truth for bar in every if bar.truth is not None)], names + 10, WIDTH - max(behind, 16.0))
    thick = _THICK if max(len(row.bars) for row in rows) == 1 else 9.0
    gap, y = (10.0 if thick == _THICK else 8.0), top + 4
    drawn = []
    for row in rows:
        height = len(row.bars) * (thick + 2) - 2
        drawn.append(label(fitted(row.name, names), names, y + height / 2 + 4, anchor="end"))
        for bar in row.bars:
            zero, end = sorted((scale.at(0.0), scale.at(bar.value)))
            drawn.append(box(zero, y, end - zero, thick, bar.colour, bar.look))
            middle, reach = y + thick / 2, end
            if bar.interval is not None:
                low, high = (scale.at(edge) for edge in bar.interval)
                reach = max(reach, high)
                drawn += [
                    line(low, middle, high, middle, INK, thick=1.4, of="mark"),
                    *(line(edge, middle - thick / 4, edge, middle + thick / 4, INK, thick=1.4, of="mark") for edge in (low, high)),
                ]
            if bar.truth is not None:
                at = scale.at(bar.truth)
                drawn.append(line(at, y - 1.5, at, y + thick + 1.5, INK, thick=2.5, of="truth"))
            if bar.text:
                drawn.append(label(bar.text, reach + 6, middle + 4))
            y += thick + 2
        y += gap
    parts += [bottom_axis(axis, scale, top, y), *drawn, line(scale.at(0.0), top, scale.at(0.0), y, AXIS, of="axis")]
    return picture(title, description, y + 44, parts)
