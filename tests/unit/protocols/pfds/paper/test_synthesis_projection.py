"""Projection of counts of a tree: known results, optimality conditions, another solver."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import LaplaceSampler
from shoal.protocols.pfds.paper.synthesis import project_counts
from shoal.protocols.pfds.params import Floats, Ints

TOP = np.zeros(1, np.int64)


def make_tree(*sizes: int, seed: int = 0) -> list[Ints]:
    """Return random parents, sorted; each node has one child or more."""
    rng = np.random.default_rng(seed)
    levels = [np.sort(np.r_[np.arange(m), rng.integers(0, m, n - m)]) for m, n in pairwise(sizes)]
    return [TOP, *levels]


def draw_noisy_counts(
    parents: list[Ints], n_rows: int = 440, scale: int = 16, seed: int = 0
) -> list[Ints]:
    """Return counts of random rows, with integer noise in every level."""
    entropy, sampler = SeededEntropy(seed), LaplaceSampler(Fraction(1, scale))
    true = [
        np.bincount(
            entropy.below_many(len(parents[-1]), n_rows).astype(np.int64),
            minlength=len(parents[-1]),
        )
    ]
    for below in parents[:0:-1]:
        true.append(np.bincount(below, true[-1]).astype(np.int64))
    return [count + sampler.draw_many(len(count), entropy) for count in true[::-1]]


def compute_weights(counts: Sequence[Any]) -> list[float]:
    return [1 / len(count) for count in counts]


def compute_objective(
    found: Sequence[Floats], counts: Sequence[Any], weights: Sequence[float]
) -> float:
    return sum(
        w * float(((x - c) ** 2).sum()) for x, c, w in zip(found, counts, weights, strict=True)
    )


def compute_inconsistency(parents: list[Ints], found: list[Floats]) -> float:
    pairs = zip(parents[1:], found, found[1:], strict=False)
    return max(
        float(np.abs(np.bincount(p, below, len(above)) - above).max()) for p, above, below in pairs
    )


def compute_gradients(
    parents: list[Ints], found: list[Floats], counts: Sequence[Any], weights: Sequence[float]
) -> Floats:
    """Return the change of the objective for one more row in each leaf."""
    total = np.zeros(1)
    for p, x, c, w in zip(parents, found, counts, weights, strict=True):
        total = total[p] + 2 * w * (x - c)
    return total


def test_projection_matches_known_results() -> None:
    root, leaves = project_counts(
        [TOP, np.zeros(2, int)], [np.array([9]), np.array([2, 4])], [1, 1]
    )
    assert (root.tolist(), leaves.tolist()) == ([8.0], [3.0, 5.0])
    root, leaves = project_counts(
        [TOP, np.zeros(3, int)], [np.array([1]), np.array([-5, 3, 1])], [2, 1]
    )
    assert root == pytest.approx([5 / 3]) and leaves == pytest.approx([0, 5 / 3, 0])


def test_dropped_leaf_can_cause_another_to_be_dropped() -> None:
    """First -20 is dropped, which leaves too much below the top; only then 1 is dropped."""
    root, leaves = project_counts(
        [TOP, np.zeros(3, int)], [np.array([0]), np.array([10, 1, -20])], [1, 1]
    )
    assert root.tolist() == leaves[:1].tolist() == [5.0]
    assert leaves[1:].tolist() == [0, 0]


def test_projection_of_nodes_with_one_child() -> None:
    """Each node occurs twice: 2 (2x - 12) + 2 (x - 2) + 2 (x - 4) = 0."""
    parents = [TOP, np.zeros(2, int), np.arange(2)]
    root, middle, leaves = project_counts(
        parents, [np.array([12]), np.array([2, 4]), np.array([4, 2])], [1, 1, 1]
    )
    assert (
        root == pytest.approx([9])
        and middle == pytest.approx([4.5, 4.5])
        and leaves == pytest.approx([4.5, 4.5])
    )


def test_projection_keeps_consistent_counts() -> None:
    parents = make_tree(1, 4, 20, 300)
    counts = [np.arange(300)]
    for below in parents[:0:-1]:
        counts.append(np.bincount(below, counts[-1]))
    for found, count in zip(
        project_counts(parents, counts[::-1], [5, 1, 3, 0.1]), counts[::-1], strict=True
    ):
        np.testing.assert_allclose(found, count, rtol=1e-12, atol=1e-9)


def test_projection_of_negative_counts_is_zero() -> None:
    parents = make_tree(1, 3, 9, 50)
    for found, p in zip(
        project_counts(parents, [-np.arange(1, len(p) + 1) for p in parents], [1, 1, 1, 1]),
        parents,
        strict=True,
    ):
        assert found.shape == p.shape and not found.any() and found.dtype == np.float64


def test_projection_may_drop_all_leaves_of_one_node() -> None:
    parents = [TOP, np.zeros(2, int), np.array([0, 0, 1, 1])]
    root, middle, leaves = project_counts(
        parents, [np.array([10]), np.array([-9, 9]), np.array([-3, -4, 5, 4])], [1, 1, 1]
    )
    assert middle[0] == 0 and leaves[:2].tolist() == [0, 0]
    # As without the first node: 2 (x - 10) + 2 (x - 9) + (x - 9) = 0, and each leaf has half of
    # the difference.
    assert root == pytest.approx([47 / 5]) and leaves[2:] == pytest.approx([5.2, 4.2])


def test_projection_does_not_depend_on_order_or_type() -> None:
    parents = make_tree(1, 6, 30, 2_000)
    counts = draw_noisy_counts(parents)
    weights = compute_weights(counts)
    known = project_counts(parents, counts, weights)
    order = np.random.default_rng(1).permutation(2_000)
    mixed = project_counts(
        [*parents[:3], parents[3][order].astype(np.int32)],
        [*counts[:3], counts[3][order].astype(np.int32)],
        weights,
    )
    floats = project_counts(
        parents, [count.astype(np.float64) for count in counts], [7 * w for w in weights]
    )
    for a, b, c in zip(known[:3], mixed, floats, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(a, c, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(known[3][order], mixed[3], rtol=1e-12, atol=1e-9)
    assert compute_inconsistency(parents, known) < 1e-10


def test_projection_does_not_change_its_arguments() -> None:
    parents = make_tree(1, 3, 40)
    counts = [count.astype(np.float64) for count in draw_noisy_counts(parents)]
    before = [np.concatenate(parents), np.concatenate(counts)]
    project_counts(parents, counts, [1, 1, 1])
    assert np.array_equal(before[0], np.concatenate(parents)) and np.array_equal(
        before[1], np.concatenate(counts)
    )


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 10, 100, 100_000),
        (1, 2, 200_000),
        (1, 40, 600, 9_000, 60_000),
        (1, 2, 4, 8, 16, 32, 64, 128),
    ],
)
@pytest.mark.parametrize("scale", [1, 160])
def test_projection_satisfies_the_optimality_conditions(sizes: tuple[int, ...], scale: int) -> None:
    """No leaf is negative, and neither more nor fewer rows improve the objective.

    The problem is convex, so this is its only optimum.
    """
    parents = make_tree(*sizes)
    counts = draw_noisy_counts(parents, scale=scale)
    weights = compute_weights(counts)
    found = project_counts(parents, counts, weights)
    slope = compute_gradients(parents, found, counts, weights)
    assert all(x.min() >= 0 for x in found) and found[-1].any()
    assert compute_inconsistency(parents, found) < 1e-9
    assert slope.min() > -1e-9 and np.abs(slope[found[-1] > 0]).max() < 1e-9


def test_projection_keeps_the_total_despite_noise_in_leaves() -> None:
    parents = make_tree(1, 10, 100, 100_000)
    counts = draw_noisy_counts(parents)
    assert (
        np.maximum(counts[-1], 0).sum() > 500_000
        and abs(project_counts(parents, counts, compute_weights(counts))[0][0] - counts[0][0]) < 20
    )


@pytest.mark.parametrize("seed", range(5))
def test_projection_equals_an_interior_point_solver(seed: int) -> None:
    piqp = pytest.importorskip(
        "piqp", reason="piqp (an oracle of the development environment) is not installed"
    )
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy (the extra learn) is not installed")
    parents = make_tree(1, 4, 20, 200, seed=seed)
    counts = draw_noisy_counts(parents, seed=seed)
    weights = compute_weights(counts)
    starts = np.cumsum([0, *map(len, counts)])
    rows = np.arange(starts[-2])
    children, n = np.arange(1, starts[-1]), int(starts[-1])
    above = np.concatenate([p + start for p, start in zip(parents[1:], starts, strict=False)])
    sums = sparse.csc_matrix((np.ones(n - 1), (above, children)), (len(rows), n)) - sparse.eye(
        len(rows), n, format="csc"
    )
    each, asked = (
        np.repeat(weights, list(map(len, counts))),
        np.concatenate(counts).astype(np.float64),
    )
    solver = piqp.SparseSolver()
    # It stops at small gradients, up to 1e-7 away from the optimum. With unreachable tolerances it
    # uses all its iterations and reaches 1e-12.
    for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
        setattr(solver.settings, name, 1e-300)
    solver.setup(
        sparse.diags(2 * each).tocsc(),
        -2 * each * asked,
        sums,
        np.zeros(len(rows)),
        x_l=np.zeros(n),
        x_u=np.full(n, np.inf),
    )
    solver.solve()
    theirs = np.split(solver.result.x, starts[1:-1])
    found = project_counts(parents, counts, weights)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(theirs), rtol=0, atol=1e-9)
    assert (
        compute_objective(found, counts, weights)
        <= compute_objective(theirs, counts, weights) + 1e-9
    )
