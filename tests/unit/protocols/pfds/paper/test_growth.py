"""Tree growth: attributes independent of rows, splits by the Max operator, leaf counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.paper import growth
from shoal.protocols.pfds.paper.growth import (
    draw_attributes,
    draw_between,
    draw_leaves,
    draw_splits,
    grow_tree,
)
from shoal.protocols.pfds.paper.script import TreeRows
from shoal.protocols.pfds.paper.tree import (
    MAX_COUNT,
    SplitLevel,
    check_tree,
    compute_depth,
    compute_max_leaves,
)
from shoal.protocols.pfds.params import PFDSParams
from tests.support.pfds_paper import SCHEMA, make_level, make_params, plain_path, random_points

BARE = make_params(epsilon=math.inf)


def draw_levels(params: PFDSParams, seed: int) -> list[SplitLevel]:
    """Return the attributes of all levels, without split values."""
    levels: list[SplitLevel] = []
    for _ in range(compute_depth(params) - 1):
        attributes = draw_attributes(params, levels, SeededEntropy(seed).spawn(len(levels)))
        levels.append(SplitLevel(attributes, np.zeros(len(attributes))))
    return levels


def test_path_splits_on_a_category_once_and_on_numbers_repeatedly() -> None:
    params, again = make_params(), set()
    for seed in range(30):
        levels = draw_levels(params, seed)
        # Follow the path of attributes of each node by counting children.
        paths = [[int(levels[0].attributes[0])]]
        for level in levels[1:]:
            below = [path for path in paths for _ in range([2, 3, 3, 2][path[-1]])]
            paths = [[*path, int(a)] for path, a in zip(below, level.attributes, strict=True)]
        for path in paths:
            again |= {a for a in path if path.count(a) > 1}
    assert again == {0, 3}


def test_draw_attributes_draws_every_remaining_attribute() -> None:
    root = [int(draw_attributes(make_params(), [], SeededEntropy(seed))[0]) for seed in range(60)]
    assert set(root) == {0, 1, 2, 3}
    below = [
        draw_attributes(make_params(), [make_level((1, 0))], SeededEntropy(seed)).tolist()
        for seed in range(60)
    ]
    assert {a for nodes in below for a in nodes} == {0, 2, 3}
    assert len({tuple(nodes) for nodes in below}) > 10


def test_attributes_do_not_depend_on_the_rows() -> None:
    one, two = (
        draw_splits(BARE, random_points(BARE, n, seed), [], SeededEntropy(3)).attributes
        for n, seed in ((50, 1), (90, 2))
    )
    assert one.tolist() == two.tolist()


@pytest.mark.parametrize("n_wide", [3, 8])
@pytest.mark.parametrize("has_number", [True, False])
def test_grow_tree_never_exceeds_the_maximum_of_leaves(n_wide: int, has_number: bool) -> None:
    # 4,000 leaves with 1,000 classes: two splits of 60 make 3,600.
    features = [
        Categorical(f"c{i}", [str(j) for j in range(60)], missing=False) for i in range(n_wide)
    ]
    narrow = [Categorical(f"d{i}", ["0", "1"], missing=False) for i in range(4)]
    more = [Numeric("age", 0, 9, missing=False)] if has_number else []
    params = make_params(
        Schema([*features, *narrow, *more], label=Categorical("y", [str(i) for i in range(1000)])),
        max_depth=6,
    )
    assert (compute_depth(params), compute_max_leaves(params)) == (6, 4000)
    n_wide_splits = 0
    for seed in range(15):
        tree = grow_tree(params, random_points(params, 5, seed), SeededEntropy(seed))
        assert tree.counts is not None
        check_tree(params, tree.levels, tree.labels)
        assert len(tree.labels) <= 4000
        n_wide_splits += sum(int((level.attributes < n_wide).sum()) for level in tree.levels)
    assert n_wide_splits > 15


def test_candidates_are_scored_by_largest_class_on_each_side() -> None:
    candidates = np.array([[3.0, 5.0, 9.0], [1.0, 2.0, 3.0]])
    places, values = np.array([0, 0, 0, 0, 0, 1]), np.array([1.0, 2.0, 5.0, 6.0, 7.0, 2.0])
    outcomes = np.array([0, 0, 1, 2, 1, 2])
    # Below 3 are two of class 0, above it two of class 1; a value at the split is above it. Below
    # 9 are all rows, at most two of one class.
    assert growth._compute_scores(candidates, places, values, outcomes, 3).tolist() == [
        [4, 4, 2],
        [1, 1, 1],
    ]


def test_noiseless_tree_has_best_split_and_exact_counts() -> None:
    schema = Schema(
        [Numeric("age", 0, 100, missing=False), Numeric("size", 0, 1, missing=False)],
        label=SCHEMA.label,
    )
    params = make_params(schema, math.inf, max_depth=2, n_candidates=400)
    ages = np.array([5.0, 20.0, 31.0, 33.0, 60.0, 90.0])
    points = TreeRows(np.stack([ages, np.full(6, 0.5)], axis=1), np.array([0, 0, 0, 1, 1, 1]))
    by_age = [
        tree
        for tree in (grow_tree(params, points, SeededEntropy(seed)) for seed in range(12))
        if tree.levels[0].attributes[0] == 0
    ]
    assert len(by_age) > 2
    for tree in by_age:
        assert 31 < tree.levels[0].splits[0] <= 33
        assert tree.counts is not None
        assert tree.counts.tolist() == [[3, 0], [0, 3]]


def test_splits_are_in_the_active_range_with_and_without_rows() -> None:
    above = [make_level((0, 50))]
    for n in (0, 40):
        points = random_points(make_params(), n, seed=1)
        drawn = [
            draw_splits(make_params(), points, above, SeededEntropy(seed)) for seed in range(80)
        ]
        halves: list[list[float]] = [
            [level.splits[i] for level in drawn if level.attributes[i] == 0] for i in (0, 1)
        ]
        assert len(halves[0]) > 5
        assert len(halves[1]) > 5
        assert 0 <= min(halves[0]) < max(halves[0]) < 50 <= min(halves[1]) < max(halves[1]) < 100
        assert all(
            value == 0
            for level in drawn
            for value, a in zip(level.splits, level.attributes, strict=True)
            if a in (1, 2)
        )


def test_leaf_counts_equal_plain_counting() -> None:
    points = random_points(BARE, 200, seed=2)
    tree = grow_tree(BARE, points, SeededEntropy(4))
    plain = np.zeros((len(tree.labels), 2), int)
    for row, outcome in zip(points.values, points.outcomes, strict=True):
        plain[plain_path(BARE, tree.levels, row)[-1], outcome] += 1
    assert tree.counts is not None
    assert tree.counts.tolist() == plain.tolist()


def test_draw_leaves_adds_separate_noise_to_each_count() -> None:
    params, points = make_params(), random_points(make_params(), 200, seed=2)
    levels = grow_tree(BARE, points, SeededEntropy(4)).levels
    true = draw_leaves(BARE, points, levels, SeededEntropy(1))
    entropy = SeededEntropy(1)
    one, two = (draw_leaves(params, points, levels, entropy) - true for _ in range(2))
    assert one.dtype == np.int32
    assert (one != two).mean() > 0.8
    assert len(np.unique(one)) > 10


def test_draw_leaves_clips_counts_to_the_limit() -> None:
    params = make_params(epsilon=4e-9, max_depth=2)
    counts = draw_leaves(
        params, random_points(params, 3, seed=1), [make_level((1, 0))], SeededEntropy(1)
    )
    assert all(abs(int(count)) <= MAX_COUNT for count in counts.ravel())
    many = [
        draw_leaves(
            params, random_points(params, 3, seed=1), [make_level((1, 0))], SeededEntropy(seed)
        ).max()
        for seed in range(100)
    ]
    assert max(many) == MAX_COUNT


def test_tree_of_depth_one_is_a_leaf() -> None:
    params = make_params(epsilon=math.inf, max_depth=1)
    tree = grow_tree(params, random_points(params, 30, seed=1), SeededEntropy(1))
    assert tree.levels == ()
    assert tree.counts is not None
    assert tree.counts.sum() == 30


def test_grow_tree_without_rows_gives_a_valid_tree() -> None:
    tree = grow_tree(make_params(), random_points(make_params(), 0, seed=1), SeededEntropy(1))
    assert tree.counts is not None
    check_tree(make_params(), tree.levels, tree.labels)


def test_draw_between_stays_below_the_upper_end() -> None:
    lows = np.array([0.0, 1.0, 5.0, -1e300, 3.0])
    highs = np.array(
        [1.0, np.nextafter(1.0, 2.0), 5.0, 1e300 / 2, np.nextafter(np.nextafter(3.0, 4.0), 4.0)]
    )
    for seed in range(200):
        drawn = draw_between(lows, highs, SeededEntropy(seed))
        assert (drawn >= lows).all()
        assert (drawn[[0, 1, 3, 4]] < highs[[0, 1, 3, 4]]).all()
        assert drawn[2] == 5
