"""Spending limits, their usage, and the errors raised when a release exceeds one.

`shoal.privacy.ledger.state` calls these functions before a release is reserved and before it is
sent.

A limit caps what is released in one calendar period of UTC: the sum of epsilon, the sum of delta,
the number of releases, or several of these. A limit without a source counts all data sources
together, since the same person may be in several of them. A limit for a feature counts the releases
that read the feature. That is a cap on releases, not a claim about the fact: the feature may be
guessed from others.

A limit without a unit counts releases of all units together, as what they reveal about one person.
The default limit of a new ledger is such a limit. Under replace:

- unit person: the release, once;
- unit update: once, since an update protects all rows that it was made from;
- unit record: ``max_rows_per_person`` times, since a person may have that many rows. The owner of
  the ledger declares this number. By default it is 1: the limit then protects one row, as the
  release does;
- unit weight: not countable, since one weight says nothing about the others. Peers charge the whole
  update, so the ledger never has such a release.

Add-remove counts twice under replace, since exchanging a unit is removing one and adding one. The
converse does not hold: a release under replace may show whether the unit is present at all, so a
limit under add-remove cannot be kept together with it, and the release is refused.

*Spent* releases count in the period in which they were sent. *Held* releases (reserved or stored,
not yet sent) may be sent at any time, so they count in the present period whenever they were
reserved. A release dated after the present (because the clock was set back) also counts. A study
that is priced as a whole (`shoal.privacy.ledger.charges`) counts in every period in which one of
its releases counts.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from shoal.errors import BudgetError, UsageError
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.ledger.charges import Charge, count_price, price_charges
from shoal.privacy.rounding import (
    DELTA_GRAINS,
    delta_grains_down,
    format_epsilon,
    format_epsilon_down,
    from_delta_grains,
    from_grains,
    grains_down,
)

_MAX_CAP = 1_000_000
_MAX_ROWS = 10_000


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


@dataclass(frozen=True, slots=True)
class Limit:
    """A cap on what may be released about one unit in one period.

    Parameters
    ----------
    unit
        The unit of the releases that count; None for all releases, as what they reveal about one
        person.
    grains
        Cap on the sum of epsilon, in grains; None for a cap on the number of releases alone.
    source, feature
        One data source, one feature; None for all together. A release that names no features counts
        for every feature.
    releases
        Cap on the number of releases, of either relation.
    delta_grains
        Cap on the sum of delta, in grains of delta.
    max_rows_per_person
        For a limit on all units: how often a release about one record counts.

    Examples
    --------
    >>> print(Limit(None, grains_down(4.0)))
    all units together, replace, all sources together, a year
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

    unit: Unit | None
    grains: int | None
    relation: Relation = Relation.REPLACE
    period: Period = Period.YEAR
    source: str | None = None
    feature: str | None = None
    releases: int | None = None
    delta_grains: int | None = None
    max_rows_per_person: int = 1

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
        if not 1 <= self.max_rows_per_person <= (_MAX_ROWS if self.unit is None else 1):
            raise UsageError(
                "LEDGER-009",
                f"A limit cannot count {self.max_rows_per_person} rows for each person.",
                why=f"The number must be from 1 to {_MAX_ROWS:,}, and it has a meaning only for a "
                "limit on all units together.",
            )
        for name, text in (("source", self.source), ("feature", self.feature)):
            if text is not None:
                check_ledger_text(name, text)

    def __str__(self) -> str:
        rows = self.max_rows_per_person
        parts = [
            *([] if self.unit is not None else ["all units together"]),
            *([] if rows == 1 else [f"up to {rows} rows for each person"]),
            *([] if self.unit is None else [self.unit]),
            self.relation,
            "all sources together" if self.source is None else f"source {self.source}",
        ]
        parts += [] if self.feature is None else [f"releases that read {self.feature}"]
        return ", ".join([*parts, "in all" if self.period is Period.EVER else f"a {self.period}"])

    @property
    def key(self) -> tuple[Unit | None, Relation, Period, str | None, str | None]:
        """The subject of the limit; a new limit with the same key replaces the old one."""
        return self.unit, self.relation, self.period, self.source, self.feature

    def applies_to(self, event: Event, source: str) -> bool:
        """Return whether this limit counts a release."""
        reads = self.feature is None or not event.reads or self.feature in event.reads
        is_unit = self.unit in (None, event.scope.unit)
        return reads and is_unit and self.source in (None, source)

    def get_factor(self, scope: Scope) -> int | None:
        """Return how often a release of a scope counts; None if no multiple is a bound.

        The factor is the number of neighbouring inputs from one value of the limit's unit to
        another value of it.
        """
        if self.unit is None and scope.unit == Unit.WEIGHT:
            return None
        rows = self.max_rows_per_person if scope.unit == Unit.RECORD else 1
        if scope.relation == self.relation:
            return rows
        return 2 * rows if self.relation == Relation.REPLACE else None

    @property
    def has_cap(self) -> bool:
        """True if it caps anything; a limit without a cap removes the limit that it replaces."""
        return not self.grains is self.releases is self.delta_grains is None

    def format_command(self, option: str) -> str:
        """Return the command that changes this limit."""
        parts = [option, *([] if self.period is Period.YEAR else [f"--per {self.period}"])]
        parts += [] if self.unit is None else [f"--unit {self.unit}"]
        parts += [] if self.relation is Relation.REPLACE else [f"--relation {self.relation}"]
        parts += [] if self.source is None else [f"--source {shlex.quote(self.source)}"]
        parts += [] if self.feature is None else [f"--feature {shlex.quote(self.feature)}"]
        return " ".join(["shoal ledger limit", *parts])


