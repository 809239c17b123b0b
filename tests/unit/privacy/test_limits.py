"""Limits: what they count, in which period, and the sentences with which they refuse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from shoal.errors import BudgetError, UsageError
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.limits import DEFAULT_LIMITS, Limit, Period, measure
from shoal.privacy.refusal import left_for, refuse_if_over, show_left
from shoal.privacy.rounding import DELTA_GRAINS, delta_grains_down, delta_grains_up, grains_down, grains_up

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


def event(epsilon: float = 1.0, unit: Unit = Unit.PERSON, relation: Relation = Relation.REPLACE, reads: tuple[str, ...] = ()) -> Event:
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
def test_a_period_is_one_of_the_calendar_of_utc(period: Period, start: datetime) -> None:
    assert period.start(NOW) == start
    assert period.start(NOW.astimezone(timezone(timedelta(hours=9)))) == start


def test_what_is_spent_counts_in_the_period_of_its_sending_and_later_dates_count_too() -> None:
    start = Period.YEAR.start(NOW)
    dates = [start - timedelta(microseconds=1), start, NOW, NOW + timedelta(days=400)]
    usage = measure(YEARLY, [Charge(event(), at) for at in dates], NOW)
    assert (usage.spent, usage.releases) == (3 * grains_up(1.0), 3)


def test_what_is_held_counts_now_unless_only_the_spent_is_asked_for() -> None:
    charges = [Charge(event(0.5), None), Charge(event(0.25))]
    assert measure(YEARLY, charges, NOW).held == grains_up(0.5)
    assert measure(YEARLY, charges, NOW).left == grains_up(3.25)
    assert measure(YEARLY, charges, NOW, spent_only=True).left == grains_up(3.75)


def test_add_remove_counts_twice_under_replace_and_replace_cannot_be_counted_under_add_remove() -> None:
    under_add_remove = replace(YEARLY, relation=Relation.ADD_REMOVE)
    charges = [Charge(event(1.0, relation=Relation.ADD_REMOVE))]
    assert measure(YEARLY, charges, NOW).spent == grains_up(2.0)
    assert measure(under_add_remove, charges, NOW).spent == grains_up(1.0)
    usage = measure(under_add_remove, [Charge(event())], NOW)
    assert (usage.unpriced, usage.left) == (1, 0)


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
def test_a_limit_concerns_its_unit_source_and_feature(limit: Limit, is_concerned: bool) -> None:
    assert limit.concerns(event(reads=("age", "income")), "me.csv") is is_concerned


def test_a_release_that_names_no_features_may_read_any() -> None:
    assert Limit(Unit.PERSON, 1, feature="sex").concerns(event(), "me.csv")


def test_a_limit_without_a_source_adds_all_sources_and_never_units() -> None:
    charges = [Charge(event(3.0), source="a.csv"), Charge(event(3.0, Unit.RECORD), source="b.csv")]
    refuse_if_over(DEFAULT_LIMITS, charges, event(1.0), "b.csv", NOW)
    with pytest.raises(BudgetError):
        refuse_if_over(DEFAULT_LIMITS, charges, event(1.001), "b.csv", NOW)


def test_the_whole_limit_can_be_spent_and_not_one_grain_more() -> None:
    charges = [Charge(event(0.1), study=f"s{i}") for i in range(39)]
    refuse_if_over([YEARLY], charges, event(0.1), "me.csv", NOW)
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over([YEARLY], charges, event(0.1000000000001), "me.csv", NOW)
    assert "39 studies used 3.9 " in str(refusal.value)


def test_the_refusal_has_the_numbers_and_the_way_out() -> None:
    charges = [Charge(event(2.0)), Charge(event(1.0), None, study="s2"), Charge(event(0.3), study="s3")]
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over(DEFAULT_LIMITS, charges, event(1.5), "me.csv", NOW)
    assert refusal.value.exit_code == 4
    assert str(refusal.value).splitlines() == [
        "BUDGET-002  This study asks for epsilon 1.5 (person, replace); 0.7 of your yearly limit of 4.0 is left.",
        "  why       3 studies used 3.3, 1.0 of it held for what is not yet sent (see: shoal ledger show).",
        "  fix       Ask the study for epsilon <= 0.7, or raise your own limit with: shoal ledger limit --epsilon 4.8",
    ]


def test_the_refusal_of_a_special_limit_names_it_and_its_command() -> None:
    limit = Limit(Unit.RECORD, 0, Relation.REPLACE, Period.MONTH, "my data.csv", "age")
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over([Limit(Unit.RECORD, grains_down(9.0)), limit], [], event(0.25, Unit.RECORD, Relation.ADD_REMOVE), "my data.csv", NOW)
    assert "epsilon 0.25 (record, add-remove), which counts as 0.5 under replace; 0 of your monthly limit of 0 " in refusal.value.what
    assert "(record, replace, source my data.csv, releases that read age, a month)" in refusal.value.what
    assert refusal.value.why == "0 studies used 0 (see: shoal ledger show)."
    assert refusal.value.fix == (
        "Raise your own limit with: shoal ledger limit --epsilon 0.5 --per month --unit record --source 'my data.csv' --feature age"
    )


def test_a_number_of_releases_is_kept_whatever_the_relation() -> None:
    limit = Limit(Unit.PERSON, None, Relation.ADD_REMOVE, Period.DAY, feature="age", releases=2)
    charges = [Charge(event(reads=("age",))), Charge(event(), None), Charge(event(reads=("sex",)))]
    assert measure(limit, charges, NOW).left is None
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over([YEARLY, limit], charges, event(0.1, reads=("age",)), "me.csv", NOW)
    assert refusal.value.code == "BUDGET-003"
    assert "This would be release 3; your daily limit is 2 (person, add-remove" in refusal.value.what
    assert (refusal.value.fix or "").endswith("limit --releases 3 --per day --relation add-remove --feature age")
    refuse_if_over([YEARLY, limit], charges[:1], event(0.1, reads=("age",)), "me.csv", NOW)


@pytest.mark.parametrize(
    "limits", [[], [Limit(Unit.RECORD, 10**12)], [Limit(Unit.PERSON, 10**12, feature="age")], [Limit(Unit.PERSON, None, releases=9)]]
)
def test_a_release_that_no_limit_bounds_is_refused(limits: list[Limit]) -> None:
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over(limits, [], event(0.1, reads=("age",)), "me.csv", NOW)
    assert refusal.value.code == "BUDGET-001"
    assert (refusal.value.fix or "").endswith("shoal ledger limit --epsilon 4")
    assert left_for(limits, [], event(reads=("age",)), "me.csv", NOW) == 0


def test_a_limit_that_cannot_be_kept_refuses_before_and_after() -> None:
    limit = Limit(Unit.PERSON, 10**12, Relation.ADD_REMOVE)
    with pytest.raises(BudgetError, match=r"BUDGET-001.*cannot be kept"):
        refuse_if_over([YEARLY, limit], [], event(0.1), "me.csv", NOW)
    with pytest.raises(BudgetError) as refusal:
        refuse_if_over([limit], [Charge(event())], event(0.1, relation=Relation.ADD_REMOVE), "me.csv", NOW)
    assert "1 such releases count in this period already." in (refusal.value.why or "")
    assert (refusal.value.fix or "").endswith("shoal ledger limit --remove --relation add-remove")
    assert left_for([YEARLY, limit], [], event(), "me.csv", NOW) == 0


def test_what_is_left_is_the_smallest_room_in_the_events_own_relation() -> None:
    limits = [YEARLY, Limit(Unit.PERSON, grains_down(1.0), source="me.csv"), Limit(Unit.PERSON, None, feature="age", releases=1)]
    asked = event(relation=Relation.ADD_REMOVE, reads=("age",))
    assert left_for(limits, [], asked, "me.csv", NOW) == grains_up(0.5)
    assert left_for(limits, [], asked, "you.csv", NOW) == grains_up(2.0)
    assert left_for(limits, [Charge(event(0.5, reads=("age",)))], asked, "me.csv", NOW) == 0


@pytest.mark.parametrize(
    "bad", [{"grains": -1}, {"grains": 10**19}, {"releases": -1}, {"source": ""}, {"feature": "a\x1b[2J"}, {"source": "x" * 501}]
)
def test_a_limit_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="LEDGER-009"):
        replace(YEARLY, **bad)  # type: ignore[arg-type]


def test_a_limit_says_what_it_is_about() -> None:
    assert (
        str(replace(YEARLY, period=Period.EVER, feature="age")) == "person, replace, all sources together, releases that read age, in all"
    )
    assert [period.adjective for period in Period] == ["daily", "monthly", "yearly", "overall"]


def test_what_is_left_is_printed_rounded_down() -> None:
    assert show_left(grains_up(0.69999)) == "0.6999"
    assert show_left(grains_up(123456.78999)) == "123456.7899"
    assert show_left(1) == "0"


def test_a_scope_given_as_text_is_counted_as_well() -> None:
    text = Event("test", {}, Scope("person", "add-remove", "everyone"), 1.0)  # type: ignore[arg-type]
    assert measure(YEARLY, [Charge(text)], NOW).spent == grains_up(2.0)
    assert LOCAL_PERSON.unit == "person"


APPROXIMATE = Limit(Unit.PERSON, grains_down(4.0), delta_grains=delta_grains_down(1e-5))


def approximate(epsilon: float, delta: float, relation: Relation = Relation.REPLACE) -> Event:
    return Event("test", {}, Scope(Unit.PERSON, relation, "everyone"), epsilon, delta)


def test_deltas_add_up_and_are_refused_over_their_limit() -> None:
    charges = [Charge(approximate(0.01, 3e-6)), Charge(approximate(0.01, 3e-6), None)]
    assert measure(APPROXIMATE, charges, NOW).delta == delta_grains_up(6e-6)
    refuse_if_over([APPROXIMATE], charges, approximate(0.01, 4e-6), "me.csv", NOW)
    refuse_if_over([APPROXIMATE], charges, event(0.01), "me.csv", NOW)
    with pytest.raises(BudgetError) as caught:
        refuse_if_over([APPROXIMATE], charges, approximate(0.01, 4.1e-6), "me.csv", NOW)
    assert caught.value.code == "BUDGET-006"
    assert "--delta 1.01e-05" in str(caught.value)
    assert left_for([APPROXIMATE], charges, approximate(0.01, 4e-6), "me.csv", NOW) == grains_down(3.98)
    assert left_for([APPROXIMATE], charges, approximate(0.01, 4.1e-6), "me.csv", NOW) == 0


def test_a_delta_under_add_remove_counts_for_two_steps_under_replace_and_not_at_all_the_other_way() -> None:
    release = approximate(1.0, 1e-6, Relation.ADD_REMOVE)
    counted = measure(APPROXIMATE, [Charge(release)], NOW).delta
    assert (1 + 2.718281828) * 1e-6 <= counted / DELTA_GRAINS <= (1 + 2.718281829) * 1e-6
    other_way = replace(APPROXIMATE, relation=Relation.ADD_REMOVE)
    assert measure(other_way, [Charge(approximate(1.0, 1e-6))], NOW).delta == DELTA_GRAINS


def test_a_delta_that_no_limit_bounds_is_refused() -> None:
    for limits in ([YEARLY], [YEARLY, replace(APPROXIMATE, grains=None, feature="age")]):
        with pytest.raises(BudgetError, match=r"BUDGET-001.*delta"):
            refuse_if_over(limits, [], approximate(0.1, 1e-9), "me.csv", NOW)
        assert left_for(limits, [], approximate(0.1, 1e-9), "me.csv", NOW) == 0


@pytest.mark.parametrize("grains", [-1, DELTA_GRAINS])
def test_a_limit_on_delta_is_a_chance(grains: int) -> None:
    with pytest.raises(UsageError):
        Limit(Unit.PERSON, None, delta_grains=grains)


def test_a_new_ledger_bounds_every_unit_that_is_charged() -> None:
    assert {limit.unit for limit in DEFAULT_LIMITS} == set(Unit) - {Unit.WEIGHT}
    assert all(limit.grains and limit.delta_grains for limit in DEFAULT_LIMITS)
