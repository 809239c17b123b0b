"""The learning parts of AnonML's variant paper, for any counts, even impossible ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.mechanisms.calibrate import MECHANISM_NAMES, make_mechanism
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.protocols.anonml.ensemble import SubsetTable, WeightedVote, train
from shoal.protocols.anonml.params import draw_feature_subsets
from shoal.protocols.anonml.quantiles import N_MEDIAN_BATCHES, MedianSearch
from tests.support.hostile import hostile

epsilons = st.floats(0.01, 10)
a_share = st.floats(0, 1)


@hostile(100)
@given(
    st.floats(-1e12, 1e12),
    st.floats(1e-3, 1e12),
    st.lists(st.tuples(st.integers(0, 2000), a_share), max_size=N_MEDIAN_BATCHES),
    st.none() | epsilons.map(lambda epsilon: RandomizedResponse(epsilon, 2)),
)
def test_median_search_stays_inside_range(
    low: float, width: float, batches: list[tuple[int, float]], bit: RandomizedResponse | None
) -> None:
    search = MedianSearch.begin(low, low + width)
    for n, share in batches:
        before, search = search, search.update(round(n * share), n, bit)
        assert search.step == before.step / 2
    assert low <= search.estimate <= low + width


@hostile(100)
@given(st.binary(max_size=40), st.integers(1, 12), st.integers(1, 6), st.data())
def test_feature_subsets_never_overlap_inside_partition(
    seed: bytes, n_features: int, n_partitions: int, data: st.DataObject
) -> None:
    subset_size = data.draw(st.integers(1, n_features))
    n_subsets = data.draw(st.integers(1, n_features // subset_size))
    for partition in draw_feature_subsets(seed, n_features, n_partitions, n_subsets, subset_size):
        features_of_partition = list(itertools.chain(*partition))
        assert (
            len(features_of_partition) == len(set(features_of_partition)) == n_subsets * subset_size
        )
        assert all(0 <= feature < n_features for feature in features_of_partition)


@hostile(150)
@given(
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    st.integers(2, 4),
    st.sampled_from([None, *MECHANISM_NAMES]),
    epsilons,
    st.sampled_from(["logistic", "tree"]),
    st.sampled_from(["f1", "auc", "accuracy"]),
    st.integers(0, 2**32),
    st.data(),
)
def test_trained_classifier_has_probabilities_and_weight(
    n_bins: list[int],
    n_labels: int,
    name: str | None,
    epsilon: float,
    kind: str,
    score: str,
    seed: int,
    data: st.DataObject,
) -> None:
    n_combinations = math.prod(n_bins)
    cells = n_combinations * n_labels
    counts = np.array(
        data.draw(st.lists(st.integers(0, 300), min_size=cells, max_size=cells)), np.int64
    )
    n = int(counts.sum()) if name is None else data.draw(st.integers(0, 2000))
    mechanism = None if name is None else make_mechanism(name, epsilon, cells)
    features = tuple(range(len(n_bins)))
    table = SubsetTable(features, tuple(n_bins), n_labels, counts, n, mechanism)
    classifier = train(table, kind, score, SeededEntropy(seed))  # type: ignore[arg-type]
    if classifier is None:
        return
    assert 0 <= classifier.weight <= 1
    assert classifier.probabilities.shape == (n_combinations, n_labels)
    assert classifier.probabilities.min() >= 0
    np.testing.assert_allclose(classifier.probabilities.sum(axis=1), 1)
    rows = np.stack(np.unravel_index(np.arange(n_combinations), tuple(n_bins)), axis=1)
    if classifier.weight:
        np.testing.assert_allclose(
            WeightedVote((classifier,), n_labels).probabilities(rows), classifier.probabilities
        )
        assert (
            WeightedVote((classifier, classifier), n_labels).decide(rows).tolist()
            == classifier.probabilities.argmax(axis=1).tolist()
        )
