"""Limits that a participant sets, and how much of them is used.

A limit caps what is released about one unit in one calendar period of UTC: the plain sum of epsilon, the number of releases, or both.
A limit without a source counts all data sources together, since the same person may be in several of them; a limit for a feature counts
the releases that read the feature. That is a cap on releases, not a claim about the fact: the feature may be guessed from others.

What is *spent* counts in the period in which it was sent. What is *held* (reserved or stored, not yet sent) may be sent at any time,
so it counts in the present period whenever it was reserved. A release dated after the present (a clock that was set back) counts too.

Neighbouring relations: a release under add-remove counts twice under replace, since exchanging a unit is removing one and adding one.
The other way round nothing follows: a release under replace may show whether the unit is there at all, so a limit under add-remove
cannot be kept together with it, and the release is refused.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

from shoal.errors import UsageError
from shoal.privacy.events import Event, Relation, Unit
from shoal.privacy.rounding import DELTA_GRAINS, delta_grains_down, delta_growth, from_delta_grains, from_grains, grains_down

_HIGHEST = 1_000_000


class Period(StrEnum):
    """How long a limit lasts, by the calendar of UTC."""

    DAY = "day"
    MONTH = "month"
    YEAR = "year"
    EVER = "ever"

    def start(self, at: datetime) -> datetime:
        """The beginning of the period that contains a moment."""
        if self is Period.EVER:
            return datetime.min.replace(tzinfo=UTC)
        midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight.replace(day=midnight.day if self is Period.DAY else 1, month=1 if self is Period.YEAR else midnight.month)

    @property
    def adjective(self) -> str:
        """As in "your yearly limit"."""
        return {Period.DAY: "daily", Period.MONTH: "monthly", Period.YEAR: "yearly", Period.EVER: "overall"}[self]


class Charge(Protocol):
    """What counts against limits: one release that is held or spent."""

    @property
    def study(self) -> str:
        """Digest of the manifest."""
        ...

    @property
    def source(self) -> str:
        """Which of the participant's data it is about."""
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
    unit, relation
        What the epsilon speaks about.
    grains
        Cap on the plain sum of epsilon, in grains; None for a cap on the number of releases alone.
    period
        The calendar period that it is for.
    source, feature
        One data source, one feature; None for all together. A release that names no features counts for every feature.
    releases
        Cap on the number of releases, of either relation.
    delta_grains
        Cap on the plain sum of delta, in grains of delta.

    Examples
    --------
    >>> print(Limit(Unit.PERSON, grains_down(4.0)))
    person, replace, all sources together, a year
    >>> print(Limit(Unit.RECORD, None, period=Period.EVER, source="clinic.csv", feature="age", releases=3))
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
        caps = {"epsilon": None if self.grains is None else from_grains(self.grains), "number of releases": self.releases}
        if self.delta_grains is not None and not 0 <= self.delta_grains < DELTA_GRAINS:
            delta = from_delta_grains(self.delta_grains)
            raise UsageError("LEDGER-009", f"A limit cannot have {delta} as its delta.", why="It must be 0 or more, and below 1.")
        for name, cap in caps.items():
            if cap is not None and not 0 <= cap <= _HIGHEST:
                raise UsageError("LEDGER-009", f"A limit cannot have {cap} as its {name}.", why=f"It must be from 0 to {_HIGHEST}.")
        for name, text in (("source", self.source), ("feature", self.feature)):
            if text is not None:
                check_text(name, text)

    def __str__(self) -> str:
        parts = [self.unit, self.relation, "all sources together" if self.source is None else f"source {self.source}"]
        parts += [] if self.feature is None else [f"releases that read {self.feature}"]
        return ", ".join([*parts, "in all" if self.period is Period.EVER else f"a {self.period}"])

    @property
    def key(self) -> tuple[Unit, Relation, Period, str | None, str | None]:
        """What the limit is about; a new limit with the same key replaces the old one."""
        return self.unit, self.relation, self.period, self.source, self.feature

    def concerns(self, event: Event, source: str) -> bool:
        """Whether a release falls under this limit."""
        reads = self.feature is None or not event.reads or self.feature in event.reads
        return reads and self.unit == event.scope.unit and self.source in (None, source)

    def factor(self, relation: Relation) -> int | None:
        """How often a release under a relation counts; None where no multiple of it is a bound."""
        if relation == self.relation:
            return 1
        return 2 if self.relation == Relation.REPLACE else None

    def delta_cost(self, event: Event, delta: int) -> int:
        """What a release's delta, in grains, counts as under this limit's relation; all of it where nothing follows."""
        if delta == 0 or event.scope.relation == self.relation:
            return delta
        if self.relation is not Relation.REPLACE:
            return DELTA_GRAINS
        return min(DELTA_GRAINS, math.ceil(Fraction(delta_growth(event.epsilon)) * delta))

    @property
    def caps_anything(self) -> bool:
        """Whether it is a limit at all; one that caps nothing removes the limit that it replaces."""
        return not self.grains is self.releases is self.delta_grains is None

    def command(self, option: str) -> str:
        """What to type to change this limit."""
        words = [option, *([] if self.period is Period.YEAR else [f"--per {self.period}"])]
        words += [] if self.unit is Unit.PERSON else [f"--unit {self.unit}"]
        words += [] if self.relation is Relation.REPLACE else [f"--relation {self.relation}"]
        words += [] if self.source is None else [f"--source {shlex.quote(self.source)}"]
        words += [] if self.feature is None else [f"--feature {shlex.quote(self.feature)}"]
        return " ".join(["shoal ledger limit", *words])


DEFAULT_LIMITS = tuple(
    Limit(unit, grains_down(4.0), delta_grains=delta_grains_down(1e-4)) for unit in (Unit.PERSON, Unit.RECORD, Unit.UPDATE)
)
"""What a new ledger starts with, so that it refuses from the first day. A weight has none: an update is charged as a whole."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a limit is used in the period that began at ``since``; sums in grains, as the limit counts them.

    ``unpriced`` is the number of releases that the limit concerns and cannot count; ``delta`` is spent and held together.
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
    def left(self) -> int | None:
        """Grains that may still be reserved; None where the limit caps the number of releases alone."""
        if self.limit.grains is None:
            return None
        return 0 if self.unpriced else max(0, self.limit.grains - self.spent - self.held)


def measure(limit: Limit, charges: Iterable[Charge], at: datetime, *, spent_only: bool = False) -> Usage:
    """What counts against a limit at a moment, with or without what is held."""
    since = limit.period.start(at)
    sums = {True: 0, False: 0}
    studies, releases, unpriced, delta = set(), 0, 0, 0
    for charge in charges:
        when = charge.spent_at
        is_counted = not spent_only if when is None else when >= since
        if not (is_counted and limit.concerns(charge.event, charge.source)):
            continue
        factor = limit.factor(charge.event.scope.relation)
        sums[when is None] += charge.cost * (factor or 0)
        unpriced += factor is None
        delta += limit.delta_cost(charge.event, charge.delta)
        releases += 1
        studies.add(charge.study)
    return Usage(limit, since, sums[False], sums[True], releases, len(studies), unpriced, delta)


def check_text(name: str, text: str, longest: int = 500) -> None:
    """Refuse a text that could not be stored, or could fool the reader of a terminal."""
    if not isinstance(text, str) or not text or len(text) > longest or not text.isprintable():
        raise UsageError("LEDGER-009", f"{text!r:.60} cannot be the {name} of a ledger entry.", fix="Use a short, printable text.")
