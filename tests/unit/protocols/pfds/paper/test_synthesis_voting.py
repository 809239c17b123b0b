"""Labels by a majority vote of trees."""

from __future__ import annotations

import numpy as np

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.paper.script import encode_outcomes
from shoal.protocols.pfds.paper.synthesis import count_votes, draw_labels, take_majority
from shoal.protocols.pfds.paper.tree import PrivateTree
from tests.support.pfds_paper import SCHEMA, make_level, make_params

PARAMS = make_params(
    Schema(SCHEMA.features, label=Categorical("kind", ["a", "b", "c"])), max_depth=2
)
ROWS = np.array([[10.0, 0, 0, 3], [50.0, 1, 0, 3], [90.0, 2, 0, 3]])


def make_stump(split: float, below: int, above: int) -> PrivateTree:
    return PrivateTree.from_counts(
        PARAMS, [make_level((0, split))], np.eye(3, dtype=np.int32)[[below, above]]
    )


def test_each_tree_has_one_vote() -> None:
    trees = [make_stump(20, 1, 2), make_stump(60, 1, 0), make_stump(95, 2, 0)]
    assert count_votes(PARAMS, trees, ROWS).tolist() == [[0, 2, 1], [0, 1, 2], [1, 0, 2]]
    assert take_majority(PARAMS, trees, ROWS).tolist() == [1, 2, 2]


def test_majority_of_equal_outcomes_is_one_of_them() -> None:
    for row, fair in zip(
        take_majority(PARAMS, [make_stump(20, 1, 2), make_stump(60, 2, 0)], ROWS).tolist(),
        ({1, 2}, {2}, {2, 0}),
        strict=True,
    ):
        assert row in fair
    assert set(take_majority(PARAMS, [], np.repeat(ROWS, 20, axis=0)).tolist()) == {0, 1, 2}


def test_label_of_a_class_is_the_class() -> None:
    assert draw_labels(PARAMS, np.array([2, 0]), SeededEntropy(1)).tolist() == [2, 0]


def test_label_of_a_number_is_uniform_in_its_bucket() -> None:
    params = make_params(Schema(SCHEMA.features, label=Numeric("rides", -1, 3)), n_buckets=4)
    labels = draw_labels(params, np.repeat([0, 3], 3000), SeededEntropy(1))
    for part, low in ((labels[:3000], -1), (labels[3000:], 2)):
        assert part.min() >= low
        assert part.max() < low + 1
        assert (abs(np.histogram(part, 4, (low, low + 1))[0] / 3000 - 0.25) < 0.04).all()


def test_labels_are_finite_for_the_widest_range() -> None:
    for low, high in ((0.0, 1.7e308), (-8e307, 8e307)):
        params = make_params(
            Schema(SCHEMA.features, label=Numeric("rides", low, high)), n_buckets=10
        )
        outcomes = np.arange(10).repeat(50)
        labels = draw_labels(params, outcomes, SeededEntropy(1))
        assert np.isfinite(labels).all() and (encode_outcomes(params, labels) == outcomes).all()
