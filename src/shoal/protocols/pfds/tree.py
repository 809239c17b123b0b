"""The private tree of variant paper: its form, how a row finds its leaf, and whether a stranger's can be one at all.

Levels are numbered from 1, the root's, to h_max, the leaves'. The nodes of a level stand in order of breadth: the children of a node
follow one another, two for a number (below the split value; from it on) and one for every cell of a category. So attributes and split
values say all about the form of a tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Feature, Numeric
from shoal.errors import RemoteProtocolError
from shoal.protocols.pfds.params import Floats, Ints, Params
from shoal.protocols.pfds.ties import winners

Bools = npt.NDArray[np.bool_]
Int16s = npt.NDArray[np.int16]
Int32s = npt.NDArray[np.int32]

MAX_COUNTS = 4_000_000
"""Most counts of a tree: its leaves times the classes. A wide schema reaches no depth beyond it, and no draw of attributes."""
MAX_COUNT = 2**31 - 1
"""Largest count of a leaf, and smallest but for its sign; noise beyond it is cut off."""


@dataclass(frozen=True, eq=False)
class Level:
    """All nodes of one level above the leaves.

    Parameters
    ----------
    attributes
        ``(n,)`` what each node splits on, by its position in the schema.
    splits
        ``(n,)`` the value at which a number is split; 0 where the attribute is a category.
    """

    attributes: Int16s
    splits: Floats

    def __len__(self) -> int:
        return len(self.attributes)


Levels = Sequence[Level]


@dataclass(frozen=True, eq=False)
class Shape:
    """What the schema says about splits on each attribute, ``(k,)`` each: children, whether it is a number, and the number's range."""

    fans: Ints
    is_number: Bools
    lows: Floats
    highs: Floats

    @classmethod
    def of(cls, params: Params) -> Shape:
        """The shape of a study's trees."""
        features = params.schema.features
        ranges = [(float(one.low), float(one.high)) if isinstance(one, Numeric) else (0.0, 0.0) for one in features]
        lows, highs = np.array(ranges).reshape(-1, 2).T
        return cls(np.array([_fan(one) for one in features]), np.array([isinstance(one, Numeric) for one in features]), lows, highs)

    def firsts(self, level: Level) -> Ints:
        """The position of each node's first child in the next level, ``(n,)``."""
        fans = self.fans[level.attributes]
        firsts: Ints = np.cumsum(fans) - fans
        return firsts

    def n_below(self, level: Level) -> int:
        """Nodes of the next level."""
        return int(self.fans[level.attributes].sum())

    def parents(self, level: Level) -> Ints:
        """The parent of each node of the next level."""
        return np.repeat(np.arange(len(level)), self.fans[level.attributes])

    def ancestors(self, levels: Levels, nodes: Ints) -> Iterator[tuple[Level, Ints, Ints]]:
        """The paths of some nodes of the level below these, upwards: of each level the node on the path, and by which edge it is left."""
        for level in reversed(levels):
            firsts = self.firsts(level)
            above = np.searchsorted(firsts, nodes, side="right") - 1
            yield level, above, nodes - firsts[above]
            nodes = above

    def active(self, levels: Levels, nodes: Ints, attributes: Int16s) -> tuple[Floats, Floats]:
        """The range that is left of a number at some nodes of the level below these."""
        lows, highs = self.lows[attributes], self.highs[attributes]
        for level, above, edges in self.ancestors(levels, nodes):
            here = level.attributes[above] == attributes
            splits = level.splits[above]
            highs = np.where(here & (edges == 0), np.minimum(highs, splits), highs)
            lows = np.where(here & (edges == 1), np.maximum(lows, splits), lows)
        return lows, highs

    def route(self, levels: Levels, values: Floats) -> Ints:
        """The node that each row reaches in the level below these, by its values, ``(n, k)``: numbers, and cells of categories."""
        nodes, rows = np.zeros(len(values), np.int64), np.arange(len(values))
        for level in levels:
            attributes = level.attributes[nodes]
            value = values[rows, attributes]
            edges = np.where(self.is_number[attributes], value >= level.splits[nodes], value)
            nodes = self.firsts(level)[nodes] + edges.astype(np.int64)
        return nodes


def _fan(feature: Feature) -> int:
    return 2 if isinstance(feature, Numeric) else feature.n_bins


def most_leaves(params: Params) -> int:
    """Most leaves of a tree."""
    return MAX_COUNTS // params.n_outcomes


