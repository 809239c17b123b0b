"""Frame, axes, legend and scales.

All charts use these functions. Text is cut to its place, so that untrusted text cannot cover other
parts of a chart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.report.html import Markup, join, tag
from shoal.text import display_width

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0)
_TOLERANCE = 0.02
"""Share of a step by which a value may exceed a round number without widening the axis."""
_MAX_DECADES = 2.5
"""Powers of ten from which an axis has ticks only at these."""
_MAX_LOG_TICKS = 9


@dataclass(frozen=True)
class Axis:
    """One side of a chart.

    Parameters
    ----------
    name
        The quantity with its unit; an epsilon also with its neighbouring relation.
    kind
        Number format: as it is, or shares in per cent.
    is_log
        True for a logarithmic axis, which requires positive numbers.
    low, high
        The smallest range; shown values may widen it.
    ticks
        Labelled numbers; None to choose round numbers.
    """

    name: str
    kind: Literal["number", "share"] = "number"
    is_log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Scale:
    """An axis with numbers: from `low` at `start` to `high` at `end`, in units of the picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    ticks: tuple[float, ...]

    def to_position(self, value: float) -> float:
        """Return the position of a number; the edge for a number outside the range."""
        inside = min(max(value, self.low), self.high)
        low, high, here = (math.log(x) if self.is_log else x for x in (self.low, self.high, inside))
        return self.start + (self.end - self.start) * (here - low) / (high - low)


def make_scale(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    """Return a scale that includes all given numbers."""
    shown = [*values, *(edge for edge in (axis.low, axis.high) if edge is not None)]
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    if axis.is_log:
        if low == high:
            low, high = low / 2, high * 2
        ticks = axis.ticks or list_log_ticks(low, high)
        return Scale(
            low, high, start, end, True, tuple(tick for tick in ticks if low <= tick <= high)
        )
    if low == high:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    if axis.ticks is not None:
        return Scale(
            low, high, start, end, False, tuple(tick for tick in axis.ticks if low <= tick <= high)
        )
    # Round numbers at both ends, unless an end is fixed.
    step = _choose_step(low, high)
    low = low if low == axis.low else math.floor(low / step + _TOLERANCE) * step
    high = high if high == axis.high else math.ceil(high / step - _TOLERANCE) * step
    return Scale(low, high, start, end, False, _list_multiples(step, low, high))


def _choose_step(low: float, high: float, max_steps: int = 6) -> float:
    """Return the smallest round step that covers low to high in at most `max_steps` steps.

    Both ends are rounded outwards.
    """
    unit = 10.0 ** math.floor(math.log10((high - low) / max_steps))
    steps = (factor * unit for factor in _STEPS)
    return next(
        step
        for step in steps
        if math.ceil(high / step - _TOLERANCE) - math.floor(low / step + _TOLERANCE) <= max_steps
    )


def _list_multiples(step: float, low: float, high: float) -> tuple[float, ...]:
    return tuple(
        round(i * step, 12)
        for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    )


def list_log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return powers of ten from low to high; also 2 and 5 times each if there are few.

    Examples
    --------
    >>> list_log_ticks(0.4, 12), list_log_ticks(1, 10_000)
    ((0.5, 1.0, 2.0, 5.0, 10.0), (1.0, 10.0, 100.0, 1000.0, 10000.0))
    """
    span = math.log10(high / low)
    factors = (1.0,) if span > _MAX_DECADES else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [round(factor * 10.0**decade, 12) for decade in decades for factor in factors]
    inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    every = -(-len(inside) // _MAX_LOG_TICKS) or 1
    return tuple(inside[::every])


def format_ticks(ticks: Sequence[float], axis: Axis) -> list[str]:
    """Format the numbers of an axis, all with the decimals that they need to differ.

    Examples
    --------
    >>> (
    ...     format_ticks([0.0, 0.25, 0.5], Axis("accuracy", "share")),
    ...     format_ticks([500, 1000], Axis("updates")),
    ... )
    (['0 %', '25 %', '50 %'], ['500', '1,000'])
    """
    numbers = [100 * tick for tick in ticks] if axis.kind == "share" else list(ticks)
    unit = " %" if axis.kind == "share" else ""
    if axis.is_log or any(abs(x) >= 1e6 or 0 < abs(x) < 1e-4 for x in numbers):
        return [f"{text}{unit}" for text in _format_magnitudes(numbers)]
    digits = next(
        n
        for n in range(13)
        if n == 12 or all(abs(round(x, n) - x) <= 1e-9 * max(1.0, abs(x)) for x in numbers)
    )
    return [f"{x + 0.0:,.{digits}f}{unit}" for x in numbers]


def _format_magnitudes(numbers: Sequence[float]) -> list[str]:
    """Format numbers of very different size, with more digits if two would look equal."""
    texts: list[str] = []
    for digits in range(3, 18):
        texts = [
            f"{x:,.{max(digits, 6)}g}" if 1e-4 <= abs(x) < 1e6 or x == 0 else f"{x:.{digits}g}"
            for x in numbers
        ]
        if len(set(texts)) == len(set(numbers)):
            break
    return texts


WIDTH = 460.0
"""Width of a chart: readable on a telephone, and two fit next to each other on a desktop."""
FONT = 12.0
INK, SOFT, AXIS, GRID = "#1f2328", "#57606a", "#8c959f", "#e2e5e9"
"""Default colours; a page restyles them by their CSS classes."""

LineStyle = Literal["solid", "dashed", "dotted"]
"""Styles for private values, values without privacy, and guessing."""
_DASHES = {"solid": None, "dashed": "6 4", "dotted": "1.5 3.5"}
_LETTER_WIDTH = 0.56
"""Average width of a letter, relative to the font size."""
_MAX_LETTERS = 500
_SWATCH, _GAP, _ROW = 20.0, 14.0, 17.0


@dataclass(frozen=True)
class LegendKey:
    """One entry of a legend."""

    name: str
    colour: str
    style: LineStyle = "solid"
    shape: Literal["line", "box", "tick"] = "line"


def draw_chart(
    title: str, description: str, height: float, content: Iterable[str], width: float = WIDTH
) -> Markup:
    """Draw a chart with its title and a description for readers who do not see it."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        content,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        class_="chart",
        viewBox=f"0 0 {width:g} {height:g}",
        font_family="system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
        font_size=FONT,
    )


