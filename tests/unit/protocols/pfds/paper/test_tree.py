"""Trees: positions of nodes, leaves of rows, and impossible trees."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.protocols.pfds.paper.growth import grow_tree
from shoal.protocols.pfds.paper.tree import (
    MAX_COUNTS,
    PrivateTree,
    SplitLevel,
    TreeShape,
    check_tree,
    compute_depth,
    compute_max_leaves,
)
from tests.support.pfds_paper import SCHEMA, make_level, make_params, plain_path, random_points

LEVELS = [
    make_level((1, 0)),
    make_level((0, 60), (2, 0), (0, 30)),
    make_level((0, 20), (3, 4), (0, 10), (3, 5), (0, 90), (2, 0), (0, 30)),
]
"""The root splits on ward; below ward b there is a split on city."""
LABELS = np.zeros(15, np.uint8)


def make_schema(*arities: int, n_classes: int = 2) -> Schema:
    features = [
        Categorical(f"c{i}", [str(j) for j in range(n)], missing=False)
        for i, n in enumerate(arities)
    ]
    return Schema(features, label=Categorical("kind", [str(i) for i in range(n_classes)]))


def test_depth_is_at_most_the_number_of_attributes() -> None:
    assert [compute_depth(make_params(max_depth=depth)) for depth in (1, 2, 4, 5, 8)] == [
        1,
        2,
        4,
        4,
        4,
    ]


def test_depth_is_limited_by_the_number_of_leaf_counts() -> None:
    # Three splits of 100 children give a million leaves and two million counts; a fourth would
    # give a hundred times more.
    wide = make_schema(*[100] * 8)
    assert compute_depth(make_params(wide, max_depth=8)) == 4
    assert compute_depth(make_params(make_schema(2, 2, 2, *[100] * 8), max_depth=11)) == 6
    assert [
        compute_depth(make_params(make_schema(1000, n, 5000), max_depth=3)) for n in (2000, 2001)
    ] == [3, 2]
    with_number = Schema([*wide.features, Numeric("age", 0, 9)], label=wide.label)
    assert compute_depth(make_params(with_number, max_depth=8)) == 8
    assert compute_depth(make_params(make_schema(500, 500, n_classes=10_000), max_depth=2)) == 1
    assert compute_max_leaves(make_params(wide)) == MAX_COUNTS // 2


def test_children_of_a_level_are_contiguous() -> None:
    shape = TreeShape.from_params(make_params())
    assert shape.fans.tolist() == [2, 3, 3, 2]
    assert shape.find_first_children(LEVELS[1]).tolist() == [0, 2, 5]
    assert shape.find_parents(LEVELS[1]).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert (shape.count_below(LEVELS[1]), shape.count_below(LEVELS[2])) == (7, 15)


def test_iterate_ancestors_leads_to_the_root() -> None:
    found = list(
        TreeShape.from_params(make_params()).iterate_ancestors(LEVELS, np.array([0, 3, 6, 14]))
    )
    assert [above.tolist() for _, above, _ in found] == [[0, 1, 3, 6], [0, 0, 1, 2], [0, 0, 0, 0]]
    assert [edges.tolist() for _, _, edges in found] == [[0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 2]]
    assert [level for level, _, _ in found] == LEVELS[::-1]


def test_active_range_follows_from_all_splits_above() -> None:
    shape = TreeShape.from_params(make_params())
    ages = np.zeros(5, np.int16)
    lows, highs = shape.find_active_ranges(LEVELS, np.array([0, 1, 2, 13, 14]), ages)
    assert lows.tolist() == [0, 20, 60, 30, 30]
    assert highs.tolist() == [20, 60, 100, 30, 100]
    lows, highs = shape.find_active_ranges(LEVELS, np.array([2, 3, 0]), np.full(3, 3, np.int16))
    assert (lows.tolist(), highs.tolist()) == ([2, 4, 2], [4, 6, 6])


def test_route_equals_plain_counting() -> None:
    params = make_params()
    points = random_points(params, 300, seed=1)
    for seed in range(5):
        tree = grow_tree(params, points, SeededEntropy(seed))
        paths = [plain_path(params, tree.levels, row) for row in points.values]
        assert tree.route(points.values).tolist() == [path[-1] for path in paths]
        assert TreeShape.from_params(params).route(tree.levels[:2], points.values).tolist() == [
            path[2] for path in paths
        ]


def test_value_at_the_split_goes_to_the_upper_child() -> None:
    params = make_params(max_depth=2)
    tree = PrivateTree.from_counts(
        params, [make_level((0, 60))], np.array([[1, 0], [0, 1]], np.int32)
    )
    assert tree.predict(np.array([[np.nextafter(60, 0), 0, 0, 3], [60, 0, 0, 3]])).tolist() == [
        0,
        1,
    ]


def test_label_of_a_leaf_is_the_first_of_its_highest_counts() -> None:
    params = make_params(
        Schema(SCHEMA.features, label=Categorical("kind", ["a", "b", "c"])), max_depth=2
    )
    tree = PrivateTree.from_counts(
        params, [make_level((1, 0))], np.array([[-5, -2, -3], [7, 7, 2], [0, 1, 1]], np.int32)
    )
    assert tree.labels.tolist() == [1, 0, 1]
    assert tree.labels.itemsize == 1
    many = make_params(
        Schema(SCHEMA.features, label=Categorical("kind", [str(i) for i in range(300)])),
        max_depth=1,
    )
    assert PrivateTree.from_counts(
        many, [], np.eye(300, dtype=np.int32)[[299]]
    ).labels.tolist() == [299]


def test_predictor_contains_no_counts() -> None:
    tree = grow_tree(make_params(), random_points(make_params(), 50, seed=1), SeededEntropy(1))
    assert tree.counts is not None
    assert tree.predictor.counts is None
    assert tree.predictor.labels is tree.labels


def replace_node(number: int, node: int, attribute: int, split: float) -> list[SplitLevel]:
    """Return the levels with one node replaced."""
    attributes, splits = LEVELS[number].attributes.copy(), LEVELS[number].splits.copy()
    attributes[node], splits[node] = attribute, split
    return [*LEVELS[:number], SplitLevel(attributes, splits), *LEVELS[number + 1 :]]


def change_level(number: int, **changes: Any) -> list[SplitLevel]:
    return [*LEVELS[:number], replace(LEVELS[number], **changes), *LEVELS[number + 1 :]]


def test_check_tree_accepts_possible_trees() -> None:
    check_tree(make_params(), LEVELS, LABELS)
    check_tree(make_params(), replace_node(2, 0, 0, 60.0), LABELS)
    check_tree(make_params(), LEVELS, LABELS.astype(np.uint16) + 1)
    for seed in range(5):
        tree = grow_tree(make_params(), random_points(make_params(), 50, seed), SeededEntropy(seed))
        check_tree(make_params(), tree.levels, tree.labels)


@pytest.mark.parametrize(
    ("levels", "labels", "sentence"),
    [
        (LEVELS[:2], LABELS, "it has 3 levels instead of 4"),
        ([*LEVELS, LEVELS[0]], LABELS, "it has 5 levels"),
        (
            change_level(0, attributes=np.array([1, 1], np.int16)),
            LABELS,
            "level 1 does not have an attribute and a split value for each of its 1 nodes",
        ),
        (
            change_level(1, splits=np.zeros(4)),
            LABELS,
            "level 2 does not have an attribute and a split value for each of its 3 nodes",
        ),
        (
            change_level(1, attributes=np.zeros(3)),
            LABELS,
            "level 2 does not have an attribute and a split value",
        ),
        (
            change_level(1, splits=np.zeros(3, np.int64)),
            LABELS,
            "level 2 does not have an attribute and a split value",
        ),
        (
            replace_node(1, 0, -1, 0.0),
            LABELS,
            "level 2 splits on an attribute that is not in the schema",
        ),
        (
            replace_node(1, 0, 4, 0.0),
            LABELS,
            "level 2 splits on an attribute that is not in the schema",
        ),
        (
            replace_node(1, 0, 1, 0.0),
            LABELS,
            "level 2 splits on a category that a level above splits on",
        ),
        (
            replace_node(2, 3, 1, 0.0),
            LABELS,
            "level 3 splits on a category that a level above splits on",
        ),
        (
            replace_node(2, 3, 2, 0.0),
            LABELS,
            "level 3 splits on a category that a level above splits on",
        ),
        (replace_node(2, 0, 0, 60.5), LABELS, "level 3 splits at a value outside"),
        (replace_node(2, 6, 0, 29.0), LABELS, "level 3 splits at a value outside"),
        (replace_node(2, 0, 0, nan), LABELS, "level 3 splits at a value outside"),
        (replace_node(2, 1, 3, inf), LABELS, "level 3 splits at a value outside"),
        (replace_node(2, 5, 2, 1.0), LABELS, "level 3 splits at a value outside"),
        (LEVELS, LABELS[:-1], "it does not have one of 2 labels for each of its 15 leaves"),
        (
            LEVELS,
            LABELS[:, np.newaxis],
            "it does not have one of 2 labels for each of its 15 leaves",
        ),
        (
            LEVELS,
            LABELS.astype(np.int16),
            "it does not have one of 2 labels for each of its 15 leaves",
        ),
        (LEVELS, LABELS + 2, "it does not have one of 2 labels for each of its 15 leaves"),
    ],
)
def test_check_tree_rejects_impossible_trees(
    levels: list[SplitLevel], labels: np.ndarray, sentence: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence) as refusal:
        check_tree(make_params(), levels, labels)
    assert refusal.value.code == "PFDS-101"


def test_check_tree_rejects_too_wide_trees_before_reading_leaves() -> None:
    schema = Schema(
        [*make_schema(300, 300, 5).features, Numeric("age", 0, 9)],
        label=Categorical("kind", [str(i) for i in range(50)]),
    )
    params = make_params(schema, max_depth=3)
    assert compute_depth(params) == 3
    with pytest.raises(
        RemoteProtocolError, match="level 3 has 90,000 nodes, more than the permitted 80,000"
    ):
        check_tree(params, [make_level((0, 0)), make_level(*[(1, 0)] * 300)], LABELS)
