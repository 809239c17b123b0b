"""Labels by a majority of trees."""

from __future__ import annotations

import numpy as np

from pfds_trees import SCHEMA, level_of, params_of
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.paper import outcomes_of
from shoal.protocols.pfds.tree import PrivateTree
from shoal.protocols.pfds.voting import labels_of, majority, votes

PARAMS = params_of(Schema(SCHEMA.features, label=Categorical("kind", ["a", "b", "c"])), max_depth=2)
ROWS = np.array([[10.0, 0, 0, 3], [50.0, 1, 0, 3], [90.0, 2, 0, 3]])


def stump(split: float, below: int, above: int) -> PrivateTree:
    return PrivateTree.of(PARAMS, [level_of((0, split))], np.eye(3, dtype=np.int32)[[below, above]])


def test_each_tree_has_a_vote() -> None:
    trees = [stump(20, 1, 2), stump(60, 1, 0), stump(95, 2, 0)]
    assert votes(PARAMS, trees, ROWS).tolist() == [[0, 2, 1], [0, 1, 2], [1, 0, 2]]
    assert majority(PARAMS, trees, ROWS).tolist() == [1, 2, 2]


def test_of_equal_outcomes_one_of_them_wins() -> None:
    for row, fair in zip(majority(PARAMS, [stump(20, 1, 2), stump(60, 2, 0)], ROWS).tolist(), ({1, 2}, {2}, {2, 0}), strict=True):
        assert row in fair
    assert set(majority(PARAMS, [], np.repeat(ROWS, 20, axis=0)).tolist()) == {0, 1, 2}


def test_a_class_is_its_own_label() -> None:
    assert labels_of(PARAMS, np.array([2, 0]), SeededEntropy(1)).tolist() == [2, 0]


def test_a_number_is_uniform_in_its_bucket() -> None:
    params = params_of(Schema(SCHEMA.features, label=Numeric("rides", -1, 3)), n_buckets=4)
    labels = labels_of(params, np.repeat([0, 3], 3000), SeededEntropy(1))
    for part, low in ((labels[:3000], -1), (labels[3000:], 2)):
        assert part.min() >= low
        assert part.max() < low + 1
        assert (abs(np.histogram(part, 4, (low, low + 1))[0] / 3000 - 0.25) < 0.04).all()


def test_a_range_may_be_as_wide_as_numbers_go() -> None:
    for low, high in ((0.0, 1.7e308), (-8e307, 8e307)):
        params = params_of(Schema(SCHEMA.features, label=Numeric("rides", low, high)), n_buckets=10)
        outcomes = np.arange(10).repeat(50)
        labels = labels_of(params, outcomes, SeededEntropy(1))
        assert np.isfinite(labels).all() and (outcomes_of(params, labels) == outcomes).all()
