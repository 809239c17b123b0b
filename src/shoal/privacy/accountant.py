"""Compose events to (epsilon, delta): basic composition and zCDP.

Pure functions from events to one `Loss`. The plan of a study, the label and the ledger call them.

The plain sum needs no assumption. For a small delta, zero-concentrated composition is tighter for
many small releases.

Invariants: an event of an unknown mechanism is rejected, events are added only if they protect the
same unit between the same neighbours, and every figure is rounded up.

Zero-concentrated differential privacy (zCDP) and its conversion to and from (epsilon, delta): a
mechanism is rho-zCDP if its Rényi divergence of every order alpha > 1 between neighbours is at most
rho alpha. Every order gives a valid pair (epsilon, delta),

    log delta = (alpha - 1)(alpha rho - epsilon) + alpha log(1 - 1/alpha) - log(alpha - 1),

so the search for the best order can cost accuracy but never soundness. The remaining error is
rounding: every result is moved to the safe side by more than the floating-point error of the
formula.

Notes
-----
Ref: Canonne, Kamath, Steinke 2020 (The Discrete Gaussian for Differential Privacy), Proposition 12
and Corollary 13; Bun and Steinke 2016, Proposition 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.errors import MechanismError, SpecError
from shoal.privacy.events import Event, Scope
from shoal.privacy.rounding import (
    float_from_grains,
    format_epsilon,
    grains_up,
    sum_up,
)

_SLACK = 2.0**-47
"""Bound on the error of a sum of a few terms, relative to the sum of their magnitudes.

It is 32 times the bound for correctly rounded terms.
"""

_WIDEST = 300.0
_STEPS = 64
MIN_DELTA = 1e-300
"""The smallest delta that is ever stated: below it floats begin to lose digits."""


def rho_to_delta(rho: float, epsilon: float) -> float:
    """Return the smallest delta known for a rho-zCDP release at epsilon, rounded up.

    Examples
    --------
    >>> round(rho_to_delta(0.02436, 1.0) / 1e-6, 2)
    1.0
    """
    _check_positive(rho=rho, epsilon=epsilon)
    x = _best_order(lambda x: _slope(x, rho, epsilon))
    terms = (x * ((1 + x) * rho), -x * epsilon, *_order_terms(x))
    return max(MIN_DELTA, math.exp(min(0.0, math.fsum(terms) + _slack(terms))))


def rho_to_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon known for a rho-zCDP release at delta, rounded up.

    Examples
    --------
    >>> round(rho_to_epsilon(0.02436, 1e-6), 3)
    1.0
    """
    _check_positive(rho=rho)
    _check_delta(delta)

    def parts(x: float) -> tuple[float, ...]:
        return (x * ((1 + x) * rho), -math.log(delta), *_order_terms(x))

    x = _best_order(lambda x: _slope(x, rho, math.fsum(parts(x)) / x))
    terms = parts(x)
    return max(0.0, (math.fsum(terms) + 2 * _slack(terms)) / x)


