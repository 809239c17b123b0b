"""Limits: the releases they count, their periods, and the errors when one is exceeded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from shoal.errors import BudgetError, UsageError
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.ledger.limits import (
    DEFAULT_LIMITS,
    Limit,
    Period,
    compute_remaining,
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

    @property
    def cost(self) -> int:
        return grains_up(self.event.epsilon)

    @property
    def delta(self) -> int:
        return delta_grains_up(self.event.delta)


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


def test_limit_without_source_adds_sources_but_not_units() -> None:
    charges = [Charge(event(3.0), source="a.csv"), Charge(event(3.0, Unit.RECORD), source="b.csv")]
    refuse_if_over(DEFAULT_LIMITS, charges, event(1.0), "b.csv", NOW)
    with pytest.raises(BudgetError):
        refuse_if_over(DEFAULT_LIMITS, charges, event(1.001), "b.csv", NOW)


def test_refuse_if_over_allows_exactly_the_limit() -> None:
    charges = [Charge(event(0.1), study=f"s{i}") for i in range(39)]
    refuse_if_over([YEARLY], charges, event(0.1), "me.csv", NOW)
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over([YEARLY], charges, event(0.1000000000001), "me.csv", NOW)
    assert "39 studies used 3.9 " in str(refusal.value)


def test_epsilon_error_has_numbers_and_command() -> None:
    charges = [
        Charge(event(2.0)),
        Charge(event(1.0), None, study="s2"),
        Charge(event(0.3), study="s3"),
    ]
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over(DEFAULT_LIMITS, charges, event(1.5), "me.csv", NOW)
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
        refuse_if_over(
            [Limit(Unit.RECORD, grains_down(9.0)), limit],
            [],
            event(0.25, Unit.RECORD, Relation.ADD_REMOVE),
            "my data.csv",
            NOW,
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
        refuse_if_over([YEARLY, limit], charges, event(0.1, reads=("age",)), "me.csv", NOW)
    assert refusal.value.code == "BUDGET-003"
    assert (
        "This would be release 3; your daily limit is 2 (person, add-remove" in refusal.value.what
    )
    assert (refusal.value.fix or "").endswith(
        "limit --releases 3 --per day --relation add-remove --feature age"
    )
    refuse_if_over([YEARLY, limit], charges[:1], event(0.1, reads=("age",)), "me.csv", NOW)


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
        refuse_if_over(limits, [], event(0.1, reads=("age",)), "me.csv", NOW)
    assert refusal.value.code == "BUDGET-001"
    assert (refusal.value.fix or "").endswith("shoal ledger limit --epsilon 4")
    assert compute_remaining(limits, [], event(reads=("age",)), "me.csv", NOW) == 0


def test_add_remove_limit_refuses_replace_releases_before_and_after() -> None:
    limit = Limit(Unit.PERSON, 10**12, Relation.ADD_REMOVE)
    with pytest.raises(BudgetError, match=r"BUDGET-001.*cannot be kept"):
        refuse_if_over([YEARLY, limit], [], event(0.1), "me.csv", NOW)
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over(
            [limit], [Charge(event())], event(0.1, relation=Relation.ADD_REMOVE), "me.csv", NOW
        )
    assert "1 such releases count in this period already." in (refusal.value.why or "")
    assert (refusal.value.fix or "").endswith("shoal ledger limit --remove --relation add-remove")
    assert compute_remaining([YEARLY, limit], [], event(), "me.csv", NOW) == 0


def test_compute_remaining_is_smallest_over_limits_in_relation_of_event() -> None:
    limits = [
        YEARLY,
        Limit(Unit.PERSON, grains_down(1.0), source="me.csv"),
        Limit(Unit.PERSON, None, feature="age", releases=1),
    ]
    asked = event(relation=Relation.ADD_REMOVE, reads=("age",))
    assert compute_remaining(limits, [], asked, "me.csv", NOW) == grains_up(0.5)
    assert compute_remaining(limits, [], asked, "you.csv", NOW) == grains_up(2.0)
    assert (
        compute_remaining(limits, [Charge(event(0.5, reads=("age",)))], asked, "me.csv", NOW) == 0
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"grains": -1},
        {"grains": 10**19},
        {"releases": -1},
        {"source": ""},
        {"feature": "a\x1b[2J"},
        {"source": "x" * 501},
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
    refuse_if_over([APPROXIMATE], charges, approximate(0.01, 4e-6), "me.csv", NOW)
    refuse_if_over([APPROXIMATE], charges, event(0.01), "me.csv", NOW)
    with pytest.raises(BudgetError) as caught:
        refuse_if_over([APPROXIMATE], charges, approximate(0.01, 4.1e-6), "me.csv", NOW)
    assert caught.value.code == "BUDGET-006"
    assert "--delta 1.01e-05" in str(caught.value)
    assert compute_remaining(
        [APPROXIMATE], charges, approximate(0.01, 4e-6), "me.csv", NOW
    ) == grains_down(3.98)
    assert compute_remaining([APPROXIMATE], charges, approximate(0.01, 4.1e-6), "me.csv", NOW) == 0


def test_delta_of_add_remove_grows_under_replace_and_is_maximal_the_other_way() -> None:
    release = approximate(1.0, 1e-6, Relation.ADD_REMOVE)
    counted = measure_usage(APPROXIMATE, [Charge(release)], NOW).delta
    assert (1 + 2.718281828) * 1e-6 <= counted / DELTA_GRAINS <= (1 + 2.718281829) * 1e-6
    other_way = replace(APPROXIMATE, relation=Relation.ADD_REMOVE)
    assert measure_usage(other_way, [Charge(approximate(1.0, 1e-6))], NOW).delta == DELTA_GRAINS


def test_release_without_delta_limit_is_refused() -> None:
    for limits in ([YEARLY], [YEARLY, replace(APPROXIMATE, grains=None, feature="age")]):
        with pytest.raises(BudgetError, match=r"BUDGET-001.*delta"):
            refuse_if_over(limits, [], approximate(0.1, 1e-9), "me.csv", NOW)
        assert compute_remaining(limits, [], approximate(0.1, 1e-9), "me.csv", NOW) == 0


@pytest.mark.parametrize("grains", [-1, DELTA_GRAINS])
def test_delta_limit_must_be_a_probability(grains: int) -> None:
    with pytest.raises(UsageError):
        Limit(Unit.PERSON, None, delta_grains=grains)


def test_default_limits_bound_every_charged_unit() -> None:
    assert {limit.unit for limit in DEFAULT_LIMITS} == set(Unit) - {Unit.WEIGHT}
    assert all(limit.grains and limit.delta_grains for limit in DEFAULT_LIMITS)
