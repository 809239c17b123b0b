"""What all charts have in common: the picture with its name, axes, a legend, and words that stay in their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.report.charts.scales import Axis, Scale, words
from shoal.report.markup import Markup, join, tag
from shoal.study.typeset import width as columns_of

WIDTH = 460.0
"""Narrow enough that its letters can be read on a telephone, and that two fit side by side on a desk."""
FONT = 12.0
INK, SOFT, AXIS, GRID = "#1f2328", "#57606a", "#8c959f", "#e2e5e9"
"""Colours where no page says otherwise; a page restyles them by their classes."""

Look = Literal["solid", "dashed", "dotted"]
"""Private, without privacy, guessing."""
_DASHES = {"solid": None, "dashed": "6 4", "dotted": "1.5 3.5"}
_LETTER = 0.56
"""How wide a letter is on average, in its size."""
_MOST_LETTERS = 500
_SWATCH, _GAP, _ROW = 20.0, 14.0, 17.0


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    name: str
    colour: str
    look: Look = "solid"
    shape: Literal["line", "box", "tick"] = "line"


def picture(title: str, description: str, height: float, content: Iterable[str], width: float = WIDTH) -> Markup:
    """A chart, with its name and what it shows in words for those who do not see it."""
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


def label(text: str, x: float, y: float, *, anchor: str = "start", soft: bool = False, strong: bool = False, small: bool = False) -> Markup:
    """Words at a place, on the line through y."""
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


def line(x1: float, y1: float, x2: float, y2: float, colour: str, *, look: Look = "solid", thick: float = 1.0, of: str = "") -> Markup:
    """A straight line; `of` is the class by which a page restyles it."""
    return tag(
        "line",
        x1=x1,
        y1=y1,
        x2=x2,
        y2=y2,
        stroke=colour,
        stroke_width=thick,
        stroke_dasharray=_DASHES[look],
        stroke_linecap="round" if look == "dotted" else None,
        class_=of or None,
    )


def dashes(look: Look) -> str | None:
    """The pattern of a line, as SVG writes it."""
    return _DASHES[look]


def room_of(text: str, size: float = FONT) -> float:
    """How much room a text takes, roughly."""
    return _LETTER * size * columns_of(text)


def fitted(text: str, room: float, size: float = FONT) -> str:
    """A text, cut where it would take more room."""
    text, is_whole = text[:_MOST_LETTERS], len(text) <= _MOST_LETTERS
    if is_whole and room_of(text, size) <= room:
        return text
    columns, kept = int(room / (_LETTER * size)) - 1, 0
    for n, char in enumerate(text):
        kept += columns_of(char)
        if kept > columns:
            return f"{text[:n].rstrip()}…"
    return f"{text}…"


def legend(keys: Sequence[Key], y: float, width: float = WIDTH) -> tuple[list[Markup], float]:
    """The entries in as many rows as they take, and where the next thing may begin."""
    if not keys:
        return [], y
    parts, x = list[Markup](), 0.0
    for key in keys:
        name = fitted(key.name, width - _SWATCH - _GAP)
        room = _SWATCH + 6 + room_of(name)
        if x > 0 and x + room > width:
            x, y = 0.0, y + _ROW
        parts += [_swatch(key, x, y + 8), label(name, x + _SWATCH + 6, y + 12, soft=True)]
        x += room + _GAP
    return parts, y + _ROW + 4


def _swatch(key: Key, x: float, y: float) -> Markup:
    if key.shape == "box":
        return box(x + 4, y - 5, 12, 10, key.colour, key.look)
    if key.shape == "tick":
        return line(x + 10, y - 6, x + 10, y + 6, key.colour, thick=2.5, of="truth")
    return line(x, y, x + _SWATCH, y, key.colour, look=key.look, thick=2.2)


def box(x: float, y: float, width: float, height: float, colour: str, look: Look) -> Markup:
    """A bar: filled for what is private; open, and dashed or dotted at its edge, for what it is held against."""
    is_filled = look == "solid"
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
        stroke_dasharray=_DASHES[look],
    )


def bottom_axis(axis: Axis, scale: Scale, top: float, y: float) -> Markup:
    """A horizontal axis at the bottom, its grid up to the top, and its name below."""
    parts = []
    for tick, text in zip(scale.ticks, words(scale.ticks, axis), strict=True):
        x = scale.at(tick)
        parts += [line(x, top, x, y, GRID, of="gridline"), label(text, x, y + 16, anchor="middle", soft=True, small=True)]
    parts.append(line(scale.start, y, scale.end, y, AXIS, of="axis"))
    name = fitted(axis.name, scale.end - scale.start + 2 * min(scale.start, WIDTH - scale.end))
    return join([*parts, label(name, (scale.start + scale.end) / 2, y + 34, anchor="middle")])


def left_axis(axis: Axis, scale: Scale, x: float, right: float) -> Markup:
    """A vertical axis on the left, its grid to the right, and its name above."""
    parts = []
    for tick, text in zip(scale.ticks, words(scale.ticks, axis), strict=True):
        y = scale.at(tick)
        parts += [line(x, y, right, y, GRID, of="gridline"), label(text, x - 6, y + 4, anchor="end", soft=True, small=True)]
    return join([*parts, label(fitted(axis.name, right), 0, scale.end - 9)])
