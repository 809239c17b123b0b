"""A quantile is found from noisy batches, and no batch is trusted fully."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.protocols.anonml.quantiles import N_BISECTION_BATCHES, QuantileSearch

EDGES = np.arange(64.0)


def place(numbers, target, epsilon, n_batches=N_BISECTION_BATCHES, seed=1):
    bit, entropy = RandomizedResponse(epsilon, 2), SeededEntropy(seed)
    search = QuantileSearch.begin(EDGES, target)
    for batch in np.array_split(numbers, n_batches):
        answers = bit.report_many((batch > search.point).astype(np.int64), entropy)
        search = search.update(int(bit.tally(answers)[1]), batch.size, bit)
    return search


@pytest.mark.parametrize("target", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_quantile_search_finds_quantile(target, epsilon):
    numbers = np.random.default_rng(3).uniform(0, 64, 12_000)
    assert abs(place(numbers, target, epsilon).point / 64 - target) < 0.05


def test_quantile_search_finds_frequent_value_up_to_one_edge():
    assert place(np.tile(np.repeat([0.0, 50.0], [9, 1]), 1_000), 0.5, 2.0).point in (0.0, 1.0)
    assert place(np.tile(np.repeat([20.0, 50.0, 0.0], [8, 1, 1]), 1_000), 0.5, 2.0).point in (
        20.0,
        21.0,
    )


def test_quantile_search_begins_in_middle():
    assert QuantileSearch.begin(EDGES, 0.25).point == 31.0


def test_quantile_search_moves_towards_majority():
    bit = RandomizedResponse(1.0, 2)
    start = QuantileSearch.begin(EDGES, 0.5)
    assert start.update(60, 100, bit).point > start.point
    assert start.update(40, 100, bit).point < start.point
    assert start.update(50, 100, bit).posterior == pytest.approx(start.posterior)


def test_quantile_search_is_unchanged_without_answers():
    start = QuantileSearch.begin(EDGES, 0.5)
    assert start.update(0, 0, RandomizedResponse(1.0, 2)) is start


def test_quantile_search_compares_share_with_target():
    """A quarter of the peers above is just what the third quartile should show."""
    bit = RandomizedResponse(2.0, 2)
    n = 10_000
    yes = round(n * float(bit.q + (bit.p - bit.q) / 4))
    start = QuantileSearch.begin(EDGES, 0.75)
    assert start.update(yes, n, bit).posterior == pytest.approx(start.posterior, abs=1e-4)


def test_quantile_search_trusts_larger_batches_more():
    """The odds of the upper side are those of a normal error of sd 1 / (2 t sqrt n)."""
    bit = RandomizedResponse(1.0, 2)
    t = float(bit.p - bit.q)
    n = 100
    found = QuantileSearch.begin(np.arange(4.0), 0.5).update(55, n, bit)
    odds = found.posterior[2:].sum()
    assert 0.05 / t * (2 * t * n**0.5) == pytest.approx(1.0)
    assert odds == pytest.approx(0.8413, abs=1e-3)


def test_quantile_search_never_trusts_batch_fully():
    search = QuantileSearch.begin(np.arange(4.0), 0.5).update(
        1_000_000, 1_000_000, RandomizedResponse(1.0, 2)
    )
    assert search.posterior[:2].sum() == pytest.approx(0.03)
    low = QuantileSearch.begin(np.arange(4.0), 0.5).update(0, 1_000_000, RandomizedResponse(1.0, 2))
    assert low.posterior[2:].sum() == pytest.approx(0.03)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10**7)), max_size=80),
    st.sampled_from([1e-9, 0.5, 64.0]),
    st.integers(1, 5),
)
def test_quantile_posterior_is_always_distribution(batches, epsilon, n_edges):
    bit = RandomizedResponse(epsilon, 2)
    search = QuantileSearch.begin(np.arange(float(n_edges)), 0.5)
    for share, n in batches:
        search = search.update(round(share * n), n, bit)
        assert search.posterior.sum() == pytest.approx(1.0)
        assert (search.posterior >= 0).all()
        assert search.point in search.edges
