"""The learning parts of AnonML's `paper` variant hold their promises for whatever counts, even impossible ones, arrive."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from shoal.entropy import SeededEntropy
from shoal.mechanisms.calibrate import NAMES, mechanism
from shoal.mechanisms.response import RandomResponse
from shoal.protocols.anonml.classifiers import train
from shoal.protocols.anonml.median import N_BATCHES, MedianSearch
from shoal.protocols.anonml.partitions import feature_subsets
from shoal.protocols.anonml.vote import Vote

epsilons = st.floats(0.01, 10)
a_share = st.floats(0, 1)


@hostile(100)
@given(
    st.floats(-1e12, 1e12),
    st.floats(1e-3, 1e12),
    st.lists(st.tuples(st.integers(0, 2000), a_share), max_size=N_BATCHES),
    st.none() | epsilons.map(lambda epsilon: RandomResponse(epsilon, 2)),
)
def test_a_median_stays_inside_its_range(low: float, width: float, batches: list[tuple[int, float]], bit: RandomResponse | None) -> None:
    search = MedianSearch.begin(low, low + width)
    for n, share in batches:
        before, search = search, search.told(round(n * share), n, bit)
        assert search.step == before.step / 2
    assert low <= search.estimate <= low + width


@hostile(100)
@given(st.binary(max_size=40), st.integers(1, 12), st.integers(1, 6), st.data())
def test_subsets_never_overlap_inside_a_partition(seed: bytes, n_features: int, n_partitions: int, data: st.DataObject) -> None:
    subset_size = data.draw(st.integers(1, n_features))
    n_subsets = data.draw(st.integers(1, n_features // subset_size))
    for partition in feature_subsets(seed, n_features, n_partitions, n_subsets, subset_size):
        asked = list(itertools.chain(*partition))
        assert len(asked) == len(set(asked)) == n_subsets * subset_size
        assert all(0 <= feature < n_features for feature in asked)


@hostile(150)
@given(
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    st.integers(2, 4),
    st.sampled_from([None, *NAMES]),
    epsilons,
    st.sampled_from(["logistic", "tree"]),
    st.sampled_from(["f1", "auc", "accuracy"]),
    st.integers(0, 2**32),
    st.data(),
)
def test_a_classifier_is_a_table_of_probabilities_with_a_weight(
    n_bins: list[int], n_labels: int, name: str | None, epsilon: float, kind: str, score: str, seed: int, data: st.DataObject
) -> None:
    n_combinations = math.prod(n_bins)
    cells = n_combinations * n_labels
    counts = np.array(data.draw(st.lists(st.integers(0, 300), min_size=cells, max_size=cells)), np.int64)
    n = int(counts.sum()) if name is None else data.draw(st.integers(0, 2000))
    perturbed_by = None if name is None else mechanism(name, epsilon, cells)
    features = tuple(range(len(n_bins)))
    learned = train(counts, n, perturbed_by, features, tuple(n_bins), n_labels, kind, score, SeededEntropy(seed))  # type: ignore[arg-type]
    if learned is None:
        return
    assert 0 <= learned.weight <= 1
    assert learned.probabilities.shape == (n_combinations, n_labels)
    assert learned.probabilities.min() >= 0
    np.testing.assert_allclose(learned.probabilities.sum(axis=1), 1)
    rows = np.stack(np.unravel_index(np.arange(n_combinations), tuple(n_bins)), axis=1)
    if learned.weight:
        np.testing.assert_allclose(Vote((learned,), n_labels).probabilities(rows), learned.probabilities)
        assert Vote((learned, learned), n_labels).decide(rows).tolist() == learned.probabilities.argmax(axis=1).tolist()
