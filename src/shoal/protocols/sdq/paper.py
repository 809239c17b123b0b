"""The paper's learner, SDQ-ID3: a tree that grows level by level, by information gain of noisy counts.

===========  ==============================================================================================================
question     what is asked of the nodes of one level, all at once
===========  ==============================================================================================================
sizes/l      how many rows each has: where noise would drown the counts of a split, the node is a leaf
answers/l    of a leaf its rows of each class; of the others, for each cell of each attribute left, its rows, and those of each class
===========  ==============================================================================================================

A row is at one node of a level, so the nodes of a level share a price; levels, and what is asked about one node, add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shoal.privacy.events import Event
from shoal.privacy.rounding import share
from shoal.protocols.sdq.counting import level_counts, nodes_of
from shoal.protocols.sdq.growth import Bools, Growth, Tables, check_splits, grow, impossible
from shoal.protocols.sdq.model import Tree
from shoal.protocols.sdq.noise import deviation_of, price_of
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.script import Answers, Course, Part, Round, Script

Floats = npt.NDArray[np.float64]

_TIE = 1e-9
"""Gains closer than this, relatively, are equal but for rounding."""


class PaperScript(Script):
    """Variant ``paper``: Algorithm 3, and with trust ``local`` distributed SuLQ.

    Parameters
    ----------
    params
        The public figures of the study.

    Notes
    -----
    Ref: SDQ §III-A, Algorithm 3; Friedman and Schuster 2010, SuLQ-based ID3; errata S-09, S-10. calculateBudget is
    B / (2 (d + 1)): a size and an answer at each of the levels 0 to d. In an answer a row counts in 2 |A| tables of a node, the cells and
    the cells by class of the |A| attributes left, and each gets its part. A node is a leaf if no attribute or level is left, or if
    its noisy size / (t |C|) is below the standard deviation of the noise of a size (t the largest arity left, |C| the classes). No path
    is longer than there are attributes, so d is at most their number. Sizes beyond `growth.MAX_COUNTS` are cut by a public rule.

    Without noise a node is a leaf if it is empty or, by its parent's counts, pure.

    Privacy
    -------
    The scope of the parameters; B / (2 (d + 1)) for each question, B for all.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Categorical("wind", ["weak", "strong"])], label=Categorical("play", ["no", "yes"]))
    >>> script = PaperScript(Params(schema, epsilon=1.0, size=1000, variant="paper", depth=4))
    >>> script.round(Course()).question, sorted(script.prices), script.prices["sizes/0"].epsilon
    ('sizes/0', ['answers/0', 'answers/1', 'sizes/0', 'sizes/1'], 0.25)
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.depth = min(params.depth, len(params.arities))
        part = Fraction(1, 2 * (self.depth + 1))
        self.epsilon_release = math.inf if params.is_bare else share(params.epsilon, part)

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        """All cost the same. An answer is described by the tables of its splits, if there may be any; a leaf's counts cost as much."""
        prices = {}
        for depth in range(self.depth + 1):
            prices[f"sizes/{depth}"] = self._price(1)
            prices[f"answers/{depth}"] = self._price(self._n_tables(depth) if depth < self.depth else 1)
        return prices

    def _price(self, n_tables: int) -> Event:
        return price_of(self.params, self.epsilon_release, n_tables).reading(*self.params.columns)

    def _n_tables(self, depth: int) -> int:
        return 2 * (len(self.params.arities) - depth)

    @property
    def dearest(self) -> tuple[tuple[str, int], ...]:
        return ("sizes/0", self.depth + 1), ("answers/0", self.depth + 1)

    def round(self, course: Course) -> Round | None:
        growth = self._grown(course)
        if not len(growth.open):
            return None
        if not course.leaves:
            part = Part(lambda table: _sizes(growth, table), len(growth.open), self.epsilon_release)
            return Round(f"sizes/{growth.depth}", (part,))
        is_leaf, n_classes = np.array(course.leaves), self.params.n_classes
        parts = []
        if is_leaf.any():
            size = int(is_leaf.sum()) * n_classes
            parts.append(Part(lambda table: _leaf_counts(growth, is_leaf, table, n_classes), size, self.epsilon_release))
        if not is_leaf.all():
            tables = growth.open.tables(~is_leaf)
            size = tables.n_rows * (1 + n_classes)
            n_tables = self._n_tables(growth.depth)
            parts.append(Part(lambda table: _split_counts(growth, is_leaf, tables, table, n_classes), size, self.epsilon_release, n_tables))
        return Round(f"answers/{growth.depth}", tuple(parts))

    def _grown(self, course: Course) -> Growth:
        growth = grow(course.choices, self.params.arities, self.params.n_classes, self.depth)
        if course.step != 2 * growth.depth + bool(course.leaves):
            raise impossible("its choices do not fit its step")
        if course.leaves:
            if len(course.leaves) != len(growth.open):
                raise impossible("its leaves do not fit its nodes")
            check_splits(growth.open, ~np.array(course.leaves), self.depth)
        return growth

    def advance(self, course: Course, answers: Answers) -> Course:
        growth = self._grown(course)
        if course.leaves:
            choices = self._choices(growth, ~np.array(course.leaves), answers[-1])
            return course.replace(step=course.step + 1, choices=(*course.choices, *choices.tolist()), leaves=())
        return course.replace(step=course.step + 1, leaves=tuple(self._leaves(growth, answers).tolist()))

    def _leaves(self, growth: Growth, answers: Answers) -> Bools:
        """Which open nodes are leaves, by their noisy sizes."""
        level, noisy_sizes = growth.open, answers[-1]
        if growth.depth == self.depth:
            return np.ones(len(level), np.bool_)
        if not self.params.is_bare:
            return ~level.room(noisy_sizes / (level.widest * self.params.n_classes) >= self._deviation)
        is_mixed = (self._counts_by_parents(growth, answers) > 0).sum(axis=1) > 1 if growth.depth else True
        return ~level.room((noisy_sizes > 0) & is_mixed)

    @cached_property
    def _deviation(self) -> float:
        """Of the noise on a size, when every database answers."""
        return deviation_of(self.params, self.epsilon_release, 1)

    def _split(self, answer: Ints, is_split: Bools) -> tuple[Ints, Ints]:
        """An answer's class counts of leaves, ``(n_leaves, L)``, and its tables, ``(n_rows, 1 + L)``."""
        n_classes = self.params.n_classes
        leaves, rows = np.split(answer, [int((~is_split).sum()) * n_classes])
        return leaves.reshape(-1, n_classes), rows.reshape(-1, 1 + n_classes)

    def _counts_by_parents(self, growth: Growth, answers: Answers) -> Ints:
        """The class counts of each open node, as its parent's tables have them."""
        level, chosen = growth.levels[-2], growth.chosen(growth.depth - 1)
        _, rows = self._split(answers[-2], chosen >= 0)
        attributes = chosen[chosen >= 0]
        first = level.tables(chosen >= 0).first_rows[np.arange(len(attributes)), attributes]
        arities = level.arities[attributes]
        cell = np.arange(len(growth.open)) - np.repeat(np.cumsum(arities) - arities, arities)
        return rows[np.repeat(first, arities) + cell, 1:]

    def _choices(self, growth: Growth, is_split: Bools, answer: Ints) -> Ints:
        """The attribute of largest gain for each node that is split, of equal ones the first; -1 for leaves."""
        choices = np.full(len(is_split), -1)
        if is_split.any():
            tables = growth.open.tables(is_split)
            gains = np.full(tables.first_rows.shape, -np.inf)
            gains[tables.is_left] = np.add.reduceat(_purity(self._split(answer, is_split)[1]), tables.first_rows[tables.is_left])
            best = gains.max(axis=1, keepdims=True)
            choices[is_split] = np.argmax(gains >= best - _TIE * (1 - best), axis=1)
        return choices

    def model(self, course: Course, answers: Answers) -> Tree:
        growth = self._grown(course)
        counts = np.empty((len(growth.splits), self.params.n_classes))
        for depth, level in enumerate(growth.levels[:-1]):
            is_split = growth.chosen(depth) >= 0
            leaves, rows = self._split(answers[2 * depth + 1], is_split)
            nodes = counts[level.start : level.start + len(level)]
            nodes[~is_split] = leaves
            if is_split.any():
                # Every attribute left has counted the node's rows of each class once more: their mean has the least noise.
                nodes[is_split] = np.add.reduceat(rows[:, 1:], level.tables(is_split).starts) / level.n_left
        deviation = (self._deviation, self._deviation_of_split() if growth.splits[0] >= 0 else self._deviation)
        return Tree(self.params.schema, growth.splits, growth.firsts, counts, _chances(growth, counts), deviation)

    def _deviation_of_split(self) -> float:
        """Of the noise on a class count of the root, where it is split: the mean over attributes of the sums over their cells."""
        arities = self.params.arities
        return deviation_of(self.params, self.epsilon_release, self._n_tables(0)) * math.sqrt(sum(arities)) / len(arities)


