"""A tree for people: as text, and as a picture that needs no library and no font of its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from shoal.names import counted, shown
from shoal.protocols.sdq.words import cell_names, counts_in_words

if TYPE_CHECKING:
    from shoal.protocols.sdq.model import Tree

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
"""Okabe and Ito's, which people with any colour vision tell apart; each is beside the word that it stands for."""
_BOX, _STEP, _ROW, _HEIGHT, _MARGIN = 210, 340, 50, 40, 16
_MOST_LETTERS, _MOST_ON_EDGE, _MOST_OF_COUNTS = 24, 19, 34


def written(tree: Tree, max_depth: int | None, width: int) -> str:
    """The tree as text: under each attribute a line for each of its cells, with what is decided there and the noisy counts."""
    lines = []
    # What is still to be written: a node, what leads to it, the beginning of its line and of the lines below, and how many more levels.
    stack = [(0, "", "", "", max_depth)]
    while stack:
        node, cell, begin, under, more = stack.pop()
        is_cut = more == 0 and tree.splits[node] >= 0
        lines.append(_cut(f"{begin}{cell}{_said(tree, node, is_cut, is_root=not cell)}", width))
        children = () if is_cut else tree.children(node)
        names = _cells(tree, node)
        for i, child in reversed(list(enumerate(children))):
            is_last = i == len(children) - 1
            bent, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            stack.append((child, names[i], under + bent, under + below, None if more is None else more - 1))
    return "\n".join(lines)


def _said(tree: Tree, node: int, is_cut: bool, is_root: bool) -> str:
    counts = counts_in_words(_classes(tree), tree.counts[node])
    noted = f"  [{counts}]" if counts else ""
    if tree.splits[node] >= 0 and not is_cut:
        return f"{'' if is_root else ': '}{_attribute(tree, node)}?{noted}"
    more = f"  … {counted(int(tree.below[node]), 'node')} below" if is_cut else ""
    return f"{'' if is_root else ' '}→ {_decision(tree, node)}{noted}{more}"


def drawn(tree: Tree, max_nodes: int) -> str:
    """The tree as SVG: the root on the left, a column for each level; of a large tree the nodes next to the root."""
    children = _shown_children(tree, max_nodes)
    depths, heights = _places(children)
    width = 2 * _MARGIN + max(depths.values()) * _STEP + _BOX
    n_rows = sum(not below for below in children.values())
    height = 2 * _MARGIN + n_rows * _ROW + (_ROW if len(children) < len(tree) else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>A decision tree for {_safe(tree.schema.label.name if tree.schema.label else '', 200)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for node, below in children.items():
        names = _cells(tree, node)
        for name, child in zip(names, below, strict=False):
            parts += _edge((depths[node], heights[node]), (depths[child], heights[child]), name)
    for node, below in children.items():
        parts += _box(tree, node, depths[node], heights[node], is_cut=not below and tree.splits[node] >= 0)
    if len(children) < len(tree):
        note = f"{len(children):,} of {counted(len(tree), 'node')} are shown; a dashed box has more below it."
        parts.append(f'<text x="{_MARGIN}" y="{height - _MARGIN}" fill="#555555">{note}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _shown_children(tree: Tree, max_nodes: int) -> dict[int, Sequence[int]]:
    """The nodes that are shown, in order of breadth, with those of their children that are: all or none."""
    found: dict[int, Sequence[int]] = {}
    waiting, n_shown = [0], 1
    for node in waiting:
        children = tree.children(node)
        fits = n_shown + len(children) <= max_nodes
        found[node] = children if fits else ()
        waiting.extend(found[node])
        n_shown += len(found[node])
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
        f'<path d="M{x} {y:g} L{x + 8} {to_y:g} L{to_x} {to_y:g}" fill="none" stroke="#999999"/>',
        f'<text x="{to_x - 4}" y="{to_y - 4:g}" text-anchor="end" font-size="11" fill="#333333">{_safe(name, _MOST_ON_EDGE)}</text>',
    ]


def _box(tree: Tree, node: int, depth: int, height: float, is_cut: bool) -> list[str]:
    x, y = _MARGIN + depth * _STEP, _MARGIN + height * _ROW
    is_inner = tree.splits[node] >= 0 and not is_cut
    head = f"{_attribute(tree, node)}?" if is_inner else _decision(tree, node)
    style = ' stroke-dasharray="5 3"' if is_cut else ""
    parts = [f'<rect x="{x}" y="{y:g}" width="{_BOX}" height="{_HEIGHT}" rx="5" fill="#f7f7f7" stroke="#555555"{style}/>']
    if not is_inner:
        colour = _COLOURS[int(tree.decisions[node]) % len(_COLOURS)]
        parts.append(f'<rect x="{x + 4}" y="{y + 4:g}" width="8" height="{_HEIGHT - 8}" fill="{colour}"/>')
    parts.append(f'<text x="{x + 18}" y="{y + 17:g}" font-weight="bold" fill="#111111">{_safe(head, _MOST_LETTERS)}</text>')
    counts = counts_in_words(_classes(tree), tree.counts[node])
    parts.append(f'<text x="{x + 18}" y="{y + 33:g}" font-size="10" fill="#333333">{_safe(counts, _MOST_OF_COUNTS)}</text>')
    return parts


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


def _safe(text: str, most: int) -> str:
    return escape(_cut(text, most))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
