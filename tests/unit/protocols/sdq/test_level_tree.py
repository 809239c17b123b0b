"""Trees that split on one attribute at each level, from a joint table or from naive Bayes alone."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.protocols.sdq.level_tree import build_level_tree, build_naive_tree
from shoal.protocols.sdq.model import from_plain
from shoal.protocols.sdq.naive_bayes import (
    back_off,
    compute_naive_bayes,
    estimate_class_shares,
    estimate_likelihoods,
    estimate_marginal_likelihoods,
)
from tests.support.sdq import make_schema


def draw_counts(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-5, 60, shape).astype(float)


def test_level_tree_has_the_sums_of_its_table() -> None:
    schema, attributes = make_schema((2, 5, 3, 4), 2), [2, 0, 3]
    joint = draw_counts(7, 3 * 2 * 4, 2)
    shares, likelihoods = (
        estimate_class_shares(joint.sum(axis=0), 2.0),
        estimate_marginal_likelihoods(joint, (3, 2, 4), 2.0),
    )
    tree = build_level_tree(schema, attributes, joint, 2.0, shares, likelihoods)
    assert tree.splits.tolist() == [2] + [0] * 3 + [3] * 6 + [-1] * 24
    for node in range(len(tree)):
        if tree.children(node):
            assert tree.counts[node] == pytest.approx(
                tree.counts[list(tree.children(node))].sum(axis=0)
            )
    assert (tree.counts[-24:] == joint).all()
    assert tree.chances[-24:] == pytest.approx(
        back_off(joint, compute_naive_bayes(shares, likelihoods), 2.0)
    )
    # A node above has the noise of all cells below it.
    assert tree.chances[1:4] == pytest.approx(
        back_off(tree.counts[1:4], compute_naive_bayes(shares, likelihoods[:1]), 2.0 * np.sqrt(8))
    )
    row = {"a0": np.array([1]), "a1": np.array([4]), "a2": np.array([2]), "a3": np.array([3])}
    assert tree.probabilities(row) == pytest.approx(tree.chances[-1:])
    assert from_plain(tree.to_plain()).probabilities(row) == pytest.approx(tree.probabilities(row))


def test_naive_tree_has_chances_of_naive_bayes() -> None:
    schema = make_schema((2, 3), 2)
    shares, likelihoods = (
        np.array([0.3, 0.7]),
        [
            estimate_likelihoods(draw_counts(8, 3, 2), 1.0),
            estimate_likelihoods(draw_counts(9, 2, 2), 1.0),
        ],
    )
    tree = build_naive_tree(schema, [1, 0], shares, likelihoods)
    assert tree.splits.tolist() == [1, 0, 0, 0] + [-1] * 6
    assert np.isnan(tree.counts).all()
    assert tree.chances[0] == pytest.approx(shares) and tree.chances[-6:] == pytest.approx(
        compute_naive_bayes(shares, likelihoods)
    )
    assert from_plain(tree.to_plain()).splits.tolist() == tree.splits.tolist()


def test_level_tree_without_attributes_is_its_root() -> None:
    tree = build_level_tree(
        make_schema((2,), 2), [], np.array([[30.0, 10.0]]), 1.0, np.array([0.75, 0.25]), []
    )
    assert len(tree) == 1 and tree.decisions.tolist() == [0]
