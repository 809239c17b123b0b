"""Budgets as money: exact sums of whole grains, and printing that never shows less than was spent.

A grain is 10^-12 of epsilon. A float stands for its shortest decimal, the one that a person typed or read, so 0.1 is a tenth and
three of them are 0.3. What is spent is rounded up to a grain and what is allowed is rounded down; sums of integers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from shoal.errors import SpecError

GRAINS = 10**12
"""How many grains make an epsilon of 1."""

DELTA_GRAINS = 10**18
"""How many grains make a delta of 1; deltas of use are far below the 10^-12 of an epsilon's grain."""

_CONTEXT = Context(prec=2000, Emin=-999_999, Emax=999_999)
_SMALLEST_PLAIN, _LARGEST_PLAIN = -4, 15


def grains_up(x: float) -> int:
    """What is spent, in grains: never less than ``x``.

    Examples
    --------
    >>> 3 * grains_up(0.1) == grains_up(0.3)
    True
    """
    return math.ceil(_decimal_value(x) * GRAINS)


def grains_down(x: float) -> int:
    """What is allowed, in grains: never more than ``x``."""
    return math.floor(_decimal_value(x) * GRAINS)


def from_grains(n: int) -> Decimal:
    """Grains as an exact decimal; what is left of a limit may be negative."""
    return Decimal(f"{n}e-12")


def delta_grains_up(x: float) -> int:
    """A delta that is spent, in grains of its own: never less than ``x``."""
    return math.ceil(_decimal_value(x) * DELTA_GRAINS)


def delta_grains_down(x: float) -> int:
    """A delta that is allowed, in grains of its own: never more than ``x``."""
    return math.floor(_decimal_value(x) * DELTA_GRAINS)


def from_delta_grains(n: int) -> Decimal:
    """Grains of delta as an exact decimal."""
    return Decimal(f"{n}e-18")


def delta_growth(epsilon: float) -> float:
    """By how much a delta grows when a release under add-remove is counted under replace, 1 + e^epsilon; rounded up.

    Notes
    -----
    One removal and one addition: P <= e^epsilon (e^epsilon Q + delta) + delta.
    """
    # Beyond 700 the exponential leaves the floats; any delta is lost long before.
    return (1 + math.exp(min(epsilon, 700.0))) * (1 + 1e-14)


def float_from_grains(n: int) -> float:
    """Grains as a float that does not stand for less: ``grains_up`` of it is at least ``n``."""
    return _float_up(Fraction(n, GRAINS))


def sum_up(values: Iterable[float]) -> float:
    """The sum of the decimals that the floats stand for, as a float that does not stand for less.

    Examples
    --------
    >>> sum_up([1e-6, 1e-6, 1e-6])
    3e-06
    """
    return _float_up(sum((_decimal_value(x) for x in values), Fraction(0)))


def show(x: float | Decimal, digits: int = 4) -> str:
    """A budget or a chance for people: rounded up at so many significant digits, whole parts never cut.

    Examples
    --------
    >>> show(2.0), show(2 / 3), show(1e-6), show(12345.6)
    ('2.0', '0.6667', '1e-06', '12346.0')
    """
    return _show(x, digits, ROUND_CEILING)


def show_allowed(x: float | Decimal, digits: int = 4) -> str:
    """A limit or what is left of it for people: as `show`, but rounded down.

    Examples
    --------
    >>> show_allowed(4.0), show_allowed(2 / 3)
    ('4.0', '0.6666')
    """
    return _show(x, digits, ROUND_FLOOR)


def _show(x: float | Decimal, digits: int, rounding: str) -> str:
    exact = x if isinstance(x, Decimal) else Decimal(repr(float(x)))
    if not (exact.is_finite() and exact >= 0):
        raise _unusable(x)
    if exact == 0:
        return "0"
    size = exact.adjusted()
    is_plain = _SMALLEST_PLAIN <= size < _LARGEST_PLAIN
    last = size - digits + 1
    rounded = exact.quantize(Decimal(1).scaleb(min(last, 0) if is_plain else last, _CONTEXT), rounding, _CONTEXT)
    if is_plain:
        whole, _, part = f"{rounded:f}".partition(".")
        return f"{whole}.{part.rstrip('0') or '0'}"
    mantissa, exponent = f"{rounded:.{digits - 1}e}".split("e")
    whole, _, part = mantissa.partition(".")
    return f"{whole}.{part}".rstrip("0").rstrip(".") + f"e{int(exponent):+03d}"


def share(epsilon: float, part: Fraction) -> float:
    """A part of a budget, rounded down to a grain, so that the parts together never exceed it.

    Examples
    --------
    >>> share(1.0, Fraction(1, 3)), share(2.0, Fraction(35, 100))
    (0.333333333333, 0.7)
    """
    return math.floor(_decimal_value(epsilon) * part * GRAINS) / GRAINS


def _decimal_value(x: float) -> Fraction:
    if not (math.isfinite(x) and x >= 0):
        raise _unusable(x)
    return Fraction(repr(float(x)))


def _float_up(x: Fraction) -> float:
    try:
        near = float(x)
    except OverflowError:
        raise _unusable(math.inf) from None
    return near if _decimal_value(near) >= x else math.nextafter(near, math.inf)


def _unusable(x: float | Decimal) -> SpecError:
    return SpecError("ACCOUNT-001", f"{x} cannot be counted as a budget.", why="A budget is a finite number, zero or more.")
