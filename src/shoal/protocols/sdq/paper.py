"""Variant `paper`: SDQ-ID3, grown level by level.

A tree learner that splits by information gain of noisy counts. For the nodes of each level it asks
two questions, each about all nodes together:

``sizes/l``
    The rows of each node. If the noise would be larger than the counts after a split, the node is
    a leaf.
``answers/l``
    For a leaf, its rows of each class. For other nodes, for each cell of each remaining attribute,
    its rows and its rows of each class.

A row is at one node of a level, so all nodes of a level share one price; the prices of levels and
of the two questions add up.

Nodes are numbered in breadth-first order; the children of a node, one for each cell of its
attribute, are consecutive. All values here are public except the counted rows. A peer rebuilds the
tree from the script state that it receives, so `grow_tree` must reject every state that no answers
can lead to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shoal.privacy.events import Event
from shoal.privacy.rounding import compute_share
from shoal.protocols.sdq.counting import count_level, find_nodes
from shoal.protocols.sdq.model import DecisionTree
from shoal.protocols.sdq.noise import compute_deviation, price_sum
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.script import (
    Answers,
    RoundPart,
    SDQRound,
    SDQScript,
    SDQScriptState,
    impossible_state_error,
)

Bools = npt.NDArray[np.bool_]

MAX_COUNTS = 1_000_000
"""Most counts of one round. If the tables of a level exceed it, the last nodes in order are leaves.
"""
MAX_NODES = 200_000
"""Most nodes of a tree, by the same rule; this bounds the size of a script state in a message."""


@dataclass(frozen=True)
class LevelTables:
    """The layout of the tables of some nodes among the counts of a round.

    For each node the remaining attributes follow each other, cell by cell.

    Parameters
    ----------
    first_rows
        ``(n_nodes, k)`` the first row of an attribute's cells; -1 for an attribute that was split
        on above.
    n_rows
        Total rows; each has a cell's count, and its count of each class.
    """

    first_rows: Ints
    n_rows: int

    @property
    def is_available(self) -> Bools:
        """Which attributes are asked about at which node, ``(n_nodes, k)``."""
        return self.first_rows >= 0

    @property
    def starts(self) -> Ints:
        """The first row of each node's tables, ``(n_nodes,)``."""
        starts: Ints = np.min(self.first_rows, axis=1, where=self.is_available, initial=self.n_rows)
        return starts


@dataclass(frozen=True)
class GrowthLevel:
    """The nodes of one depth.

    Parameters
    ----------
    arities, n_classes
        Cells of each attribute, and L.
    start
        Index of the first node.
    paths
        ``(n, depth)`` the attributes that were split on above each node.
    """

    arities: Ints
    n_classes: int
    start: int
    paths: Ints

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def depth(self) -> int:
        """Number of attributes above each node."""
        return int(self.paths.shape[1])

    @property
    def n_available(self) -> int:
        """Number of remaining attributes, the same at every node."""
        return len(self.arities) - self.depth

    @cached_property
    def largest_arities(self) -> Ints:
        """The largest remaining arity at each node, ``(n,)``; an attribute must remain."""
        # A path contains at most all attributes but one.
        top = np.argsort(-self.arities, kind="stable")[: self.depth + 1]
        is_available = ~(self.paths[:, np.newaxis, :] == top[:, np.newaxis]).any(axis=2)
        widest: Ints = self.arities[top[np.argmax(is_available, axis=1)]]
        return widest

    def allow_splits(self, wanted: Bools) -> Bools:
        """Return which of the wanted nodes may be split: in order, while all limits allow it.

        The tables of a split have more counts than the classes of all leaves below it, so the next
        round is within the limit as well.
        """
        n_rows = self.arities.sum() - self.arities[self.paths].sum(axis=1)
        n_counts = len(self) * self.n_classes + np.cumsum(
            np.where(wanted, n_rows * (1 + self.n_classes) - self.n_classes, 0)
        )
        children = np.cumsum(np.where(wanted, self.largest_arities, 0))
        is_allowed: Bools = (
            wanted & (n_counts <= MAX_COUNTS) & (self.start + len(self) + children <= MAX_NODES)
        )
        return is_allowed

    def lay_out_tables(self, is_split: Bools) -> LevelTables:
        """Return the layout of the tables of the nodes that are split."""
        paths = self.paths[is_split]
        is_available = np.ones((len(paths), len(self.arities)), np.bool_)
        np.put_along_axis(is_available, paths, False, axis=1)
        ends = np.cumsum(np.where(is_available, self.arities, 0)).reshape(is_available.shape)
        return LevelTables(
            np.where(is_available, ends - self.arities, -1), int(ends.max(initial=0))
        )