def draw_label(
    text: str,
    x: float,
    y: float,
    *,
    anchor: str = "start",
    soft: bool = False,
    strong: bool = False,
    small: bool = False,
) -> Markup:
    """Draw text at a position; `y` is its baseline."""
    return tag(
        "text",
        text,
        x=x,
        y=y,
        text_anchor=None if anchor == "start" else anchor,
        class_="soft" if soft else "ink",
        fill=SOFT if soft else INK,
        font_weight="600" if strong else None,
        font_size="0.92em" if small else None,
    )


def draw_line(
    ends: tuple[float, float, float, float],
    colour: str,
    *,
    style: LineStyle = "solid",
    thickness: float = 1.0,
    css_class: str = "",
) -> Markup:
    """Draw a line between ``(x1, y1, x2, y2)``; a page restyles it by `css_class`."""
    x1, y1, x2, y2 = ends
    return tag(
        "line",
        x1=x1,
        y1=y1,
        x2=x2,
        y2=y2,
        stroke=colour,
        stroke_width=thickness,
        stroke_dasharray=_DASHES[style],
        stroke_linecap="round" if style == "dotted" else None,
        class_=css_class or None,
    )


def get_dash_pattern(style: LineStyle) -> str | None:
    """Return the dash pattern of a line style in SVG notation."""
    return _DASHES[style]


def estimate_text_width(text: str, size: float = FONT) -> float:
    """Return the approximate width of a text."""
    return _LETTER_WIDTH * size * display_width(text)


def fit_text(text: str, room: float, size: float = FONT) -> str:
    """Return a text, cut if it is wider than `room`."""
    text, is_whole = text[:_MAX_LETTERS], len(text) <= _MAX_LETTERS
    if is_whole and estimate_text_width(text, size) <= room:
        return text
    columns, kept = int(room / (_LETTER_WIDTH * size)) - 1, 0
    for n, char in enumerate(text):
        kept += display_width(char)
        if kept > columns:
            return f"{text[:n].rstrip()}…"
    return f"{text}…"


def draw_legend(
    keys: Sequence[LegendKey], y: float, width: float = WIDTH
) -> tuple[list[Markup], float]:
    """Draw the entries in rows; return them and the position below the last row."""
    if not keys:
        return [], y
    parts, x = list[Markup](), 0.0
    for key in keys:
        name = fit_text(key.name, width - _SWATCH - _GAP)
        room = _SWATCH + 6 + estimate_text_width(name)
        if x > 0 and x + room > width:
            x, y = 0.0, y + _ROW
        parts += [_draw_swatch(key, x, y + 8), draw_label(name, x + _SWATCH + 6, y + 12, soft=True)]
        x += room + _GAP
    return parts, y + _ROW + 4


def _draw_swatch(key: LegendKey, x: float, y: float) -> Markup:
    if key.shape == "box":
        return draw_box(x + 4, y - 5, 12, 10, key.colour, key.style)
    if key.shape == "tick":
        return draw_line(
            (x + 10, y - 6, x + 10, y + 6), key.colour, thickness=2.5, css_class="truth"
        )
    return draw_line((x, y, x + _SWATCH, y), key.colour, style=key.style, thickness=2.2)


def draw_box(
    x: float, y: float, width: float, height: float, colour: str, style: LineStyle
) -> Markup:
    """Draw a bar: filled if it is private, else hollow with a dashed or dotted edge."""
    is_filled = style == "solid"
    return tag(
        "rect",
        x=x,
        y=y,
        width=max(width, 0.0),
        height=height,
        fill=colour,
        fill_opacity=1.0 if is_filled else 0.14,
        stroke=None if is_filled else colour,
        stroke_width=None if is_filled else 1.4,
        stroke_dasharray=_DASHES[style],
    )


def draw_bottom_axis(axis: Axis, scale: Scale, top: float, y: float) -> Markup:
    """Draw a horizontal axis at the bottom, its grid above and its name below."""
    parts = []
    for tick, text in zip(scale.ticks, format_ticks(scale.ticks, axis), strict=True):
        x = scale.to_position(tick)
        parts += [
            draw_line((x, top, x, y), GRID, css_class="gridline"),
            draw_label(text, x, y + 16, anchor="middle", soft=True, small=True),
        ]
    parts.append(draw_line((scale.start, y, scale.end, y), AXIS, css_class="axis"))
    name = fit_text(axis.name, scale.end - scale.start + 2 * min(scale.start, WIDTH - scale.end))
    return join([*parts, draw_label(name, (scale.start + scale.end) / 2, y + 34, anchor="middle")])


def draw_left_axis(axis: Axis, scale: Scale, x: float, right: float) -> Markup:
    """Draw a vertical axis on the left, its grid to the right and its name above."""
    parts = []
    for tick, text in zip(scale.ticks, format_ticks(scale.ticks, axis), strict=True):
        y = scale.to_position(tick)
        parts += [
            draw_line((x, y, right, y), GRID, css_class="gridline"),
            draw_label(text, x - 6, y + 4, anchor="end", soft=True, small=True),
        ]
    return join([*parts, draw_label(fit_text(axis.name, right), 0, scale.end - 9)])
