"""Spending limits, their usage, and the errors raised when a release exceeds one.

`shoal.privacy.ledger.state` calls these functions before a release is reserved and before it is
sent.

A limit caps what is released about one unit in one calendar period of UTC: the plain sum of
epsilon, the sum of delta, the number of releases, or several of these. A limit without a source
counts all data sources together, since the same person may be in several of them. A limit for a
feature counts the releases that read the feature. That is a cap on releases, not a claim about the
fact: the feature may be guessed from others.

*Spent* releases count in the period in which they were sent. *Held* releases (reserved or stored,
not yet sent) may be sent at any time, so they count in the present period whenever they were
reserved. A release dated after the present (because the clock was set back) also counts.

Neighbouring relations: a release under add-remove counts twice under replace, since exchanging a
unit is removing one and adding one. The converse does not hold: a release under replace may show
whether the unit is present at all, so a limit under add-remove cannot be kept together with it, and
the release is refused.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

from shoal.errors import BudgetError, UsageError
from shoal.privacy.events import Event, Relation, Unit
from shoal.privacy.rounding import (
    DELTA_GRAINS,
    compute_delta_growth,
    delta_grains_down,
    delta_grains_up,
    format_epsilon,
    format_epsilon_down,
    from_delta_grains,
    from_grains,
    grains_down,
    grains_up,
)

_MAX_CAP = 1_000_000


class Period(StrEnum):
    """The period of a limit, by the calendar of UTC."""

    DAY = "day"
    MONTH = "month"
    YEAR = "year"
    EVER = "ever"

    def start(self, at: datetime) -> datetime:
        """Return the beginning of the period that contains a moment."""
        if self is Period.EVER:
            return datetime.min.replace(tzinfo=UTC)
        midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight.replace(
            day=midnight.day if self is Period.DAY else 1,
            month=1 if self is Period.YEAR else midnight.month,
        )

    @property
    def adjective(self) -> str:
        """The adjective for messages, as in "your yearly limit"."""
        return {
            Period.DAY: "daily",
            Period.MONTH: "monthly",
            Period.YEAR: "yearly",
            Period.EVER: "overall",
        }[self]


class Charge(Protocol):
    """One held or spent release that counts towards limits."""

    @property
    def study(self) -> str:
        """Digest of the manifest."""
        ...

    @property
    def source(self) -> str:
        """The participant's data source that it is about."""
        ...

    @property
    def event(self) -> Event:
        """The release, priced."""
        ...

    @property
    def cost(self) -> int:
        """Its epsilon, in grains."""
        ...

    @property
    def delta(self) -> int:
        """Its delta, in grains of delta."""
        ...

    @property
    def spent_at(self) -> datetime | None:
        """When it was marked as sending; None while it is held."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """A cap on what may be released about one unit in one period.

    Parameters
    ----------
    grains
        Cap on the plain sum of epsilon, in grains; None for a cap on the number of releases alone.
    source, feature
        One data source, one feature; None for all together. A release that names no features counts
        for every feature.
    releases
        Cap on the number of releases, of either relation.
    delta_grains
        Cap on the plain sum of delta, in grains of delta.

    Examples
    --------
    >>> print(Limit(Unit.PERSON, grains_down(4.0)))
    person, replace, all sources together, a year
    >>> print(
    ...     Limit(
    ...         Unit.RECORD,
    ...         None,
    ...         period=Period.EVER,
    ...         source="clinic.csv",
    ...         feature="age",
    ...         releases=3,
    ...     )
    ... )
    record, replace, source clinic.csv, releases that read age, in all
    """

    unit: Unit
    grains: int | None
    relation: Relation = Relation.REPLACE
    period: Period = Period.YEAR
    source: str | None = None
    feature: str | None = None
    releases: int | None = None
    delta_grains: int | None = None

    def __post_init__(self) -> None:
        caps = {
            "epsilon": None if self.grains is None else from_grains(self.grains),
            "number of releases": self.releases,
        }
        if self.delta_grains is not None and not 0 <= self.delta_grains < DELTA_GRAINS:
            delta = from_delta_grains(self.delta_grains)
            raise UsageError(
                "LEDGER-009",
                f"A limit cannot have {delta} as its delta.",
                why="It must be 0 or more, and below 1.",
            )
        for name, cap in caps.items():
            if cap is not None and not 0 <= cap <= _MAX_CAP:
                raise UsageError(
                    "LEDGER-009",
                    f"A limit cannot have {cap} as its {name}.",
                    why=f"It must be from 0 to {_MAX_CAP}.",
                )
        for name, text in (("source", self.source), ("feature", self.feature)):
            if text is not None:
                check_ledger_text(name, text)

    def __str__(self) -> str:
        parts = [
            self.unit,
            self.relation,
            "all sources together" if self.source is None else f"source {self.source}",
        ]
        parts += [] if self.feature is None else [f"releases that read {self.feature}"]
        return ", ".join([*parts, "in all" if self.period is Period.EVER else f"a {self.period}"])

    @property
    def key(self) -> tuple[Unit, Relation, Period, str | None, str | None]:
        """The subject of the limit; a new limit with the same key replaces the old one."""
        return self.unit, self.relation, self.period, self.source, self.feature

    def applies_to(self, event: Event, source: str) -> bool:
        """Return whether this limit counts a release."""
        reads = self.feature is None or not event.reads or self.feature in event.reads
        return reads and self.unit == event.scope.unit and self.source in (None, source)

    def get_relation_factor(self, relation: Relation) -> int | None:
        """Return how often a release of a relation counts; None if no multiple is a bound."""
        if relation == self.relation:
            return 1
        return 2 if self.relation == Relation.REPLACE else None

    def compute_delta_cost(self, event: Event, delta: int) -> int:
        """Return what a release's delta, in grains, counts as under this limit's relation.

        It is the maximum if the release implies no bound under this relation.
        """
        if delta == 0 or event.scope.relation == self.relation:
            return delta
        if self.relation is not Relation.REPLACE:
            return DELTA_GRAINS
        return min(DELTA_GRAINS, math.ceil(Fraction(compute_delta_growth(event.epsilon)) * delta))

    @property
    def has_cap(self) -> bool:
        """True if it caps anything; a limit without a cap removes the limit that it replaces."""
        return not self.grains is self.releases is self.delta_grains is None

    def format_command(self, option: str) -> str:
        """Return the command that changes this limit."""
        parts = [option, *([] if self.period is Period.YEAR else [f"--per {self.period}"])]
        parts += [] if self.unit is Unit.PERSON else [f"--unit {self.unit}"]
        parts += [] if self.relation is Relation.REPLACE else [f"--relation {self.relation}"]
        parts += [] if self.source is None else [f"--source {shlex.quote(self.source)}"]
        parts += [] if self.feature is None else [f"--feature {shlex.quote(self.feature)}"]
        return " ".join(["shoal ledger limit", *parts])


DEFAULT_LIMITS = tuple(
    Limit(unit, grains_down(4.0), delta_grains=delta_grains_down(1e-4))
    for unit in (Unit.PERSON, Unit.RECORD, Unit.UPDATE)
)
"""The limits of a new ledger. A weight has none: an update is charged as a whole."""


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """Usage of a limit in the period that began at ``since``.

    Sums are in grains, as the limit counts them. ``unpriced`` is the number of releases that the
    limit covers but cannot count; ``delta`` is spent and held together.
    """

    limit: Limit
    since: datetime
    spent: int
    held: int
    releases: int
    studies: int
    unpriced: int
    delta: int

    @property
    def remaining(self) -> int | None:
        """Grains that may still be reserved.

        None if the limit does not cap epsilon.
        """
        if self.limit.grains is None:
            return None
        return 0 if self.unpriced else max(0, self.limit.grains - self.spent - self.held)


def measure_usage(
    limit: Limit, charges: Iterable[Charge], at: datetime, *, spent_only: bool = False
) -> LimitUsage:
    """Return the usage of a limit at a moment, with or without held releases."""
    since = limit.period.start(at)
    sums = {True: 0, False: 0}
    studies, releases, unpriced, delta = set(), 0, 0, 0
    for charge in charges:
        when = charge.spent_at
        is_counted = not spent_only if when is None else when >= since
        if not (is_counted and limit.applies_to(charge.event, charge.source)):
            continue
        factor = limit.get_relation_factor(charge.event.scope.relation)
        sums[when is None] += charge.cost * (factor or 0)
        unpriced += factor is None
        delta += limit.compute_delta_cost(charge.event, charge.delta)
        releases += 1
        studies.add(charge.study)
    return LimitUsage(
        limit, since, sums[False], sums[True], releases, len(studies), unpriced, delta
    )


def check_ledger_text(name: str, text: str, max_length: int = 500) -> None:
    """Reject a text that cannot be stored or displayed safely in a terminal."""
    if not isinstance(text, str) or not text or len(text) > max_length or not text.isprintable():
        raise UsageError(
            "LEDGER-009",
            f"{text!r:.60} cannot be the {name} of a ledger entry.",
            fix="Use a short, printable text.",
        )


def refuse_if_over(
    limits: Iterable[Limit],
    charges: Collection[Charge],
    event: Event,
    source: str,
    at: datetime,
    *,
    spent_only: bool = False,
) -> None:
    """Check a release against every limit that covers it; refuse with the numbers.

    Parameters
    ----------
    charges
        The ledger's charges, without the release itself.
    at
        The present.
    spent_only
        Leave out held releases: for the check before sending, when the release itself is held.
    """
    concerned = [limit for limit in limits if limit.applies_to(event, source)]
    if not _has_epsilon_cap(concerned):
        raise BudgetError(
            "BUDGET-001",
            f"No limit of yours bounds the epsilon of a release about a {event.scope.unit} from "
            f"source {source}.",
            why="Without a limit the ledger would never refuse a release.",
            fix=f"Set one with: {Limit(event.scope.unit, 0).format_command('--epsilon 4')}",
        )
    if event.delta > 0 and not _has_delta_cap(concerned):
        raise BudgetError(
            "BUDGET-001",
            f"No limit of yours bounds the delta of a release about a {event.scope.unit} from "
            f"source {source}.",
            why="Deltas add up, and a sum of 1 or more is no guarantee.",
            fix=f"Set one with: {Limit(event.scope.unit, 0).format_command('--delta 1e-4')}",
        )
    for limit in concerned:
        usage = measure_usage(limit, charges, at, spent_only=spent_only)
        _check_release_count(usage)
        if limit.grains is not None:
            _check_epsilon(usage, limit.grains, event)
        if limit.delta_grains is not None and event.delta > 0:
            _check_delta(usage, limit.delta_grains, event)


def compute_remaining(
    limits: Iterable[Limit], charges: Collection[Charge], event: Event, source: str, at: datetime
) -> int:
    """Return the largest cost at which a release like this one would be accepted.

    The cost is in grains under the event's own relation.
    """
    concerned = [limit for limit in limits if limit.applies_to(event, source)]
    rooms = (
        []
        if _has_epsilon_cap(concerned) and (event.delta == 0 or _has_delta_cap(concerned))
        else [0]
    )
    for limit in concerned:
        usage, factor = (
            measure_usage(limit, charges, at),
            limit.get_relation_factor(event.scope.relation),
        )
        if usage.remaining is not None:
            rooms.append(usage.remaining // factor if factor else 0)
        if limit.releases is not None and usage.releases >= limit.releases:
            rooms.append(0)
        if (
            limit.delta_grains is not None
            and usage.delta + limit.compute_delta_cost(event, delta_grains_up(event.delta))
            > limit.delta_grains
        ):
            rooms.append(0)
    return min(rooms)


def format_remaining(grains: int, digits: int = 4) -> str:
    """Format the rest of a limit, rounded down.

    Examples
    --------
    >>> format_remaining(700_000_000_000), format_remaining(999_999_999_999), format_remaining(0)
    ('0.7', '0.9999', '0')
    """
    return format_epsilon(Decimal(f"{grains // 10 ** (12 - digits)}e-{digits}"), digits=40)


def _has_epsilon_cap(concerned: Iterable[Limit]) -> bool:
    """Return whether a limit for all features bounds the sum of epsilon."""
    return any(limit.grains is not None and limit.feature is None for limit in concerned)


def _has_delta_cap(concerned: Iterable[Limit]) -> bool:
    """Return whether a limit for all features bounds the sum of delta."""
    return any(limit.delta_grains is not None and limit.feature is None for limit in concerned)


def _check_delta(usage: LimitUsage, cap: int, event: Event) -> None:
    limit = usage.limit
    cost = limit.compute_delta_cost(event, delta_grains_up(event.delta))
    if usage.delta + cost <= cap:
        return
    needed = format_epsilon(from_delta_grains(usage.delta + cost))
    raise BudgetError(
        "BUDGET-006",
        f"This study asks for delta {format_epsilon(event.delta)}, which counts as "
        f"{format_epsilon(from_delta_grains(cost))}; "
        f"your {limit.period.adjective} limit is {format_epsilon_down(from_delta_grains(cap))} "
        f"({limit}).",
        why=f"{_format_studies(usage)} used {format_epsilon(from_delta_grains(usage.delta))} "
        "(see: shoal ledger show). Delta is the probability of no protection.",
        fix=f"Ask the study for a smaller delta, or raise your own limit with: "
        f"{limit.format_command(f'--delta {needed}')}",
    )


def _check_release_count(usage: LimitUsage) -> None:
    limit = usage.limit
    if limit.releases is not None and usage.releases >= limit.releases:
        raise BudgetError(
            "BUDGET-003",
            f"This would be release {usage.releases + 1}; your {limit.period.adjective} limit is "
            f"{limit.releases} ({limit}).",
            why=f"{_format_studies(usage)} made {usage.releases} (see: shoal ledger show).",
            fix="Raise your own limit with: "
            f"{limit.format_command(f'--releases {usage.releases + 1}')}",
        )


def _check_epsilon(usage: LimitUsage, grains: int, event: Event) -> None:
    limit = usage.limit
    factor = limit.get_relation_factor(event.scope.relation)
    if factor is None or usage.unpriced:
        n_before = (
            ""
            if factor is None
            else f" {usage.unpriced} such releases count in this period already."
        )
        raise BudgetError(
            "BUDGET-001",
            f"Your {limit.period.adjective} limit of epsilon "
            f"{format_epsilon_down(from_grains(grains))} ({limit}) cannot be kept.",
            why=f"A release under replace may show whether the {limit.unit} is present at all, "
            f"which no add-remove epsilon bounds.{n_before}",
            fix="Use a limit under replace instead; remove this one with: "
            f"{limit.format_command('--remove')}",
        )
    cost = factor * grains_up(event.epsilon)
    used = usage.spent + usage.held
    if used + cost <= grains:
        return
    asked = f"epsilon {format_epsilon(event.epsilon)} ({event.scope.unit}, {event.scope.relation})"
    asked += (
        f", which counts as {format_epsilon(from_grains(cost))} under replace"
        if factor == 2
        else ""
    )
    left = max(0, grains - used)
    about = "" if limit.source is None and limit.feature is None else f" ({limit})"
    held = (
        f", {format_epsilon(from_grains(usage.held))} of it held for releases not yet sent"
        if usage.held
        else ""
    )
    smaller = (
        f"Ask the study for epsilon <= {format_remaining(left // factor)}, or raise"
        if left
        else "Raise"
    )
    whole = (
        f"your {limit.period.adjective} limit of {format_epsilon_down(from_grains(grains))}{about}"
    )
    raise BudgetError(
        "BUDGET-002",
        f"This study asks for {asked}; {format_remaining(left)} of {whole} is left.",
        why=f"{_format_studies(usage)} used {format_epsilon(from_grains(used))}{held} (see: shoal "
        "ledger show).",
        fix=f"{smaller} your own limit with: "
        f"{limit.format_command(f'--epsilon {format_epsilon(from_grains(used + cost))}')}",
    )


def _format_studies(usage: LimitUsage) -> str:
    return "1 study" if usage.studies == 1 else f"{usage.studies} studies"