def _open_nodes(growth: Growth, table: Table, wanted: Bools) -> Ints:
    """Which of the open nodes that are wanted each row is at, ``(n,)``, counted among these; -1 for none."""
    places = np.where(wanted, np.cumsum(wanted) - 1, -1)
    position = nodes_of(table.cells, growth.splits, growth.firsts) - growth.open.start
    return np.where(position >= 0, places[np.maximum(position, 0)], -1)


def _sizes(growth: Growth, table: Table) -> Ints:
    nodes = _open_nodes(growth, table, np.ones(len(growth.open), np.bool_))
    return np.bincount(nodes[nodes >= 0], minlength=len(growth.open))


def _leaf_counts(growth: Growth, is_leaf: Bools, table: Table, n_classes: int) -> Ints:
    nodes = _open_nodes(growth, table, is_leaf)
    inside = nodes >= 0
    return np.bincount(nodes[inside] * n_classes + table.labels[inside], minlength=int(is_leaf.sum()) * n_classes)


def _split_counts(growth: Growth, is_leaf: Bools, tables: Tables, table: Table, n_classes: int) -> Ints:
    return level_counts(table, _open_nodes(growth, table, ~is_leaf), tables.first_rows, tables.n_rows, n_classes)


def _purity(rows: Ints) -> Floats:
    """The negative entropy of the classes in each cell times its rows, ``(n_rows,)``; its sum over an attribute ranks as the gain does.

    Notes
    -----
    Ref: SDQ §III-A. Noise makes counts negative, or a class larger than its cell: they are clamped (errata S-10).
    """
    size = np.maximum(rows[:, :1], 0).astype(np.float64)
    counts = np.clip(rows[:, 1:], 0, size)
    shares: Floats = np.divide(counts, size, out=np.ones_like(counts), where=counts > 0)
    purity: Floats = (counts * np.log(shares)).sum(axis=1)
    return purity


def _chances(growth: Growth, counts: Floats) -> Floats:
    """The share of each class at each node, by its clamped counts; where nothing is left of them, as at the parent."""
    chances = np.maximum(counts, 0)
    total = chances.sum(axis=1, keepdims=True)
    np.divide(chances, total, out=chances, where=total > 0)
    parents = growth.parents
    for node in np.flatnonzero(total[:, 0] <= 0).tolist():
        chances[node] = chances[parents[node - 1]] if node else 1 / counts.shape[1]
    return chances
