"""What several releases cost together: pure functions from events to one (epsilon, delta).

The plain sum needs no assumption and is what the ledger counts. For a small delta, zero-concentrated composition is tighter for
many small releases, and with the ``accounting`` extra the privacy loss distributions of the worst mechanisms are tighter still.

Nothing is guessed: an event of an unknown mechanism is refused, and events are added only where they protect the same unit
between the same neighbours. Every figure is rounded up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import SpecError, UsageError
from shoal.privacy.events import Event, Relation, Scope
from shoal.privacy.rounding import delta_growth, float_from_grains, grains_up, show, sum_up
from shoal.privacy.zcdp import rho_to_epsilon

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
"""Names of mechanisms that can be priced. A name is never taken out, nor given another meaning."""

_UP = 1 + 1e-14
_DOUBT = 1e-9
"""More than the transforms of `by_pld` can lose of a delta; tested against exact sums."""
_LARGEST = 700.0
"""Beyond it the exponential leaves the floats."""
_GRID = 128
_MAX_CELLS = 10**6


@dataclass(frozen=True, slots=True)
class Loss:
    """What releases cost together.

    Parameters
    ----------
    scope
        Unit, neighbouring relation, adversary.
    epsilon, delta
        The guarantee of all releases together, rounded up; a delta of 1 says that there is none.
    how
        How it was composed, in words.
    """

    scope: Scope
    epsilon: float
    delta: float
    how: str

    def __str__(self) -> str:
        return f"epsilon {show(self.epsilon)}, delta {show(self.delta)} ({self.scope}; {self.how})"

    def to_dict(self) -> dict[str, object]:
        """Plain data, for reports."""
        return {
            "unit": self.scope.unit.value,
            "relation": self.scope.relation.value,
            "adversary": self.scope.adversary,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "how": self.how,
        }


def sequential(events: Sequence[Event]) -> Loss:
    """The plain sum: releases about the same data, each chosen freely in the light of those before.

    Examples
    --------
    >>> from shoal.privacy.events import LOCAL_PERSON
    >>> tenth = Event("random-response", {"cardinality": 2}, LOCAL_PERSON, 0.1)
    >>> sequential([tenth, tenth, tenth]).epsilon
    0.3
    """
    scope = common_scope(events)
    epsilon = float_from_grains(sum(grains_up(event.epsilon) for event in events))
    delta = min(1.0, sum_up(event.delta for event in events))
    return Loss(scope, epsilon, delta, f"plain sum of {_count(events)}")


def parallel(groups: Sequence[Sequence[Event]], *, is_fixed: bool = False) -> Loss:
    """Releases about disjoint data: each group of events reads only the units that belong to it.

    Parameters
    ----------
    groups
        The events about each part of the data, at least one in each.
    is_fixed
        Whether the part that a unit belongs to is public and stays the same when its data changes. If not, a unit that is
        replaced may leave one part and enter another, so that the two dearest parts are added. Adding or removing touches one part.
    """
    scope = common_scope([event for events in groups for event in events])
    losses = [sequential(events) for events in groups]
    n_touched = 2 if scope.relation is Relation.REPLACE and not is_fixed else 1
    dearest = sorted((grains_up(loss.epsilon) for loss in losses), reverse=True)[:n_touched]
    delta = min(1.0, sum_up(sorted((loss.delta for loss in losses), reverse=True)[:n_touched]))
    how = f"{len(losses)} parts of the data, of which one unit touches {n_touched}"
    return Loss(scope, float_from_grains(sum(dearest)), delta, how)


def as_replace(event: Event) -> Event:
    """An add-remove event, counted under replace: a value is removed, another is added, and each step costs once.

    Notes
    -----
    Epsilon doubles, delta grows by 1 + e^epsilon (`delta_growth`) and rho by 4
    (Bun and Steinke 2016, group privacy). The parameters remain those that the mechanism was run with.
    """
    if event.scope.relation is Relation.REPLACE:
        return event
    delta = event.delta * delta_growth(event.epsilon) * _UP
    if delta >= 1:
        raise SpecError(
            "ACCOUNT-004",
            f"A release of {event.mechanism} with epsilon {show(event.epsilon)} and delta {show(event.delta)} says nothing under replace.",
            why="Counted as one removal and one addition, its delta would reach 1.",
            fix="Use a smaller delta.",
        )
    return replace(
        event,
        scope=replace(event.scope, relation=Relation.REPLACE),
        epsilon=float_from_grains(2 * grains_up(event.epsilon)),
        delta=delta,
        rho=None if event.rho is None else 4 * event.rho,
    )


def by_zcdp(events: Sequence[Event], delta: float) -> Loss:
    """Composition by zero-concentrated privacy: rhos add up, and their sum is read at the target delta.

    Notes
    -----
    An (epsilon, delta) release is, but for an event of chance delta, binary random response of the same epsilon followed by something
    that does not look at the data (Kairouz, Oh, Viswanath 2015), whose divergences are those of `rho_of_pure`.
    So the deltas of such releases are taken off the target, and the rest goes by rho. (Bun and Steinke 2016, Section 8.)
    """
    scope = common_scope(events)
    _check_target(delta)
    left = delta - _approximate_delta(events)
    if left <= 0:
        raise _too_small(delta, events)
    rho = sum_up(_rho(event) for event in events)
    return Loss(scope, rho_to_epsilon(rho, left), delta, f"zero-concentrated sum of {_count(events)}, rho {show(rho)}")


def tightest(events: Sequence[Event], delta: float) -> Loss:
    """The smaller epsilon of the plain sum and the zero-concentrated sum, among those that keep to delta (0 asks for the plain sum)."""
    plain = sequential(events)
    if delta == 0:
        losses = [plain]
    else:
        _check_target(delta)
        losses = [plain, by_zcdp(events, delta)] if _approximate_delta(events) < delta else [plain]
    fair = [loss for loss in losses if loss.delta <= delta]
    if not fair:
        raise _too_small(delta, events)
    return min(fair, key=lambda loss: loss.epsilon)


def by_pld(events: Sequence[Event], delta: float) -> Loss:
    """Composition by privacy loss distributions; needs the ``accounting`` extra.

    Notes
    -----
    A release of (epsilon, delta) is dominated by the worst mechanism of that pair, whatever it is (Kairouz, Oh, Viswanath 2015). Releases
    with a rho and a delta (Gaussian noise) are first composed by zCDP at half of the target, and enter as one.
    Losses are rounded up to a grid, and the target is lowered by more than the transforms can lose, so the result is an upper bound.
    """
    scope = common_scope(events)
    _check_target(delta)
    if delta <= 10 * _DOUBT:
        raise SpecError(
            "ACCOUNT-004",
            f"delta = {show(delta)} is too small for privacy loss distributions.",
            why=f"Their transforms are certain to {_DOUBT:g} only.",
            fix="Use the zero-concentrated sum, by_zcdp.",
        )
    try:
        from dp_accounting.pld.common import DifferentialPrivacyParameters
        from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters
    except ImportError:
        raise UsageError(
            "USAGE-002", "Privacy loss distributions need dp-accounting, which is not installed.", fix="pip install 'shoal[accounting]'"
        ) from None
    concentrated = [event for event in events if event.rho is not None and event.delta > 0]
    pairs = Counter((event.epsilon, event.delta) for event in events if event.rho is None or event.delta == 0)
    if concentrated:
        pairs[by_zcdp(concentrated, delta / 2).epsilon, delta / 2] += 1
    if max(epsilon for epsilon, _ in pairs) > _LARGEST:
        raise SpecError("ACCOUNT-004", f"An epsilon above {_LARGEST:g} has no privacy loss distribution of use.", fix="Use the plain sum.")
    # A power of two below the smallest epsilon: equal epsilons fall on the grid without rounding.
    interval = min(epsilon for epsilon, _ in pairs) / _GRID
    while sum(epsilon * n for (epsilon, _), n in pairs.items()) / interval > _MAX_CELLS:
        interval *= 2
    parts = [from_privacy_parameters(DifferentialPrivacyParameters(*pair), interval).self_compose(n) for pair, n in pairs.items()]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    epsilon = float(whole.get_epsilon_for_delta(delta - _DOUBT)) * (1 + 1e-9)
    if not math.isfinite(epsilon):
        raise _too_small(delta, events)
    return Loss(scope, epsilon, delta, f"privacy loss distributions of {_count(events)}")


def rho_of_pure(epsilon: float) -> float:
    """The smallest rho of all releases that are epsilon-DP: epsilon tanh(epsilon / 2), rounded up.

    Notes
    -----
    The worst release is binary random response, for which the exponential of (alpha - 1) times the divergence of order alpha is
    cosh(x epsilon) / cosh(epsilon / 2), x = alpha - 1/2. As a function of s = x^2, log cosh(sqrt(s) epsilon) is concave, for its slope
    epsilon tanh(x epsilon) / (2 x) falls. So it stays below its tangent at s = 1/4, whose slope is epsilon tanh(epsilon / 2), and
    s - 1/4 = alpha (alpha - 1). Equal in the limit alpha -> 1, so no smaller rho will do. It is below epsilon^2 / 2.
    """
    return epsilon * math.tanh(epsilon / 2) * _UP


def common_scope(events: Sequence[Event]) -> Scope:
    """The scope of all events together: the same unit and relation, and an adversary that every one of them covers."""
    if not events:
        raise SpecError("ACCOUNT-004", "There is no release to account for.")
    for event in events:
        if event.mechanism not in MECHANISMS:
            raise SpecError(
                "ACCOUNT-003",
                f"{event.mechanism!r} is not a mechanism that this version can price.",
                why="What cannot be priced is refused, not guessed at.",
                fix="Update shoal, or leave this study.",
            )
    kinds = {(event.scope.unit, event.scope.relation) for event in events}
    if len(kinds) > 1:
        raise SpecError(
            "ACCOUNT-002",
            "These releases cannot be added up: " + "; ".join(sorted(f"{unit}, {relation}" for unit, relation in kinds)) + ".",
            why="An epsilon speaks about one unit and one neighbouring relation.",
            fix="Keep a total for each; add-remove may be counted under replace, at most twice.",
        )
    [(unit, relation)] = kinds
    return Scope(unit, relation, _joint_adversary([event.scope.adversary for event in events]))


def _joint_adversary(adversaries: Sequence[str]) -> str:
    """The part that all claims cover; who is protected against everyone is protected against each."""
    named = [name for name in dict.fromkeys(adversaries) if name != "everyone"]
    if len(named) <= 1:
        return named[0] if named else "everyone"
    return "anyone no stronger than each of: " + "; ".join(named)


def _rho(event: Event) -> float:
    if event.rho is None:
        return rho_of_pure(event.epsilon)
    return min(event.rho, rho_of_pure(event.epsilon)) if event.delta == 0 else event.rho


def _approximate_delta(events: Sequence[Event]) -> float:
    return sum_up(event.delta for event in events if event.rho is None) * _UP


def _check_target(delta: float) -> None:
    if not 0 < delta < 1:
        raise SpecError("ACCOUNT-004", f"delta = {delta}: the target is a chance between 0 and 1.", fix="Such as 1e-6.")


def _too_small(delta: float, events: Sequence[Event]) -> SpecError:
    return SpecError(
        "ACCOUNT-004",
        f"delta = {show(delta)} is not enough for {_count(events)}.",
        why=f"By themselves they fail with a chance of up to {show(sum_up(event.delta for event in events))}.",
        fix="Allow a larger delta in all, or a smaller one for each release.",
    )


def _count(events: Sequence[Event]) -> str:
    return "1 release" if len(events) == 1 else f"{len(events)} releases"
