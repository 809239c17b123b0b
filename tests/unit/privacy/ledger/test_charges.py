"""Prices of studies: one conversion for a budget, plain sums for everything else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import pytest

from shoal.errors import SpecError
from shoal.privacy.accountant import compute_event_rho, rho_to_epsilon
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.ledger.charges import (
    ChargedPrice,
    PlannedCharge,
    StudyBudget,
    count_price,
    price_charges,
)
from shoal.privacy.rounding import DELTA_GRAINS, delta_grains_up, grains_up

BUDGET = StudyBudget(0.03, 1e-6)
NOISY = Event("discrete-gaussian", {}, LOCAL_PERSON, 0.5, 5e-7, rho=0.01)
PURE = Event("random-response", {}, LOCAL_PERSON, 0.1)
WHOLE = (grains_up(rho_to_epsilon(*BUDGET)), delta_grains_up(1e-6))


@dataclass(frozen=True)
class Released:
    event: Event
    budget: StudyBudget | None = BUDGET
    study: str = "s1"
    source: str = "me.csv"
    spent_at: datetime | None = None

    @property
    def cost(self) -> int:
        return grains_up(self.event.epsilon)

    @property
    def delta(self) -> int:
        return delta_grains_up(self.event.delta)


def price(*charges: Released) -> list[tuple[int, int]]:
    return [(one.grains, one.delta_grains) for one in price_charges(charges)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_study_within_budget_has_one_price(n: int) -> None:
    assert price(*[Released(NOISY)] * n) == [WHOLE]


def test_pure_releases_are_part_of_budget() -> None:
    assert compute_event_rho(PURE) < 0.01
    assert price(Released(NOISY), Released(NOISY), Released(PURE)) == [WHOLE]


def test_rhos_that_add_up_to_budget_as_decimals_are_covered() -> None:
    """As floats, ten tenths are less than one; as decimals they are exactly one."""
    tenth = replace(NOISY, rho=0.003)
    assert price(*[Released(tenth)] * 10) == [WHOLE]
    assert len(price(*[Released(tenth)] * 11)) == 2


def test_release_beyond_budget_is_added_plainly() -> None:
    charges = [*[Released(NOISY)] * 3, Released(replace(NOISY, rho=0.005)), Released(NOISY)]
    assert price(*charges) == [WHOLE, *[(grains_up(0.5), delta_grains_up(5e-7))] * 2]
    smaller = replace(NOISY, rho=0.004)
    large = replace(NOISY, rho=0.04)
    assert price(Released(large), Released(smaller)) == [
        WHOLE,
        (grains_up(0.5), delta_grains_up(5e-7)),
    ]
    assert price(Released(large)) == [(grains_up(0.5), delta_grains_up(5e-7))]


def test_release_with_delta_and_without_rho_is_added_plainly() -> None:
    approximate = replace(NOISY, rho=None)
    assert price(Released(approximate), Released(NOISY)) == [
        WHOLE,
        (grains_up(0.5), delta_grains_up(5e-7)),
    ]


def test_release_without_budget_is_covered_by_budget_of_its_study() -> None:
    """An earlier version stored no budgets."""
    assert price(Released(NOISY, None), Released(NOISY)) == [WHOLE]
    assert price(Released(NOISY, None), Released(NOISY, StudyBudget(0.01, 1e-6))) == [
        (grains_up(rho_to_epsilon(0.01, 1e-6)), delta_grains_up(1e-6)),
        (grains_up(0.5), delta_grains_up(5e-7)),
    ]


def test_largest_of_several_budgets_is_used() -> None:
    assert price(Released(NOISY, StudyBudget(0.01, 1e-6)), Released(NOISY)) == [WHOLE]


def test_studies_and_sources_and_scopes_are_priced_apart() -> None:
    other = replace(NOISY, scope=Scope(Unit.RECORD, Relation.ADD_REMOVE, "everyone"))
    charges = [
        Released(NOISY),
        Released(NOISY, study="s2"),
        Released(NOISY, source="you.csv"),
        Released(other),
    ]
    assert price(*charges) == [WHOLE] * 4


def test_releases_without_budget_add_up_plainly() -> None:
    assert price(Released(NOISY, None), Released(PURE, None)) == [
        (grains_up(0.5), delta_grains_up(5e-7)),
        (grains_up(0.1), 0),
    ]


def test_count_price_caps_delta_at_one() -> None:
    assert count_price(ChargedPrice(LOCAL_PERSON, 1.0, 10**12, 0), 7) == (7 * 10**12, 0)
    assert count_price(ChargedPrice(LOCAL_PERSON, 1.0, 10**12, 5), 1) == (10**12, 5)
    assert count_price(ChargedPrice(LOCAL_PERSON, 300.0, 3 * 10**14, 5), 20_000) == (
        6 * 10**18,
        DELTA_GRAINS,
    )


@pytest.mark.parametrize(
    "budget",
    [
        StudyBudget(0.0, 1e-6),
        StudyBudget(float("inf"), 1e-6),
        StudyBudget(0.1, 0.0),
        StudyBudget(0.1, 1.0),
        StudyBudget(float("nan"), 1e-6),
    ],
)
def test_budget_without_guarantee_is_rejected(budget: StudyBudget) -> None:
    with pytest.raises(SpecError, match="EVENT-001"):
        budget.check()


def test_planned_charge_has_price_of_event() -> None:
    planned = PlannedCharge("s1", "me.csv", NOISY)
    assert (planned.cost, planned.delta) == (grains_up(0.5), delta_grains_up(5e-7))
