"""A quantile is found from noisy batches, and no batch is believed outright."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.mechanisms.response import RandomResponse
from shoal.protocols.anonml.bisection import N_BATCHES, Search

EDGES = np.arange(64.0)


def place(numbers, target, epsilon, n_batches=N_BATCHES, seed=1):
    bit, entropy = RandomResponse(epsilon, 2), SeededEntropy(seed)
    search = Search.begin(EDGES, target)
    for batch in np.array_split(numbers, n_batches):
        answers = bit.report_many((batch > search.point).astype(np.int64), entropy)
        search = search.told(int(bit.tally(answers)[1]), batch.size, bit)
    return search


@pytest.mark.parametrize("target", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_quantile_is_found(target, epsilon):
    numbers = np.random.default_rng(3).uniform(0, 64, 12_000)
    assert abs(place(numbers, target, epsilon).point / 64 - target) < 0.05


def test_a_frequent_value_is_found_but_for_one_edge():
    assert place(np.tile(np.repeat([0.0, 50.0], [9, 1]), 1_000), 0.5, 2.0).point in (0.0, 1.0)
    assert place(np.tile(np.repeat([20.0, 50.0, 0.0], [8, 1, 1]), 1_000), 0.5, 2.0).point in (20.0, 21.0)


def test_it_begins_in_the_middle():
    assert Search.begin(EDGES, 0.25).point == 31.0


def test_more_above_moves_the_point_up_and_less_moves_it_down():
    bit = RandomResponse(1.0, 2)
    start = Search.begin(EDGES, 0.5)
    assert start.told(60, 100, bit).point > start.point
    assert start.told(40, 100, bit).point < start.point
    assert start.told(50, 100, bit).posterior == pytest.approx(start.posterior)


def test_nobody_changes_nothing():
    start = Search.begin(EDGES, 0.5)
    assert start.told(0, 0, RandomResponse(1.0, 2)) is start


def test_the_answer_is_compared_with_the_target():
    """A quarter of the peers above is just what the third quartile should show."""
    bit = RandomResponse(2.0, 2)
    n = 10_000
    yes = round(n * float(bit.q + (bit.p - bit.q) / 4))
    start = Search.begin(EDGES, 0.75)
    assert start.told(yes, n, bit).posterior == pytest.approx(start.posterior, abs=1e-4)


def test_a_batch_is_believed_by_its_size():
    """The odds of the upper side are those of a normal error of sd 1 / (2 t sqrt n)."""
    bit = RandomResponse(1.0, 2)
    t = float(bit.p - bit.q)
    n = 100
    found = Search.begin(np.arange(4.0), 0.5).told(55, n, bit)
    odds = found.posterior[2:].sum()
    assert 0.05 / t * (2 * t * n**0.5) == pytest.approx(1.0)
    assert odds == pytest.approx(0.8413, abs=1e-3)


def test_no_batch_is_believed_outright():
    search = Search.begin(np.arange(4.0), 0.5).told(1_000_000, 1_000_000, RandomResponse(1.0, 2))
    assert search.posterior[:2].sum() == pytest.approx(0.03)
    low = Search.begin(np.arange(4.0), 0.5).told(0, 1_000_000, RandomResponse(1.0, 2))
    assert low.posterior[2:].sum() == pytest.approx(0.03)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10**7)), max_size=80), st.sampled_from([1e-9, 0.5, 64.0]), st.integers(1, 5))
def test_the_belief_is_always_a_distribution(batches, epsilon, n_edges):
    bit = RandomResponse(epsilon, 2)
    search = Search.begin(np.arange(float(n_edges)), 0.5)
    for share, n in batches:
        search = search.told(round(share * n), n, bit)
        assert search.posterior.sum() == pytest.approx(1.0)
        assert (search.posterior >= 0).all()
        assert search.point in search.edges