def epsilon_to_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho for which a release is (epsilon, delta)-DP, rounded down.

    Examples
    --------
    >>> round(epsilon_to_rho(1.0, 1e-6), 5)
    0.02436
    """
    _check_positive(epsilon=epsilon)
    _check_delta(delta)

    def parts(x: float) -> tuple[float, ...]:
        return (x * epsilon, math.log(delta), *(-term for term in _order_terms(x)))

    # If no rho > 0 is small enough for an order, its rho is negative, and the slope still points to
    # a better order.
    x = _best_order(lambda x: _slope(x, math.fsum(parts(x)) / (x * (1 + x)), epsilon))
    terms = parts(x)
    return max(0.0, (math.fsum(terms) - 2 * _slack(terms)) / (x * (1 + x)))


def _order_terms(x: float) -> tuple[float, float]:
    """Return the terms that depend on the order alone.

    They are alpha log(1 - 1/alpha) and -log(alpha - 1), for alpha = 1 + x.
    """
    return -(1 + x) * math.log1p(1 / x), -math.log(x)


def _slope(x: float, rho: float, epsilon: float) -> float:
    """Return the derivative of log delta with respect to the order.

    It is increasing, since log delta is convex in the order.
    """
    return (1 + 2 * x) * rho - epsilon - math.log1p(1 / x)


def _best_order(slope: Callable[[float], float]) -> float:
    """Return the order minus 1 at which the slope changes sign.

    The search is a bisection on the logarithm of the order minus 1. For fixed epsilon and rho, log
    delta is convex in the order. So the orders that are good enough for a given triple form an
    interval, epsilon(order) and rho(order) have one minimum or one maximum, and the sign of the
    same slope leads there.
    """
    low, high = -_WIDEST, _WIDEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(math.exp(middle)) < 0 else (low, middle)
    return math.exp((low + high) / 2)


def _slack(terms: tuple[float, ...]) -> float:
    return _SLACK * (1 + math.fsum(abs(term) for term in terms))


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise MechanismError("MECH-001", f"{name} = {value}: it must be positive and finite.")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise MechanismError(
            "MECH-001",
            f"delta = {delta}: converting a zero-concentrated guarantee needs a delta between 0 "
            "and 1, both excluded.",
            fix="Give a delta well below one in the number of units, such as 1e-6.",
        )


MECHANISMS = frozenset(
    {
        "discrete-gaussian",
        "discrete-laplace",
        "exponential",
        "gaussian-shares",
        "k-closest",
        "laplace-shares",
        "noisy-max",
        "noisy-max-shares",
        "pq",
        "random-response",
        "rappor",
        "shuffled",
        "subset-selection",
    }
)
"""Names of mechanisms that can be priced; a name keeps its meaning for ever."""

_UP = 1 + 1e-14


@dataclass(frozen=True, slots=True)
class Loss:
    """The guarantee of several releases together.

    Parameters
    ----------
    epsilon, delta
        The guarantee of all releases together, rounded up; a delta of 1 means no guarantee.
    how
        Description of how it was composed.
    rho
        The zero-concentrated sum that epsilon and delta were converted from; None for a plain sum.
    """

    scope: Scope
    epsilon: float
    delta: float
    how: str
    rho: float | None = None

    def __str__(self) -> str:
        return (
            f"epsilon {format_epsilon(self.epsilon)}, delta {format_epsilon(self.delta)} "
            f"({self.scope}; {self.how})"
        )

    def to_dict(self) -> dict[str, object]:
        """Return plain data, for reports."""
        return {
            "unit": self.scope.unit.value,
            "relation": self.scope.relation.value,
            "adversary": self.scope.adversary,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "how": self.how,
        }


def compose_sequential(events: Sequence[Event]) -> Loss:
    """Add the epsilons and deltas of releases about the same data.

    Each release may depend on the results of the releases before it.

    Examples
    --------
    >>> from shoal.privacy.events import LOCAL_PERSON
    >>> tenth = Event("random-response", {"cardinality": 2}, LOCAL_PERSON, 0.1)
    >>> compose_sequential([tenth, tenth, tenth]).epsilon
    0.3
    """
    scope = find_common_scope(events)
    epsilon = float_from_grains(sum(grains_up(event.epsilon) for event in events))
    delta = min(1.0, sum_up(event.delta for event in events))
    return Loss(scope, epsilon, delta, f"plain sum of {_format_release_count(events)}")


def compose_zcdp(events: Sequence[Event], delta: float) -> Loss:
    """Compose by zero-concentrated privacy: add rhos and convert the sum at the target delta.

    Notes
    -----
    An (epsilon, delta) release is, except for an event of probability delta, binary random response
    of the same epsilon followed by a step that does not read the data (Kairouz, Oh, Viswanath
    2015); `pure_epsilon_to_rho` bounds its divergences. So the deltas of such releases are
    subtracted from the target, and the rest is composed by rho. (Bun and Steinke 2016, Section 8.)
    """
    scope = find_common_scope(events)
    _check_target(delta)
    left = delta - _approximate_delta(events)
    if left <= 0:
        raise _delta_too_small_error(delta, events)
    rho = sum_up(compute_event_rho(event) for event in events)
    return Loss(
        scope,
        rho_to_epsilon(rho, left),
        delta,
        f"zero-concentrated sum of {_format_release_count(events)}, rho {format_epsilon(rho)}",
        rho,
    )


def compose_tightest(events: Sequence[Event], delta: float) -> Loss:
    """Return the plain sum or the zero-concentrated sum, the one of smaller epsilon.

    Only sums that keep to delta count; a delta of 0 asks for the plain sum.
    """
    plain = compose_sequential(events)
    if delta == 0:
        losses = [plain]
    else:
        _check_target(delta)
        losses = (
            [plain, compose_zcdp(events, delta)] if _approximate_delta(events) < delta else [plain]
        )
    candidates = [loss for loss in losses if loss.delta <= delta]
    if not candidates:
        raise _delta_too_small_error(delta, events)
    return min(candidates, key=lambda loss: loss.epsilon)


def pure_epsilon_to_rho(epsilon: float) -> float:
    """Return the least rho of all epsilon-DP releases, epsilon tanh(epsilon / 2), rounded up.

    Notes
    -----
    The worst release is binary random response, for which the exponential of (alpha - 1) times the
    divergence of order alpha is cosh(x epsilon) / cosh(epsilon / 2), x = alpha - 1/2. As a function
    of s = x^2, log cosh(sqrt(s) epsilon) is concave, since its slope epsilon tanh(x epsilon) / (2
    x) falls. So it stays below its tangent at s = 1/4 of slope epsilon tanh(epsilon / 2), and s -
    1/4 = alpha (alpha - 1). The bound is attained in the limit alpha -> 1, so no smaller rho is
    valid. It is below epsilon^2 / 2.
    """
    return epsilon * math.tanh(epsilon / 2) * _UP


def find_common_scope(events: Sequence[Event]) -> Scope:
    """Return the scope of all events together.

    All must have the same unit and relation; the adversary is one that every event covers.
    """
    if not events:
        raise SpecError("ACCOUNT-004", "There is no release to account for.")
    for event in events:
        if event.mechanism not in MECHANISMS:
            raise SpecError(
                "ACCOUNT-003",
                f"{event.mechanism!r} is not a mechanism that this version can price.",
                why="The accountant rejects a release that it cannot price.",
                fix="Update shoal, or leave this study.",
            )
    kinds = {(event.scope.unit, event.scope.relation) for event in events}
    if len(kinds) > 1:
        raise SpecError(
            "ACCOUNT-002",
            "These releases cannot be added up: "
            + "; ".join(sorted(f"{unit}, {relation}" for unit, relation in kinds))
            + ".",
            why="An epsilon speaks about one unit and one neighbouring relation.",
            fix="Keep a total for each unit and relation; a release under add-remove counts at "
            "most twice under replace.",
        )
    [(unit, relation)] = kinds
    return Scope(unit, relation, _joint_adversary([event.scope.adversary for event in events]))


def _joint_adversary(adversaries: Sequence[str]) -> str:
    """Return the adversary that all claims cover.

    A claim against everyone covers every other adversary.
    """
    named = [name for name in dict.fromkeys(adversaries) if name != "everyone"]
    if len(named) <= 1:
        return named[0] if named else "everyone"
    return "anyone no stronger than each of: " + "; ".join(named)


def compute_event_rho(event: Event) -> float:
    """Return the rho of a release, or of the part that remains apart from its delta."""
    if event.rho is None:
        return pure_epsilon_to_rho(event.epsilon)
    return min(event.rho, pure_epsilon_to_rho(event.epsilon)) if event.delta == 0 else event.rho


def _approximate_delta(events: Sequence[Event]) -> float:
    return sum_up(event.delta for event in events if event.rho is None) * _UP


def _check_target(delta: float) -> None:
    if not 0 < delta < 1:
        raise SpecError(
            "ACCOUNT-004",
            f"delta = {delta}: the target must be a probability between 0 and 1.",
            fix="Give a target such as 1e-6.",
        )


def _delta_too_small_error(delta: float, events: Sequence[Event]) -> SpecError:
    return SpecError(
        "ACCOUNT-004",
        f"delta = {format_epsilon(delta)} is not enough for {_format_release_count(events)}.",
        why="Without composition they already fail with a probability of up to "
        f"{format_epsilon(sum_up(event.delta for event in events))}.",
        fix="Allow a larger total delta, or use a smaller delta for each release.",
    )


def _format_release_count(events: Sequence[Event]) -> str:
    return "1 release" if len(events) == 1 else f"{len(events)} releases"
