"""The projection of a tree's counts: known answers, the conditions of an optimum on large trees, and another solver's answer."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import LaplaceSampler
from shoal.protocols.pfds.params import Floats, Ints
from shoal.protocols.pfds.projection import project

TOP = np.zeros(1, np.int64)


def tree(*sizes: int, seed: int = 0) -> list[Ints]:
    """Parents drawn at random, one child for each at least, in the order of the nodes above."""
    rng = np.random.default_rng(seed)
    levels = [np.sort(np.r_[np.arange(m), rng.integers(0, m, n - m)]) for m, n in pairwise(sizes)]
    return [TOP, *levels]


def noisy(parents: list[Ints], n_rows: int = 440, scale: int = 16, seed: int = 0) -> list[Ints]:
    """Counts of rows that are anywhere, with integer noise in every level."""
    entropy, sampler = SeededEntropy(seed), LaplaceSampler(Fraction(1, scale))
    true = [np.bincount(entropy.below_many(len(parents[-1]), n_rows).astype(np.int64), minlength=len(parents[-1]))]
    for below in parents[:0:-1]:
        true.append(np.bincount(below, true[-1]).astype(np.int64))
    return [count + sampler.draw_many(len(count), entropy) for count in true[::-1]]


def one_over_sizes(counts: Sequence[Any]) -> list[float]:
    return [1 / len(count) for count in counts]


def objective(found: Sequence[Floats], counts: Sequence[Any], weights: Sequence[float]) -> float:
    return sum(w * float(((x - c) ** 2).sum()) for x, c, w in zip(found, counts, weights, strict=True))


def inconsistency(parents: list[Ints], found: list[Floats]) -> float:
    pairs = zip(parents[1:], found, found[1:], strict=False)
    return max(float(np.abs(np.bincount(p, below, len(above)) - above).max()) for p, above, below in pairs)


def gradients(parents: list[Ints], found: list[Floats], counts: Sequence[Any], weights: Sequence[float]) -> Floats:
    """What a row more in a leaf would add to the objective."""
    total = np.zeros(1)
    for p, x, c, w in zip(parents, found, counts, weights, strict=True):
        total = total[p] + 2 * w * (x - c)
    return total


def test_known_answers() -> None:
    root, leaves = project([TOP, np.zeros(2, int)], [np.array([9]), np.array([2, 4])], [1, 1])
    assert (root.tolist(), leaves.tolist()) == ([8.0], [3.0, 5.0])
    root, leaves = project([TOP, np.zeros(3, int)], [np.array([1]), np.array([-5, 3, 1])], [2, 1])
    assert root == pytest.approx([5 / 3]) and leaves == pytest.approx([0, 5 / 3, 0])


def test_a_leaf_that_is_dropped_lowers_the_price_of_all_others() -> None:
    """First the -20 goes, which leaves too much below the top; only then does the 1 go."""
    root, leaves = project([TOP, np.zeros(3, int)], [np.array([0]), np.array([10, 1, -20])], [1, 1])
    assert root.tolist() == leaves[:1].tolist() == [5.0]
    assert leaves[1:].tolist() == [0, 0]


def test_nodes_with_one_child() -> None:
    """Every node is asked for twice: 2 (2x - 12) + 2 (x - 2) + 2 (x - 4) = 0."""
    parents = [TOP, np.zeros(2, int), np.arange(2)]
    root, middle, leaves = project(parents, [np.array([12]), np.array([2, 4]), np.array([4, 2])], [1, 1, 1])
    assert root == pytest.approx([9]) and middle == pytest.approx([4.5, 4.5]) and leaves == pytest.approx([4.5, 4.5])


def test_counts_that_are_consistent_stay_what_they_are() -> None:
    parents = tree(1, 4, 20, 300)
    counts = [np.arange(300)]
    for below in parents[:0:-1]:
        counts.append(np.bincount(below, counts[-1]))
    for found, count in zip(project(parents, counts[::-1], [5, 1, 3, 0.1]), counts[::-1], strict=True):
        np.testing.assert_allclose(found, count, rtol=1e-12, atol=1e-9)


def test_where_all_counts_are_negative_nothing_is_left() -> None:
    parents = tree(1, 3, 9, 50)
    for found, p in zip(project(parents, [-np.arange(1, len(p) + 1) for p in parents], [1, 1, 1, 1]), parents, strict=True):
        assert found.shape == p.shape and not found.any() and found.dtype == np.float64


def test_a_node_may_lose_all_its_leaves_and_the_others_none() -> None:
    parents = [TOP, np.zeros(2, int), np.array([0, 0, 1, 1])]
    root, middle, leaves = project(parents, [np.array([10]), np.array([-9, 9]), np.array([-3, -4, 5, 4])], [1, 1, 1])
    assert middle[0] == 0 and leaves[:2].tolist() == [0, 0]
    # As if there were no first node: 2 (x - 10) + 2 (x - 9) + (x - 9) = 0, and each leaf has half of the difference.
    assert root == pytest.approx([47 / 5]) and leaves[2:] == pytest.approx([5.2, 4.2])


def test_the_order_of_nodes_and_the_type_of_counts_do_not_matter() -> None:
    parents = tree(1, 6, 30, 2_000)
    counts = noisy(parents)
    weights = one_over_sizes(counts)
    known = project(parents, counts, weights)
    order = np.random.default_rng(1).permutation(2_000)
    mixed = project([*parents[:3], parents[3][order].astype(np.int32)], [*counts[:3], counts[3][order].astype(np.int32)], weights)
    floats = project(parents, [count.astype(np.float64) for count in counts], [7 * w for w in weights])
    for a, b, c in zip(known[:3], mixed, floats, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(a, c, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(known[3][order], mixed[3], rtol=1e-12, atol=1e-9)
    assert inconsistency(parents, known) < 1e-10


def test_what_is_given_is_not_changed() -> None:
    parents = tree(1, 3, 40)
    counts = [count.astype(np.float64) for count in noisy(parents)]
    before = [np.concatenate(parents), np.concatenate(counts)]
    project(parents, counts, [1, 1, 1])
    assert np.array_equal(before[0], np.concatenate(parents)) and np.array_equal(before[1], np.concatenate(counts))


@pytest.mark.parametrize("sizes", [(1, 10, 100, 100_000), (1, 2, 200_000), (1, 40, 600, 9_000, 60_000), (1, 2, 4, 8, 16, 32, 64, 128)])
@pytest.mark.parametrize("scale", [1, 160])
def test_the_conditions_of_an_optimum_hold(sizes: tuple[int, ...], scale: int) -> None:
    """No leaf is negative, no row more would help, and none fewer where there are any: in a convex problem that is the one optimum."""
    parents = tree(*sizes)
    counts = noisy(parents, scale=scale)
    weights = one_over_sizes(counts)
    found = project(parents, counts, weights)
    slope = gradients(parents, found, counts, weights)
    assert all(x.min() >= 0 for x in found) and found[-1].any()
    assert inconsistency(parents, found) < 1e-9
    assert slope.min() > -1e-9 and np.abs(slope[found[-1] > 0]).max() < 1e-9


def test_noise_in_the_leaves_does_not_swell_the_total() -> None:
    parents = tree(1, 10, 100, 100_000)
    counts = noisy(parents)
    assert np.maximum(counts[-1], 0).sum() > 500_000 and abs(project(parents, counts, one_over_sizes(counts))[0][0] - counts[0][0]) < 20


@pytest.mark.parametrize("seed", range(5))
def test_an_interior_point_solver_finds_the_same(seed: int) -> None:
    piqp = pytest.importorskip("piqp", reason="piqp (an oracle of the development environment) is not installed")
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy (shoal[stats]) is not installed")
    parents = tree(1, 4, 20, 200, seed=seed)
    counts = noisy(parents, seed=seed)
    weights = one_over_sizes(counts)
    starts = np.cumsum([0, *map(len, counts)])
    rows = np.arange(starts[-2])
    children, n = np.arange(1, starts[-1]), int(starts[-1])
    above = np.concatenate([p + start for p, start in zip(parents[1:], starts, strict=False)])
    sums = sparse.csc_matrix((np.ones(n - 1), (above, children)), (len(rows), n)) - sparse.eye(len(rows), n, format="csc")
    each, asked = np.repeat(weights, list(map(len, counts))), np.concatenate(counts).astype(np.float64)
    solver = piqp.SparseSolver()
    # It stops when gradients are small, up to 1e-7 away from the optimum; never content, it takes all its rounds and comes to 1e-12.
    for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
        setattr(solver.settings, name, 1e-300)
    solver.setup(sparse.diags(2 * each).tocsc(), -2 * each * asked, sums, np.zeros(len(rows)), x_l=np.zeros(n), x_u=np.full(n, np.inf))
    solver.solve()
    theirs = np.split(solver.result.x, starts[1:-1])
    found = project(parents, counts, weights)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(theirs), rtol=0, atol=1e-9)
    assert objective(found, counts, weights) <= objective(theirs, counts, weights) + 1e-9