DEFAULT_LIMITS = (Limit(None, grains_down(4.0), delta_grains=delta_grains_down(1e-4)),)
"""The limits of a new ledger: one, for everything."""


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
    counted = [
        charge
        for charge in charges
        if (not spent_only if charge.spent_at is None else charge.spent_at >= since)
        and limit.applies_to(charge.event, charge.source)
    ]
    spent, _, _ = _sum_prices(limit, (one for one in counted if one.spent_at is not None))
    total, delta, unpriced = _sum_prices(limit, counted)
    studies = {charge.study for charge in counted}
    return LimitUsage(
        limit, since, spent, max(0, total - spent), len(counted), len(studies), unpriced, delta
    )


def _sum_prices(limit: Limit, charges: Iterable[Charge]) -> tuple[int, int, int]:
    """Return the sums of epsilon and delta as a limit counts them, and the number it cannot count.

    A release that implies no bound under the limit's relation counts as the largest delta.
    """
    epsilon, delta, unpriced = 0, 0, 0
    for price in price_charges(charges):
        factor = limit.get_factor(price.scope)
        if factor is None:
            unpriced += 1
            delta += DELTA_GRAINS if price.delta_grains else 0
        else:
            grains, delta_grains = count_price(price, factor)
            epsilon += grains
            delta += delta_grains
    return epsilon, delta, unpriced


class LimitCost(NamedTuple):
    """The usage of a limit, and what a release adds to it, in grains of epsilon and of delta."""

    usage: LimitUsage
    grains: int
    delta_grains: int


def measure_cost(
    limit: Limit,
    charges: Collection[Charge],
    asked: Charge,
    at: datetime,
    *,
    spent_only: bool = False,
) -> LimitCost:
    """Return the usage of a limit, and what a release adds to it.

    A release of a study that is charged as a whole adds nothing after the first.
    """
    before = measure_usage(limit, charges, at, spent_only=spent_only)
    others = [one for one in charges if one.spent_at is not None or not spent_only]
    after = measure_usage(limit, [*others, asked], at)
    grains = after.spent + after.held - before.spent - before.held
    return LimitCost(before, grains, after.delta - before.delta)


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
    asked: Charge,
    at: datetime,
    *,
    spent_only: bool = False,
) -> None:
    """Check a release against every limit that covers it; refuse with the numbers.

    Parameters
    ----------
    charges
        The ledger's charges, without the release itself.
    asked
        The release.
    at
        The present.
    spent_only
        Leave out held releases: for the check before sending, when the release itself is held.
    """
    event, source = asked.event, asked.source
    concerned = [limit for limit in limits if limit.applies_to(event, source)]
    if not _has_epsilon_cap(concerned):
        raise BudgetError(
            "BUDGET-001",
            f"No limit of yours bounds the epsilon of a release about a {event.scope.unit} from "
            f"source {source}.",
            why="Without a limit the ledger would never refuse a release.",
            fix=f"Set one with: {Limit(None, 0).format_command('--epsilon 4')}",
        )
    if event.delta > 0 and not _has_delta_cap(concerned):
        raise BudgetError(
            "BUDGET-001",
            f"No limit of yours bounds the delta of a release about a {event.scope.unit} from "
            f"source {source}.",
            why="Deltas add up, and a sum of 1 or more is no guarantee.",
            fix=f"Set one with: {Limit(None, 0).format_command('--delta 1e-4')}",
        )
    for limit in concerned:
        found = measure_cost(limit, charges, asked, at, spent_only=spent_only)
        _check_release_count(found.usage)
        if limit.grains is not None:
            _check_epsilon(found, limit.grains, event)
        if limit.delta_grains is not None and event.delta > 0:
            _check_delta(found, limit.delta_grains, event)


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


