"""How trees grow: attributes without a look at rows, splits by the Max operator, leaves by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pfds_trees import SCHEMA, level_of, params_of, plain_path, random_points
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds import growing
from shoal.protocols.pfds.growing import between, draw_attributes, draw_leaves, draw_splits, grow
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.tree import MAX_COUNT, Level, check, depth_of, most_leaves

BARE = params_of(epsilon=math.inf)


def drawn_levels(params: Params, seed: int) -> list[Level]:
    """Attributes of all levels, without split values."""
    levels: list[Level] = []
    for _ in range(depth_of(params) - 1):
        attributes = draw_attributes(params, levels, SeededEntropy(seed).spawn(len(levels)))
        levels.append(Level(attributes, np.zeros(len(attributes))))
    return levels


def test_a_category_is_split_on_once_on_a_path_and_a_number_again() -> None:
    params, again = params_of(), set()
    for seed in range(30):
        levels = drawn_levels(params, seed)
        # Nodes by their paths of attributes, followed through by counting children.
        paths = [[int(levels[0].attributes[0])]]
        for level in levels[1:]:
            below = [path for path in paths for _ in range([2, 3, 3, 2][path[-1]])]
            paths = [[*path, int(a)] for path, a in zip(below, level.attributes, strict=True)]
        for path in paths:
            again |= {a for a in path if path.count(a) > 1}
    assert again == {0, 3}


def test_every_attribute_that_is_left_is_drawn() -> None:
    root = [int(draw_attributes(params_of(), [], SeededEntropy(seed))[0]) for seed in range(60)]
    assert set(root) == {0, 1, 2, 3}
    below = [draw_attributes(params_of(), [level_of((1, 0))], SeededEntropy(seed)).tolist() for seed in range(60)]
    assert {a for nodes in below for a in nodes} == {0, 2, 3}
    assert len({tuple(nodes) for nodes in below}) > 10


def test_attributes_do_not_depend_on_the_rows() -> None:
    one, two = (draw_splits(BARE, random_points(BARE, n, seed), [], SeededEntropy(3)).attributes for n, seed in ((50, 1), (90, 2)))
    assert one.tolist() == two.tolist()


@pytest.mark.parametrize("n_wide", [3, 8])
@pytest.mark.parametrize("has_number", [True, False])
def test_no_draw_makes_more_leaves_than_are_allowed(n_wide: int, has_number: bool) -> None:
    # 4,000 leaves with 1,000 classes: two splits of 60 make 3,600.
    features = [Categorical(f"c{i}", [str(j) for j in range(60)], missing=False) for i in range(n_wide)]
    narrow = [Categorical(f"d{i}", ["0", "1"], missing=False) for i in range(4)]
    more = [Numeric("age", 0, 9, missing=False)] if has_number else []
    params = params_of(Schema([*features, *narrow, *more], label=Categorical("y", [str(i) for i in range(1000)])), max_depth=6)
    assert (depth_of(params), most_leaves(params)) == (6, 4000)
    n_wide_splits = 0
    for seed in range(15):
        tree = grow(params, random_points(params, 5, seed), SeededEntropy(seed))
        assert tree.counts is not None
        check(params, tree.levels, tree.labels)
        assert len(tree.labels) <= 4000
        n_wide_splits += sum(int((level.attributes < n_wide).sum()) for level in tree.levels)
    assert n_wide_splits > 15


def test_candidates_are_scored_by_the_largest_class_on_either_side() -> None:
    candidates = np.array([[3.0, 5.0, 9.0], [1.0, 2.0, 3.0]])
    places, values = np.array([0, 0, 0, 0, 0, 1]), np.array([1.0, 2.0, 5.0, 6.0, 7.0, 2.0])
    outcomes = np.array([0, 0, 1, 2, 1, 2])
    # Below 3 are two of class 0, above two of class 1; a value at the split is above it; below 9 all are, two of a class at most.
    assert growing._scores(candidates, places, values, outcomes, 3).tolist() == [[4, 4, 2], [1, 1, 1]]


def test_without_noise_the_best_candidate_is_taken_and_counts_are_true() -> None:
    schema = Schema([Numeric("age", 0, 100, missing=False), Numeric("size", 0, 1, missing=False)], label=SCHEMA.label)
    params = params_of(schema, math.inf, max_depth=2, n_candidates=400)
    ages = np.array([5.0, 20.0, 31.0, 33.0, 60.0, 90.0])
    points = Points(np.stack([ages, np.full(6, 0.5)], axis=1), np.array([0, 0, 0, 1, 1, 1]))
    by_age = [tree for tree in (grow(params, points, SeededEntropy(seed)) for seed in range(12)) if tree.levels[0].attributes[0] == 0]
    assert len(by_age) > 2
    for tree in by_age:
        assert 31 < tree.levels[0].splits[0] <= 33
        assert tree.counts is not None
        assert tree.counts.tolist() == [[3, 0], [0, 3]]


def test_splits_lie_in_the_active_range_whether_a_node_holds_rows_or_not() -> None:
    above = [level_of((0, 50))]
    for n in (0, 40):
        points = random_points(params_of(), n, seed=1)
        drawn = [draw_splits(params_of(), points, above, SeededEntropy(seed)) for seed in range(80)]
        halves: list[list[float]] = [[level.splits[i] for level in drawn if level.attributes[i] == 0] for i in (0, 1)]
        assert len(halves[0]) > 5
        assert len(halves[1]) > 5
        assert 0 <= min(halves[0]) < max(halves[0]) < 50 <= min(halves[1]) < max(halves[1]) < 100
        assert all(value == 0 for level in drawn for value, a in zip(level.splits, level.attributes, strict=True) if a in (1, 2))


def test_leaf_counts_are_those_of_plain_counting() -> None:
    points = random_points(BARE, 200, seed=2)
    tree = grow(BARE, points, SeededEntropy(4))
    plain = np.zeros((len(tree.labels), 2), int)
    for row, outcome in zip(points.values, points.outcomes, strict=True):
        plain[plain_path(BARE, tree.levels, row)[-1], outcome] += 1
    assert tree.counts is not None
    assert tree.counts.tolist() == plain.tolist()


def test_noise_is_added_to_every_count_and_never_twice_the_same() -> None:
    params, points = params_of(), random_points(params_of(), 200, seed=2)
    levels = grow(BARE, points, SeededEntropy(4)).levels
    true = draw_leaves(BARE, points, levels, SeededEntropy(1))
    entropy = SeededEntropy(1)
    one, two = (draw_leaves(params, points, levels, entropy) - true for _ in range(2))
    assert one.dtype == np.int32
    assert (one != two).mean() > 0.8
    assert len(np.unique(one)) > 10


def test_noise_beyond_a_count_is_cut_off() -> None:
    params = params_of(epsilon=4e-9, max_depth=2)
    counts = draw_leaves(params, random_points(params, 3, seed=1), [level_of((1, 0))], SeededEntropy(1))
    assert all(abs(int(count)) <= MAX_COUNT for count in counts.ravel())
    many = [draw_leaves(params, random_points(params, 3, seed=1), [level_of((1, 0))], SeededEntropy(seed)).max() for seed in range(100)]
    assert max(many) == MAX_COUNT


def test_a_tree_of_one_level_is_a_leaf() -> None:
    params = params_of(epsilon=math.inf, max_depth=1)
    tree = grow(params, random_points(params, 30, seed=1), SeededEntropy(1))
    assert tree.levels == ()
    assert tree.counts is not None
    assert tree.counts.sum() == 30


def test_a_holder_without_rows_grows_a_tree_as_well() -> None:
    tree = grow(params_of(), random_points(params_of(), 0, seed=1), SeededEntropy(1))
    assert tree.counts is not None
    check(params_of(), tree.levels, tree.labels)


def test_a_draw_stays_below_the_upper_end() -> None:
    lows = np.array([0.0, 1.0, 5.0, -1e300, 3.0])
    highs = np.array([1.0, np.nextafter(1.0, 2.0), 5.0, 1e300 / 2, np.nextafter(np.nextafter(3.0, 4.0), 4.0)])
    for seed in range(200):
        drawn = between(lows, highs, SeededEntropy(seed))
        assert (drawn >= lows).all()
        assert (drawn[[0, 1, 3, 4]] < highs[[0, 1, 3, 4]]).all()
        assert drawn[2] == 5
