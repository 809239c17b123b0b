"""Exact fixed-point epsilon and delta ("grains"), rounded in the safe direction.

The ledger, the accountant and everything that displays a budget call these functions.

A grain is 10^-12 of epsilon. A float represents its shortest decimal, the one that a person typed
or read, so 0.1 is a tenth and three of them are 0.3. Spent amounts are rounded up to a grain,
allowed amounts are rounded down, and sums of integers are exact. A displayed amount is never less
than was spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from shoal.errors import SpecError

GRAINS = 10**12
"""Grains in an epsilon of 1."""

DELTA_GRAINS = 10**18
"""Grains in a delta of 1; useful deltas are far below the 10^-12 of an epsilon's grain."""

_CONTEXT = Context(prec=2000, Emin=-999_999, Emax=999_999)
_SMALLEST_PLAIN, _LARGEST_PLAIN = -4, 15


def grains_up(x: float) -> int:
    """Return a spent epsilon in grains, never less than ``x``.

    Examples
    --------
    >>> 3 * grains_up(0.1) == grains_up(0.3)
    True
    """
    return math.ceil(_decimal_value(x) * GRAINS)


def grains_down(x: float) -> int:
    """Return an allowed epsilon in grains, never more than ``x``."""
    return math.floor(_decimal_value(x) * GRAINS)


def from_grains(n: int) -> Decimal:
    """Return grains as an exact decimal; the rest of a limit may be negative."""
    return Decimal(f"{n}e-12")


def delta_grains_up(x: float) -> int:
    """Return a spent delta in grains of delta, never less than ``x``."""
    return math.ceil(_decimal_value(x) * DELTA_GRAINS)


def delta_grains_down(x: float) -> int:
    """Return an allowed delta in grains of delta, never more than ``x``."""
    return math.floor(_decimal_value(x) * DELTA_GRAINS)


def from_delta_grains(n: int) -> Decimal:
    """Return grains of delta as an exact decimal."""
    return Decimal(f"{n}e-18")


def compute_delta_growth(epsilon: float, n_steps: int = 2) -> float:
    """Return the sum of e^(i epsilon) over i < n_steps, rounded up.

    It is the factor by which delta grows from neighbours to inputs that are `n_steps` neighbours
    apart. By default it is 1 + e^epsilon: a release under add-remove is counted under replace.

    Notes
    -----
    Two steps: P <= e^epsilon (e^epsilon Q + delta) + delta. Ref: docs/theory/proofs.md, One figure.
    """
    # Larger exponentials would overflow in the sum; no delta is useful long before that.
    powers = (math.exp(min(i * epsilon, 600.0)) for i in range(n_steps))
    return math.fsum(powers) * (1 + 1e-14)


def float_from_grains(n: int) -> float:
    """Return a float that is not less than n grains: its ``grains_up`` is at least ``n``."""
    return _float_up(Fraction(n, GRAINS))


def sum_up(values: Iterable[float]) -> float:
    """Add the decimals that the floats represent, rounded up to a float.

    Examples
    --------
    >>> sum_up([1e-6, 1e-6, 1e-6])
    3e-06
    """
    return _float_up(sum((_decimal_value(x) for x in values), Fraction(0)))


def format_epsilon(x: float | Decimal, digits: int = 4) -> str:
    """Format a budget or a probability, rounded up to a number of significant digits.

    Digits before the decimal point are never cut.

    Examples
    --------
    >>> format_epsilon(2.0), format_epsilon(2 / 3), format_epsilon(1e-6), format_epsilon(12345.6)
    ('2.0', '0.6667', '1e-06', '12346.0')
    """
    return _format_rounded(x, digits, ROUND_CEILING)


def format_epsilon_down(x: float | Decimal, digits: int = 4) -> str:
    """Format a limit or its remainder: like `format_epsilon`, but rounded down.

    Examples
    --------
    >>> format_epsilon_down(4.0), format_epsilon_down(2 / 3)
    ('4.0', '0.6666')
    """
    return _format_rounded(x, digits, ROUND_FLOOR)


def _format_rounded(x: float | Decimal, digits: int, rounding: str) -> str:
    exact = x if isinstance(x, Decimal) else Decimal(repr(float(x)))
    if not (exact.is_finite() and exact >= 0):
        raise _unusable_budget_error(x)
    if exact == 0:
        return "0"
    size = exact.adjusted()
    is_plain = _SMALLEST_PLAIN <= size < _LARGEST_PLAIN
    last = size - digits + 1
    rounded = exact.quantize(
        Decimal(1).scaleb(min(last, 0) if is_plain else last, _CONTEXT), rounding, _CONTEXT
    )
    if is_plain:
        whole, _, part = f"{rounded:f}".partition(".")
        return f"{whole}.{part.rstrip('0') or '0'}"
    mantissa, exponent = f"{rounded:.{digits - 1}e}".split("e")
    whole, _, part = mantissa.partition(".")
    return f"{whole}.{part}".rstrip("0").rstrip(".") + f"e{int(exponent):+03d}"


def compute_share(epsilon: float, part: Fraction) -> float:
    """Return a part of a budget, rounded down to a grain.

    The parts together never exceed the budget.

    Examples
    --------
    >>> compute_share(1.0, Fraction(1, 3)), compute_share(2.0, Fraction(35, 100))
    (0.333333333333, 0.7)
    """
    return math.floor(_decimal_value(epsilon) * part * GRAINS) / GRAINS


def _decimal_value(x: float) -> Fraction:
    if not (math.isfinite(x) and x >= 0):
        raise _unusable_budget_error(x)
    return Fraction(repr(float(x)))


def _float_up(x: Fraction) -> float:
    try:
        near = float(x)
    except OverflowError:
        raise _unusable_budget_error(math.inf) from None
    return near if _decimal_value(near) >= x else math.nextafter(near, math.inf)


def _unusable_budget_error(x: float | Decimal) -> SpecError:
    return SpecError(
        "ACCOUNT-001",
        f"{x} cannot be counted as a budget.",
        why="A budget is a finite number, zero or more.",
    )
