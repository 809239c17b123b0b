"""Private trees: shape, routing of rows, validation.

The other modules of variant paper use it. Levels are numbered from 1, the root's, to h_max, the
leaves'. The nodes of a level are in breadth-first order: the children of a node follow one another,
two for a number (below the split value; from it on) and one for every cell of a category. So
attributes and split values determine the shape of a tree.

Every tree from another party passes `check_tree` before it is used. Ties between outcomes are
resolved by a public rule that favours none (`choose_winners`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Feature, Numeric
from shoal.errors import RemoteProtocolError
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams

_STEP, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def choose_winners(tally: npt.NDArray[Any]) -> Ints:
    """Return the outcome with the most votes in each row of ``(n, n_outcomes)``.

    Among equal ones the winner is pseudo-random and depends on the row's number only.

    Notes
    -----
    With integer noise, counts of small leaves are often equal, which real-valued noise almost never
    causes. If the first outcome won, leaves without rows would become votes for it (errata P-08).
    Every reader of the counts finds the same winners.

    Examples
    --------
    >>> (
    ...     choose_winners(np.array([[3, 1], [0, 2]])).tolist(),
    ...     int(choose_winners(np.zeros((10_000, 2))).sum()),
    ... )
    ([0, 1], 4918)
    """
    won: Ints = np.argmax(tally, axis=1)
    is_best = tally == np.take_along_axis(tally, won[:, np.newaxis], axis=1)
    tied = np.flatnonzero(np.count_nonzero(is_best, axis=1) > 1)
    n_outcomes = tally.shape[1]
    lots = _mix_bits(tied[:, np.newaxis] * n_outcomes + np.arange(n_outcomes))
    won[tied] = np.argmax(np.where(is_best[tied], lots, 0), axis=1)
    return won


def _mix_bits(numbers: Ints) -> npt.NDArray[np.uint64]:
    """Return pseudo-random numbers, never 0.

    It is the output function of SplitMix64 (Steele, Lea, Flood 2014).
    """
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


Bools = npt.NDArray[np.bool_]
Int16s = npt.NDArray[np.int16]
Int32s = npt.NDArray[np.int32]

MAX_COUNTS = 4_000_000
"""Largest number of counts of a tree: its leaves times the classes.

It limits the depth of wide schemas, and the draws of attributes.
"""
MAX_COUNT = 2**31 - 1
"""Largest absolute value of a leaf's count; noise beyond it is cut off."""


@dataclass(frozen=True, eq=False)
class SplitLevel:
    """All nodes of one level above the leaves.

    Parameters
    ----------
    attributes
        ``(n,)`` the attribute that each node splits on, as a position in the schema.
    splits
        ``(n,)`` the value at which a number is split; 0 if the attribute is a category.
    """

    attributes: Int16s
    splits: Floats

    def __len__(self) -> int:
        return len(self.attributes)


Levels = Sequence[SplitLevel]


