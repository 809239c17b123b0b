"""Zero-concentrated differential privacy, and the way from it to (epsilon, delta) and back.

A mechanism is rho-zCDP when its Rényi divergence of every order alpha > 1 between neighbours is at most rho alpha.
Every order gives a valid pair (epsilon, delta),

    log delta = (alpha - 1)(alpha rho - epsilon) + alpha log(1 - 1/alpha) - log(alpha - 1),

so the search for the best order can cost accuracy but never soundness. What is left is rounding: every result is moved to
the safe side by more than the floating-point error of the formula.

Notes
-----
Ref: Canonne, Kamath, Steinke 2020 (The Discrete Gaussian for Differential Privacy), Proposition 12 and Corollary 13;
Bun and Steinke 2016, Proposition 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shoal.errors import MechanismError

_SLACK = 2.0**-47
"""Error of a sum of a handful of terms, in units of the sum of their sizes: 32 times what correctly rounded terms need."""

_WIDEST = 300.0
_STEPS = 64
TINIEST = 1e-300
"""The least delta that is ever stated: below it floats begin to lose digits."""


def rho_to_delta(rho: float, epsilon: float) -> float:
    """The smallest delta that a rho-zCDP release is known to have at epsilon; never less than that.

    Examples
    --------
    >>> round(rho_to_delta(0.02436, 1.0) / 1e-6, 2)
    1.0
    """
    _check(rho=rho, epsilon=epsilon)
    x = _best_order(lambda x: _slope(x, rho, epsilon))
    terms = (x * ((1 + x) * rho), -x * epsilon, *_order_terms(x))
    return max(TINIEST, math.exp(min(0.0, math.fsum(terms) + _slack(terms))))


def rho_to_epsilon(rho: float, delta: float) -> float:
    """The smallest epsilon that a rho-zCDP release is known to have at delta; never less than that.

    Examples
    --------
    >>> round(rho_to_epsilon(0.02436, 1e-6), 3)
    1.0
    """
    _check(rho=rho)
    _check_delta(delta)

    def parts(x: float) -> tuple[float, ...]:
        return (x * ((1 + x) * rho), -math.log(delta), *_order_terms(x))

    x = _best_order(lambda x: _slope(x, rho, math.fsum(parts(x)) / x))
    terms = parts(x)
    return max(0.0, (math.fsum(terms) + 2 * _slack(terms)) / x)


def epsilon_to_rho(epsilon: float, delta: float) -> float:
    """The largest rho whose release is (epsilon, delta)-DP; never more than that.

    Examples
    --------
    >>> round(epsilon_to_rho(1.0, 1e-6), 5)
    0.02436
    """
    _check(epsilon=epsilon)
    _check_delta(delta)

    def parts(x: float) -> tuple[float, ...]:
        return (x * epsilon, math.log(delta), *(-term for term in _order_terms(x)))

    # Where no rho > 0 is good enough for an order, its rho is negative; the slope is then that of a better order to come.
    x = _best_order(lambda x: _slope(x, math.fsum(parts(x)) / (x * (1 + x)), epsilon))
    terms = parts(x)
    return max(0.0, (math.fsum(terms) - 2 * _slack(terms)) / (x * (1 + x)))


def _order_terms(x: float) -> tuple[float, float]:
    """The terms in the order alone, alpha log(1 - 1/alpha) and -log(alpha - 1), where alpha = 1 + x."""
    return -(1 + x) * math.log1p(1 / x), -math.log(x)


def _slope(x: float, rho: float, epsilon: float) -> float:
    """How log delta rises with the order; it rises itself, since log delta is convex in the order."""
    return (1 + 2 * x) * rho - epsilon - math.log1p(1 / x)


def _best_order(slope: Callable[[float], float]) -> float:
    """The order minus 1 where the slope changes its sign, by bisection on its logarithm.

    For fixed epsilon and rho, log delta is convex in the order. So the orders that are good enough for a given triple
    form an interval, epsilon(order) and rho(order) have one valley or one peak, and the sign of the same slope leads there.
    """
    low, high = -_WIDEST, _WIDEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(math.exp(middle)) < 0 else (low, middle)
    return math.exp((low + high) / 2)


def _slack(terms: tuple[float, ...]) -> float:
    return _SLACK * (1 + math.fsum(abs(term) for term in terms))


def _check(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise MechanismError("MECH-001", f"{name} = {value}: it must be positive and finite.")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise MechanismError(
            "MECH-001",
            f"delta = {delta}: a zero-concentrated guarantee is converted at a delta between 0 and 1, both excluded.",
            fix="Give a delta well below one in the number of units, such as 1e-6.",
        )
