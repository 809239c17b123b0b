"""The tree that a course of the paper's learner describes so far, level by level, and whether any answers can lead to it.

Nodes are numbered in order of breadth; the children of a node, one for each cell of its attribute, follow one another. All figures
here are public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shoal.errors import RemoteProtocolError
from shoal.protocols.sdq.params import Ints

Bools = npt.NDArray[np.bool_]

MAX_COUNTS = 1_000_000
"""Most counts of one round. Nodes whose tables would take a level beyond it are leaves: the last ones in order."""
MAX_NODES = 200_000
"""Most nodes of a tree, by the same rule; so a course is short enough to be sent."""


@dataclass(frozen=True)
class Tables:
    """Where the tables of some nodes lie among the counts of a round: for each node those of the attributes left, cell by cell.

    Parameters
    ----------
    first_rows
        ``(n_nodes, k)`` the row at which an attribute's cells begin; -1 for an attribute that was split on above.
    n_rows
        Rows in all; each holds a cell's count, and its count of each class.
    """

    first_rows: Ints
    n_rows: int

    @property
    def is_left(self) -> Bools:
        """Which attributes are asked about at which node, ``(n_nodes, k)``."""
        return self.first_rows >= 0

    @property
    def starts(self) -> Ints:
        """Where the tables of each node begin, ``(n_nodes,)``."""
        starts: Ints = np.min(self.first_rows, axis=1, where=self.is_left, initial=self.n_rows)
        return starts


@dataclass(frozen=True)
class Level:
    """Nodes of one depth.

    Parameters
    ----------
    arities, n_classes
        Cells of each attribute, and L.
    start
        Position of the first node.
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
        """Attributes above each node."""
        return int(self.paths.shape[1])

    @property
    def n_left(self) -> int:
        """Attributes left, the same number at every node."""
        return len(self.arities) - self.depth

    @cached_property
    def widest(self) -> Ints:
        """The largest arity left at each node, ``(n,)``; some attribute must be left."""
        # A path has room for all but one of them.
        top = np.argsort(-self.arities, kind="stable")[: self.depth + 1]
        is_left = ~(self.paths[:, np.newaxis, :] == top[:, np.newaxis]).any(axis=2)
        widest: Ints = self.arities[top[np.argmax(is_left, axis=1)]]
        return widest

    def room(self, wanted: Bools) -> Bools:
        """Which of the nodes that are wanted for a split may be split: in order, as long as there is room for all.

        The tables of a split are more counts than the classes of all leaves below it, so the next round has room as well.
        """
        n_rows = self.arities.sum() - self.arities[self.paths].sum(axis=1)
        n_counts = len(self) * self.n_classes + np.cumsum(np.where(wanted, n_rows * (1 + self.n_classes) - self.n_classes, 0))
        children = np.cumsum(np.where(wanted, self.widest, 0))
        may: Bools = wanted & (n_counts <= MAX_COUNTS) & (self.start + len(self) + children <= MAX_NODES)
        return may

    def tables(self, is_split: Bools) -> Tables:
        """Where the tables of the nodes that are split lie."""
        paths = self.paths[is_split]
        is_left = np.ones((len(paths), len(self.arities)), np.bool_)
        np.put_along_axis(is_left, paths, False, axis=1)
        ends = np.cumsum(np.where(is_left, self.arities, 0)).reshape(is_left.shape)
        return Tables(np.where(is_left, ends - self.arities, -1), int(ends.max(initial=0)))


@dataclass(frozen=True)
class Growth:
    """A tree that grows.

    Parameters
    ----------
    levels
        From the root's to the open one, which may be empty: then the tree is done.
    splits, firsts
        ``(n_nodes,)`` the attribute of each node and the position of its first child, -1 for none and for open nodes.
    """

    levels: tuple[Level, ...]
    splits: Ints
    firsts: Ints

    @property
    def open(self) -> Level:
        """The nodes about which nothing is decided."""
        return self.levels[-1]

    @property
    def depth(self) -> int:
        """The depth of the open nodes."""
        return len(self.levels) - 1

    def chosen(self, depth: int) -> Ints:
        """What was chosen for the nodes of a decided level, -1 for leaves."""
        return self.splits[self.levels[depth].start : self.levels[depth + 1].start]

    @property
    def parents(self) -> Ints:
        """The parent of each node but the root, ``(n_nodes - 1,)``."""
        inner = np.flatnonzero(self.splits >= 0)
        return np.repeat(inner, self.open.arities[self.splits[inner]])


def grow(choices: Sequence[int], arities: Sequence[int], n_classes: int, depth: int) -> Growth:
    """The tree of these choices; `RemoteProtocolError` where it is none that may grow to this depth, at most one for each attribute."""
    if not all(-1 <= choice < len(arities) for choice in choices):
        raise impossible("it names an attribute that the study does not have")
    chosen, sizes = np.array(choices, np.int64), np.array(arities, np.int64)
    levels = [Level(sizes, n_classes, 0, np.zeros((1, 0), np.int64))]
    while levels[-1].start < len(chosen):
        levels.append(_next(levels[-1], chosen, depth))
    splits = np.concatenate([chosen, np.full(len(levels[-1]), -1)])
    n_children = np.where(splits >= 0, sizes[splits], 0)
    firsts = np.where(splits >= 0, 1 + np.cumsum(n_children) - n_children, -1)
    return Growth(tuple(levels), splits, firsts)


def _next(level: Level, choices: Ints, depth: int) -> Level:
    chosen = choices[level.start : level.start + len(level)]
    if len(chosen) < max(1, len(level)):
        raise impossible("its choices do not fill its levels")
    check_splits(level, chosen >= 0, depth)
    if (level.paths == chosen[:, np.newaxis]).any():
        raise impossible("it splits twice on an attribute of one path")
    is_split = chosen >= 0
    paths = np.column_stack([level.paths[is_split], chosen[is_split]])
    children = np.repeat(paths, level.arities[chosen[is_split]], axis=0)
    return Level(level.arities, level.n_classes, level.start + len(level), children)


def check_splits(level: Level, is_split: Bools, depth: int) -> None:
    """Blame a miner that splits nodes which must be leaves."""
    if is_split.any() and (level.depth >= depth or not level.room(is_split)[is_split].all()):
        raise impossible("it splits a node that must be a leaf")


def impossible(what: str) -> RemoteProtocolError:
    """The refusal of a course that does not follow from the study."""
    return RemoteProtocolError(
        "SDQ-001",
        f"This course cannot be: {what}.",
        why="What is asked follows from the study and from answers to it, and no answers lead here.",
    )