def least_fans(params: Params) -> tuple[int, ...]:
    """Children of the least splits along a path that can always be had: of numbers, or of the categories with the fewest cells."""
    fans = [_fan(feature) for feature in params.schema.features]
    has_number = any(isinstance(feature, Numeric) for feature in params.schema.features)
    return (2,) * len(fans) if has_number else tuple(sorted(fans))


def depth_of(params: Params) -> int:
    """h_max: levels of a tree, the leaves included; no more than attributes, and than leaves can be counted.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Numeric("age", 0, 100), Numeric("height", 0, 250)], label=Categorical("ill", ["no", "yes"]))
    >>> depth_of(Params(schema, epsilon=1.0, size=100, variant="paper", max_depth=8))
    2
    """
    depth, fans = 1, least_fans(params)
    while depth < min(params.max_depth, len(fans)) and prod(fans[:depth]) <= most_leaves(params):
        depth += 1
    return depth


@dataclass(frozen=True, eq=False)
class PrivateTree:
    """A tree as it is shared.

    Parameters
    ----------
    params
        The public figures of the study.
    levels
        All levels above the leaves.
    labels
        ``(n_leaves,)`` the class, or bucket of a number, of the highest noisy count; of equal ones the first.
    counts
        ``(n_leaves, n_outcomes)`` the noisy counts of each leaf; None where only the predictor is kept.

    Notes
    -----
    Ref: PFDS §3.1, Algorithm 3, lines 13 to 15.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Numeric("age", 0, 100), Numeric("height", 0, 250)], label=Categorical("ill", ["no", "yes"]))
    >>> root = Level(np.array([0], np.int16), np.array([60.0]))
    >>> tree = PrivateTree.of(Params(schema, 1.0, 100, variant="paper"), [root], np.array([[30, -2], [5, 8]], np.int32))
    >>> tree.predict(np.array([[20.0, 180.0], [60.0, 180.0]])).tolist()
    [0, 1]
    """

    params: Params
    levels: tuple[Level, ...]
    labels: npt.NDArray[Any]
    counts: Int32s | None = None

    @classmethod
    def of(cls, params: Params, levels: Levels, counts: Int32s) -> PrivateTree:
        """The tree with these leaves."""
        small = np.uint8 if params.n_outcomes <= 1 << 8 else np.uint16
        return cls(params, tuple(levels), winners(counts).astype(small), counts)

    @property
    def predictor(self) -> PrivateTree:
        """The tree without its counts, which take most of the room."""
        return replace(self, counts=None)

    def route(self, values: Floats) -> Ints:
        """The leaf of each row."""
        return Shape.of(self.params).route(self.levels, values)

    def predict(self, values: Floats) -> npt.NDArray[Any]:
        """The class or bucket of each row."""
        return self.labels[self.route(values)]


def check(params: Params, levels: Levels, labels: npt.NDArray[Any]) -> None:
    """Refuse what cannot be a tree of this study, whoever sent it."""
    shape, n = Shape.of(params), 1
    if len(levels) != depth_of(params) - 1:
        raise _unfit(f"it has {len(levels) + 1} levels, where {depth_of(params)} are due")
    for i, level in enumerate(levels):
        attributes, splits = level.attributes, level.splits
        if attributes.shape != (n,) or splits.shape != (n,) or attributes.dtype.kind not in "iu" or splits.dtype.kind != "f":
            raise _unfit(f"level {i + 1} does not say of each of its {n:,} nodes what it splits on, and where")
        if attributes.min() < 0 or attributes.max() >= len(shape.fans):
            raise _unfit(f"level {i + 1} splits on an attribute that the schema does not have")
        is_number = shape.is_number[attributes]
        for above, nodes, _ in shape.ancestors(levels[:i], np.arange(n)):
            if (~is_number & (above.attributes[nodes] == attributes)).any():
                raise _unfit(f"level {i + 1} splits on a category that was split on above")
        lows, highs = shape.active(levels[:i], np.flatnonzero(is_number), attributes[is_number])
        if splits[~is_number].any() or not ((lows <= splits[is_number]) & (splits[is_number] <= highs)).all():
            raise _unfit(f"level {i + 1} splits at a value outside of what is left of its attribute's range")
        n = shape.n_below(level)
        if n > most_leaves(params):
            raise _unfit(f"level {i + 2} has {n:,} nodes, more than the {most_leaves(params):,} that are allowed")
    if labels.shape != (n,) or labels.dtype.kind != "u" or labels.max() >= params.n_outcomes:
        raise _unfit(f"its {n:,} leaves do not have one of {params.n_outcomes} labels each")


def _unfit(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "PFDS-101",
        f"This tree cannot be: {what}.",
        why="The form of a tree follows from the study's schema and settings.",
        fix="Its holder is left out; the others go on.",
    )
