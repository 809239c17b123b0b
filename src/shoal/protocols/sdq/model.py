"""A tree that was learned from noisy counts, and how it predicts. It is plain numbers under a public schema; nothing in it can run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from shoal.domain import Schema
from shoal.errors import UsageError
from shoal.messages.base import Record
from shoal.messages.base import describe as fault_of
from shoal.protocols.anonml.model import Model
from shoal.protocols.model_files import PlainCategory, PlainNumber, describe_schema, unfit
from shoal.protocols.sdq.counting import nodes_of
from shoal.protocols.sdq.drawing import drawn, written
from shoal.protocols.sdq.params import Ints, cells_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tree(Model):
    """A decision tree.

    Parameters
    ----------
    splits
        ``(n_nodes,)`` the attribute of each node by its position in the schema, -1 for leaves; the root comes first.
    firsts
        ``(n_nodes,)`` the position of a node's first child, behind it, -1 for none. Children are consecutive, one for each cell.
    counts
        ``(n_nodes, L)`` noisy counts of the classes, NaN where none were asked for.
    chances
        ``(n_nodes, L)`` shares of the classes, by which a row that ends at the node is predicted.
    deviation
        Standard deviation of the noise on a count of a leaf, and on one of the root, where every database answers; None where it is
        unknown.

    Notes
    -----
    Ref: SDQ §III-A, Figure 1.

    Examples
    --------
    >>> from shoal.domain import Categorical
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> counts = np.array([[6.0, 8.0], [2.0, 6.0], [4.0, 2.0]])
    >>> tree = Tree(schema, np.array([0, -1, -1]), np.array([1, -1, -1]), counts, counts / counts.sum(axis=1, keepdims=True))
    >>> print(tree.to_text())
    wind?  [no 6, yes 8]
    ├─ weak → yes  [no 2, yes 6]
    └─ strong → no  [no 4, yes 2]
    """

    splits: Ints
    firsts: Ints
    counts: Floats
    chances: Floats
    deviation: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def decisions(self) -> Ints:
        """What each node predicts, ``(n_nodes,)``; of equal classes the first."""
        best: Ints = np.argmax(self.chances, axis=1)
        return best

    def children(self, node: int) -> range:
        """The positions of a node's children."""
        split = int(self.splits[node])
        return range(0) if split < 0 else range(int(self.firsts[node]), int(self.firsts[node]) + (self.schema.features[split].n_bins or 0))

    @cached_property
    def below(self) -> Ints:
        """How many nodes are below each, ``(n_nodes,)``."""
        below = np.zeros(len(self), np.int64)
        for node in reversed(range(len(self))):
            below[node] = sum(1 + below[child] for child in self.children(node))
        return below

    def _ends(self, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
        return nodes_of(cells_of(self.schema, columns), self.splits, self.firsts)

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        return self.chances[self._ends(columns)]

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        return self.decisions[self._ends(columns)]

    def to_text(self, max_depth: int | None = None, width: int | None = 120, n_classes: int | None = 3) -> str:
        """The tree as lines of text.

        Parameters
        ----------
        max_depth
            Down to which depth; None for all of it.
        width
            Letters of a line; None for as many as it takes.
        n_classes
            Of how many classes counts are told, the largest first where there are more; None for all.
        """
        for name, value, least in (("max_depth", max_depth, 0), ("width", width, 1), ("n_classes", n_classes, 1)):
            if value is not None:
                _check_number(name, value, least)
        return written(self, max_depth, width, n_classes)

    def to_svg(self, max_nodes: int = 80) -> str:
        """The tree as a picture that needs nothing else: as many whole levels as have at most so many nodes."""
        _check_number("max_nodes", max_nodes, 1)
        return drawn(self, max_nodes)

    def to_plain(self) -> dict[str, Any]:
        names = self.schema.names
        return {
            "kind": "tree",
            **describe_schema(self.schema),
            "splits": [None if split < 0 else names[split] for split in self.splits.tolist()],
            "firsts": self.firsts.tolist(),
            "counts": [None if np.isnan(counts).any() else counts.tolist() for counts in self.counts],
            "chances": self.chances.tolist(),
            "deviation": None if self.deviation is None else list(self.deviation),
        }


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError("USAGE-001", f"{name} is no whole number from {least} on.", fix=f"{name}={max(least, 3)}")


_Noisy = Annotated[float, Field(ge=-1e18, le=1e18)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Spread = Annotated[float, Field(ge=0, le=1e30)]
_ROUNDING = 1e-6


class _Tree(Record):
    kind: Literal["tree"]
    features: list[PlainNumber | PlainCategory]
    label: PlainCategory
    splits: Annotated[list[str | None], Field(min_length=1)]
    firsts: list[int]
    counts: list[list[_Noisy] | None]
    chances: list[list[_Share]]
    deviation: Annotated[list[_Spread], Field(min_length=2, max_length=2)] | None

    def model(self) -> Tree:
        schema = Schema([one.feature() for one in self.features], self.label.feature())
        if any(feature.n_bins is None for feature in schema.features):
            raise unfit("a number has no bins")
        if not len(self.splits) == len(self.firsts) == len(self.counts) == len(self.chances):
            raise unfit("its lists do not have one entry for each node")
        position: dict[str | None, int] = {None: -1, **{name: j for j, name in enumerate(schema.names)}}
        if not position.keys() >= set(self.splits):
            raise unfit("a node splits on something else than a feature")
        splits = [position[name] for name in self.splits]
        _check_shape(splits, self.firsts, [feature.n_bins or 0 for feature in schema.features])
        unknown = [math.nan] * len(self.label.values)
        counts = [unknown if row is None else row for row in self.counts]
        if any(len(row) != len(unknown) for row in (*counts, *self.chances)):
            raise unfit("a node does not have a number for each class")
        chances = np.array(self.chances)
        if np.abs(chances.sum(axis=1) - 1).max() > _ROUNDING:
            raise unfit("chances do not add up to 1")
        deviation = None if self.deviation is None else (self.deviation[0], self.deviation[1])
        return Tree(schema, np.array(splits, np.int64), np.array(self.firsts, np.int64), np.array(counts, np.float64), chances, deviation)


def _check_shape(splits: list[int], firsts: list[int], arities: list[int]) -> None:
    """Refuse what is no tree: each node but the root is one node's child, behind it, and no path has an attribute twice."""
    n_nodes = len(splits)
    if sum(arities[split] for split in splits if split >= 0) != n_nodes - 1:
        raise unfit("its nodes are not those of a tree")
    used: list[int | None] = [0] + [None] * (n_nodes - 1)
    for node, (split, first) in enumerate(zip(splits, firsts, strict=True)):
        above = used[node]
        if above is None or (first != -1 if split < 0 else not 0 < first <= n_nodes - arities[split] or above >> split & 1):
            raise unfit("a node's children are not where they should be, or an attribute is split on twice")
        # A node that is a child twice, or that comes before its parent, leaves one without a parent when its turn comes: there are as
        # many children as nodes but the root.
        for child in range(first, first + arities[split]) if split >= 0 else ():
            used[child] = above | 1 << split


def from_plain(document: object) -> Tree:
    """The tree that `Tree.to_plain` wrote; `SpecError` for anything else."""
    try:
        return _Tree.model_validate(document).model()
    except ValidationError as error:
        raise unfit(fault_of(error)) from None