@dataclass(frozen=True)
class GrowingTree:
    """A partly grown tree.

    Parameters
    ----------
    levels
        From the root to the open level. If the open level is empty, the tree is complete.
    splits, firsts
        ``(n_nodes,)`` the attribute of each node and the index of its first child; -1 for none and
        for open nodes.
    """

    levels: tuple[GrowthLevel, ...]
    splits: Ints
    first_children: Ints

    @property
    def open_level(self) -> GrowthLevel:
        """The nodes that are not yet decided."""
        return self.levels[-1]

    @property
    def depth(self) -> int:
        """The depth of the open nodes."""
        return len(self.levels) - 1

    def read_choices(self, depth: int) -> Ints:
        """Return the choices for the nodes of a decided level, -1 for leaves."""
        return self.splits[self.levels[depth].start : self.levels[depth + 1].start]

    @property
    def parents(self) -> Ints:
        """The parent of each node but the root, ``(n_nodes - 1,)``."""
        inner = np.flatnonzero(self.splits >= 0)
        return np.repeat(inner, self.open_level.arities[self.splits[inner]])


def grow_tree(
    choices: Sequence[int], arities: Sequence[int], n_classes: int, depth: int
) -> GrowingTree:
    """Build the tree of these choices.

    Raises `RemoteProtocolError` if no tree of at most this depth has them; a path has each
    attribute at most once.
    """
    if not all(-1 <= choice < len(arities) for choice in choices):
        raise impossible_state_error("it names an attribute that the study does not have")
    chosen, sizes = np.array(choices, np.int64), np.array(arities, np.int64)
    levels = [GrowthLevel(sizes, n_classes, 0, np.zeros((1, 0), np.int64))]
    while levels[-1].start < len(chosen):
        levels.append(_grow_next_level(levels[-1], chosen, depth))
    splits = np.concatenate([chosen, np.full(len(levels[-1]), -1)])
    n_children = np.where(splits >= 0, sizes[splits], 0)
    first_children = np.where(splits >= 0, 1 + np.cumsum(n_children) - n_children, -1)
    return GrowingTree(tuple(levels), splits, first_children)


def _grow_next_level(level: GrowthLevel, choices: Ints, depth: int) -> GrowthLevel:
    chosen = choices[level.start : level.start + len(level)]
    if len(chosen) < max(1, len(level)):
        raise impossible_state_error("its choices do not fill its levels")
    check_splits(level, chosen >= 0, depth)
    if (level.paths == chosen[:, np.newaxis]).any():
        raise impossible_state_error("it splits twice on an attribute of one path")
    is_split = chosen >= 0
    paths = np.column_stack([level.paths[is_split], chosen[is_split]])
    children = np.repeat(paths, level.arities[chosen[is_split]], axis=0)
    return GrowthLevel(level.arities, level.n_classes, level.start + len(level), children)


def check_splits(level: GrowthLevel, is_split: Bools, depth: int) -> None:
    """Raise `RemoteProtocolError` if nodes are split that must be leaves."""
    if is_split.any() and (
        level.depth >= depth or not level.allow_splits(is_split)[is_split].all()
    ):
        raise impossible_state_error("it splits a node that must be a leaf")


