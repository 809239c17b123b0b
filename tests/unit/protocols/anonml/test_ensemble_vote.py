"""Equation 2 row by row, ties, several classes, and no classifiers."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.protocols.anonml.ensemble import PartitionClassifier, WeightedVote

N_BINS = (2, 3, 4, 2)


def random_classifiers(rng, n_labels, subsets=((2, 0), (1,), (3, 1, 2), (0,))):
    for subset in subsets:
        n_bins = tuple(N_BINS[feature] for feature in subset)
        yield PartitionClassifier(
            subset,
            n_bins,
            rng.dirichlet(np.ones(n_labels), int(np.prod(n_bins))),
            float(rng.uniform(0.1, 1)),
        )


def line(one, row):
    """The classifier's line for a row, by the definition of a cell."""
    code = 0
    for feature, bins in zip(one.features, one.n_bins, strict=True):
        code = code * bins + int(row[feature])
    return one.probabilities[code]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def rows(rng):
    return np.stack([rng.integers(0, bins, 500) for bins in N_BINS], axis=1)


def test_decide_of_two_classes_follows_equation_2(rng, rows):
    classifiers = tuple(random_classifiers(rng, 2))
    expected = []
    for row in rows:
        g = [int(line(one, row)[1] > line(one, row)[0]) for one in classifiers]
        score = sum(one.weight * g_i for one, g_i in zip(classifiers, g, strict=True))
        score -= sum(one.weight * (1 - g_i) for one, g_i in zip(classifiers, g, strict=True))
        expected.append(int(score >= 0))
    decided = WeightedVote(classifiers, 2).decide(rows)
    assert decided.dtype == np.int64
    assert decided.tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_decide_of_several_classes_takes_largest_weight_sum(rng, rows):
    classifiers = tuple(random_classifiers(rng, 3))
    expected = []
    for row in rows:
        votes = [0.0] * 3
        for one in classifiers:
            votes[int(np.argmax(line(one, row)))] += one.weight
        expected.append(votes.index(max(votes)))
    assert WeightedVote(classifiers, 3).decide(rows).tolist() == expected
    assert set(expected) == {0, 1, 2}


@pytest.mark.parametrize("n_labels", [2, 3])
def test_probabilities_are_weighted_means(rng, rows, n_labels):
    classifiers = tuple(random_classifiers(rng, n_labels))
    weights = [one.weight for one in classifiers]
    expected = [
        np.average([line(one, row) for one in classifiers], axis=0, weights=weights) for row in rows
    ]
    np.testing.assert_allclose(WeightedVote(classifiers, n_labels).probabilities(rows), expected)


def test_decide_breaks_ties_for_class_1_or_first_class():
    def sure_of(label, n_labels, weight):
        return PartitionClassifier((0,), (2,), np.tile(np.eye(n_labels)[label], (2, 1)), weight)

    row = np.array([[0]])
    assert WeightedVote((sure_of(0, 2, 0.5), sure_of(1, 2, 0.5)), 2).decide(row) == [1]
    assert WeightedVote((sure_of(0, 2, 0.6), sure_of(1, 2, 0.5)), 2).decide(row) == [0]
    assert WeightedVote((sure_of(2, 3, 0.5), sure_of(1, 3, 0.5)), 3).decide(row) == [1]
    assert WeightedVote((sure_of(2, 3, 0.6), sure_of(1, 3, 0.5)), 3).decide(row) == [2]


def test_undecided_classifier_votes_for_class_0():
    undecided = PartitionClassifier((0,), (2,), np.full((2, 2), 0.5), 0.5)
    assert WeightedVote((undecided,), 2).decide(np.array([[0], [1]])).tolist() == [0, 0]


@pytest.mark.parametrize("n_labels", [2, 4])
@pytest.mark.parametrize("weights", [(), (0.0, 0.0)])
def test_probabilities_without_weights_are_equal(n_labels, weights):
    classifiers = tuple(
        PartitionClassifier((0,), (2,), np.tile(np.eye(n_labels)[0], (2, 1)), weight)
        for weight in weights
    )
    ensemble, row = WeightedVote(classifiers, n_labels), np.array([[1, 0]])
    assert ensemble.probabilities(row).tolist() == [[1 / n_labels] * n_labels]
    assert ensemble.decide(row) == [1 if n_labels == 2 else 0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
def test_decide_of_many_rows_equals_single_rows(rng, dtype):
    """More than one block, in any type of integer and any order in memory; and no rows at all."""
    rows = np.asfortranarray(
        np.stack([rng.integers(0, bins, 40_000) for bins in N_BINS], axis=1).astype(dtype)
    )
    ensemble = WeightedVote(tuple(random_classifiers(rng, 3)), 3)
    decided, probabilities = ensemble.decide(rows), ensemble.probabilities(rows)
    for at in (0, 16_383, 16_384, 39_999):
        assert decided[at] == ensemble.decide(rows[at : at + 1])[0]
        assert probabilities[at].tolist() == ensemble.probabilities(rows[at : at + 1])[0].tolist()
    assert ensemble.decide(rows[:0]).shape == (0,)
    assert ensemble.probabilities(rows[:0]).shape == (0, 3)
