"""Searches of all numbers and bytes: what they find, and that a search is one valid test."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.distinguishers import (
    MAX_BYTES,
    MAX_NUMBERS,
    Reports,
    choose_bits,
    choose_evenly,
    fit_logistic,
    observe_reports,
    read_bits,
    stack_bytes,
    stack_rows,
    thin_bytes,
)
from shoal.privacy.accountant import compose_sequential
from shoal.privacy.events import LOCAL_PERSON, Event

ROWS = ("one row", "another row")
N = 600


def make_claim(epsilon):
    return compose_sequential([Event("random-response", {}, LOCAL_PERSON, epsilon)])


def bound_reports(reports, epsilon=1.0, alpha=1e-3):
    """Return the bounds of all three searches by description."""
    found = observe_reports(ROWS, reports, make_claim(epsilon))
    return {one.seen_in: one.compute_bound(alpha / 3).epsilon for one in found}


def draw_noise(rng, k=6, n=N):
    return [rng.integers(-(10**6), 10**6, (n, k)) for _ in range(2)]


def test_outputs_without_information_have_no_bound():
    bounds = bound_reports(Reports.from_numbers(*draw_noise(np.random.default_rng(1))))
    assert len(bounds) == 3 and max(bounds.values()) < 0.1


@pytest.mark.parametrize("width", [0, 1])
def test_constant_outputs_have_no_bound(width):
    """A peer may send nothing."""
    zeros = np.zeros((N, width), np.int64)
    assert bound_reports(Reports.from_numbers(zeros, zeros)) == {
        "one number of the reports": 0,
        "two numbers of the reports": 0,
        "a classifier of all bytes": 0,
    }


def test_search_finds_one_number():
    numbers = draw_noise(np.random.default_rng(2))
    numbers[1][:, 3] += 10**7
    bounds = bound_reports(Reports.from_numbers(*numbers))
    assert bounds["searched number 4"] > 3


def test_search_finds_parity_of_one_number():
    numbers = draw_noise(np.random.default_rng(3))
    for label, one in enumerate(numbers):
        one[:, 2] = 2 * one[:, 2] + label
    bounds = bound_reports(Reports.from_numbers(*numbers))
    assert bounds["the parity of searched number 3"] > 3
    assert bounds["a classifier of all bytes"] > 3


def test_search_finds_number_within_its_context():
    """Two questions use a bit in opposite ways, so that the bit alone reveals nothing."""
    rng = np.random.default_rng(4)
    contexts = [rng.integers(1, 3, (N, 1)) for _ in range(2)]
    numbers = [(contexts[0] + rng.integers(0, 9, (N, 1)) // 8) & 1, 1 - (contexts[1] & 1)]
    octets = tuple(np.zeros((N, 1), np.uint8) for _ in range(2))
    bounds = bound_reports(Reports(tuple(numbers), tuple(contexts), octets))
    assert bounds["searched number 1, by question"] > 1.5


@pytest.mark.parametrize(
    ("kind", "other"),
    [("difference", lambda noise: noise), ("sum", lambda noise: -noise)],
)
def test_search_finds_noise_that_two_numbers_share(kind, other):
    numbers = draw_noise(np.random.default_rng(5))
    for label, one in enumerate(numbers):
        one[:, 4] = other(one[:, 1]) + 2 * label
    bounds = bound_reports(Reports.from_numbers(*numbers))
    assert bounds[f"the {kind} of searched numbers 2 and 5"] > 3


def test_search_finds_parity_of_two_numbers():
    numbers = draw_noise(np.random.default_rng(6))
    for label, one in enumerate(numbers):
        one[:, 5] ^= (one[:, 5] ^ one[:, 0] ^ label) & 1
    bounds = bound_reports(Reports.from_numbers(*numbers))
    assert bounds["the parity of searched numbers 1 and 6"] > 3
    assert bounds["a classifier of all bytes"] > 3


def test_classifier_finds_bit_of_a_message():
    rng = np.random.default_rng(7)
    payloads = [[rng.bytes(40) for _ in range(N)] for _ in range(2)]
    payloads[1] = [one[:20] + bytes([one[20] | 16]) + one[21:] for one in payloads[1]]
    none = [[np.zeros(0, np.int64)] * N] * 2
    bounds = bound_reports(Reports.from_rows(none, payloads))
    # The bit is 1 in half of the other messages too, and their absence is certain.
    assert bounds["a classifier of all bytes"] > 1.5


def count_wrong_bounds(draw, epsilon, alpha, n_runs):
    """Return how often a bound is above a true claim."""
    return sum(
        max(bound_reports(draw(np.random.default_rng(i)), epsilon, alpha).values()) > epsilon
        for i in range(n_runs)
    )


def draw_responses(rng, n=300):
    """Return randomised responses that reach their epsilon of 0.2 exactly, and other numbers."""
    keep = np.exp(0.2) / (1 + np.exp(0.2))
    numbers = [rng.integers(0, 200, (n, 12)) for _ in range(2)]
    for label, one in enumerate(numbers):
        one[:, 0] = np.where(rng.random(n) < keep, label, 1 - label)
    return Reports.from_numbers(*numbers)


def test_searches_together_are_wrong_as_seldom_as_declared():
    """At most 8 of 40 runs are expected to be; the chance of 20 or more is below 3e-5."""
    assert count_wrong_bounds(draw_responses, 0.2, 0.2, 40) < 20


def test_search_in_the_counted_samples_would_be_wrong_often():
    """Mutant: the same samples choose and count."""

    def draw(rng):
        honest = draw_responses(rng, 150)
        return Reports.from_numbers(*(np.concatenate([one, one]) for one in honest.numbers))

    assert count_wrong_bounds(draw, 0.2, 0.2, 40) > 20


def test_long_outputs_are_thinned_evenly():
    assert choose_evenly(10, 10) == slice(None, None, 1)
    positions = np.arange(8 * MAX_BYTES)[choose_evenly(8 * MAX_BYTES, MAX_BYTES)]
    assert MAX_BYTES // 2 < positions.size <= MAX_BYTES
    assert set(positions % 8) == set(range(8))
    assert thin_bytes(bytes(10 * MAX_BYTES)).size <= MAX_BYTES
    rows = [[np.arange(3 * MAX_NUMBERS)] * 2] * 2
    assert Reports.from_rows(rows, [[b"a"] * 2] * 2).numbers[0].shape[1] <= MAX_NUMBERS


def test_rows_of_different_lengths_are_filled_with_zeros():
    first, second = stack_rows([np.array([1, 2])], [np.array([3])], np.int64)
    assert (first.tolist(), second.tolist()) == ([[1, 2]], [[3, 0]])
    assert [one.tolist() for one in stack_bytes([b"\x05"], [b""])] == [[[5]], [[0]]]


def test_bits_that_vary_are_read_as_signs():
    octets = np.array([[1, 0b1000], [1, 0b1001]], np.uint8)
    positions = choose_bits([octets[:1], octets[1:]])
    assert positions.tolist() == [8]
    assert read_bits(octets, positions).tolist() == [[-1], [1]]
    assert choose_bits([octets[:1], octets[:1]]).size == 0


def test_logistic_regression_separates_labels():
    rng = np.random.default_rng(8)
    inputs = np.concatenate([np.ones((400, 1)), rng.normal(size=(400, 3))], axis=1)
    labels = (inputs @ [0.5, 2, -1, 0] > 0).astype(float)
    weights = fit_logistic(inputs, labels)
    assert np.mean((inputs @ weights > 0) == labels) > 0.95
    assert np.abs(fit_logistic(1e3 * inputs, labels)).max() < np.inf


def test_rare_values_do_not_hide_a_parity():
    """Each value occurs once, in one sample only: that is no evidence."""
    numbers = [np.arange(which, 4 * N, 4).reshape(N, 1) for which in (0, 1)]
    rng = np.random.default_rng(9)
    for one in numbers:
        rng.shuffle(one)
    bounds = bound_reports(Reports.from_numbers(*numbers))
    assert bounds["the parity of searched number 1"] > 3


def test_few_values_are_compared_one_by_one():
    """Two of many values are swapped, which shifts neither a mean nor a parity by much."""
    rng = np.random.default_rng(10)
    numbers = [rng.integers(0, 8, (N, 2)) for _ in range(2)]
    numbers[0][numbers[0][:, 0] == 5, 0] = 3
    numbers[1][numbers[1][:, 0] == 3, 0] = 5
    assert bound_reports(Reports.from_numbers(*numbers))["searched number 1"] > 1
