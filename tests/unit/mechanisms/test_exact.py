"""Bounds on exponentials and logarithms."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.mechanisms.exact import bound_exp, float_up, floor_scaled, log_up

rationals = st.fractions(min_value=-100, max_value=100, max_denominator=10**12)
ratios = st.fractions(min_value=Fraction(1, 10**9), max_value=10**9, max_denominator=10**20).filter(
    lambda ratio: ratio > 0
)


def exact_exp(x: Fraction, digits: int = 400) -> Fraction:
    with localcontext() as context:
        context.prec = digits
        return Fraction((Decimal(x.numerator) / Decimal(x.denominator)).exp())


def exact_ln(x: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = 400
        return Fraction((Decimal(x.numerator) / Decimal(x.denominator)).ln())


@given(x=rationals, bits=st.integers(8, 400))
@example(x=Fraction(0), bits=64)
@example(x=Fraction(-1, 3), bits=64)
@example(x=Fraction(999_999, 7), bits=64)
def test_bound_exp_contains_exp(x: Fraction, bits: int) -> None:
    low, high = bound_exp(x, bits)
    assert 0 < low <= exact_exp(x) <= high
    assert high - low < low * Fraction(1, 2**bits)


def test_bound_exp_covers_rounding_of_quotient() -> None:
    # Rounding x to d digits costs up to 5 * 10^-d of it, and most where its first digit is 1; a
    # large x makes that most of the error.
    for k in range(500):
        x = Fraction(100) + Fraction(k, 999_983)
        low, high = bound_exp(x, 64)
        assert low <= exact_exp(x, 100) <= high


@given(x=rationals.filter(lambda x: x != 0), bits=st.integers(1, 200))
def test_floor_scaled_of_exponential(x: Fraction, bits: int) -> None:
    scale = 1 << bits
    assert floor_scaled(lambda b: bound_exp(x, b), scale) == math.floor(exact_exp(x) * scale)


def test_floor_scaled_asks_for_more_bits_until_bounds_agree() -> None:
    real = Fraction(3) - Fraction(1, 10**30)
    asked = []

    def bounds(bits: int) -> tuple[Fraction, Fraction]:
        asked.append(bits)
        return real - Fraction(1, 2**bits), real + Fraction(1, 2**bits)

    assert floor_scaled(bounds, 1) == 2
    assert asked == [17, 34, 68, 136]


@given(ratio=ratios)
@example(ratio=Fraction(2**64, 2**64 - 1))
@example(ratio=1 + Fraction(1, 10**70))
@example(ratio=Fraction(1, 3))
def test_log_up_is_rounded_up_by_little(ratio: Fraction) -> None:
    found = log_up(ratio)
    exact = exact_ln(ratio)
    assert Fraction(found) >= exact
    if abs(exact) > Fraction(1, 10**30):
        assert math.nextafter(math.nextafter(found, -math.inf), -math.inf) <= float(exact)


def test_log_up_of_one_is_zero() -> None:
    assert log_up(Fraction(1)) == 0.0


def test_log_up_ignores_decimal_context_of_caller() -> None:
    usual = [log_up(Fraction(k, 7)) for k in range(8, 60)]
    with localcontext() as context:
        context.prec = 3
        assert [log_up(Fraction(k, 7)) for k in range(8, 60)] == usual


@given(x=st.fractions(min_value=-(10**30), max_value=10**30))
@example(x=Fraction(1, 3))
@example(x=Fraction(1, 2))
@example(x=Fraction(0.3) + Fraction(1, 10**20))
def test_float_up_and_its_decimal_are_not_less(x: Fraction) -> None:
    up = float_up(x)
    assert min(Fraction(up), Fraction(repr(up))) >= x
    before = math.nextafter(up, -math.inf)
    assert min(Fraction(before), Fraction(repr(before))) < x


@pytest.mark.parametrize("x", [Fraction(0), Fraction(5, 4), Fraction(-3)])
def test_float_up_keeps_exact_floats(x: Fraction) -> None:
    assert Fraction(float_up(x)) == x