@dataclass(frozen=True, eq=False)
class TreeShape:
    """Splits on each attribute according to the schema, ``(k,)`` each.

    Number of children, whether the attribute is a number, and the number's range.
    """

    fans: Ints
    is_number: Bools
    lows: Floats
    highs: Floats

    @classmethod
    def from_params(cls, params: PFDSParams) -> TreeShape:
        """Return the shape of a study's trees."""
        features = params.schema.features
        ranges = [
            (float(feature.low), float(feature.high))
            if isinstance(feature, Numeric)
            else (0.0, 0.0)
            for feature in features
        ]
        lows, highs = np.array(ranges).reshape(-1, 2).T
        return cls(
            np.array([_count_children(feature) for feature in features]),
            np.array([isinstance(feature, Numeric) for feature in features]),
            lows,
            highs,
        )

    def find_first_children(self, level: SplitLevel) -> Ints:
        """Return the position of each node's first child in the next level, ``(n,)``."""
        fans = self.fans[level.attributes]
        firsts: Ints = np.cumsum(fans) - fans
        return firsts

    def count_below(self, level: SplitLevel) -> int:
        """Return the number of nodes of the next level."""
        return int(self.fans[level.attributes].sum())

    def find_parents(self, level: SplitLevel) -> Ints:
        """Return the parent of each node of the next level."""
        return np.repeat(np.arange(len(level)), self.fans[level.attributes])

    def iterate_ancestors(
        self, levels: Levels, nodes: Ints
    ) -> Iterator[tuple[SplitLevel, Ints, Ints]]:
        """Yield the paths of nodes of the level below ``levels``, upwards.

        For each level: the node on the path, and the edge by which the path leaves it.
        """
        for level in reversed(levels):
            firsts = self.find_first_children(level)
            above = np.searchsorted(firsts, nodes, side="right") - 1
            yield level, above, nodes - firsts[above]
            nodes = above

    def find_active_ranges(
        self, levels: Levels, nodes: Ints, attributes: Int16s
    ) -> tuple[Floats, Floats]:
        """Return the remaining range of a number at nodes of the level below ``levels``."""
        lows, highs = self.lows[attributes], self.highs[attributes]
        for level, above, edges in self.iterate_ancestors(levels, nodes):
            here = level.attributes[above] == attributes
            splits = level.splits[above]
            highs = np.where(here & (edges == 0), np.minimum(highs, splits), highs)
            lows = np.where(here & (edges == 1), np.maximum(lows, splits), lows)
        return lows, highs

    def route(self, levels: Levels, values: Floats) -> Ints:
        """Return the node that each row reaches in the level below ``levels``.

        ``values`` ``(n, k)`` are numbers, and cells of categories.
        """
        nodes, rows = np.zeros(len(values), np.int64), np.arange(len(values))
        for level in levels:
            attributes = level.attributes[nodes]
            value = values[rows, attributes]
            edges = np.where(self.is_number[attributes], value >= level.splits[nodes], value)
            nodes = self.find_first_children(level)[nodes] + edges.astype(np.int64)
        return nodes


def _count_children(feature: Feature) -> int:
    return 2 if isinstance(feature, Numeric) else feature.n_bins


def compute_max_leaves(params: PFDSParams) -> int:
    """Return the largest permitted number of leaves of a tree."""
    return MAX_COUNTS // params.n_outcomes


def compute_least_fans(params: PFDSParams) -> tuple[int, ...]:
    """Return the smallest numbers of children along a path that are always available.

    They are those of numbers, or of the categories with the fewest cells.
    """
    fans = [_count_children(feature) for feature in params.schema.features]
    has_number = any(isinstance(feature, Numeric) for feature in params.schema.features)
    return (2,) * len(fans) if has_number else tuple(sorted(fans))


def compute_depth(params: PFDSParams) -> int:
    """Return h_max: the number of levels of a tree, including the leaves.

    It is limited by the number of attributes and by the largest permitted number of leaves.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100), Numeric("height", 0, 250)],
    ...     label=Categorical("ill", ["no", "yes"]),
    ... )
    >>> compute_depth(PFDSParams(schema, epsilon=1.0, size=100, variant="paper", max_depth=8))
    2
    """
    depth, fans = 1, compute_least_fans(params)
    while depth < min(params.max_depth, len(fans)) and prod(fans[:depth]) <= compute_max_leaves(
        params
    ):
        depth += 1
    return depth


