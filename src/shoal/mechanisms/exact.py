"""Real numbers that a sampler can trust: exponentials and logarithms with certain bounds.

`decimal` rounds ``exp`` and ``ln`` correctly at any precision, so a result is within one unit of its last place.
Everything here returns integers or a float that is rounded in a stated direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction


def _context(digits: int) -> Context:
    return Context(prec=digits, rounding=ROUND_HALF_EVEN, Emin=-(10**9), Emax=10**9)


def _decimal(x: Fraction, context: Context) -> Decimal:
    return context.divide(Decimal(x.numerator), Decimal(x.denominator))


def exp_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals around ``exp(x)``, apart by less than ``2**-bits`` of it."""
    digits = 20 + int(bits * 0.302) + len(str(abs(x.numerator) // x.denominator))
    context = _context(digits)
    middle = Fraction(context.exp(_decimal(x, context)))
    # Rounding to d digits is off by at most 5 * 10^-d of the value: the quotient's |x| * 5 * 10^-d becomes a relative error of
    # the exponential, which rounds once itself. The slack is twice the sum, for what is of second order.
    slack = middle * (abs(x) + 1) * Fraction(10, 10**digits)
    return middle - slack, middle + slack


def floor_of(real: Callable[[int], tuple[Fraction, Fraction]], scale: int) -> int:
    """``floor(scale * real)`` for a real number that is given by bounds at any number of bits and is not a multiple of 1/scale."""
    bits = scale.bit_length() + 16
    while True:
        low, high = (math.floor(bound * scale) for bound in real(bits))
        if low == high:
            return low
        bits *= 2


def log_up(ratio: Fraction) -> float:
    """The natural logarithm, as a float that is never less than it."""
    if ratio == 1:
        return 0.0
    context = _context(60)
    near = Fraction(context.ln(_decimal(ratio, context)))
    # Both roundings are relative, to 60 digits: that of the quotient moves the logarithm by less than 10^-59.
    return float_up(near + (abs(near) + 1) * Fraction(1, 10**58))


def float_up(x: Fraction) -> float:
    """The smallest float such that neither it nor its shortest decimal, by which a ledger counts, is less than ``x``."""
    near = float(x)
    while min(Fraction(near), Fraction(repr(near))) < x:
        near = math.nextafter(near, math.inf)
    return near
