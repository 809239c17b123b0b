"""Subset selection: size of the sets, probabilities, and exact sizes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.mechanisms.exact import bound_exp
from shoal.mechanisms.frequency_oracle import WORD
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.mechanisms.subset_selection import (
    SubsetSelection,
    choose_start_threshold,
    choose_subset_size,
    compute_keep_numerator,
    compute_squared_error,
)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("m", [2, 3, 4, 7, 16, 64])
def test_chosen_size_has_least_error(epsilon, m):
    exact = Fraction(epsilon)
    errors = {
        w: compute_squared_error(Fraction(compute_keep_numerator(exact, m, w), WORD), m, w)
        for w in range(1, m)
    }
    assert errors[choose_subset_size(exact, m)] == min(errors.values())


@pytest.mark.parametrize("m", [2, 3, 16, 1000, 1 << 16])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 16.0])
def test_probabilities_are_closed_form(epsilon, m):
    mechanism = SubsetSelection(epsilon, m)
    w = mechanism.ones
    p = w * math.exp(epsilon) / (w * math.exp(epsilon) + m - w)
    assert math.isclose(float(mechanism.p), p, rel_tol=1e-12)
    assert math.isclose(
        float(mechanism.q), p * (w - 1) / (m - 1) + (1 - p) * w / (m - 1), rel_tol=1e-9
    )
    assert mechanism.p + (m - 1) * mechanism.q == w


def test_p_is_largest_within_budget():
    m, w = 16, 4
    keep = compute_keep_numerator(Fraction(1), m, w)
    low, high = bound_exp(Fraction(1), 256)
    assert Fraction(keep, WORD - keep) * (m - w) / w <= low
    assert Fraction(keep + 1, WORD - keep - 1) * (m - w) / w >= high


def test_sets_of_one_cell_are_randomised_response():
    assert SubsetSelection(4.0, 8).ones == 1
    assert math.isclose(
        SubsetSelection(4.0, 8).expected_error(10),
        RandomizedResponse(4.0, 8).expected_error(10),
        rel_tol=1e-12,
    )


@settings(deadline=None, max_examples=80)
@given(epsilon=st.floats(0.01, 10), m=st.integers(2, 300), seed=st.integers(0, 10**6))
def test_each_report_has_chosen_size(epsilon, m, seed):
    mechanism = SubsetSelection(epsilon, m)
    entropy = SeededEntropy(seed)
    one = mechanism.report(seed % m, entropy)
    many = mechanism.report_many(np.arange(60) % m, entropy)
    assert mechanism.decode(one) == one
    assert (np.bitwise_count(many).sum(axis=1) == mechanism.ones).all()
    assert mechanism.tally(many).sum() == 60 * mechanism.ones


@pytest.mark.parametrize("threshold", [0, 40, 255])
def test_repair_gives_size_from_any_start(threshold, entropy):
    """Starts from empty and nearly full sets differ only in the number of repairs."""
    mechanism = SubsetSelection(1.0, 21)
    mechanism._threshold = threshold
    mechanism._take_table = b"1" * threshold + b"0" * (256 - threshold)
    for value in range(21):
        mechanism.encode(mechanism.report(value, entropy))
    assert (
        np.bitwise_count(mechanism.report_many(np.arange(21), entropy)).sum(axis=1)
        == mechanism.ones
    ).all()


@settings(deadline=None)
@given(epsilon=st.floats(1e-9, 16), m=st.integers(2, 1 << 16))
def test_start_threshold_is_probability_and_zero_for_few_cells(epsilon, m):
    w = choose_subset_size(Fraction(epsilon), m)
    threshold = choose_start_threshold(m, w)
    assert 0 <= threshold < 256
    assert w > 5 or threshold == 0
