"""The projection of the counts of any small tree.

It is compared with exact arithmetic over all choices of leaves at zero, and with another method.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.pfds.paper.synthesis import project_counts
from shoal.protocols.pfds.params import Ints
from tests.support.hostile import hostile

Case = tuple[list[Ints], list[Any], list[float]]
Rationals = npt.NDArray[np.object_]

whole = st.integers(-50, 50)
real = st.floats(-100, 100)


@st.composite
def cases(draw: st.DrawFn, most: int) -> Case:
    """Generate two to four levels; each inner node has at least one child.

    Children are in any order; counts are whole or not.
    """
    sizes = sorted(draw(st.lists(st.integers(1, most), min_size=1, max_size=3)))
    parents = [np.zeros(1, np.int64)]
    for above, size in zip([1, *sizes], sizes, strict=False):
        others = draw(
            st.lists(st.integers(0, above - 1), min_size=size - above, max_size=size - above)
        )
        parents.append(np.array(draw(st.permutations([*range(above), *others])), np.int64))
    number = draw(st.sampled_from([whole, real]))
    counts = [np.array(draw(st.lists(number, min_size=len(p), max_size=len(p)))) for p in parents]
    weights = draw(st.lists(st.floats(0.01, 10), min_size=len(parents), max_size=len(parents)))
    return parents, counts, weights


def list_leaf_rows(parents: list[Ints]) -> list[Ints]:
    """Return for each level a row for each node, with a one for each leaf below it."""
    found = [np.eye(len(parents[-1]), dtype=np.int64)]
    for level in parents[:0:-1]:
        above = np.zeros((level.max() + 1, len(parents[-1])), np.int64)
        np.add.at(above, level, found[-1])
        found.append(above)
    return found[::-1]


def solve(matrix: Rationals, right: Rationals) -> Rationals:
    """Return the solution of equations with a positive definite matrix, by elimination."""
    rows = np.column_stack([matrix, right])
    for i in range(len(rows)):
        rows[i] = rows[i] / rows[i, i]
        for j in range(len(rows)):
            if j != i:
                rows[j] = rows[j] - rows[j, i] * rows[i]
    return rows[:, -1]


def compute_optimum(case: Case) -> list[float]:
    """Return the optimal leaves in rationals.

    Of all choices of leaves at zero, it is the one without other negative leaves and in which no
    further row in them helps.
    """
    parents, counts, weights = case
    n = len(parents[-1])
    squares, linear = np.full((n, n), Fraction(0)), np.full(n, Fraction(0))
    for ones, count, weight in zip(list_leaf_rows(parents), counts, weights, strict=True):
        squares = squares + Fraction(weight) * (ones.T @ ones)
        linear = linear + Fraction(weight) * (
            ones.T @ np.array([Fraction(c) for c in count.tolist()])
        )
    for choice in product([True, False], repeat=n):
        free, leaves = np.array(choice), np.full(n, Fraction(0))
        leaves[free] = solve(squares[np.ix_(free, free)], linear[free])
        if min(leaves) >= 0 and min(squares @ leaves - linear) >= 0:
            return [float(one) for one in leaves]
    raise AssertionError("a convex problem has an optimum")


@hostile(100)
@given(cases(5))
def test_projection_equals_optimum_of_exact_arithmetic(case: Case) -> None:
    assert project_counts(*case)[-1] == pytest.approx(compute_optimum(case), abs=1e-11)


@hostile(150)
@given(cases(40))
def test_projection_equals_result_of_another_method(case: Case) -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="SciPy is not installed")
    parents, counts, weights = case
    each = np.sqrt(np.repeat(weights, list(map(len, counts))))
    theirs, _ = optimize.nnls(
        each[:, np.newaxis] * np.concatenate(list_leaf_rows(parents)), each * np.concatenate(counts)
    )
    assert project_counts(*case)[-1] == pytest.approx(theirs, abs=1e-8)


@hostile(150)
@given(cases(40))
def test_projection_is_consistent_and_idempotent(case: Case) -> None:
    parents, counts, weights = case
    found = project_counts(*case)
    assert [x.shape for x in found] == [c.shape for c in counts]
    assert all(x.min() >= 0 and x.dtype == np.float64 for x in found)
    for p, above, list_leaf_rows in zip(parents[1:], found, found[1:], strict=False):
        assert above == pytest.approx(np.bincount(p, list_leaf_rows), abs=1e-9)
    for again, x in zip(project_counts(parents, found, weights), found, strict=True):
        assert again == pytest.approx(x, abs=1e-8)
