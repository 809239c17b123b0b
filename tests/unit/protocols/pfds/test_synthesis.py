"""Private rows: how many each leaf gets, and that they lie in it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pfds_trees import level_of, params_of, plain_path, random_points
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds import synthesis
from shoal.protocols.pfds.growing import grow
from shoal.protocols.pfds.projection import project
from shoal.protocols.pfds.synthesis import columns_of, draw_counts, draw_rows, sizes
from shoal.protocols.pfds.tree import PrivateTree

BARE = params_of(epsilon=math.inf)
TREE = PrivateTree.of(
    params_of(max_depth=3), [level_of((0, 60)), level_of((1, 0), (0, 80))], np.array([[9, -1], [-7, 2], [3, 1], [4, 4], [-9, 2]], np.int32)
)


def test_counts_of_a_level_are_those_of_plain_counting() -> None:
    points = random_points(BARE, 150, seed=3)
    tree = grow(BARE, points, SeededEntropy(2))
    paths = np.array([plain_path(BARE, tree.levels, row) for row in points.values])
    for number in (1, 2, 3):
        counts = draw_counts(BARE, points, tree.levels, number, SeededEntropy(1))
        assert counts.sum() == 150
        assert counts.tolist() == np.bincount(paths[:, number - 1], minlength=len(tree.levels[number - 1])).tolist()


def test_counts_have_noise_of_their_own() -> None:
    params, points = params_of(), random_points(BARE, 150, seed=3)
    levels = grow(BARE, points, SeededEntropy(2)).levels
    drawn = [draw_counts(params, points, levels, 1, SeededEntropy(seed))[0] for seed in range(60)]
    assert 145 < np.mean(drawn) < 155
    assert np.std(drawn) > 2
    true = draw_counts(BARE, points, levels, 3, SeededEntropy(1))
    noise = np.stack([draw_counts(params, points, levels, 3, SeededEntropy(seed)) - true for seed in range(20)])
    assert (noise != noise[:, :1]).any(axis=1).all(), "each node has a draw of its own"


@pytest.mark.parametrize("n_levels", [2, 3, 4])
def test_true_counts_are_consistent_and_stay_as_they_are(n_levels: int) -> None:
    params = params_of(epsilon=math.inf, n_levels=n_levels)
    points = random_points(params, 150, seed=3)
    for seed in range(4):
        tree = grow(params, points, SeededEntropy(seed))
        counts = [draw_counts(params, points, tree.levels, i, SeededEntropy(1)) for i in range(1, n_levels)]
        found = sizes(params, tree, counts)
        assert np.allclose(found, np.bincount(tree.route(points.values), minlength=len(tree.labels)), atol=1e-9)


def test_levels_weigh_one_over_their_number_of_nodes() -> None:
    parents = [np.zeros(1, int), np.zeros(2, int), np.array([0, 0, 0, 1, 1])]
    counts = [np.array([20]), np.array([9, 4]), np.array([8, -5, 4, 8, -7])]
    by_hand = project(parents, counts, [1, 1 / 2, 1 / 5])[-1]
    assert np.allclose(sizes(TREE.params, TREE, counts[:2]), by_hand)
    # Leaves that follow on the root alone: levels in between are skipped.
    by_hand = project([parents[0], np.zeros(5, int)], [counts[0], counts[2]], [1, 1 / 5])[-1]
    assert np.allclose(sizes(TREE.params, TREE, counts[:1]), by_hand)


def test_without_projection_counts_stand_but_for_those_below_zero() -> None:
    assert sizes(TREE.params, TREE, []).tolist() == [8, 0, 4, 8, 0]


def test_rows_lie_in_their_leaves() -> None:
    params = params_of(size=100_000)
    for seed in range(5):
        tree = grow(params, random_points(params, 150, seed), SeededEntropy(seed))
        rows = draw_rows(params, tree, np.full(len(tree.labels), 3.0), SeededEntropy(seed))
        assert np.bincount(rows.leaves).tolist() == [3] * len(tree.labels)
        assert tree.route(rows.values).tolist() == rows.leaves.tolist()


def test_what_the_path_leaves_open_is_uniform() -> None:
    params = params_of(max_depth=3, size=10_000)
    rows = draw_rows(params, TREE, np.array([0.0, 2000.0, 0.0, 2000.0, 0.0]), SeededEntropy(5))
    young, old = rows.values[:2000], rows.values[2000:]
    assert (young[:, 0] < 60).all()
    assert (young[:, 1] == 1).all()
    assert ((old[:, 0] >= 60) & (old[:, 0] < 80)).all()
    for values, low, high in ((young[:, 0], 0, 60), (old[:, 0], 60, 80), (young[:, 3], 2, 6), (old[:, 3], 2, 6)):
        shares = np.histogram(values, 5, (low, high))[0] / 2000
        assert (abs(shares - 0.2) < 0.05).all()
    for cells in (old[:, 1], young[:, 2], old[:, 2]):
        assert (abs(np.bincount(cells.astype(int), minlength=3) / 2000 - 1 / 3) < 0.06).all()


def test_a_fraction_is_a_row_with_that_chance() -> None:
    params = params_of(max_depth=3, size=10_000)
    n = [
        np.bincount(draw_rows(params, TREE, np.array([0.25, 2.75, 1.0, 0.0, 0.0]), SeededEntropy(i)).leaves, minlength=5)
        for i in range(400)
    ]
    assert {tuple(row) for row in n} == {(0, 2, 1, 0, 0), (0, 3, 1, 0, 0), (1, 2, 1, 0, 0), (1, 3, 1, 0, 0)}
    assert np.allclose(np.mean(n, axis=0), [0.25, 2.75, 1, 0, 0], atol=0.1)


def test_no_dataset_has_more_rows_than_the_study_expects() -> None:
    params = params_of(max_depth=3, size=100)
    rows = draw_rows(params, TREE, np.array([3e6, 0.0, 1e6, 0.0, 0.0]), SeededEntropy(1))
    assert np.bincount(rows.leaves, minlength=5).tolist() == [75, 0, 25, 0, 0]
    assert len(draw_rows(params, TREE, np.zeros(5), SeededEntropy(1))) == 0


def test_columns_are_as_the_schema_encodes_them() -> None:
    values = np.tile([[3.5, 2.0, 0.0, 4.0], [60.0, 0.0, 1.0, 2.5], [60.0, 0.0, 2.0, 2.5]], (40, 1))
    columns = columns_of(params_of(), values, SeededEntropy(1))
    assert columns["age"].tolist() == [3.5, 60.0, 60.0] * 40
    assert columns["ward"].tolist() == [2, 0, 0] * 40
    # Oslo or Bergen in the north, Rome or Milan in the south, and the missing.
    assert [set(columns["city"][i::3].tolist()) for i in range(3)] == [{0, 1}, {2, 3}, {-1}]
    assert columns["city"].dtype == columns["ward"].dtype == np.int64


def test_of_too_many_rows_so_many_are_kept_in_their_order_and_each_as_often() -> None:
    leaves = np.arange(10, 20)
    assert synthesis._at_most(10, leaves, SeededEntropy(1)) is leaves
    kept = [synthesis._at_most(4, leaves, SeededEntropy(i)) for i in range(500)]
    assert all(len(some) == 4 and (np.diff(some) > 0).all() for some in kept)
    times = np.bincount(np.concatenate(kept) - 10, minlength=10)
    assert times.min() > 140 and times.max() < 260