Floats = npt.NDArray[np.float64]

_TIE = 1e-9
"""Gains with a smaller relative difference are considered equal, because of rounding."""


class SDQPaperScript(SDQScript):
    """Variant ``paper``: Algorithm 3, and with trust ``local`` distributed SuLQ.

    Notes
    -----
    Ref: SDQ §III-A, Algorithm 3; Friedman and Schuster 2010, SuLQ-based ID3; errata S-09, S-10.
    calculateBudget is B / (2 (d + 1)): a size and an answer at each of the levels 0 to d. In an
    answer a row counts in 2 |A| tables of a node, the cells and the cells by class of the |A|
    remaining attributes, and each gets its part. A node is a leaf if no attribute or level remains,
    or if its noisy size / (t |C|) is below the standard deviation of the noise of a size (t the
    largest remaining arity, |C| the classes). No path is longer than the number of attributes, so d
    is at most that number. Sizes beyond `MAX_COUNTS` are cut by a public rule.

    Without noise a node is a leaf if it is empty or, by its parent's counts, pure.

    Privacy
    -------
    The scope of the parameters; B / (2 (d + 1)) for each question, B for all.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"])], label=Categorical("play", ["no", "yes"])
    ... )
    >>> script = SDQPaperScript(SDQParams(schema, epsilon=1.0, size=1000, variant="paper", depth=4))
    >>> (
    ...     script.make_round(SDQScriptState()).question,
    ...     sorted(script.prices),
    ...     script.prices["sizes/0"].epsilon,
    ... )
    ('sizes/0', ['answers/0', 'answers/1', 'sizes/0', 'sizes/1'], 0.25)
    """

    def __init__(self, params: SDQParams) -> None:
        super().__init__(params)
        self.depth = min(params.depth, len(params.arities))
        part = Fraction(1, 2 * (self.depth + 1))
        self.epsilon_release = (
            math.inf if params.is_noiseless else compute_share(params.epsilon, part)
        )

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        """The same price for every question.

        The event of an answer describes the tables of splits, if splits are possible; the counts of
        leaves cost the same.
        """
        prices = {}
        for depth in range(self.depth + 1):
            prices[f"sizes/{depth}"] = self._price_tables(1)
            prices[f"answers/{depth}"] = self._price_tables(
                self._count_tables(depth) if depth < self.depth else 1
            )
        return prices

    def _price_tables(self, n_tables: int) -> Event:
        return price_sum(self.params, self.epsilon_release, n_tables).with_reads(
            *self.params.columns
        )

    def _count_tables(self, depth: int) -> int:
        return 2 * (len(self.params.arities) - depth)

    @property
    def costliest_questions(self) -> tuple[tuple[str, int], ...]:
        return ("sizes/0", self.depth + 1), ("answers/0", self.depth + 1)

    def make_round(self, state: SDQScriptState) -> SDQRound | None:
        growth = self._grow_tree(state)
        if not len(growth.open_level):
            return None
        if not state.leaves:
            part = RoundPart(
                lambda table: _count_sizes(growth, table),
                len(growth.open_level),
                self.epsilon_release,
            )
            return SDQRound(f"sizes/{growth.depth}", (part,))
        is_leaf, n_classes = np.array(state.leaves), self.params.n_classes
        parts = []
        if is_leaf.any():
            size = int(is_leaf.sum()) * n_classes
            parts.append(
                RoundPart(
                    lambda table: _count_leaves(growth, is_leaf, table, n_classes),
                    size,
                    self.epsilon_release,
                )
            )
        if not is_leaf.all():
            tables = growth.open_level.lay_out_tables(~is_leaf)
            size = tables.n_rows * (1 + n_classes)
            n_tables = self._count_tables(growth.depth)
            parts.append(
                RoundPart(
                    lambda table: _count_splits(growth, is_leaf, tables, table, n_classes),
                    size,
                    self.epsilon_release,
                    n_tables,
                )
            )
        return SDQRound(f"answers/{growth.depth}", tuple(parts))

    def _grow_tree(self, state: SDQScriptState) -> GrowingTree:
        growth = grow_tree(state.choices, self.params.arities, self.params.n_classes, self.depth)
        if state.step != 2 * growth.depth + bool(state.leaves):
            raise impossible_state_error("its choices do not fit its step")
        if state.leaves:
            if len(state.leaves) != len(growth.open_level):
                raise impossible_state_error("its leaves do not fit its nodes")
            check_splits(growth.open_level, ~np.array(state.leaves), self.depth)
        return growth

    def advance(self, state: SDQScriptState, answers: Answers) -> SDQScriptState:
        growth = self._grow_tree(state)
        if state.leaves:
            choices = self._choose_splits(growth, ~np.array(state.leaves), answers[-1])
            return state.replace(
                step=state.step + 1, choices=(*state.choices, *choices.tolist()), leaves=()
            )
        return state.replace(
            step=state.step + 1, leaves=tuple(self._find_leaves(growth, answers).tolist())
        )

    def _find_leaves(self, growth: GrowingTree, answers: Answers) -> Bools:
        """Return which open nodes are leaves, by their noisy sizes."""
        level, noisy_sizes = growth.open_level, answers[-1]
        if growth.depth == self.depth:
            return np.ones(len(level), np.bool_)
        if not self.params.is_noiseless:
            return ~level.allow_splits(
                noisy_sizes / (level.largest_arities * self.params.n_classes) >= self._deviation
            )
        is_mixed = (
            (self._read_parent_counts(growth, answers) > 0).sum(axis=1) > 1
            if growth.depth
            else True
        )
        return ~level.allow_splits((noisy_sizes > 0) & is_mixed)

    @cached_property
    def _deviation(self) -> float:
        """Standard deviation of the noise on a size, if every database answers."""
        return compute_deviation(self.params, self.epsilon_release, 1)

    def _split_answer(self, answer: Ints, is_split: Bools) -> tuple[Ints, Ints]:
        """Split an answer into the class counts of leaves, ``(n_leaves, L)``, and the tables.

        The tables have the shape ``(n_rows, 1 + L)``.
        """
        n_classes = self.params.n_classes
        leaves, rows = np.split(answer, [int((~is_split).sum()) * n_classes])
        return leaves.reshape(-1, n_classes), rows.reshape(-1, 1 + n_classes)

    def _read_parent_counts(self, growth: GrowingTree, answers: Answers) -> Ints:
        """Return the class counts of each open node, from its parent's tables."""
        level, chosen = growth.levels[-2], growth.read_choices(growth.depth - 1)
        _, rows = self._split_answer(answers[-2], chosen >= 0)
        attributes = chosen[chosen >= 0]
        first = level.lay_out_tables(chosen >= 0).first_rows[np.arange(len(attributes)), attributes]
        arities = level.arities[attributes]
        cell = np.arange(len(growth.open_level)) - np.repeat(np.cumsum(arities) - arities, arities)
        return rows[np.repeat(first, arities) + cell, 1:]

    def _choose_splits(self, growth: GrowingTree, is_split: Bools, answer: Ints) -> Ints:
        """Return the attribute of largest gain for each split node, the first of equal ones.

        Leaves get -1.
        """
        choices = np.full(len(is_split), -1)
        if is_split.any():
            tables = growth.open_level.lay_out_tables(is_split)
            gains = np.full(tables.first_rows.shape, -np.inf)
            gains[tables.is_available] = np.add.reduceat(
                _compute_purity(self._split_answer(answer, is_split)[1]),
                tables.first_rows[tables.is_available],
            )
            best = gains.max(axis=1, keepdims=True)
            choices[is_split] = np.argmax(gains >= best - _TIE * (1 - best), axis=1)
        return choices

    def build_model(self, state: SDQScriptState, answers: Answers) -> DecisionTree:
        growth = self._grow_tree(state)
        counts = np.empty((len(growth.splits), self.params.n_classes))
        for depth, level in enumerate(growth.levels[:-1]):
            is_split = growth.read_choices(depth) >= 0
            leaves, rows = self._split_answer(answers[2 * depth + 1], is_split)
            nodes = counts[level.start : level.start + len(level)]
            nodes[~is_split] = leaves
            if is_split.any():
                # The tables of every remaining attribute contain the node's rows of each class:
                # their mean has the least noise.
                nodes[is_split] = (
                    np.add.reduceat(rows[:, 1:], level.lay_out_tables(is_split).starts)
                    / level.n_available
                )
        deviation = (
            self._deviation,
            self._compute_split_deviation() if growth.splits[0] >= 0 else self._deviation,
        )
        return DecisionTree(
            self.params.schema,
            growth.splits,
            growth.first_children,
            counts,
            _compute_chances(growth, counts),
            deviation,
        )

    def _compute_split_deviation(self) -> float:
        """Return the standard deviation of the noise on a class count of the root, if it is split.

        The count is the mean over attributes of the sums over their cells.
        """
        arities = self.params.arities
        return (
            compute_deviation(self.params, self.epsilon_release, self._count_tables(0))
            * math.sqrt(sum(arities))
            / len(arities)
        )


