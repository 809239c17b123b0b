"""Limits: the releases they count, their periods, and the errors when one is exceeded."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from shoal.errors import BudgetError, UsageError
from shoal.privacy.accountant import rho_to_epsilon
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.ledger.charges import PlannedCharge, StudyBudget
from shoal.privacy.ledger.limits import (
    DEFAULT_LIMITS,
    Limit,
    Period,
    format_remaining,
    measure_usage,
    refuse_if_over,
)
from shoal.privacy.rounding import (
    DELTA_GRAINS,
    delta_grains_down,
    delta_grains_up,
    grains_down,
    grains_up,
)

NOW = datetime(2030, 6, 15, 12, 30, tzinfo=UTC)
YEARLY = Limit(Unit.PERSON, grains_down(4.0))


@dataclass(frozen=True)
class Charge:
    event: Event
    spent_at: datetime | None = NOW
    source: str = "me.csv"
    study: str = "s1"
    budget: StudyBudget | None = None

    @property
    def cost(self) -> int:
        return grains_up(self.event.epsilon)

    @property
    def delta(self) -> int:
        return delta_grains_up(self.event.delta)


def refuse(
    limits: Iterable[Limit], charges: Collection[Charge], asked: Event, source: str = "me.csv"
) -> None:
    refuse_if_over(limits, charges, PlannedCharge("new", source, asked), NOW)


def event(
    epsilon: float = 1.0,
    unit: Unit = Unit.PERSON,
    relation: Relation = Relation.REPLACE,
    reads: tuple[str, ...] = (),
) -> Event:
    return Event("test", {}, Scope(unit, relation, "everyone"), epsilon, reads=reads)


@pytest.mark.parametrize(
    ("period", "start"),
    [
        (Period.DAY, datetime(2030, 6, 15, tzinfo=UTC)),
        (Period.MONTH, datetime(2030, 6, 1, tzinfo=UTC)),
        (Period.YEAR, datetime(2030, 1, 1, tzinfo=UTC)),
        (Period.EVER, datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_period_starts_by_calendar_of_utc(period: Period, start: datetime) -> None:
    assert period.start(NOW) == start
    assert period.start(NOW.astimezone(timezone(timedelta(hours=9)))) == start


def test_spent_release_counts_from_period_of_sending_on() -> None:
    start = Period.YEAR.start(NOW)
    dates = [start - timedelta(microseconds=1), start, NOW, NOW + timedelta(days=400)]
    usage = measure_usage(YEARLY, [Charge(event(), at) for at in dates], NOW)
    assert (usage.spent, usage.releases) == (3 * grains_up(1.0), 3)


def test_held_release_counts_now_unless_spent_only() -> None:
    charges = [Charge(event(0.5), None), Charge(event(0.25))]
    assert measure_usage(YEARLY, charges, NOW).held == grains_up(0.5)
    assert measure_usage(YEARLY, charges, NOW).remaining == grains_up(3.25)
    assert measure_usage(YEARLY, charges, NOW, spent_only=True).remaining == grains_up(3.75)


def test_add_remove_counts_twice_under_replace_and_replace_is_unpriced_under_add_remove() -> None:
    under_add_remove = replace(YEARLY, relation=Relation.ADD_REMOVE)
    charges = [Charge(event(1.0, relation=Relation.ADD_REMOVE))]
    assert measure_usage(YEARLY, charges, NOW).spent == grains_up(2.0)
    assert measure_usage(under_add_remove, charges, NOW).spent == grains_up(1.0)
    usage = measure_usage(under_add_remove, [Charge(event())], NOW)
    assert (usage.unpriced, usage.remaining) == (1, 0)


@pytest.mark.parametrize(
    ("limit", "is_concerned"),
    [
        (Limit(Unit.PERSON, 1), True),
        (Limit(Unit.RECORD, 1), False),
        (Limit(Unit.PERSON, 1, source="me.csv"), True),
        (Limit(Unit.PERSON, 1, source="you.csv"), False),
        (Limit(Unit.PERSON, 1, feature="age"), True),
        (Limit(Unit.PERSON, 1, feature="sex"), False),
    ],
)
def test_limit_applies_to_its_unit_source_and_feature(limit: Limit, is_concerned: bool) -> None:
    assert limit.applies_to(event(reads=("age", "income")), "me.csv") is is_concerned


def test_release_without_features_counts_for_every_feature() -> None:
    assert Limit(Unit.PERSON, 1, feature="sex").applies_to(event(), "me.csv")


def test_limit_without_source_adds_sources_and_limit_with_unit_does_not_add_units() -> None:
    charges = [Charge(event(3.0), source="a.csv"), Charge(event(3.0, Unit.RECORD), source="b.csv")]
    refuse([YEARLY], charges, event(1.0), "b.csv")
    with pytest.raises(BudgetError):
        refuse([YEARLY], charges, event(1.001), "b.csv")


COMMON = Limit(None, grains_down(4.0), delta_grains=delta_grains_down(1e-4))


@pytest.mark.parametrize(
    ("unit", "relation", "factor"),
    [
        (Unit.PERSON, Relation.REPLACE, 1),
        (Unit.PERSON, Relation.ADD_REMOVE, 2),
        (Unit.UPDATE, Relation.REPLACE, 1),
        (Unit.RECORD, Relation.REPLACE, 5),
        (Unit.RECORD, Relation.ADD_REMOVE, 10),
        (Unit.WEIGHT, Relation.REPLACE, None),
    ],
)
def test_common_limit_counts_each_unit_as_one_person(
    unit: Unit, relation: Relation, factor: int | None
) -> None:
    limit = replace(COMMON, max_rows_per_person=5)
    assert limit.get_factor(Scope(unit, relation, "everyone")) == factor
    usage = measure_usage(limit, [Charge(event(0.125, unit, relation))], NOW)
    assert (usage.spent, usage.unpriced) == (
        (0, 1) if factor is None else (factor * grains_up(0.125), 0)
    )


def test_common_limit_adds_units_and_protocols() -> None:
    """Attack: the same row gave epsilon 4 through one protocol and 4 more through another."""
    charges = [
        Charge(event(1.0), study="anonml"),
        Charge(event(1.0, Unit.UPDATE), study="ddml"),
        Charge(event(0.5, Unit.RECORD, Relation.ADD_REMOVE), study="sdq"),
    ]
    assert measure_usage(COMMON, charges, NOW).spent == grains_up(3.0)
    refuse([COMMON], charges, event(1.0, Unit.UPDATE))
    with pytest.raises(BudgetError) as refusal:
        refuse([COMMON], charges, event(1.001, Unit.UPDATE))
    assert "1.0 of your yearly limit of 4.0 is left" in refusal.value.what
    assert "3 studies used 3.0" in (refusal.value.why or "")


def test_common_limit_refuses_price_of_single_weight() -> None:
    with pytest.raises(BudgetError, match=r"BUDGET-001.*cannot be kept") as refusal:
        refuse([COMMON], [], event(0.1, Unit.WEIGHT))
    assert "whole update" in (refusal.value.why or "")
    with pytest.raises(BudgetError, match="1 such releases count"):
        refuse([COMMON], [Charge(event(0.1, Unit.WEIGHT))], event(0.1))


def test_delta_of_record_grows_with_rows_of_a_person() -> None:
    """Four steps: two rows, each removed and added."""
    scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "everyone")
    usage = measure_usage(
        replace(COMMON, max_rows_per_person=2), [Charge(Event("test", {}, scope, 0.5, 1e-6))], NOW
    )
    exact = sum(math.exp(0.5 * i) for i in range(4)) * 1e-6
    assert usage.spent == grains_up(2.0)
    assert exact <= usage.delta / DELTA_GRAINS <= exact * (1 + 1e-9)


def test_study_with_budget_counts_once_in_each_period() -> None:
    budget = StudyBudget(0.02, 1e-6)
    release = Event("test", {}, LOCAL_PERSON, 0.6, 5e-7, rho=0.01)
    earlier = NOW - timedelta(days=400)
    charges = [Charge(release, at, budget=budget) for at in (earlier, NOW)]
    whole = grains_up(rho_to_epsilon(*budget))
    assert whole < 2 * grains_up(0.6)
    usage = measure_usage(COMMON, charges, NOW)
    assert (usage.spent, usage.held, usage.delta) == (whole, 0, delta_grains_up(1e-6))
    assert measure_usage(COMMON, charges, earlier).spent == whole
    held = [*charges, Charge(release, None, budget=budget)]
    usage = measure_usage(COMMON, held, NOW)
    assert usage.spent + usage.held == whole, "two releases of the period are within the budget"


def test_refuse_if_over_allows_exactly_the_limit() -> None:
    charges = [Charge(event(0.1), study=f"s{i}") for i in range(39)]
    refuse([YEARLY], charges, event(0.1))
    with pytest.raises(BudgetError) as refusal:
        refuse([YEARLY], charges, event(0.1000000000001))
    assert "39 studies used 3.9 " in str(refusal.value)


def test_epsilon_error_has_numbers_and_command() -> None:
    charges = [
        Charge(event(2.0)),
        Charge(event(1.0), None, study="s2"),
        Charge(event(0.3), study="s3"),
    ]
    with pytest.raises(BudgetError) as refusal:
        refuse(DEFAULT_LIMITS, charges, event(1.5))
    assert refusal.value.exit_code == 4
    assert str(refusal.value).splitlines() == [
        "BUDGET-002  This study asks for epsilon 1.5 (person, replace); 0.7 of your yearly limit "
        "of 4.0 is left.",
        "  why       3 studies used 3.3, 1.0 of it held for releases not yet sent (see: shoal "
        "ledger show).",
        "  fix       Ask the study for epsilon <= 0.7, or raise your own limit with: shoal ledger "
        "limit --epsilon 4.8",
    ]


def test_error_of_specific_limit_names_it_and_its_command() -> None:
    limit = Limit(Unit.RECORD, 0, Relation.REPLACE, Period.MONTH, "my data.csv", "age")
    with pytest.raises(BudgetError) as refusal:
        refuse(
            [Limit(Unit.RECORD, grains_down(9.0)), limit],
            [],
            event(0.25, Unit.RECORD, Relation.ADD_REMOVE),
            "my data.csv",
        )
    assert (
        "epsilon 0.25 (record, add-remove), which counts as 0.5 under replace; 0 of your monthly "
        "limit of 0 " in refusal.value.what
    )
    assert (
        "(record, replace, source my data.csv, releases that read age, a month)"
        in refusal.value.what
    )
    assert refusal.value.why == "0 studies used 0 (see: shoal ledger show)."
    assert refusal.value.fix == (
        "Raise your own limit with: shoal ledger limit --epsilon 0.5 --per month --unit record "
        "--source 'my data.csv' --feature age"
    )


def test_limit_on_releases_counts_both_relations() -> None:
    limit = Limit(Unit.PERSON, None, Relation.ADD_REMOVE, Period.DAY, feature="age", releases=2)
    charges = [Charge(event(reads=("age",))), Charge(event(), None), Charge(event(reads=("sex",)))]
    assert measure_usage(limit, charges, NOW).remaining is None
    with pytest.raises(BudgetError) as refusal:
        refuse([YEARLY, limit], charges, event(0.1, reads=("age",)))
    assert refusal.value.code == "BUDGET-003"
    assert (
        "This would be release 3; your daily limit is 2 (person, add-remove" in refusal.value.what
    )
    assert (refusal.value.fix or "").endswith(
        "limit --releases 3 --per day --unit person --relation add-remove --feature age"
    )
    refuse([YEARLY, limit], charges[:1], event(0.1, reads=("age",)))


@pytest.mark.parametrize(
    "limits",
    [
        [],
        [Limit(Unit.RECORD, 10**12)],
        [Limit(Unit.PERSON, 10**12, feature="age")],
        [Limit(Unit.PERSON, None, releases=9)],
    ],
)
def test_release_without_epsilon_limit_is_refused(limits: list[Limit]) -> None:
    with pytest.raises(BudgetError) as refusal:
        refuse(limits, [], event(0.1, reads=("age",)))
    assert refusal.value.code == "BUDGET-001"
    assert (refusal.value.fix or "").endswith("shoal ledger limit --epsilon 4")


def test_add_remove_limit_refuses_replace_releases_before_and_after() -> None:
    limit = Limit(Unit.PERSON, 10**12, Relation.ADD_REMOVE)
    with pytest.raises(BudgetError, match=r"BUDGET-001.*cannot be kept"):
        refuse([YEARLY, limit], [], event(0.1))
    with pytest.raises(BudgetError) as refusal:
        refuse([limit], [Charge(event())], event(0.1, relation=Relation.ADD_REMOVE))
    assert "1 such releases count in this period already." in (refusal.value.why or "")
    assert (refusal.value.fix or "").endswith("limit --remove --unit person --relation add-remove")


@pytest.mark.parametrize(
    "bad",
    [
        {"grains": -1},
        {"grains": 10**19},
        {"releases": -1},
        {"source": ""},
        {"feature": "a\x1b[2J"},
        {"source": "x" * 501},
        {"max_rows_per_person": 2},
        {"unit": None, "max_rows_per_person": 0},
        {"unit": None, "max_rows_per_person": 10_001},
    ],
)
def test_invalid_limit_is_rejected(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="LEDGER-009"):
        replace(YEARLY, **bad)  # type: ignore[arg-type]


def test_limit_text_names_its_subject() -> None:
    assert (
        str(replace(YEARLY, period=Period.EVER, feature="age"))
        == "person, replace, all sources together, releases that read age, in all"
    )
    assert [period.adjective for period in Period] == ["daily", "monthly", "yearly", "overall"]


def test_format_remaining_rounds_down() -> None:
    assert format_remaining(grains_up(0.69999)) == "0.6999"
    assert format_remaining(grains_up(123456.78999)) == "123456.7899"
    assert format_remaining(1) == "0"


def test_scope_given_as_text_is_counted() -> None:
    text = Event("test", {}, Scope("person", "add-remove", "everyone"), 1.0)  # type: ignore[arg-type]
    assert measure_usage(YEARLY, [Charge(text)], NOW).spent == grains_up(2.0)
    assert LOCAL_PERSON.unit == "person"


APPROXIMATE = Limit(Unit.PERSON, grains_down(4.0), delta_grains=delta_grains_down(1e-5))


def approximate(epsilon: float, delta: float, relation: Relation = Relation.REPLACE) -> Event:
    return Event("test", {}, Scope(Unit.PERSON, relation, "everyone"), epsilon, delta)


def test_refuse_if_over_adds_deltas_and_enforces_delta_limit() -> None:
    charges = [Charge(approximate(0.01, 3e-6)), Charge(approximate(0.01, 3e-6), None)]
    assert measure_usage(APPROXIMATE, charges, NOW).delta == delta_grains_up(6e-6)
    refuse([APPROXIMATE], charges, approximate(0.01, 4e-6))
    refuse([APPROXIMATE], charges, event(0.01))
    with pytest.raises(BudgetError) as caught:
        refuse([APPROXIMATE], charges, approximate(0.01, 4.1e-6))
    assert caught.value.code == "BUDGET-006"
    assert "--delta 1.01e-05" in str(caught.value)


def test_delta_of_add_remove_grows_under_replace_and_is_maximal_the_other_way() -> None:
    release = approximate(1.0, 1e-6, Relation.ADD_REMOVE)
    counted = measure_usage(APPROXIMATE, [Charge(release)], NOW).delta
    assert (1 + 2.718281828) * 1e-6 <= counted / DELTA_GRAINS <= (1 + 2.718281829) * 1e-6
    other_way = replace(APPROXIMATE, relation=Relation.ADD_REMOVE)
    assert measure_usage(other_way, [Charge(approximate(1.0, 1e-6))], NOW).delta == DELTA_GRAINS


def test_release_without_delta_limit_is_refused() -> None:
    for limits in ([YEARLY], [YEARLY, replace(APPROXIMATE, grains=None, feature="age")]):
        with pytest.raises(BudgetError, match=r"BUDGET-001.*delta"):
            refuse(limits, [], approximate(0.1, 1e-9))


@pytest.mark.parametrize("grains", [-1, DELTA_GRAINS])
def test_delta_limit_must_be_a_probability(grains: int) -> None:
    with pytest.raises(UsageError):
        Limit(Unit.PERSON, None, delta_grains=grains)


def test_default_limit_bounds_every_charged_unit() -> None:
    [limit] = DEFAULT_LIMITS
    assert limit == COMMON
    assert str(limit) == "all units together, replace, all sources together, a year"
    assert "up to 3 rows for each person" in str(replace(limit, max_rows_per_person=3))
    for unit in set(Unit) - {Unit.WEIGHT}:
        refuse(DEFAULT_LIMITS, [], event(4.0, unit))
