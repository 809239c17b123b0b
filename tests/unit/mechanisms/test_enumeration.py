"""Each report mechanism on small domains: all values and outputs, exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.mechanisms.exact import bound_exp, log_up
from shoal.mechanisms.frequency_oracle import WORD, FrequencyOracle
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.mechanisms.unary_encoding import OneTimeRappor, PQPerturbation, UnaryEncoding
from shoal.privacy.events import LOCAL_PERSON
from tests.statistical.frequency_oracle_distributions import KINDS, enumerate_outputs, supports

EPSILONS = [0.01, 0.3, 1.0, 2.5, 8.0, 16.0]
SIZES = [2, 3, 4, 5]


def worst_ratio(mechanism: FrequencyOracle) -> Fraction:
    laws = [enumerate_outputs(mechanism, value) for value in range(mechanism.cardinality)]
    return max(one[output] / other[output] for one in laws for other in laws for output in one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_price_is_worst_ratio_of_all_outputs(kind, m, epsilon):
    mechanism = kind(epsilon, m)
    worst = worst_ratio(mechanism)
    priced = mechanism.event().epsilon
    assert worst == mechanism.worst_ratio
    assert worst <= bound_exp(Fraction(epsilon), 200)[0]
    assert priced == log_up(worst)
    assert priced <= epsilon
    assert math.isclose(priced, epsilon, rel_tol=0, abs_tol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("epsilon", [0.3, 2.5])
def test_p_and_q_are_probabilities_of_support(kind, m, epsilon):
    mechanism = kind(epsilon, m)
    for value in range(m):
        chances = enumerate_outputs(mechanism, value)
        assert sum(chances.values()) == 1
        for cell in range(m):
            support = sum(
                chance for output, chance in chances.items() if supports(mechanism, output, cell)
            )
            assert support == (mechanism.p if cell == value else mechanism.q)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(epsilon=st.floats(0.01, 16), m=st.one_of(st.integers(2, 40), st.integers(2, 1 << 16)))
def test_price_is_at_most_requested_and_close(kind, epsilon, m):
    mechanism = kind(epsilon, m)
    priced = mechanism.event().epsilon
    assert mechanism.worst_ratio <= bound_exp(Fraction(epsilon), 200)[0]
    assert epsilon - 1e-9 < priced <= epsilon
    assert 0 < mechanism.q < mechanism.p < 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [1e-9, 64.0])
@pytest.mark.parametrize("m", [2, 3, 1 << 16])
def test_extreme_epsilons_are_priced(kind, epsilon, m):
    mechanism = kind(epsilon, m)
    assert 0 < mechanism.event().epsilon <= epsilon
    assert mechanism.q < mechanism.p


@pytest.mark.parametrize(("keep", "flip"), [(0.9, 0.4), (0.5, 0.1), (0.75, 0.25)])
@pytest.mark.parametrize("m", [2, 4])
def test_theorem_1_is_valid_for_any_p_and_q(keep, flip, m):
    class Arbitrary(UnaryEncoding):
        name = "arbitrary"

    mechanism = Arbitrary(1.0, m, LOCAL_PERSON, int(keep * WORD), int(flip * WORD))
    assert math.isclose(
        float(worst_ratio(mechanism)), keep * (1 - flip) / ((1 - keep) * flip), rel_tol=1e-12
    )


@pytest.mark.parametrize(("m", "spent"), [(2, 0.31), (4, 0.71), (16, 0.94)])
def test_printed_price_of_random_response_is_detected(m, spent):
    keep = math.e / (math.e + m)
    really = math.log(keep / ((1 - keep) / (m - 1)))
    assert math.isclose(really, spent, abs_tol=0.005)
    assert math.isclose(log_up(RandomizedResponse(1.0, m).worst_ratio), 1.0, abs_tol=1e-9)


@pytest.mark.parametrize("kind", [OneTimeRappor, PQPerturbation])
def test_price_above_budget_is_detected(kind):
    """The enumeration detects a probability that is one part in 2^64 too large."""
    honest = kind(1.0, 3)
    keep, flip = int(honest.p * WORD), int(honest.q * WORD)

    class Greedy(UnaryEncoding):
        name = "greedy"

    assert (
        worst_ratio(Greedy(1.0, 3, LOCAL_PERSON, keep + 2, flip - 2))
        > bound_exp(Fraction(1), 200)[1]
    )
