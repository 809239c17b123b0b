"""A tree for people: as text, and as a picture that needs no library and no font of its own."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from shoal.names import counted, shown
from shoal.protocols.sdq.words import cell_names, counts_in_words, noise_in_words

if TYPE_CHECKING:
    from shoal.protocols.sdq.model import Tree

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
"""Okabe and Ito's, which people with any colour vision tell apart; each is beside the word that it stands for."""
_GREY = "#999999"
"""Of all classes beyond these colours: the word alone tells them apart."""
_BOX, _STEP, _ROW, _HEIGHT, _MARGIN = 210, 340, 50, 40, 16
_INDENT, _BEND, _GAP = 18, 8, 4
_HEAD, _SMALL, _LABEL, _NOTE = 13, 10, 11, 13
"""Sizes of letters: of a box's head and its counts, on an edge, and of notes."""
_THIN = 0.92
"""How wide letters are that are not bold, beside those that are."""
_WIDTHS = {'abcdeghknopqsuvxyz0123456789?_$*"': 0.72, " !'(),-./:;I[\\]`fijlrt|": 0.5, "%@MWmw…—": 1.1}
"""How wide bold letters are at most, in their size; capitals and other signs are wider than most, and what is not Latin is widest."""


def written(tree: Tree, max_depth: int | None, width: int | None, n_classes: int | None) -> str:
    """The tree as text: under each attribute a line for each of its cells, with what is decided there and the noisy counts."""
    lines = []
    # What is still to be written: a node, what leads to it, the beginning of its line and of the lines below, and how many more levels.
    stack = [(0, "", "", "", max_depth)]
    while stack:
        node, cell, begin, under, more = stack.pop()
        is_cut = more == 0 and tree.splits[node] >= 0
        lines.append(f"{begin}{cell}{_said(tree, node, is_cut, n_classes, is_root=not cell)}")
        children = () if is_cut else tree.children(node)
        names = _cells(tree, node)
        for i, child in reversed(list(enumerate(children))):
            is_last = i == len(children) - 1
            bent, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            stack.append((child, names[i], under + bent, under + below, None if more is None else more - 1))
    noise = noise_in_words(tree.deviation)
    lines += [noise] if noise else []
    return "\n".join(line if width is None or len(line) <= width else f"{line[: width - 1]}…" for line in lines)


def _said(tree: Tree, node: int, is_cut: bool, n_classes: int | None, is_root: bool) -> str:
    counts = counts_in_words(_classes(tree), tree.counts[node], n_classes)
    noted = f"  [{counts}]" if counts else ""
    if tree.splits[node] >= 0 and not is_cut:
        return f"{'' if is_root else ': '}{_attribute(tree, node)}?{noted}"
    more = f"  … {counted(int(tree.below[node]), 'node')} below" if is_cut else ""
    return f"{'' if is_root else ' '}→ {_decision(tree, node)}{noted}{more}"


