"""Algorithm 1: its start, its moves, its accuracy, and the errors of the printed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.protocols.anonml.quantiles import N_MEDIAN_BATCHES, MedianSearch, margin_of_error


def searched(values, low, high, mechanism, entropy):
    """The whole search, with the peers in a random order."""
    search = MedianSearch.begin(low, high)
    shuffled = values[np.argsort(entropy.words(values.size, np.uint64))]
    for batch in np.array_split(shuffled, N_MEDIAN_BATCHES):
        bits = (batch > search.estimate).astype(np.int64)
        greater = (
            bits.sum()
            if mechanism is None
            else mechanism.tally(mechanism.report_many(bits, entropy))[1]
        )
        search = search.update(int(greater), batch.size, mechanism)
    return search.estimate


def noisy(share, n, mechanism):
    """The count that is expected of n peers of whom so many are above."""
    return round(n * float(mechanism.q + (mechanism.p - mechanism.q) * share))


def test_median_search_begins_in_middle_of_range():
    """Errata A-02: the printed start for values from 1000 to 1100 is 50."""
    assert MedianSearch.begin(1000, 1100) == MedianSearch(1050.0, 50.0)
    assert MedianSearch.begin(-4, 2) == MedianSearch(-1.0, 3.0)


@pytest.mark.parametrize("mechanism", [None, RandomizedResponse(1.0, 2)])
def test_median_search_moves_half_step_for_clear_majority(mechanism):
    search = MedianSearch(10.0, 8.0)
    counts = {
        share: round(10_000 * share) if mechanism is None else noisy(share, 10_000, mechanism)
        for share in (0.2, 0.5, 0.8)
    }
    assert search.update(counts[0.8], 10_000, mechanism) == MedianSearch(14.0, 4.0)
    assert search.update(counts[0.2], 10_000, mechanism) == MedianSearch(6.0, 4.0)
    assert search.update(counts[0.5], 10_000, mechanism) == MedianSearch(10.0, 4.0)


def test_median_search_moves_only_beyond_margin_of_error():
    """Of 100 peers, 54 are within one standard error (4.98) of a half, and 55 (4.97) are not."""
    search = MedianSearch(0.0, 2.0)
    assert [search.update(greater, 100, None).estimate for greater in (44, 45, 46, 54, 55, 56)] == [
        -1.0,
        -1.0,
        0.0,
        0.0,
        1.0,
        1.0,
    ]


def test_margin_of_error_uses_debiased_share():
    """Errata A-03: 60 % above are 51.2 % noisy answers at epsilon 0.25, and 2500 answers are enough
    to say so only once debiased.
    """
    mechanism = RandomizedResponse(0.25, 2)
    greater = noisy(0.6, 2500, mechanism)
    margin = margin_of_error(0.6, 2500, mechanism)
    assert greater / 2500 - margin < 0.5 < 0.6 - margin
    assert MedianSearch(0.0, 2.0).update(greater, 2500, mechanism).estimate == 1.0


@pytest.mark.parametrize(("epsilon", "share"), [(0.1, 0.3), (1.0, 0.5), (3.0, 0.9)])
def test_margin_of_error_is_scaled_standard_error(epsilon, share):
    mechanism = RandomizedResponse(epsilon, 2)
    gap = math.tanh(epsilon / 2)
    said = (1 - gap) / 2 + share * gap
    assert margin_of_error(share, 70, mechanism) == pytest.approx(
        math.sqrt(said * (1 - said) / 70) / gap
    )
    assert margin_of_error(share, 70, None) == pytest.approx(math.sqrt(share * (1 - share) / 70))


@pytest.mark.parametrize(("greater", "estimate"), [(0, -1.0), (40, 1.0)])
def test_estimated_share_is_clipped(greater, estimate):
    """Debiased, all of 40 peers at epsilon 0.5 would be 250 % of them; the margin of a share is
    that of one that can be.
    """
    assert (
        MedianSearch(0.0, 2.0).update(greater, 40, RandomizedResponse(0.5, 2)).estimate == estimate
    )
    assert MedianSearch(0.0, 2.0).update(greater, 4, RandomizedResponse(0.1, 2)).estimate == 0.0


@pytest.mark.parametrize("mechanism", [None, RandomizedResponse(1.0, 2)])
def test_median_search_halves_step_without_answers(mechanism):
    assert MedianSearch(3.0, 2.0).update(0, 0, mechanism) == MedianSearch(3.0, 1.0)


def test_noiseless_median_search_finds_median(entropy):
    values = 1000 + 100 * (entropy.words(60_000, np.uint32) / 2**32) ** 2
    assert searched(values, 1000, 1100, None, entropy) == pytest.approx(1025, abs=1.5)


def test_noisy_median_search_comes_near_median(entropy):
    values = 1000 + 100 * (entropy.words(60_000, np.uint32) / 2**32) ** 2
    assert searched(values, 1000, 1100, RandomizedResponse(1.0, 2), entropy) == pytest.approx(
        1025, abs=7
    )


def test_median_search_stays_below_next_value_of_frequent_value(entropy):
    """Capital gains: nine of ten peers have none. The cut must fall between zero and the gains."""
    values = np.where(entropy.below_many(10, 30_000) == 0, 5000.0, 0.0)
    assert 0 < searched(values, 0, 99_999, RandomizedResponse(1.0, 2), entropy) < 10
