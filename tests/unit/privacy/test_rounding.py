"""Exact grains, and formatting that never shows less than was spent."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from shoal.errors import SpecError
from shoal.privacy.rounding import (
    compute_delta_growth,
    compute_share,
    delta_grains_down,
    delta_grains_up,
    float_from_grains,
    format_epsilon,
    format_epsilon_down,
    from_delta_grains,
    from_grains,
    grains_down,
    grains_up,
    sum_up,
)


def test_grains_of_decimals_add_up_exactly():
    assert 3 * grains_up(0.1) == grains_up(0.3) == 300_000_000_000
    assert from_grains(3 * grains_up(0.1)) == Decimal("0.3")
    assert float_from_grains(3 * grains_up(0.1)) == 0.3


def test_spent_amounts_are_rounded_up_and_limits_down():
    noisy = math.nextafter(2.0, 3.0)
    assert grains_up(noisy) == 2 * 10**12 + 1
    assert grains_down(noisy) == 2 * 10**12
    assert grains_up(5e-324) == 1
    assert grains_down(5e-324) == 0
    assert grains_up(0.0) == grains_down(0.0) == 0


def test_numpy_floats_and_integers_are_accepted():
    assert grains_up(np.float64(0.1)) == grains_up(0.1)
    assert grains_up(4) == 4 * 10**12
    assert format_epsilon(np.float64(0.5)) == "0.5"


def test_decimal_context_of_caller_has_no_effect():
    with decimal.localcontext() as context:
        context.prec = 2
        assert grains_up(1.23456789) == 1_234_567_890_000
        assert from_grains(1_234_567_890_123) == Decimal("1.234567890123")
        assert format_epsilon(1.23456) == "1.235"


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "function",
    [grains_up, grains_down, format_epsilon, format_epsilon_down, lambda x: sum_up([1.0, x])],
)
def test_invalid_budget_is_rejected(function, bad):
    with pytest.raises(SpecError, match="ACCOUNT-001"):
        function(bad)


def test_from_grains_may_be_negative():
    assert from_grains(-1) == Decimal("-1e-12")


@pytest.mark.parametrize("n", [1, 3 * 10**11, 10**15 + 1, 12_345_678_901_234_567_891])
def test_float_from_grains_is_never_less(n):
    assert grains_up(float_from_grains(n)) >= n


def test_sum_up_adds_deltas_exactly():
    assert sum_up([1e-6] * 3) == 3e-6
    assert sum_up([]) == 0.0
    assert sum_up([1.0, 2.0**-60]) > 1.0


@pytest.mark.parametrize(
    ("x", "up", "down"),
    [
        (2.0, "2.0", "2.0"),
        (0, "0", "0"),
        (0.1 + 0.2, "0.3001", "0.3"),
        (2 / 3, "0.6667", "0.6666"),
        (0.99999, "1.0", "0.9999"),
        (9.99999, "10.0", "9.999"),
        (12345.6, "12346.0", "12345.0"),
        (1e-6, "1e-06", "1e-06"),
        (1.23456e-7, "1.235e-07", "1.234e-07"),
        (1e20, "1e+20", "1e+20"),
        (1.5e300, "1.5e+300", "1.5e+300"),
        (5e-324, "5e-324", "5e-324"),
        (Decimal("3.30000"), "3.3", "3.3"),
    ],
)
def test_format_epsilon_rounds_up(x, up, down):
    assert format_epsilon(x) == up
    assert format_epsilon_down(x) == down


def test_format_epsilon_with_fewer_digits_rounds_further_up():
    assert format_epsilon(0.123, 2) == "0.13"
    assert format_epsilon(1.23e-9, 1) == "2e-09"


def test_delta_grains_are_rounded_up() -> None:
    assert delta_grains_up(1e-9) == 10**9
    assert delta_grains_up(0.0) == 0
    assert delta_grains_up(1e-30) == 1
    assert delta_grains_down(1.9e-18) == 1
    assert from_delta_grains(10**9) == Decimal("1e-9")


@pytest.mark.parametrize("epsilon", [1e-9, 0.3, 1.0, 12.5])
def test_compute_delta_growth_is_rounded_up(epsilon):
    with decimal.localcontext(prec=50):
        exact = 1 + Decimal(epsilon).exp()
        assert exact <= Decimal(compute_delta_growth(epsilon)) <= exact * (1 + Decimal("1e-13"))


def test_compute_delta_growth_stays_finite():
    assert math.isfinite(compute_delta_growth(1e6))


def test_compute_delta_growth_is_attained_by_worst_neighbours():
    # D, D less one, D' as distributions on three outcomes: each step is (epsilon, delta), and the
    # ends attain the bound of 2 epsilon and compute_delta_growth(epsilon) delta.
    epsilon, delta = 0.7, 0.05
    e = math.exp(epsilon)
    end = np.array([0.0, 0.1, 0.9])
    middle = np.array([delta, e * 0.1, 1 - delta - e * 0.1])
    start = np.array([e * delta + delta, e * e * 0.1, 1 - (e + 1) * delta - e * e * 0.1])
    for p, q in ((start, middle), (middle, end)):
        assert np.maximum(p - e * q, 0).sum() == pytest.approx(delta)
    assert np.maximum(start - math.exp(2 * epsilon) * end, 0).sum() == pytest.approx(
        compute_delta_growth(epsilon) * delta
    )


def test_compute_share_is_rounded_down_so_that_shares_never_exceed_the_budget() -> None:
    assert compute_share(1.0, Fraction(1, 3)) == 0.333333333333
    assert 3 * grains_up(compute_share(1.0, Fraction(1, 3))) <= grains_up(1.0)
