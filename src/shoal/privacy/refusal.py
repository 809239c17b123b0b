"""The sentences with which the ledger refuses: every limit that concerns a release is held against it, with the numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from decimal import Decimal

from shoal.errors import BudgetError
from shoal.privacy.events import Event
from shoal.privacy.limits import Charge, Limit, Usage, measure
from shoal.privacy.rounding import delta_grains_up, from_delta_grains, from_grains, grains_up, show, show_allowed


def refuse_if_over(
    limits: Iterable[Limit], charges: Collection[Charge], event: Event, source: str, at: datetime, *, spent_only: bool = False
) -> None:
    """Check a release against every limit that concerns it, and refuse with the numbers.

    Parameters
    ----------
    limits, charges
        What the ledger holds; the release itself is not among the charges.
    event, source
        The release.
    at
        The present.
    spent_only
        Leave out what is held: the question at the moment of sending, when the release itself was held before.
    """
    concerned = [limit for limit in limits if limit.concerns(event, source)]
    if not _bound_epsilon(concerned):
        raise BudgetError(
            "BUDGET-001",
            f"No limit of yours bounds the epsilon of a release about a {event.scope.unit} from source {source}.",
            why="Without a limit nothing would ever be refused.",
            fix=f"Set one with: {Limit(event.scope.unit, 0).command('--epsilon 4')}",
        )
    if event.delta > 0 and not _bound_delta(concerned):
        raise BudgetError(
            "BUDGET-001",
            f"No limit of yours bounds the delta of a release about a {event.scope.unit} from source {source}.",
            why="Deltas add up, and from 1 on nothing is promised any more.",
            fix=f"Set one with: {Limit(event.scope.unit, 0).command('--delta 1e-4')}",
        )
    for limit in concerned:
        usage = measure(limit, charges, at, spent_only=spent_only)
        _check_number(usage)
        if limit.grains is not None:
            _check_epsilon(usage, limit.grains, event)
        if limit.delta_grains is not None and event.delta > 0:
            _check_delta(usage, limit.delta_grains, event)


def left_for(limits: Iterable[Limit], charges: Collection[Charge], event: Event, source: str, at: datetime) -> int:
    """The largest cost, in grains under the event's own relation, at which a release like this one would not be refused."""
    concerned = [limit for limit in limits if limit.concerns(event, source)]
    rooms = [] if _bound_epsilon(concerned) and (event.delta == 0 or _bound_delta(concerned)) else [0]
    for limit in concerned:
        usage, factor = measure(limit, charges, at), limit.factor(event.scope.relation)
        if usage.left is not None:
            rooms.append(usage.left // factor if factor else 0)
        if limit.releases is not None and usage.releases >= limit.releases:
            rooms.append(0)
        if limit.delta_grains is not None and usage.delta + limit.delta_cost(event, delta_grains_up(event.delta)) > limit.delta_grains:
            rooms.append(0)
    return min(rooms)


def show_left(grains: int, digits: int = 4) -> str:
    """What is left, for people: rounded down.

    Examples
    --------
    >>> show_left(700_000_000_000), show_left(999_999_999_999), show_left(0)
    ('0.7', '0.9999', '0')
    """
    return show(Decimal(f"{grains // 10 ** (12 - digits)}e-{digits}"), digits=40)


def _bound_epsilon(concerned: Iterable[Limit]) -> bool:
    """Whether some limit bounds the sum of epsilon, whatever is read."""
    return any(limit.grains is not None and limit.feature is None for limit in concerned)


def _bound_delta(concerned: Iterable[Limit]) -> bool:
    """Whether some limit bounds the sum of delta, whatever is read."""
    return any(limit.delta_grains is not None and limit.feature is None for limit in concerned)


def _check_delta(usage: Usage, cap: int, event: Event) -> None:
    limit = usage.limit
    cost = limit.delta_cost(event, delta_grains_up(event.delta))
    if usage.delta + cost <= cap:
        return
    raise BudgetError(
        "BUDGET-006",
        f"This study asks for delta {show(event.delta)}, which counts as {show(from_delta_grains(cost))}; "
        f"your {limit.period.adjective} limit is {show_allowed(from_delta_grains(cap))} ({limit}).",
        why=f"{_studies(usage)} used {show(from_delta_grains(usage.delta))} (see: shoal ledger show); deltas are chances of no protection.",
        fix=f"Ask the study for a smaller delta, or raise your own limit with: "
        f"{limit.command(f'--delta {show(from_delta_grains(usage.delta + cost))}')}",
    )


def _check_number(usage: Usage) -> None:
    limit = usage.limit
    if limit.releases is not None and usage.releases >= limit.releases:
        raise BudgetError(
            "BUDGET-003",
            f"This would be release {usage.releases + 1}; your {limit.period.adjective} limit is {limit.releases} ({limit}).",
            why=f"{_studies(usage)} made {usage.releases} (see: shoal ledger show).",
            fix=f"Raise your own limit with: {limit.command(f'--releases {usage.releases + 1}')}",
        )


def _check_epsilon(usage: Usage, grains: int, event: Event) -> None:
    limit = usage.limit
    factor = limit.factor(event.scope.relation)
    if factor is None or usage.unpriced:
        n_before = "" if factor is None else f" {usage.unpriced} such releases count in this period already."
        raise BudgetError(
            "BUDGET-001",
            f"Your {limit.period.adjective} limit of epsilon {show_allowed(from_grains(grains))} ({limit}) cannot be kept.",
            why=f"A release under replace may show whether the {limit.unit} is there at all, which no add-remove epsilon bounds.{n_before}",
            fix=f"Count under replace instead; this limit goes with: {limit.command('--remove')}",
        )
    cost = factor * grains_up(event.epsilon)
    used = usage.spent + usage.held
    if used + cost <= grains:
        return
    asked = f"epsilon {show(event.epsilon)} ({event.scope.unit}, {event.scope.relation})"
    asked += f", which counts as {show(from_grains(cost))} under replace" if factor == 2 else ""
    left = max(0, grains - used)
    about = "" if limit.source is None and limit.feature is None else f" ({limit})"
    held = f", {show(from_grains(usage.held))} of it held for what is not yet sent" if usage.held else ""
    smaller = f"Ask the study for epsilon <= {show_left(left // factor)}, or raise" if left else "Raise"
    whole = f"your {limit.period.adjective} limit of {show_allowed(from_grains(grains))}{about}"
    raise BudgetError(
        "BUDGET-002",
        f"This study asks for {asked}; {show_left(left)} of {whole} is left.",
        why=f"{_studies(usage)} used {show(from_grains(used))}{held} (see: shoal ledger show).",
        fix=f"{smaller} your own limit with: {limit.command(f'--epsilon {show(from_grains(used + cost))}')}",
    )


def _studies(usage: Usage) -> str:
    return "1 study" if usage.studies == 1 else f"{usage.studies} studies"