@dataclass(frozen=True, eq=False)
class PrivateTree:
    """A tree as it is shared.

    Parameters
    ----------
    levels
        All levels above the leaves.
    labels
        ``(n_leaves,)`` the class, or bucket of a number, with the highest noisy count; ties are
        resolved by `choose_winners`.
    counts
        ``(n_leaves, n_outcomes)`` the noisy counts of each leaf; None in a predictor.

    Notes
    -----
    Ref: PFDS §3.1, Algorithm 3, lines 13 to 15.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100), Numeric("height", 0, 250)],
    ...     label=Categorical("ill", ["no", "yes"]),
    ... )
    >>> root = SplitLevel(np.array([0], np.int16), np.array([60.0]))
    >>> tree = PrivateTree.from_counts(
    ...     PFDSParams(schema, 1.0, 100, variant="paper"),
    ...     [root],
    ...     np.array([[30, -2], [5, 8]], np.int32),
    ... )
    >>> tree.predict(np.array([[20.0, 180.0], [60.0, 180.0]])).tolist()
    [0, 1]
    """

    params: PFDSParams
    levels: tuple[SplitLevel, ...]
    labels: npt.NDArray[Any]
    counts: Int32s | None = None

    @classmethod
    def from_counts(cls, params: PFDSParams, levels: Levels, counts: Int32s) -> PrivateTree:
        """Return the tree with these leaf counts."""
        small = np.uint8 if params.n_outcomes <= 1 << 8 else np.uint16
        return cls(params, tuple(levels), choose_winners(counts).astype(small), counts)

    @property
    def predictor(self) -> PrivateTree:
        """The tree without its counts, which take most of the memory."""
        return replace(self, counts=None)

    def route(self, values: Floats) -> Ints:
        """Return the leaf of each row."""
        return TreeShape.from_params(self.params).route(self.levels, values)

    def predict(self, values: Floats) -> npt.NDArray[Any]:
        """Return the class or bucket of each row."""
        return self.labels[self.route(values)]


def check_tree(params: PFDSParams, levels: Levels, labels: npt.NDArray[Any]) -> None:
    """Raise `RemoteProtocolError` if this cannot be a tree of the study."""
    shape, n = TreeShape.from_params(params), 1
    if len(levels) != compute_depth(params) - 1:
        raise _invalid_tree_error(
            f"it has {len(levels) + 1} levels instead of {compute_depth(params)}"
        )
    for i, level in enumerate(levels):
        attributes, splits = level.attributes, level.splits
        if (
            attributes.shape != (n,)
            or splits.shape != (n,)
            or attributes.dtype.kind not in "iu"
            or splits.dtype.kind != "f"
        ):
            raise _invalid_tree_error(
                f"level {i + 1} does not have an attribute and a split value for each of its "
                f"{n:,} nodes"
            )
        if attributes.min() < 0 or attributes.max() >= len(shape.fans):
            raise _invalid_tree_error(
                f"level {i + 1} splits on an attribute that is not in the schema"
            )
        is_number = shape.is_number[attributes]
        for above, nodes, _ in shape.iterate_ancestors(levels[:i], np.arange(n)):
            if (~is_number & (above.attributes[nodes] == attributes)).any():
                raise _invalid_tree_error(
                    f"level {i + 1} splits on a category that a level above splits on"
                )
        lows, highs = shape.find_active_ranges(
            levels[:i], np.flatnonzero(is_number), attributes[is_number]
        )
        if (
            splits[~is_number].any()
            or not ((lows <= splits[is_number]) & (splits[is_number] <= highs)).all()
        ):
            raise _invalid_tree_error(
                f"level {i + 1} splits at a value outside the remaining range of its attribute"
            )
        n = shape.count_below(level)
        if n > compute_max_leaves(params):
            raise _invalid_tree_error(
                f"level {i + 2} has {n:,} nodes, more than the permitted "
                f"{compute_max_leaves(params):,}"
            )
    if labels.shape != (n,) or labels.dtype.kind != "u" or labels.max() >= params.n_outcomes:
        raise _invalid_tree_error(
            f"it does not have one of {params.n_outcomes} labels for each of its {n:,} leaves"
        )


def _invalid_tree_error(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "PFDS-101",
        f"The tree is impossible in this study: {what}.",
        why="The shape of a tree follows from the study's schema and settings.",
        fix="The study continues without this holder; no action is needed.",
    )
