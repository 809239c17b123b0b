"""What all parties of a PFDS study agree on: the public figures from which everything else follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.domain import Feature, Numeric, Schema
from shoal.errors import LocalProtocolError, SpecError
from shoal.mechanisms.base import check_delta, check_epsilon
from shoal.names import counted
from shoal.privacy.events import Relation, Scope, Unit
from shoal.protocols.pfds.coding import coded_schema
from shoal.protocols.sdq.params import cells_of as cut

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GRID = 256
"""Counts are integers in units of 1/256: a row adds 256 to a cell, or a part of it where its label is a number."""


@dataclass(frozen=True)
class Params:
    """The public figures of a study.

    Parameters
    ----------
    schema
        Features and a label, a category or a number.
    epsilon, delta
        The whole budget of one unit. Infinite: no noise at all, which only a simulation may do. A delta goes with secure sums only.
    size
        Rows in all that are expected; a public guess.
    n_holders, minimum
        m, and the fewest holders that share; the others may drop out.
    max_colluders
        C: holders that may side with those who read the sums.
    variant, trust
        ``"paper"`` shares trees and data, with trust ``"local"``.
    max_depth, n_candidates, n_levels, n_buckets
        Variant paper: h_max, t, p, and b for a numeric label.
    labelling
        Variant paper: whose trees label a holder's data. ``"own"`` is PFDS(s).
    projection
        Variant paper: whether the counts of a tree are made consistent. False is PFDS-.
    unit, max_rows
        What epsilon protects, and most rows of one unit that a holder uses.

    Notes
    -----
    Ref: PFDS Algorithms 1 to 5; errata P-01 to P-09.

    Examples
    --------
    >>> from shoal.domain import Categorical
    >>> schema = Schema([Numeric("age", 0, 100)], label=Categorical("ill", ["no", "yes"]))
    >>> params = Params(schema, epsilon=1.0, size=10_000)
    >>> params.arities, params.n_sides, str(params.scope)
    ((9,), 2, 'record, add-remove, against all who read the release')
    """

    schema: Schema
    epsilon: float
    size: int
    delta: float = 0.0
    n_holders: int = 10
    minimum: int = 10
    max_colluders: int = 0
    variant: Literal["plus", "paper"] = "plus"
    trust: Literal["local", "secure-sum"] = "local"
    max_depth: int = 8
    n_candidates: int = 10
    n_levels: int = 4
    n_buckets: int = 10
    labelling: Literal["shared", "own"] = "shared"
    projection: bool = True
    unit: Literal["record", "person"] = "record"
    max_rows: int = 1

    def __post_init__(self) -> None:
        if self.schema.label is None:
            raise SpecError("SCHEMA-001", "The schema declares no label.", fix="Schema(..., label=...)")
        if not self.is_bare:
            check_epsilon(self.epsilon)
            if self.delta:
                check_delta(self.delta)

    @property
    def is_bare(self) -> bool:
        """Whether there is no noise at all, which only a simulation may do: epsilon is infinite."""
        return self.epsilon == math.inf

    @property
    def label(self) -> Feature:
        """What is predicted."""
        assert self.schema.label is not None
        return self.schema.label

    @property
    def is_number(self) -> bool:
        """Whether a number is predicted."""
        return isinstance(self.label, Numeric)

    @property
    def n_sides(self) -> int:
        """Counts of each cell: one for every class; of a number, how much of it is there and how much is missing to its highest value."""
        return 2 if isinstance(self.label, Numeric) else len(self.label.values)

    @property
    def n_models(self) -> int:
        """Additive models that are learned: one for a number or two classes, otherwise one for each class against all others."""
        return 1 if self.n_sides == 2 else self.n_sides

    @property
    def n_outcomes(self) -> int:
        """Variant paper: classes, or buckets of a number."""
        return self.n_buckets if isinstance(self.label, Numeric) else len(self.label.values)

    @cached_property
    def coded(self) -> Schema:
        """The schema with public cells for every number: the coding of variant plus."""
        return coded_schema(self.schema)

    @cached_property
    def arities(self) -> tuple[int, ...]:
        """Cells of each feature, the one for missing values included."""
        return tuple(feature.n_bins or 0 for feature in self.coded.features)

    @cached_property
    def starts(self) -> Ints:
        """Where the cells of each feature begin among all cells, ``(k + 1,)``; the last is how many there are."""
        return np.concatenate([[0], np.cumsum(self.arities)]).astype(np.int64)

    @property
    def n_cells(self) -> int:
        """D: cells of all features."""
        return sum(self.arities)

    @property
    def columns(self) -> tuple[str, ...]:
        """All that a release depends on."""
        return (*self.schema.names, self.label.name)

    @property
    def n_honest(self) -> int:
        """Shares of noise that are sure to be in a sum and unknown to the adversary, for which each share is made."""
        return 1 if self.trust == "local" else self.minimum - self.max_colluders

    @property
    def scope(self) -> Scope:
        """What the epsilon of a release speaks about."""
        return Scope(Unit(self.unit), Relation.ADD_REMOVE, self._adversary)

    @property
    def _adversary(self) -> str:
        if self.trust == "local":
            return "all who read the release"
        if self.max_colluders == 0:
            # A holder that takes its own share of the noise away is a colluder of one.
            return "all who read the sums or the release and hold none of the data"
        return f"all who read the sums or the release, and up to {counted(self.max_colluders, 'colluding holder')}"


@dataclass(frozen=True)
class Rows:
    """Rows in the public coding: those of one holder, or of several in a simulation.

    Parameters
    ----------
    cells
        ``(n, k)`` the cell of each feature among all cells of all features.
    sides
        ``(n, n_sides)`` units that the row adds to each side of its cells; `GRID` in all.
    whose
        ``(n,)`` the holder of each row, counted from 0; None where all are of one.
    """

    cells: Ints
    sides: Ints
    whose: Ints | None = None

    def __post_init__(self) -> None:
        # What a row adds to a sum is what prices count on: it is held to here, whoever made the rows.
        is_whole = (self.sides >= 0).all() and (self.sides.sum(axis=1) == GRID).all()
        if not is_whole or (self.cells < 0).any():
            raise LocalProtocolError("PFDS-005", "Rows were made of something else than encoded columns and labels.", fix="Use Rows.of.")

    def __len__(self) -> int:
        return len(self.cells)

    @classmethod
    def of(cls, params: Params, columns: Mapping[str, npt.NDArray[Any]], labels: npt.NDArray[Any], whose: Ints | None = None) -> Rows:
        """Rows as ``schema.encode`` and ``schema.encode_label`` give them."""
        return cls(cells_of(params, columns), sides_of(params, labels), whose)

    def take(self, which: npt.NDArray[Any]) -> Rows:
        """Some of the rows."""
        return replace(self, cells=self.cells[which], sides=self.sides[which], whose=None if self.whose is None else self.whose[which])


def cells_of(params: Params, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
    """The cell of each feature among all cells, ``(n, k)``; a category that nobody declared is taken for the last one."""
    return cut(params.coded, columns) + params.starts[:-1]


def sides_of(params: Params, labels: npt.NDArray[Any]) -> Ints:
    """What each row adds to the sides of its cells: a whole row to that of its class, or a number's share to the second one."""
    if isinstance(params.label, Numeric):
        low, high = float(params.label.low), float(params.label.high)
        share = np.rint(GRID * ((np.clip(labels, low, high) - low) / (high - low))).astype(np.int64)
        return np.stack([GRID - share, share], axis=1)
    whole: Ints = GRID * np.eye(params.n_sides, dtype=np.int64)[labels]
    return whole
