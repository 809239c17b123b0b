"""Sensitivities against a search over all neighbours."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from shoal.errors import MechanismError
from shoal.mechanisms.sensitivity import BoundedSum, CellCounts, ClippedVector, SignedCells
from shoal.privacy.events import Relation

ADD_REMOVE, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE


def worst(contributions: list[np.ndarray], relation: Relation) -> tuple[int, int]:
    """Return the largest L1 and squared L2 change of one unit's contribution."""
    nothing = np.zeros_like(contributions[0])
    pairs = itertools.product(contributions, contributions if relation is REPLACE else [nothing])
    changes = [a - b for a, b in pairs]
    return max(int(np.abs(c).sum()) for c in changes), max(int((c**2).sum()) for c in changes)


def unit_histograms(n_tables: int, max_rows: int, n_cells: int = 3) -> list[np.ndarray]:
    rows = list(itertools.product(range(n_cells), repeat=n_tables))
    found = []
    for n in range(max_rows + 1):
        for chosen in itertools.combinations_with_replacement(rows, n):
            table = np.zeros((n_tables, n_cells), int)
            for row in chosen:
                table[np.arange(n_tables), row] += 1
            found.append(table.ravel())
    return found


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("n_tables", "max_rows"), [(1, 1), (2, 1), (1, 3), (2, 2), (3, 1)])
def test_cell_counts_match_largest_change(n_tables: int, max_rows: int, relation: Relation) -> None:
    query = CellCounts(n_tables, max_rows)
    assert (query.l1(relation), query.l2_squared(relation)) == worst(
        unit_histograms(n_tables, max_rows), relation
    )


def unit_sums(n_tables: int, bound: int, max_rows: int, n_cells: int = 2) -> list[np.ndarray]:
    rows = list(
        itertools.product(
            itertools.product(range(n_cells), range(-bound, bound + 1)), repeat=n_tables
        )
    )
    found = []
    for n in range(max_rows + 1):
        for chosen in itertools.combinations_with_replacement(rows, n):
            sums = np.zeros((n_tables, n_cells), int)
            for row in chosen:
                for table, (cell, value) in enumerate(row):
                    sums[table, cell] += value
            found.append(sums.ravel())
    return list(np.unique(found, axis=0))


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    ("n_tables", "bound", "max_rows"), [(1, 1, 1), (1, 4, 1), (2, 2, 1), (1, 2, 3), (2, 1, 2)]
)
def test_signed_cells_match_largest_change(
    n_tables: int, bound: int, max_rows: int, relation: Relation
) -> None:
    query = SignedCells(n_tables, bound, max_rows)
    assert (query.l1(relation), query.l2_squared(relation)) == worst(
        unit_sums(n_tables, bound, max_rows), relation
    )


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("low", "high"), [(0, 5), (-3, 4), (2, 5), (-6, -2), (-7, 1)])
@pytest.mark.parametrize("max_rows", [1, 3])
def test_bounded_sums_match_largest_change(
    low: int, high: int, max_rows: int, relation: Relation
) -> None:
    rows = range(low, high + 1)
    sums = [
        np.array([sum(chosen)])
        for n in range(max_rows + 1)
        for chosen in itertools.combinations_with_replacement(rows, n)
    ]
    query = BoundedSum(low, high, max_rows)
    assert (query.l1(relation), query.l2_squared(relation)) == worst(sums, relation)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    ("clip", "norm", "dimension"), [(3, 1, 2), (3, 2, 2), (5, 2, 2), (2, 2, 4), (1, 2, 3)]
)
def test_clipped_vectors_cover_their_ball(
    clip: int, norm: int, dimension: int, relation: Relation
) -> None:
    grid = [np.array(v) for v in itertools.product(range(-clip, clip + 1), repeat=dimension)]
    ball = [v for v in grid if (np.abs(v).sum() <= clip if norm == 1 else (v**2).sum() <= clip**2)]
    query = ClippedVector(clip, norm, dimension)
    l1, l2_squared = worst(ball, relation)
    assert query.l2_squared(relation) == l2_squared
    # The L1 norm of the L2 ball is rounded up to an integer; nothing else may be lost.
    sides = 2 if relation is REPLACE else 1
    assert l1 <= query.l1(relation) <= sides * (clip if norm == 1 else clip * dimension**0.5 + 1)


def test_norms_are_exact_fractions() -> None:
    assert isinstance(CellCounts().l1(ADD_REMOVE), Fraction)
    assert ClippedVector(10, 2, 4).l1(ADD_REMOVE) == 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: CellCounts(0),
        lambda: CellCounts(1, 0),
        lambda: SignedCells(0, 1),
        lambda: SignedCells(1, 0),
        lambda: SignedCells(1, 1, 0),
        lambda: ClippedVector(0, 2, 3),
        lambda: ClippedVector(1, 3, 3),
        lambda: ClippedVector(1, 2, 0),
        lambda: BoundedSum(1, 1),
        lambda: BoundedSum(0, 1, 0),
    ],
)
def test_rejects_invalid_bounds(make: object) -> None:
    with pytest.raises(MechanismError, match="MECH-001"):
        make()  # type: ignore[operator]
