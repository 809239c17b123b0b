"""Values with their intervals, one under the other, each with its name on a line of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.report.charts.frame import WIDTH, Key, bottom_axis, fitted, label, legend, line, picture, room_of
from shoal.report.charts.lines import Level
from shoal.report.charts.scales import Axis, scale_for
from shoal.report.markup import Markup, tag

_ROW, _EDGE = 38.0, 14.0


@dataclass(frozen=True)
class Interval:
    """A value, the interval around it where there is one, and words at the right of its name."""

    name: str
    value: float
    colour: str
    interval: tuple[float, float] | None = None
    text: str = ""


def intervals(title: str, rows: Sequence[Interval], *, axis: Axis, description: str, levels: Sequence[Level] = ()) -> Markup:
    """Rows of values over one axis.

    Parameters
    ----------
    title, description
        What the chart is, and what it shows in words.
    rows
        From top to bottom.
    axis
        What a place means.
    levels
        Values that all rows are held against.
    """
    parts, top = legend([Key(level.name, level.colour, level.look) for level in levels], 0)
    values = [row.value for row in rows] + [edge for row in rows for edge in row.interval or ()] + [level.value for level in levels]
    # Words at the right stand beside the plot, not on its lines.
    beside = max((room_of(row.text) for row in rows), default=0.0)
    scale = scale_for(axis, values, _EDGE, WIDTH - max(_EDGE, beside + 12))
    bottom = top + _ROW * len(rows) + 6
    parts.append(bottom_axis(axis, scale, top, bottom))
    parts += [
        line(scale.at(level.value), top, scale.at(level.value), bottom, level.colour, look=level.look, thick=1.8, of="mark")
        for level in levels
    ]
    for i, row in enumerate(rows):
        y = top + _ROW * i
        room = WIDTH - (room_of(row.text) + 10 if row.text else 0)
        parts.append(label(fitted(row.name, room), 0, y + 14))
        parts += [label(row.text, WIDTH, y + 14, anchor="end", soft=True)] if row.text else []
        at = y + 26
        if row.interval is not None:
            low, high = (scale.at(edge) for edge in row.interval)
            parts.append(line(low, at, high, at, row.colour, thick=3))
            parts += [line(edge, at - 4, edge, at + 4, row.colour, thick=1.6) for edge in (low, high)]
        parts.append(tag("circle", cx=scale.at(row.value), cy=at, r=4.6, fill=row.colour))
    return picture(title, description, bottom + 44, parts)
