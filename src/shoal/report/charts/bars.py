"""Bar and interval charts.

`draw_bars` draws groups of horizontal bars with optional errors and true values. `draw_intervals`
draws values with their intervals, one row for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.report.charts.axes import (
    AXIS,
    INK,
    WIDTH,
    Axis,
    LegendKey,
    LineStyle,
    draw_bottom_axis,
    draw_box,
    draw_chart,
    draw_label,
    draw_legend,
    draw_line,
    estimate_text_width,
    fit_text,
    make_scale,
)
from shoal.report.charts.lines import ReferenceLine
from shoal.report.html import Markup, tag

_BAR_HEIGHT, _NAME_SHARE = 18.0, 0.42
"""Height of a single bar; largest share of the width for names."""


@dataclass(frozen=True)
class Bar:
    """One bar.

    Parameters
    ----------
    style
        Solid for private values.
    interval
        Low and high end, drawn as a whisker.
    truth
        The true value, drawn as a mark.
    text
        Text after the bar.
    """

    value: float
    colour: str
    style: LineStyle = "solid"
    interval: tuple[float, float] | None = None
    truth: float | None = None
    text: str = ""


@dataclass(frozen=True)
class BarRow:
    """A group of bars with a name."""

    name: str
    bars: Sequence[Bar]


def draw_bars(
    title: str,
    rows: Sequence[BarRow],
    *,
    axis: Axis,
    description: str,
    keys: Sequence[LegendKey] = (),
) -> Markup:
    """Draw groups of horizontal bars over one axis.

    Parameters
    ----------
    rows
        From top to bottom.
    axis
        The axis of the lengths; it always includes zero.
    description
        The content of the chart for readers who do not see it.
    keys
        The legend.
    """
    parts, top = draw_legend(keys, 0)
    names = min(max(estimate_text_width(row.name) for row in rows), _NAME_SHARE * WIDTH)
    text_width = max(
        (estimate_text_width(bar.text) + 8 for row in rows for bar in row.bars if bar.text),
        default=12.0,
    )
    every = [bar for row in rows for bar in row.bars]
    values = [
        0.0,
        *(bar.value for bar in every),
        *(edge for bar in every for edge in bar.interval or ()),
    ]
    scale = make_scale(
        axis,
        [*values, *(bar.truth for bar in every if bar.truth is not None)],
        names + 10,
        WIDTH - max(text_width, 16.0),
    )
    thick = _BAR_HEIGHT if max(len(row.bars) for row in rows) == 1 else 9.0
    gap, y = (10.0 if thick == _BAR_HEIGHT else 8.0), top + 4
    drawn = []
    for row in rows:
        height = len(row.bars) * (thick + 2) - 2
        drawn.append(draw_label(fit_text(row.name, names), names, y + height / 2 + 4, anchor="end"))
        for bar in row.bars:
            zero, end = sorted((scale.to_position(0.0), scale.to_position(bar.value)))
            drawn.append(draw_box(zero, y, end - zero, thick, bar.colour, bar.style))
            middle, reach = y + thick / 2, end
            if bar.interval is not None:
                low, high = (scale.to_position(edge) for edge in bar.interval)
                reach = max(reach, high)
                drawn += [
                    draw_line((low, middle, high, middle), INK, thickness=1.4, css_class="mark"),
                    *(
                        draw_line(
                            (edge, middle - thick / 4, edge, middle + thick / 4),
                            INK,
                            thickness=1.4,
                            css_class="mark",
                        )
                        for edge in (low, high)
                    ),
                ]
            if bar.truth is not None:
                at = scale.to_position(bar.truth)
                drawn.append(
                    draw_line(
                        (at, y - 1.5, at, y + thick + 1.5), INK, thickness=2.5, css_class="truth"
                    )
                )
            if bar.text:
                drawn.append(draw_label(bar.text, reach + 6, middle + 4))
            y += thick + 2
        y += gap
    parts += [
        draw_bottom_axis(axis, scale, top, y),
        *drawn,
        draw_line((scale.to_position(0.0), top, scale.to_position(0.0), y), AXIS, css_class="axis"),
    ]
    return draw_chart(title, description, y + 44, parts)


_ROW, _NAME_ROW, _EDGE = 38.0, 18.0, 14.0
"""Height of a row and of the name at its top; margin of the plot."""


@dataclass(frozen=True)
class IntervalRow:
    """A value with its interval, if it has one, and a text to the right of its name."""

    name: str
    value: float
    colour: str
    interval: tuple[float, float] | None = None
    text: str = ""


def draw_intervals(
    title: str,
    rows: Sequence[IntervalRow],
    *,
    axis: Axis,
    description: str,
    reference_lines: Sequence[ReferenceLine] = (),
) -> Markup:
    """Draw rows of values over one axis.

    Parameters
    ----------
    rows
        From top to bottom.
    description
        The content of the chart for readers who do not see it.
    reference_lines
        Values to compare all rows with.
    """
    parts, top = draw_legend(
        [LegendKey(level.name, level.colour, level.style) for level in reference_lines], 0
    )
    values = (
        [row.value for row in rows]
        + [edge for row in rows for edge in row.interval or ()]
        + [level.value for level in reference_lines]
    )
    # Texts at the right are outside the plot, not on its lines.
    text_width = max((estimate_text_width(row.text) for row in rows), default=0.0)
    scale = make_scale(axis, values, _EDGE, WIDTH - max(_EDGE, text_width + 12))
    bottom = top + _ROW * len(rows) + 6
    parts.append(draw_bottom_axis(axis, scale, top, bottom))
    for i, row in enumerate(rows):
        y = top + _ROW * i
        # A reference line is interrupted at each name.
        parts += [
            draw_line(
                (x, y + _NAME_ROW, x, y + _ROW),
                level.colour,
                style=level.style,
                thickness=1.8,
                css_class="mark",
            )
            for level in reference_lines
            for x in [scale.to_position(level.value)]
        ]
        room = WIDTH - (estimate_text_width(row.text) + 10 if row.text else 0)
        parts.append(draw_label(fit_text(row.name, room), 0, y + 14))
        parts += [draw_label(row.text, WIDTH, y + 14, anchor="end", soft=True)] if row.text else []
        at = y + 26
        if row.interval is not None:
            low, high = (scale.to_position(edge) for edge in row.interval)
            parts.append(draw_line((low, at, high, at), row.colour, thickness=3))
            parts += [
                draw_line((edge, at - 4, edge, at + 4), row.colour, thickness=1.6)
                for edge in (low, high)
            ]
        parts.append(tag("circle", cx=scale.to_position(row.value), cy=at, r=4.6, fill=row.colour))
    return draw_chart(title, description, bottom + 44, parts)
