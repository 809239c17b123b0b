"""The decision tree.

Scripts build it from noisy counts; model files store it as plain numbers under a public schema.
Loading one executes nothing, and `from_plain` rejects every document that is not a tree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from shoal.data.schema import Schema
from shoal.errors import UsageError
from shoal.messages.base import Record, describe_validation_error
from shoal.protocols.additive_model import ClassificationModel
from shoal.protocols.schema_json import (
    PlainCategory,
    PlainNumber,
    describe_schema,
    invalid_model_error,
)
from shoal.protocols.sdq.counting import find_nodes
from shoal.protocols.sdq.params import Ints, encode_cells
from shoal.protocols.sdq.tree_view import render_svg, render_text

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DecisionTree(ClassificationModel):
    """A decision tree.

    Parameters
    ----------
    splits
        ``(n_nodes,)`` the attribute of each node by its index in the schema, -1 for leaves; the
        root is the first node.
    firsts
        ``(n_nodes,)`` the index of a node's first child, -1 for none. Children follow their parent,
        are consecutive, and there is one for each cell.
    counts
        ``(n_nodes, L)`` noisy counts of the classes, NaN if they were not asked for.
    chances
        ``(n_nodes, L)`` shares of the classes, by which a row that ends at the node is predicted.
    deviation
        Standard deviation of the noise on a count of a leaf, and of the root, if every database
        answers; None if unknown.

    Notes
    -----
    Ref: SDQ §III-A, Figure 1.

    Examples
    --------
    >>> from shoal.data.schema import Categorical
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> counts = np.array([[6.0, 8.0], [2.0, 6.0], [4.0, 2.0]])
    >>> tree = DecisionTree(
    ...     schema,
    ...     np.array([0, -1, -1]),
    ...     np.array([1, -1, -1]),
    ...     counts,
    ...     counts / counts.sum(axis=1, keepdims=True),
    ... )
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
        """The predicted class of each node, ``(n_nodes,)``; the first of equal classes."""
        best: Ints = np.argmax(self.chances, axis=1)
        return best

    def children(self, node: int) -> range:
        """Return the indices of a node's children."""
        split = int(self.splits[node])
        return (
            range(0)
            if split < 0
            else range(
                int(self.firsts[node]),
                int(self.firsts[node]) + (self.schema.features[split].n_bins or 0),
            )
        )

    @cached_property
    def below(self) -> Ints:
        """Number of nodes below each node, ``(n_nodes,)``."""
        below = np.zeros(len(self), np.int64)
        for node in reversed(range(len(self))):
            below[node] = sum(1 + below[child] for child in self.children(node))
        return below

    def _find_leaves(self, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
        return find_nodes(encode_cells(self.schema, columns), self.splits, self.firsts)

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        return self.chances[self._find_leaves(columns)]

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        return self.decisions[self._find_leaves(columns)]

    def to_text(
        self, max_depth: int | None = None, width: int | None = 120, n_classes: int | None = 3
    ) -> str:
        """Render the tree as lines of text.

        Parameters
        ----------
        max_depth
            Deepest level; None for all levels.
        width
            Most characters of a line; None for no limit.
        n_classes
            Most classes with counts, the largest first; None for all.
        """
        for name, value, minimum in (
            ("max_depth", max_depth, 0),
            ("width", width, 1),
            ("n_classes", n_classes, 1),
        ):
            if value is not None:
                _check_number(name, value, minimum)
        return render_text(self, max_depth, width, n_classes)

    def to_svg(self, max_nodes: int = 80) -> str:
        """Render the tree as a self-contained picture.

        It has the first levels with at most ``max_nodes`` nodes.
        """
        _check_number("max_nodes", max_nodes, 1)
        return render_svg(self, max_nodes)

    def to_plain(self) -> dict[str, Any]:
        names = self.schema.names
        return {
            "kind": "tree",
            **describe_schema(self.schema),
            "splits": [None if split < 0 else names[split] for split in self.splits.tolist()],
            "firsts": self.firsts.tolist(),
            "counts": [
                None if np.isnan(counts).any() else counts.tolist() for counts in self.counts
            ],
            "chances": self.chances.tolist(),
            "deviation": None if self.deviation is None else list(self.deviation),
        }


def _check_number(name: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise UsageError(
            "USAGE-001",
            f"{name} must be a whole number of at least {minimum}.",
            fix=f"{name}={max(minimum, 3)}",
        )


_Noisy = Annotated[float, Field(ge=-1e18, le=1e18)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Spread = Annotated[float, Field(ge=0, le=1e30)]
_ROUNDING = 1e-6


class _DecisionTreeDocument(Record):
    kind: Literal["tree"]
    features: list[PlainNumber | PlainCategory]
    label: PlainCategory
    splits: Annotated[list[str | None], Field(min_length=1)]
    firsts: list[int]
    counts: list[list[_Noisy] | None]
    chances: list[list[_Share]]
    deviation: Annotated[list[_Spread], Field(min_length=2, max_length=2)] | None

    def make_model(self) -> DecisionTree:
        schema = Schema(
            [feature.make_feature() for feature in self.features], self.label.make_feature()
        )
        if any(feature.n_bins is None for feature in schema.features):
            raise invalid_model_error("a number has no bins")
        if not len(self.splits) == len(self.firsts) == len(self.counts) == len(self.chances):
            raise invalid_model_error("its lists have different lengths")
        position: dict[str | None, int] = {
            None: -1,
            **{name: j for j, name in enumerate(schema.names)},
        }
        if not position.keys() >= set(self.splits):
            raise invalid_model_error("a node splits on a column that is not a feature")
        splits = [position[name] for name in self.splits]
        _check_shape(splits, self.firsts, [feature.n_bins or 0 for feature in schema.features])
        unknown = [math.nan] * len(self.label.values)
        counts = [unknown if row is None else row for row in self.counts]
        if any(len(row) != len(unknown) for row in (*counts, *self.chances)):
            raise invalid_model_error("a node does not have one number for each class")
        chances = np.array(self.chances)
        if np.abs(chances.sum(axis=1) - 1).max() > _ROUNDING:
            raise invalid_model_error("chances do not add up to 1")
        deviation = None if self.deviation is None else (self.deviation[0], self.deviation[1])
        return DecisionTree(
            schema,
            np.array(splits, np.int64),
            np.array(self.firsts, np.int64),
            np.array(counts, np.float64),
            chances,
            deviation,
        )


def _check_shape(splits: list[int], firsts: list[int], arities: list[int]) -> None:
    """Raise if the nodes do not form a tree, or a path has an attribute twice.

    In a tree each node but the root is the child of one earlier node.
    """
    n_nodes = len(splits)
    if sum(arities[split] for split in splits if split >= 0) != n_nodes - 1:
        raise invalid_model_error("its nodes are not those of a tree")
    used: list[int | None] = [0] + [None] * (n_nodes - 1)
    for node, (split, first) in enumerate(zip(splits, firsts, strict=True)):
        above = used[node]
        if above is None or (
            first != -1
            if split < 0
            else not 0 < first <= n_nodes - arities[split] or above >> split & 1
        ):
            raise invalid_model_error(
                "a node has wrong children, or a path splits twice on one attribute"
            )
        # The number of children is the number of nodes without the root. If a node is a child
        # twice, or precedes its parent, another node has no parent when the loop reaches it.
        for child in range(first, first + arities[split]) if split >= 0 else ():
            used[child] = above | 1 << split


def from_plain(document: object) -> DecisionTree:
    """Return the tree that `DecisionTree.to_plain` wrote; raise `SpecError` for anything else."""
    try:
        return _DecisionTreeDocument.model_validate(document).make_model()
    except ValidationError as error:
        raise invalid_model_error(describe_validation_error(error)) from None