def _check_delta(found: LimitCost, cap: int, event: Event) -> None:
    usage, limit, cost = found.usage, found.usage.limit, found.delta_grains
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
        "(see: shoal ledger show). Delta limits how often the loss may exceed epsilon.",
        fix=f"Ask the study for a smaller delta, or raise your own limit with: "
        f"{limit.format_command(f'--delta {needed}')}",
    )


def _check_release_count(usage: LimitUsage) -> None:
    limit = usage.limit
    if limit.releases is not None and usage.releases >= limit.releases:
        raise BudgetError(
            "BUDGET-003",
            f"This would be release {usage.releases + 1}; your {limit.period.adjective} limit "
            f"is {limit.releases} ({limit}).",
            why=f"{_format_studies(usage)} made {usage.releases} (see: shoal ledger show).",
            fix="Raise your own limit with: "
            f"{limit.format_command(f'--releases {usage.releases + 1}')}",
        )


def _check_epsilon(found: LimitCost, grains: int, event: Event) -> None:
    usage, limit, scope = found.usage, found.usage.limit, event.scope
    factor = limit.get_factor(scope)
    if factor is None or usage.unpriced:
        raise _uncountable_error(usage, grains, is_new=factor is None)
    used = usage.spent + usage.held
    if used + found.grains <= grains:
        return
    asked = f"epsilon {format_epsilon(event.epsilon)} ({scope.unit}, {scope.relation})"
    asked += (
        f", which counts as {format_epsilon(from_grains(found.grains))} under replace"
        if factor > 1
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
    needed = format_epsilon(from_grains(used + found.grains))
    raise BudgetError(
        "BUDGET-002",
        f"This study asks for {asked}; {format_remaining(left)} of {whole} is left.",
        why=f"{_format_studies(usage)} used {format_epsilon(from_grains(used))}{held} (see: "
        "shoal ledger show).",
        fix=f"{smaller} your own limit with: {limit.format_command(f'--epsilon {needed}')}",
    )


def _uncountable_error(usage: LimitUsage, grains: int, *, is_new: bool) -> BudgetError:
    """Return the error for a limit that cannot count a release, or counted ones before it."""
    limit = usage.limit
    n_before = "" if is_new else f" {usage.unpriced} such releases count in this period already."
    if limit.relation is Relation.ADD_REMOVE:
        why = (
            f"A release under replace may show whether the {limit.unit or 'person'} is present at "
            f"all, which no add-remove epsilon bounds.{n_before}"
        )
        fix = "Use a limit under replace instead; remove this one with: "
    else:
        why = f"The price of one weight does not bound what a whole update reveals.{n_before}"
        fix = "Set a limit for the unit weight alone, and remove this one with: "
    return BudgetError(
        "BUDGET-001",
        f"Your {limit.period.adjective} limit of epsilon "
        f"{format_epsilon_down(from_grains(grains))} ({limit}) cannot be kept.",
        why=why,
        fix=fix + limit.format_command("--remove"),
    )


def _format_studies(usage: LimitUsage) -> str:
    return "1 study" if usage.studies == 1 else f"{usage.studies} studies"
