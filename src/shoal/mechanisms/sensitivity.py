"""Sensitivity of a query, computed from how it is built.

Mechanisms take a query instead of a number, so that no sensitivity is typed by hand.

Each query states how its numbers depend on one unit's data; the norms follow for either
neighbouring relation. Under *add-remove* a unit's contribution appears or vanishes; under *replace*
it is exchanged for another, so every norm of a bounded contribution at most doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from shoal.errors import MechanismError
from shoal.privacy.events import Relation


class Query(Protocol):
    """A vector of integers with a bounded dependence on one unit, by construction."""

    def l1(self, relation: Relation) -> Fraction:
        """Return the largest change in absolute sum between neighbours."""
        ...

    def l2_squared(self, relation: Relation) -> Fraction:
        """Return the largest squared Euclidean change between neighbours."""
        ...


@dataclass(frozen=True, slots=True)
class CellCounts:
    """Counts of rows in cells: each row is in exactly one cell of each table.

    Parameters
    ----------
    n_tables
        Tables that are released together.
    max_rows
        Largest number of rows of one unit; 1 if the unit is the row.
    """

    n_tables: int = 1
    max_rows: int = 1

    def __post_init__(self) -> None:
        check_positive("n_tables", self.n_tables)
        check_positive("max_rows", self.max_rows)

    def l1(self, relation: Relation) -> Fraction:
        return Fraction(_relation_factor(relation) * self.n_tables * self.max_rows)

    def l2_squared(self, relation: Relation) -> Fraction:
        # All rows of the unit may be in one cell; replaced, they may all move to another one.
        return Fraction(_relation_factor(relation) * self.n_tables * self.max_rows**2)


@dataclass(frozen=True, slots=True)
class SignedCells:
    """Sums of a signed number over the rows in each cell.

    Each row is in exactly one cell of each table.

    Parameters
    ----------
    n_tables
        Tables that are released together.
    bound
        Largest absolute value that a row adds to a cell, in the integer units of the sums.
    max_rows
        Largest number of rows of one unit; 1 if the unit is the row.
    """

    n_tables: int
    bound: int
    max_rows: int = 1

    def __post_init__(self) -> None:
        check_positive("n_tables", self.n_tables)
        check_positive("bound", self.bound)
        check_positive("max_rows", self.max_rows)

    def l1(self, relation: Relation) -> Fraction:
        return Fraction(_relation_factor(relation) * self.n_tables * self.bound * self.max_rows)

    def l2_squared(self, relation: Relation) -> Fraction:
        # Numbers of both signs may be in one cell: replaced, it changes by twice the bound.
        return Fraction(
            self.n_tables * (_relation_factor(relation) * self.bound * self.max_rows) ** 2
        )


@dataclass(frozen=True, slots=True)
class ClippedVector:
    """A vector of integers clipped to a norm: one unit's contribution lies in a ball.

    Parameters
    ----------
    clip
        Radius, in the integer units of the vector.
    norm
        1 or 2, the norm that is clipped.
    dimension
        Number of coordinates.
    """

    clip: int
    norm: int
    dimension: int

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_positive("dimension", self.dimension)
        if self.norm not in (1, 2):
            raise MechanismError(
                "MECH-001", f"norm = {self.norm}: a vector can be clipped in norm 1 or 2."
            )

    def l1(self, relation: Relation) -> Fraction:
        # In the L2 ball the largest L1 norm is sqrt(dimension) clip, rounded up to an integer.
        widest = self.clip if self.norm == 1 else _ceil_sqrt(self.dimension * self.clip**2)
        return Fraction(_relation_factor(relation) * widest)

    def l2_squared(self, relation: Relation) -> Fraction:
        return Fraction((_relation_factor(relation) * self.clip) ** 2)


@dataclass(frozen=True, slots=True)
class BoundedSum:
    """The sum of a number over rows, each clamped to a public range.

    Parameters
    ----------
    low, high
        Public range, in integer units.
    max_rows
        Largest number of rows of one unit.
    """

    low: int
    high: int
    max_rows: int = 1

    def __post_init__(self) -> None:
        check_positive("max_rows", self.max_rows)
        if not self.low < self.high:
            raise MechanismError(
                "MECH-001", f"The range [{self.low}, {self.high}] is empty.", fix="Give low < high."
            )

    def l1(self, relation: Relation) -> Fraction:
        # Replacing moves each row across the range; if one side has fewer rows than allowed, a row
        # also moves from 0.
        widest = max(abs(self.low), abs(self.high))
        if relation is Relation.REPLACE:
            widest = max(widest, self.high - self.low)
        return Fraction(self.max_rows * widest)

    def l2_squared(self, relation: Relation) -> Fraction:
        return self.l1(relation) ** 2


def _relation_factor(relation: Relation) -> int:
    return 2 if relation is Relation.REPLACE else 1


def _ceil_sqrt(n: int) -> int:
    return math.isqrt(n - 1) + 1


def check_positive(name: str, value: int) -> None:
    """Raise ``MECH-001`` if a number of things is less than 1."""
    if value < 1:
        raise MechanismError("MECH-001", f"{name} = {value}: it must be at least 1.")
