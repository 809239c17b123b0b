"""The price of releases: rho is composed within a study and converted once for the study.

`shoal.privacy.ledger.limits` counts these prices towards limits, and `shoal.privacy.ledger.state`
adds them up for display.

A study with a `StudyBudget` is priced as a whole from its first release on: its releases together
are rho-zCDP, and that is converted to (epsilon, delta) once. The whole study is charged even if
only a part of it was released: a figure for the part would hold only if the participant's decision
to stop did not depend on the releases. Releases beyond the budget, and all releases of other
studies, are added plainly. Between studies epsilons and deltas add up.

Ref: docs/theory/proofs.md, One figure for each data source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Protocol

from shoal.errors import SpecError
from shoal.privacy.accountant import compute_event_rho, rho_to_epsilon
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.rounding import (
    DELTA_GRAINS,
    compute_delta_growth,
    delta_grains_up,
    grains_up,
)


class StudyBudget(NamedTuple):
    """The zero-concentrated guarantee of all releases of a study, and the delta of its label."""

    rho: float
    delta: float

    def check(self) -> None:
        """Raise ``EVENT-001`` if this is not a guarantee."""
        if not (math.isfinite(self.rho) and self.rho > 0 and 0 < self.delta < 1):
            raise SpecError(
                "EVENT-001",
                f"A study is priced at rho {self.rho}, delta {self.delta}.",
                why="Rho must be positive and finite, and delta between 0 and 1.",
            )


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
    def budget(self) -> StudyBudget | None:
        """The budget of its study; None if the study's releases add up plainly."""
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
class PlannedCharge:
    """A whole study as one charge, before any of it is reserved."""

    study: str
    source: str
    event: Event
    budget: StudyBudget | None = None
    spent_at: datetime | None = None

    @property
    def cost(self) -> int:
        return grains_up(self.event.epsilon)

    @property
    def delta(self) -> int:
        return delta_grains_up(self.event.delta)


class ChargedPrice(NamedTuple):
    """The price of a release, or of a study as a whole: epsilon also in grains."""

    scope: Scope
    epsilon: float
    grains: int
    delta_grains: int


def price_charges(charges: Iterable[Charge]) -> Iterator[ChargedPrice]:
    """Yield the prices of charges; they add up to what the charges cost together.

    Notes
    -----
    If a study has several budgets (two versions of shoal stored them), the largest rho is used: a
    budget is valid for all releases whose rhos add up to no more.
    """
    studies: dict[tuple[str, str, Unit, Relation], list[Charge]] = {}
    for charge in charges:
        scope = charge.event.scope
        key = charge.study, charge.source, scope.unit, scope.relation
        studies.setdefault(key, []).append(charge)
    for group in studies.values():
        budgets = [charge.budget for charge in group if charge.budget is not None]
        if budgets:
            yield from _price_study(group, max(budgets))
        else:
            yield from map(_price_charge, group)


def count_price(price: ChargedPrice, n_steps: int) -> tuple[int, int]:
    """Return epsilon and delta of inputs that are `n_steps` neighbours apart, in grains."""
    if price.delta_grains == 0 or n_steps == 1:
        return n_steps * price.grains, price.delta_grains
    growth = _compute_growth(price.epsilon, n_steps)
    return n_steps * price.grains, min(DELTA_GRAINS, math.ceil(growth * price.delta_grains))


def _price_study(group: Sequence[Charge], budget: StudyBudget) -> Iterator[ChargedPrice]:
    covered, others = _split_covered(group, budget)
    if covered:
        epsilon = _convert_budget(budget)
        delta = delta_grains_up(budget.delta)
        yield ChargedPrice(covered[0].event.scope, epsilon, grains_up(epsilon), delta)
    yield from map(_price_charge, others)


def _price_charge(charge: Charge) -> ChargedPrice:
    return ChargedPrice(charge.event.scope, charge.event.epsilon, charge.cost, charge.delta)


def _split_covered(
    group: Sequence[Charge], budget: StudyBudget
) -> tuple[list[Charge], list[Charge]]:
    """Return the releases that the budget covers, in the order of reservation, and the others."""
    # A release with a delta but without a rho is not zero-concentrated.
    concentrated = [
        charge for charge in group if charge.event.rho is not None or charge.event.delta == 0
    ]
    others = [charge for charge in group if charge.event.rho is None and charge.event.delta > 0]
    cap = _exact(budget.rho)
    times = Counter(compute_event_rho(charge.event) for charge in concentrated)
    if sum(n * _exact(rho) for rho, n in times.items()) <= cap:
        return concentrated, others
    covered: list[Charge] = []
    for charge in concentrated:
        rho = _exact(compute_event_rho(charge.event))
        if rho <= cap:
            cap -= rho
            covered.append(charge)
        else:
            others.append(charge)
    return covered, others


@lru_cache(maxsize=256)
def _convert_budget(budget: StudyBudget) -> float:
    return rho_to_epsilon(budget.rho, budget.delta)


@lru_cache(maxsize=256)
def _compute_growth(epsilon: float, n_steps: int) -> Fraction:
    return Fraction(compute_delta_growth(epsilon, n_steps))


@lru_cache(maxsize=256)
def _exact(rho: float) -> Fraction:
    """Return the decimal that a float represents, as `shoal.privacy.rounding.sum_up` adds it."""
    return Fraction(repr(rho))
