"""Bounds on exp and log that samplers can rely on.

`decimal` rounds ``exp`` and ``ln`` correctly at any precision, so a result is within one unit of
its last place. Each function here returns integers, bounds, or a float that is rounded in a stated
direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction


def _make_context(digits: int) -> Context:
    return Context(prec=digits, rounding=ROUND_HALF_EVEN, Emin=-(10**9), Emax=10**9)


def _to_decimal(x: Fraction, context: Context) -> Decimal:
    return context.divide(Decimal(x.numerator), Decimal(x.denominator))


def bound_exp(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Return rationals below and above ``exp(x)``, less than ``2**-bits`` of it apart."""
    digits = 20 + int(bits * 0.302) + len(str(abs(x.numerator) // x.denominator))
    context = _make_context(digits)
    middle = Fraction(context.exp(_to_decimal(x, context)))
    # Rounding to d digits has a relative error of at most 5 * 10^-d. The quotient's error of
    # |x| * 5 * 10^-d becomes a relative error of the exponential, which is itself rounded once. The
    # slack is twice the sum, for terms of second order.
    slack = middle * (abs(x) + 1) * Fraction(10, 10**digits)
    return middle - slack, middle + slack


def floor_scaled(real: Callable[[int], tuple[Fraction, Fraction]], scale: int) -> int:
    """Return ``floor(scale * real)`` for a real number given by bounds at any number of bits.

    The number must not be a multiple of 1/scale.
    """
    bits = scale.bit_length() + 16
    while True:
        low, high = (math.floor(bound * scale) for bound in real(bits))
        if low == high:
            return low
        bits *= 2


def log_up(ratio: Fraction) -> float:
    """Return the natural logarithm as a float that is never less than it."""
    if ratio == 1:
        return 0.0
    context = _make_context(60)
    near = Fraction(context.ln(_to_decimal(ratio, context)))
    # Both roundings are relative, to 60 digits: that of the quotient moves the logarithm by less
    # than 10^-59.
    return float_up(near + (abs(near) + 1) * Fraction(1, 10**58))


def float_up(x: Fraction) -> float:
    """Return the smallest float that is not less than ``x``.

    The float's shortest decimal, which the ledger counts, is not less than ``x`` either.
    """
    near = float(x)
    while min(Fraction(near), Fraction(repr(near))) < x:
        near = math.nextafter(near, math.inf)
    return near
