"""Trees: where nodes lie, which leaf a row reaches, and what no tree of a study can look like."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from pfds_trees import SCHEMA, level_of, params_of, plain_path, random_points
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.protocols.pfds.growing import grow
from shoal.protocols.pfds.tree import MAX_COUNTS, Level, PrivateTree, Shape, check, depth_of, most_leaves

LEVELS = [level_of((1, 0)), level_of((0, 60), (2, 0), (0, 30)), level_of((0, 20), (3, 4), (0, 10), (3, 5), (0, 90), (2, 0), (0, 30))]
"""The root splits on ward; below ward b there is a split on city."""
LABELS = np.zeros(15, np.uint8)


def categories(*arities: int, n_classes: int = 2) -> Schema:
    features = [Categorical(f"c{i}", [str(j) for j in range(n)], missing=False) for i, n in enumerate(arities)]
    return Schema(features, label=Categorical("kind", [str(i) for i in range(n_classes)]))


def test_no_tree_is_deeper_than_there_are_attributes() -> None:
    assert [depth_of(params_of(max_depth=depth)) for depth in (1, 2, 4, 5, 8)] == [1, 2, 4, 4, 4]


def test_no_tree_is_deeper_than_its_leaves_can_be_counted() -> None:
    # Three splits of 100 children make a million leaves and two million counts; a fourth would make a hundred times as many.
    wide = categories(*[100] * 8)
    assert depth_of(params_of(wide, max_depth=8)) == 4
    assert depth_of(params_of(categories(2, 2, 2, *[100] * 8), max_depth=11)) == 6
    assert [depth_of(params_of(categories(1000, n, 5000), max_depth=3)) for n in (2000, 2001)] == [3, 2]
    with_number = Schema([*wide.features, Numeric("age", 0, 9)], label=wide.label)
    assert depth_of(params_of(with_number, max_depth=8)) == 8
    assert depth_of(params_of(categories(500, 500, n_classes=10_000), max_depth=2)) == 1
    assert most_leaves(params_of(wide)) == MAX_COUNTS // 2


def test_children_follow_one_another() -> None:
    shape = Shape.of(params_of())
    assert shape.fans.tolist() == [2, 3, 3, 2]
    assert shape.firsts(LEVELS[1]).tolist() == [0, 2, 5]
    assert shape.parents(LEVELS[1]).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert (shape.n_below(LEVELS[1]), shape.n_below(LEVELS[2])) == (7, 15)


def test_ancestors_lead_to_the_root() -> None:
    found = list(Shape.of(params_of()).ancestors(LEVELS, np.array([0, 3, 6, 14])))
    assert [above.tolist() for _, above, _ in found] == [[0, 1, 3, 6], [0, 0, 1, 2], [0, 0, 0, 0]]
    assert [edges.tolist() for _, _, edges in found] == [[0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 2]]
    assert [level for level, _, _ in found] == LEVELS[::-1]


def test_the_active_range_is_what_all_splits_above_have_left() -> None:
    shape = Shape.of(params_of())
    ages = np.zeros(5, np.int16)
    lows, highs = shape.active(LEVELS, np.array([0, 1, 2, 13, 14]), ages)
    assert lows.tolist() == [0, 20, 60, 30, 30]
    assert highs.tolist() == [20, 60, 100, 30, 100]
    lows, highs = shape.active(LEVELS, np.array([2, 3, 0]), np.full(3, 3, np.int16))
    assert (lows.tolist(), highs.tolist()) == ([2, 4, 2], [4, 6, 6])


def test_rows_reach_the_leaf_that_plain_counting_finds() -> None:
    params = params_of()
    points = random_points(params, 300, seed=1)
    for seed in range(5):
        tree = grow(params, points, SeededEntropy(seed))
        paths = [plain_path(params, tree.levels, row) for row in points.values]
        assert tree.route(points.values).tolist() == [path[-1] for path in paths]
        assert Shape.of(params).route(tree.levels[:2], points.values).tolist() == [path[2] for path in paths]


def test_a_value_at_the_split_goes_up() -> None:
    params = params_of(max_depth=2)
    tree = PrivateTree.of(params, [level_of((0, 60))], np.array([[1, 0], [0, 1]], np.int32))
    assert tree.predict(np.array([[np.nextafter(60, 0), 0, 0, 3], [60, 0, 0, 3]])).tolist() == [0, 1]


def test_a_leaf_is_labelled_by_its_highest_count_and_of_equal_ones_by_the_first() -> None:
    params = params_of(Schema(SCHEMA.features, label=Categorical("kind", ["a", "b", "c"])), max_depth=2)
    tree = PrivateTree.of(params, [level_of((1, 0))], np.array([[-5, -2, -3], [7, 7, 2], [0, 1, 1]], np.int32))
    assert tree.labels.tolist() == [1, 0, 1]
    assert tree.labels.itemsize == 1
    many = params_of(Schema(SCHEMA.features, label=Categorical("kind", [str(i) for i in range(300)])), max_depth=1)
    assert PrivateTree.of(many, [], np.eye(300, dtype=np.int32)[[299]]).labels.tolist() == [299]


def test_a_predictor_has_no_counts() -> None:
    tree = grow(params_of(), random_points(params_of(), 50, seed=1), SeededEntropy(1))
    assert tree.counts is not None
    assert tree.predictor.counts is None
    assert tree.predictor.labels is tree.labels


def with_node(number: int, node: int, attribute: int, split: float) -> list[Level]:
    """The levels with another node."""
    attributes, splits = LEVELS[number].attributes.copy(), LEVELS[number].splits.copy()
    attributes[node], splits[node] = attribute, split
    return [*LEVELS[:number], Level(attributes, splits), *LEVELS[number + 1 :]]


def changed(number: int, **changes: Any) -> list[Level]:
    return [*LEVELS[:number], replace(LEVELS[number], **changes), *LEVELS[number + 1 :]]


def test_fair_trees_are_let_through() -> None:
    check(params_of(), LEVELS, LABELS)
    check(params_of(), with_node(2, 0, 0, 60.0), LABELS)
    check(params_of(), LEVELS, LABELS.astype(np.uint16) + 1)
    for seed in range(5):
        tree = grow(params_of(), random_points(params_of(), 50, seed), SeededEntropy(seed))
        check(params_of(), tree.levels, tree.labels)


@pytest.mark.parametrize(
    ("levels", "labels", "sentence"),
    [
        (LEVELS[:2], LABELS, "it has 3 levels, where 4 are due"),
        ([*LEVELS, LEVELS[0]], LABELS, "it has 5 levels"),
        (changed(0, attributes=np.array([1, 1], np.int16)), LABELS, "level 1 does not say of each of its 1 nodes"),
        (changed(1, splits=np.zeros(4)), LABELS, "level 2 does not say of each of its 3 nodes"),
        (changed(1, attributes=np.zeros(3)), LABELS, "level 2 does not say"),
        (changed(1, splits=np.zeros(3, np.int64)), LABELS, "level 2 does not say"),
        (with_node(1, 0, -1, 0.0), LABELS, "level 2 splits on an attribute that the schema does not have"),
        (with_node(1, 0, 4, 0.0), LABELS, "level 2 splits on an attribute that the schema does not have"),
        (with_node(1, 0, 1, 0.0), LABELS, "level 2 splits on a category that was split on above"),
        (with_node(2, 3, 1, 0.0), LABELS, "level 3 splits on a category that was split on above"),
        (with_node(2, 3, 2, 0.0), LABELS, "level 3 splits on a category that was split on above"),
        (with_node(2, 0, 0, 60.5), LABELS, "level 3 splits at a value outside"),
        (with_node(2, 6, 0, 29.0), LABELS, "level 3 splits at a value outside"),
        (with_node(2, 0, 0, nan), LABELS, "level 3 splits at a value outside"),
        (with_node(2, 1, 3, inf), LABELS, "level 3 splits at a value outside"),
        (with_node(2, 5, 2, 1.0), LABELS, "level 3 splits at a value outside"),
        (LEVELS, LABELS[:-1], "its 15 leaves do not have"),
        (LEVELS, LABELS[:, np.newaxis], "its 15 leaves do not have"),
        (LEVELS, LABELS.astype(np.int16), "its 15 leaves do not have"),
        (LEVELS, LABELS + 2, "its 15 leaves do not have one of 2 labels each"),
    ],
)
def test_what_cannot_be_a_tree_is_refused(levels: list[Level], labels: np.ndarray, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence) as refusal:
        check(params_of(), levels, labels)
    assert refusal.value.code == "PFDS-101"


def test_a_tree_that_is_too_wide_is_refused_before_its_leaves_are_looked_at() -> None:
    schema = Schema([*categories(300, 300, 5).features, Numeric("age", 0, 9)], label=Categorical("kind", [str(i) for i in range(50)]))
    params = params_of(schema, max_depth=3)
    assert depth_of(params) == 3
    with pytest.raises(RemoteProtocolError, match="level 3 has 90,000 nodes, more than the 80,000 that are allowed"):
        check(params, [level_of((0, 0)), level_of(*[(1, 0)] * 300)], LABELS)