def _find_open_nodes(growth: GrowingTree, table: CellTable, wanted: Bools) -> Ints:
    """Return the wanted open node of each row, ``(n,)``, counted among these; -1 for none."""
    places = np.where(wanted, np.cumsum(wanted) - 1, -1)
    position = (
        find_nodes(table.cells, growth.splits, growth.first_children) - growth.open_level.start
    )
    return np.where(position >= 0, places[np.maximum(position, 0)], -1)


def _count_sizes(growth: GrowingTree, table: CellTable) -> Ints:
    nodes = _find_open_nodes(growth, table, np.ones(len(growth.open_level), np.bool_))
    return np.bincount(nodes[nodes >= 0], minlength=len(growth.open_level))


def _count_leaves(growth: GrowingTree, is_leaf: Bools, table: CellTable, n_classes: int) -> Ints:
    nodes = _find_open_nodes(growth, table, is_leaf)
    inside = nodes >= 0
    return np.bincount(
        nodes[inside] * n_classes + table.labels[inside], minlength=int(is_leaf.sum()) * n_classes
    )


def _count_splits(
    growth: GrowingTree, is_leaf: Bools, tables: LevelTables, table: CellTable, n_classes: int
) -> Ints:
    return count_level(
        table,
        _find_open_nodes(growth, table, ~is_leaf),
        tables.first_rows,
        tables.n_rows,
        n_classes,
    )


def _compute_purity(rows: Ints) -> Floats:
    """Return the negative entropy of the classes in each cell times its rows, ``(n_rows,)``.

    Its sum over an attribute has the same order as the information gain.

    Notes
    -----
    Ref: SDQ §III-A. Noise makes counts negative, or a class larger than its cell: they are clamped
    (errata S-10).
    """
    size = np.maximum(rows[:, :1], 0).astype(np.float64)
    counts = np.clip(rows[:, 1:], 0, size)
    shares: Floats = np.divide(counts, size, out=np.ones_like(counts), where=counts > 0)
    purity: Floats = (counts * np.log(shares)).sum(axis=1)
    return purity


def _compute_chances(growth: GrowingTree, counts: Floats) -> Floats:
    """Return the share of each class at each node, from its clamped counts.

    If the clamped counts are all 0, the shares of the parent are used.
    """
    chances = np.maximum(counts, 0)
    total = chances.sum(axis=1, keepdims=True)
    np.divide(chances, total, out=chances, where=total > 0)
    parents = growth.parents
    for node in np.flatnonzero(total[:, 0] <= 0).tolist():
        chances[node] = chances[parents[node - 1]] if node else 1 / counts.shape[1]
    return chances
