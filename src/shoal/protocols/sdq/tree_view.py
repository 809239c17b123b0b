"""A tree as text and as SVG.

`DecisionTree.to_text` and `DecisionTree.to_svg` call these functions. Names of columns, cells and
classes are untrusted: they are escaped before they are displayed. The SVG needs no library and no
installed font; text widths are upper bounds.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from shoal.data.schema import cell_names
from shoal.text import escape_text, format_count

if TYPE_CHECKING:
    from shoal.protocols.sdq.model import DecisionTree


def format_counts(
    classes: Sequence[str], counts: Sequence[float], max_classes: int | None = 3
) -> str:
    """Format noisy counts, rounded; an empty string if they are unknown.

    With more than ``max_classes`` classes only the largest counts are listed.

    Examples
    --------
    >>> format_counts(["no", "yes"], [12.0, -0.3])
    'no 12, yes 0'
    """
    if np.isnan(counts).any():
        return ""
    order = list(range(len(classes)))
    is_cut = max_classes is not None and len(classes) > max_classes
    if is_cut:
        order = sorted(order, key=lambda i: -counts[i])[:max_classes]
    listed = ", ".join(f"{classes[i]} {round(counts[i])}" for i in order)
    return f"{listed}, …" if is_cut else listed


def format_noise(deviation: tuple[float, float] | None) -> str:
    """Format the noise of a tree's counts, for leaves and the root; an empty string without noise.

    Examples
    --------
    >>> format_noise((4.32, 61.1))
    'noise (standard deviation): 4.3 on a count of a leaf, 61 on one of the root'
    """
    if deviation is None or not any(deviation):
        return ""
    leaf, root = (f"{x:.2g}" if x < 100 else f"{x:.0f}" for x in deviation)
    return f"noise (standard deviation): {leaf} on a count of a leaf, {root} on one of the root"


_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
"""Okabe and Ito's palette, which is distinguishable with any colour vision; each colour is next to
its class name.
"""
_GREY = "#999999"
"""Colour of all further classes: only their names distinguish them."""
_BOX, _STEP, _ROW, _HEIGHT, _MARGIN = 210, 340, 50, 40, 16
_INDENT, _BEND, _GAP = 18, 8, 4
_HEAD, _SMALL, _LABEL, _NOTE = 13, 10, 11, 13
"""Font sizes: head and counts of a box, label of an edge, and notes."""
_THIN = 0.92
"""Width of regular letters relative to bold ones."""
_WIDTHS = {
    'abcdeghknopqsuvxyz0123456789?_$*"': 0.72,
    " !'(),-./:;I[\\]`fijlrt|": 0.5,
    "%@MWmw…—": 1.1,
}
"""Upper bounds of the widths of bold letters, in units of the font size. Capitals and other signs
are wider than most, and non-Latin characters are the widest.
"""


def render_text(
    tree: DecisionTree, max_depth: int | None, width: int | None, n_classes: int | None
) -> str:
    """Render the tree as text.

    Below each attribute there is a line for each of its cells, with the decision and noisy counts.
    """
    lines = []
    # Pending nodes: the node, its cell name, the prefix of its line and of the lines below, and
    # the number of levels left.
    stack = [(0, "", "", "", max_depth)]
    while stack:
        node, cell, begin, under, more = stack.pop()
        is_cut = more == 0 and tree.splits[node] >= 0
        lines.append(
            f"{begin}{cell}{_format_node(tree, node, is_cut, n_classes, is_root=not cell)}"
        )
        children = () if is_cut else tree.children(node)
        names = _list_cell_names(tree, node)
        for i, child in reversed(list(enumerate(children))):
            is_last = i == len(children) - 1
            bent, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            stack.append(
                (child, names[i], under + bent, under + below, None if more is None else more - 1)
            )
    noise = format_noise(tree.deviation)
    lines += [noise] if noise else []
    return "\n".join(
        line if width is None or len(line) <= width else f"{line[: width - 1]}…" for line in lines
    )


def _format_node(
    tree: DecisionTree, node: int, is_cut: bool, n_classes: int | None, is_root: bool
) -> str:
    counts = format_counts(_list_class_names(tree), tree.counts[node], n_classes)
    noted = f"  [{counts}]" if counts else ""
    if tree.splits[node] >= 0 and not is_cut:
        return f"{'' if is_root else ': '}{_format_attribute(tree, node)}?{noted}"
    more = f"  … {format_count(int(tree.below[node]), 'node')} below" if is_cut else ""
    return f"{'' if is_root else ' '}→ {_format_decision(tree, node)}{noted}{more}"


def render_svg(tree: DecisionTree, max_nodes: int) -> str:
    """Render the tree as SVG: the root on the left, one column per level.

    A large tree is cut after the levels that fit.
    """
    children = _select_children(tree, max_nodes)
    depths, heights = _lay_out(children)
    notes = (
        [
            f"{len(children):,} of {format_count(len(tree), 'node')} are shown; a dashed box has "
            "more below it."
        ]
        if len(children) < len(tree)
        else []
    )
    notes += [noise] if (noise := format_noise(tree.deviation)) else []
    width = 2 * _MARGIN + max(
        [
            max(depths.values()) * _STEP + _BOX,
            *(round(_measure_width(note, _THIN * _NOTE)) for note in notes),
        ]
    )
    n_rows = sum(not below for below in children.values())
    height = 2 * _MARGIN + n_rows * _ROW + len(notes) * _ROW // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        "<title>A decision tree for "
        f"{escape(escape_text(tree.schema.label.name) if tree.schema.label else '')}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for node, below in children.items():
        names = _list_cell_names(tree, node)
        for name, child in zip(names, below, strict=False):
            parts += _draw_edge(
                (depths[node], heights[node]), (depths[child], heights[child]), name
            )
    for node, below in children.items():
        parts += _draw_box(
            tree, node, depths[node], heights[node], is_cut=not below and tree.splits[node] >= 0
        )
    for i, note in enumerate(reversed(notes)):
        parts.append(
            f'<text x="{_MARGIN}" y="{height - _MARGIN - i * _ROW // 2}" font-size="{_NOTE}" '
            f'fill="#555555">{note}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _select_children(tree: DecisionTree, max_nodes: int) -> dict[int, Sequence[int]]:
    """Return the visible nodes in breadth-first order, with their children.

    The children are empty if the next level is not visible; a level is complete or absent.
    """
    children: dict[int, Sequence[int]] = {}
    level, n_shown = [0], 1
    while level:
        below = [child for node in level for child in tree.children(node)]
        n_shown += len(below)
        fits = n_shown <= max_nodes
        children |= {node: tree.children(node) if fits else () for node in level}
        level = below if fits else []
    return children


def _lay_out(children: dict[int, Sequence[int]]) -> tuple[dict[int, int], dict[int, float]]:
    """Return the column of each node, and its height in rows.

    End nodes are placed from top to bottom, others halfway between their first and last child.
    """
    depths, heights, n_ends = {0: 0}, dict[int, float](), 0
    stack = [0]
    while stack:
        node = stack.pop()
        for child in children[node]:
            depths[child] = depths[node] + 1
        stack.extend(reversed(children[node]))
        if not children[node]:
            heights[node] = n_ends
            n_ends += 1
    # In breadth-first order a child follows its parent.
    for node, below in reversed(children.items()):
        if below:
            heights[node] = (heights[below[0]] + heights[below[-1]]) / 2
    return depths, heights


def _draw_edge(start: tuple[int, float], end: tuple[int, float], name: str) -> list[str]:
    x, y = _MARGIN + start[0] * _STEP + _BOX, _MARGIN + start[1] * _ROW + _HEIGHT / 2
    to_x, to_y = _MARGIN + end[0] * _STEP, _MARGIN + end[1] * _ROW + _HEIGHT / 2
    return [
        f'<path d="M{x} {y:g} L{x + _BEND} {to_y:g} L{to_x} {to_y:g}" fill="none" '
        'stroke="#999999"/>',
        f'<text x="{to_x - _GAP}" y="{to_y - _GAP:g}" text-anchor="end" font-size="{_LABEL}" '
        'fill="#333333">'
        f"{_escape_and_cut(name, _THIN * _LABEL, to_x - x - _BEND - 2 * _GAP)}</text>",
    ]


def _draw_box(tree: DecisionTree, node: int, depth: int, height: float, is_cut: bool) -> list[str]:
    x, y = _MARGIN + depth * _STEP, _MARGIN + height * _ROW
    is_inner = tree.splits[node] >= 0 and not is_cut
    head = f"{_format_attribute(tree, node)}?" if is_inner else _format_decision(tree, node)
    style = ' stroke-dasharray="5 3"' if is_cut else ""
    parts = [
        f'<rect x="{x}" y="{y:g}" width="{_BOX}" height="{_HEIGHT}" rx="5" fill="#f7f7f7" '
        f'stroke="#555555"{style}/>'
    ]
    if not is_inner:
        decision = int(tree.decisions[node])
        colour = _COLOURS[decision] if decision < len(_COLOURS) else _GREY
        parts.append(
            f'<rect x="{x + 4}" y="{y + 4:g}" width="8" height="{_HEIGHT - 8}" fill="{colour}"/>'
        )
    room = _BOX - _INDENT - _GAP
    at = f'x="{x + _INDENT}"'
    parts.append(
        f'<text {at} y="{y + 17:g}" font-weight="bold" font-size="{_HEAD}" '
        f'fill="#111111">{_escape_and_cut(head, _HEAD, room)}</text>'
    )
    parts.append(
        f'<text {at} y="{y + 33:g}" font-size="{_SMALL}" '
        f'fill="#333333">{escape(_fit_counts(tree, node, room))}</text>'
    )
    return parts


def _fit_counts(tree: DecisionTree, node: int, room: float) -> str:
    """Return the noisy counts of the classes that fit; a number is never cut."""
    for max_classes in (3, 2, 1):
        text = format_counts(_list_class_names(tree), tree.counts[node], max_classes)
        if _measure_width(text, _THIN * _SMALL) <= room:
            return text
    return "…"


def _list_class_names(tree: DecisionTree) -> list[str]:
    return [escape_text(name) for name in tree.classes]


def _format_attribute(tree: DecisionTree, node: int) -> str:
    return escape_text(tree.schema.features[tree.splits[node]].name)


def _format_decision(tree: DecisionTree, node: int) -> str:
    return _list_class_names(tree)[int(tree.decisions[node])]


def _list_cell_names(tree: DecisionTree, node: int) -> list[str]:
    """Return the names of a node's cells; none for a leaf."""
    split = int(tree.splits[node])
    return (
        [] if split < 0 else [escape_text(name) for name in cell_names(tree.schema.features[split])]
    )


def _escape_and_cut(text: str, size: float, room: float) -> str:
    """Escape the text, and cut it if it is wider than the room at this font size."""
    if _measure_width(text, size) <= room:
        return escape(text)
    n = len(text)
    while n and _measure_width(f"{text[:n]}…", size) > room:
        n -= 1
    return escape(f"{text[:n]}…")


def _measure_width(text: str, size: float) -> float:
    """Return an upper bound of a text's width, in bold in the widest common sans-serif font."""
    return size * math.fsum(map(_measure_letter, text))


def _measure_letter(letter: str) -> float:
    # Accents have no width; an accented letter is as wide as its base.
    base = unicodedata.normalize("NFD", letter)[0]
    if unicodedata.combining(base):
        return 0.0
    for letters, width in _WIDTHS.items():
        if base in letters:
            return width
    return 0.9 if base.isascii() else 1.25
