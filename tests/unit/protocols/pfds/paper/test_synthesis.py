"""Synthetic rows: number of rows of each leaf, and their values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.paper import synthesis
from shoal.protocols.pfds.paper.growth import grow_tree
from shoal.protocols.pfds.paper.synthesis import (
    compute_leaf_sizes,
    draw_counts,
    draw_rows,
    make_columns,
    project_counts,
)
from shoal.protocols.pfds.paper.tree import PrivateTree
from tests.support.pfds_paper import make_level, make_params, plain_path, random_points

BARE = make_params(epsilon=math.inf)
TREE = PrivateTree.from_counts(
    make_params(max_depth=3),
    [make_level((0, 60)), make_level((1, 0), (0, 80))],
    np.array([[9, -1], [-7, 2], [3, 1], [4, 4], [-9, 2]], np.int32),
)


def test_draw_counts_without_noise_equals_plain_counting() -> None:
    points = random_points(BARE, 150, seed=3)
    tree = grow_tree(BARE, points, SeededEntropy(2))
    paths = np.array([plain_path(BARE, tree.levels, row) for row in points.values])
    for number in (1, 2, 3):
        counts = draw_counts(BARE, points, tree.levels, number, SeededEntropy(1))
        assert counts.sum() == 150
        assert (
            counts.tolist()
            == np.bincount(paths[:, number - 1], minlength=len(tree.levels[number - 1])).tolist()
        )


def test_draw_counts_adds_separate_noise_to_each_node() -> None:
    params, points = make_params(), random_points(BARE, 150, seed=3)
    levels = grow_tree(BARE, points, SeededEntropy(2)).levels
    drawn = [draw_counts(params, points, levels, 1, SeededEntropy(seed))[0] for seed in range(60)]
    assert 145 < np.mean(drawn) < 155
    assert np.std(drawn) > 2
    true = draw_counts(BARE, points, levels, 3, SeededEntropy(1))
    noise = np.stack(
        [draw_counts(params, points, levels, 3, SeededEntropy(seed)) - true for seed in range(20)]
    )
    assert (noise != noise[:, :1]).any(axis=1).all(), "each node has a separate draw"


@pytest.mark.parametrize("n_levels", [2, 3, 4])
def test_leaf_sizes_of_exact_counts_are_exact(n_levels: int) -> None:
    params = make_params(epsilon=math.inf, n_levels=n_levels)
    points = random_points(params, 150, seed=3)
    for seed in range(4):
        tree = grow_tree(params, points, SeededEntropy(seed))
        counts = [
            draw_counts(params, points, tree.levels, i, SeededEntropy(1))
            for i in range(1, n_levels)
        ]
        found = compute_leaf_sizes(params, tree, counts)
        assert np.allclose(
            found, np.bincount(tree.route(points.values), minlength=len(tree.labels)), atol=1e-9
        )


def test_leaf_sizes_weight_levels_by_their_number_of_nodes() -> None:
    parents = [np.zeros(1, int), np.zeros(2, int), np.array([0, 0, 0, 1, 1])]
    counts = [np.array([20]), np.array([9, 4]), np.array([8, -5, 4, 8, -7])]
    by_hand = project_counts(parents, counts, [1, 1 / 2, 1 / 5])[-1]
    assert np.allclose(compute_leaf_sizes(TREE.params, TREE, counts[:2]), by_hand)
    # With counts of the root only, the levels below it are skipped.
    by_hand = project_counts([parents[0], np.zeros(5, int)], [counts[0], counts[2]], [1, 1 / 5])[-1]
    assert np.allclose(compute_leaf_sizes(TREE.params, TREE, counts[:1]), by_hand)


def test_leaf_sizes_without_projection_are_clipped_counts() -> None:
    assert compute_leaf_sizes(TREE.params, TREE, []).tolist() == [8, 0, 4, 8, 0]


def test_draw_rows_stays_in_the_leaves() -> None:
    params = make_params(size=100_000)
    for seed in range(5):
        tree = grow_tree(params, random_points(params, 150, seed), SeededEntropy(seed))
        rows = draw_rows(params, tree, np.full(len(tree.labels), 3.0), SeededEntropy(seed))
        assert np.bincount(rows.leaves).tolist() == [3] * len(tree.labels)
        assert tree.route(rows.values).tolist() == rows.leaves.tolist()


def test_draw_rows_is_uniform_in_the_range_of_a_leaf() -> None:
    params = make_params(max_depth=3, size=10_000)
    rows = draw_rows(params, TREE, np.array([0.0, 2000.0, 0.0, 2000.0, 0.0]), SeededEntropy(5))
    young, old = rows.values[:2000], rows.values[2000:]
    assert (young[:, 0] < 60).all()
    assert (young[:, 1] == 1).all()
    assert ((old[:, 0] >= 60) & (old[:, 0] < 80)).all()
    for values, low, high in (
        (young[:, 0], 0, 60),
        (old[:, 0], 60, 80),
        (young[:, 3], 2, 6),
        (old[:, 3], 2, 6),
    ):
        shares = np.histogram(values, 5, (low, high))[0] / 2000
        assert (abs(shares - 0.2) < 0.05).all()
    for cells in (old[:, 1], young[:, 2], old[:, 2]):
        assert (abs(np.bincount(cells.astype(int), minlength=3) / 2000 - 1 / 3) < 0.06).all()


def test_draw_rows_rounds_sizes_at_random() -> None:
    params = make_params(max_depth=3, size=10_000)
    n = [
        np.bincount(
            draw_rows(params, TREE, np.array([0.25, 2.75, 1.0, 0.0, 0.0]), SeededEntropy(i)).leaves,
            minlength=5,
        )
        for i in range(400)
    ]
    assert {tuple(row) for row in n} == {
        (0, 2, 1, 0, 0),
        (0, 3, 1, 0, 0),
        (1, 2, 1, 0, 0),
        (1, 3, 1, 0, 0),
    }
    assert np.allclose(np.mean(n, axis=0), [0.25, 2.75, 1, 0, 0], atol=0.1)


def test_draw_rows_draws_at_most_the_declared_size() -> None:
    params = make_params(max_depth=3, size=100)
    rows = draw_rows(params, TREE, np.array([3e6, 0.0, 1e6, 0.0, 0.0]), SeededEntropy(1))
    assert np.bincount(rows.leaves, minlength=5).tolist() == [75, 0, 25, 0, 0]
    assert len(draw_rows(params, TREE, np.zeros(5), SeededEntropy(1))) == 0


def test_make_columns_returns_encoded_columns() -> None:
    values = np.tile([[3.5, 2.0, 0.0, 4.0], [60.0, 0.0, 1.0, 2.5], [60.0, 0.0, 2.0, 2.5]], (40, 1))
    columns = make_columns(make_params(), values, SeededEntropy(1))
    assert columns["age"].tolist() == [3.5, 60.0, 60.0] * 40
    assert columns["ward"].tolist() == [2, 0, 0] * 40
    # Oslo or Bergen in the north, Rome or Milan in the south, and the missing.
    assert [set(columns["city"][i::3].tolist()) for i in range(3)] == [{0, 1}, {2, 3}, {-1}]
    assert columns["city"].dtype == columns["ward"].dtype == np.int64


def test_limit_rows_keeps_a_uniform_ordered_sample() -> None:
    leaves = np.arange(10, 20)
    assert synthesis._limit_rows(10, leaves, SeededEntropy(1)) is leaves
    kept = [synthesis._limit_rows(4, leaves, SeededEntropy(i)) for i in range(500)]
    assert all(len(some) == 4 and (np.diff(some) > 0).all() for some in kept)
    times = np.bincount(np.concatenate(kept) - 10, minlength=10)
    assert times.min() > 140 and times.max() < 260