def drawn(tree: Tree, max_nodes: int) -> str:
    """The tree as SVG: the root on the left, a column for each level; of a large tree the levels next to the root."""
    children = _shown_children(tree, max_nodes)
    depths, heights = _places(children)
    notes = (
        [f"{len(children):,} of {counted(len(tree), 'node')} are shown; a dashed box has more below it."]
        if len(children) < len(tree)
        else []
    )
    notes += [noise] if (noise := noise_in_words(tree.deviation)) else []
    width = 2 * _MARGIN + max([max(depths.values()) * _STEP + _BOX, *(round(_width(note, _THIN * _NOTE)) for note in notes)])
    n_rows = sum(not below for below in children.values())
    height = 2 * _MARGIN + n_rows * _ROW + len(notes) * _ROW // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>A decision tree for {escape(shown(tree.schema.label.name) if tree.schema.label else '')}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for node, below in children.items():
        names = _cells(tree, node)
        for name, child in zip(names, below, strict=False):
            parts += _edge((depths[node], heights[node]), (depths[child], heights[child]), name)
    for node, below in children.items():
        parts += _box(tree, node, depths[node], heights[node], is_cut=not below and tree.splits[node] >= 0)
    for i, note in enumerate(reversed(notes)):
        parts.append(f'<text x="{_MARGIN}" y="{height - _MARGIN - i * _ROW // 2}" font-size="{_NOTE}" fill="#555555">{note}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _shown_children(tree: Tree, max_nodes: int) -> dict[int, Sequence[int]]:
    """The nodes that are shown, in order of breadth, with their children where the next level is shown: all of it or none."""
    found: dict[int, Sequence[int]] = {}
    level, n_shown = [0], 1
    while level:
        below = [child for node in level for child in tree.children(node)]
        n_shown += len(below)
        fits = n_shown <= max_nodes
        found |= {node: tree.children(node) if fits else () for node in level}
        level = below if fits else []
    return found


def _places(children: dict[int, Sequence[int]]) -> tuple[dict[int, int], dict[int, float]]:
    """The column of each node, and its height in rows: ends from top to bottom, others halfway between their first child and their last."""
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
    # In order of breadth a child comes behind its parent.
    for node, below in reversed(children.items()):
        if below:
            heights[node] = (heights[below[0]] + heights[below[-1]]) / 2
    return depths, heights


def _edge(start: tuple[int, float], end: tuple[int, float], name: str) -> list[str]:
    x, y = _MARGIN + start[0] * _STEP + _BOX, _MARGIN + start[1] * _ROW + _HEIGHT / 2
    to_x, to_y = _MARGIN + end[0] * _STEP, _MARGIN + end[1] * _ROW + _HEIGHT / 2
    return [
        f'<path d="M{x} {y:g} L{x + _BEND} {to_y:g} L{to_x} {to_y:g}" fill="none" stroke="#999999"/>',
        f'<text x="{to_x - _GAP}" y="{to_y - _GAP:g}" text-anchor="end" font-size="{_LABEL}" fill="#333333">'
        f"{_safe(name, _THIN * _LABEL, to_x - x - _BEND - 2 * _GAP)}</text>",
    ]


def _box(tree: Tree, node: int, depth: int, height: float, is_cut: bool) -> list[str]:
    x, y = _MARGIN + depth * _STEP, _MARGIN + height * _ROW
    is_inner = tree.splits[node] >= 0 and not is_cut
    head = f"{_attribute(tree, node)}?" if is_inner else _decision(tree, node)
    style = ' stroke-dasharray="5 3"' if is_cut else ""
    parts = [f'<rect x="{x}" y="{y:g}" width="{_BOX}" height="{_HEIGHT}" rx="5" fill="#f7f7f7" stroke="#555555"{style}/>']
    if not is_inner:
        decision = int(tree.decisions[node])
        colour = _COLOURS[decision] if decision < len(_COLOURS) else _GREY
        parts.append(f'<rect x="{x + 4}" y="{y + 4:g}" width="8" height="{_HEIGHT - 8}" fill="{colour}"/>')
    room = _BOX - _INDENT - _GAP
    at = f'x="{x + _INDENT}"'
    parts.append(f'<text {at} y="{y + 17:g}" font-weight="bold" font-size="{_HEAD}" fill="#111111">{_safe(head, _HEAD, room)}</text>')
    parts.append(f'<text {at} y="{y + 33:g}" font-size="{_SMALL}" fill="#333333">{escape(_counts(tree, node, room))}</text>')
    return parts


def _counts(tree: Tree, node: int, room: float) -> str:
    """The noisy counts of as many classes as there is room for; a number is never cut."""
    for most in (3, 2, 1):
        text = counts_in_words(_classes(tree), tree.counts[node], most)
        if _width(text, _THIN * _SMALL) <= room:
            return text
    return "…"


def _classes(tree: Tree) -> list[str]:
    return [shown(name) for name in tree.classes]


def _attribute(tree: Tree, node: int) -> str:
    return shown(tree.schema.features[tree.splits[node]].name)


def _decision(tree: Tree, node: int) -> str:
    return _classes(tree)[int(tree.decisions[node])]


def _cells(tree: Tree, node: int) -> list[str]:
    """The names of a node's cells; none for a leaf."""
    split = int(tree.splits[node])
    return [] if split < 0 else [shown(name) for name in cell_names(tree.schema.features[split])]


def _safe(text: str, size: float, room: float) -> str:
    """The text, escaped; cut where letters of this size would take more room."""
    if _width(text, size) <= room:
        return escape(text)
    n = len(text)
    while n and _width(f"{text[:n]}…", size) > room:
        n -= 1
    return escape(f"{text[:n]}…")


def _width(text: str, size: float) -> float:
    """How wide a text is at most, in bold letters of a size, in the widest of the usual fonts without serifs."""
    return size * math.fsum(map(_letter, text))


def _letter(letter: str) -> float:
    # An accent takes no room of its own, and a letter with one as much as without.
    base = unicodedata.normalize("NFD", letter)[0]
    if unicodedata.combining(base):
        return 0.0
    for letters, width in _WIDTHS.items():
        if base in letters:
            return width
    return 0.9 if base.isascii() else 1.25
