"""Grains are exact, and printing never shows less than was spent."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal

import numpy as np
import pytest

from shoal.errors import SpecError
from shoal.privacy.rounding import (
    delta_grains_down,
    delta_grains_up,
    delta_growth,
    float_from_grains,
    from_delta_grains,
    from_grains,
    grains_down,
    grains_up,
    show,
    show_allowed,
    sum_up,
)


def test_decimals_add_up_as_people_expect():
    assert 3 * grains_up(0.1) == grains_up(0.3) == 300_000_000_000
    assert from_grains(3 * grains_up(0.1)) == Decimal("0.3")
    assert float_from_grains(3 * grains_up(0.1)) == 0.3


def test_spending_is_rounded_up_and_limits_down():
    noisy = math.nextafter(2.0, 3.0)
    assert grains_up(noisy) == 2 * 10**12 + 1
    assert grains_down(noisy) == 2 * 10**12
    assert grains_up(5e-324) == 1
    assert grains_down(5e-324) == 0
    assert grains_up(0.0) == grains_down(0.0) == 0


def test_numpy_floats_and_integers_count_as_numbers():
    assert grains_up(np.float64(0.1)) == grains_up(0.1)
    assert grains_up(4) == 4 * 10**12
    assert show(np.float64(0.5)) == "0.5"


def test_the_callers_decimal_context_changes_nothing():
    with decimal.localcontext() as context:
        context.prec = 2
        assert grains_up(1.23456789) == 1_234_567_890_000
        assert from_grains(1_234_567_890_123) == Decimal("1.234567890123")
        assert show(1.23456) == "1.235"


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("function", [grains_up, grains_down, show, show_allowed, lambda x: sum_up([1.0, x])])
def test_what_is_no_budget_is_refused(function, bad):
    with pytest.raises(SpecError, match="ACCOUNT-001"):
        function(bad)


def test_what_is_left_may_be_negative():
    assert from_grains(-1) == Decimal("-1e-12")


@pytest.mark.parametrize("n", [1, 3 * 10**11, 10**15 + 1, 12_345_678_901_234_567_891])
def test_a_float_never_stands_for_fewer_grains(n):
    assert grains_up(float_from_grains(n)) >= n


def test_deltas_add_up_without_noise():
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
def test_printing(x, up, down):
    assert show(x) == up
    assert show_allowed(x) == down


def test_fewer_digits_round_further_up():
    assert show(0.123, 2) == "0.13"
    assert show(1.23e-9, 1) == "2e-09"


def test_deltas_have_grains_of_their_own_and_are_rounded_up() -> None:
    assert delta_grains_up(1e-9) == 10**9
    assert delta_grains_up(0.0) == 0
    assert delta_grains_up(1e-30) == 1
    assert delta_grains_down(1.9e-18) == 1
    assert from_delta_grains(10**9) == Decimal("1e-9")


@pytest.mark.parametrize("epsilon", [1e-9, 0.3, 1.0, 12.5])
def test_the_growth_of_a_delta_is_rounded_up(epsilon):
    with decimal.localcontext(prec=50):
        exact = 1 + Decimal(epsilon).exp()
        assert exact <= Decimal(delta_growth(epsilon)) <= exact * (1 + Decimal("1e-13"))


def test_the_growth_of_a_delta_stays_a_number():
    assert math.isfinite(delta_growth(1e6))
