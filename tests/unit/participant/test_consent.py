"""Prices of offers, the limit on the label, and refusals before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.errors import BudgetError, ConsentError
from shoal.participant.consent import (
    PricedOffer,
    price_offer,
    refuse_if_over_limits,
    refuse_if_voided,
)
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Unit
from shoal.privacy.ledger.limits import Limit, Period
from shoal.privacy.rounding import float_from_grains, from_grains, grains_down, grains_up
from shoal.study.handle import StudyHandle
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.starters import read_starter

CLOCK = ManualClock()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerFile]:
    with LedgerFile(tmp_path / "ledger.db", CLOCK) as ledger:
        yield ledger


def make_manifest(protocol: str, *edits: tuple[str, str]) -> Manifest:
    text = read_starter(protocol)
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return Manifest(parse_study_text(text))


def make_priced_offer(
    manifest: Manifest, ledger: LedgerFile, source: str = "me.csv"
) -> PricedOffer:
    return price_offer(StudyHandle(manifest), ledger, source, CLOCK.now())


def refuse(one: PricedOffer, ledger: LedgerFile, max_epsilon: float | None = None) -> None:
    refuse_if_over_limits(one, ledger, CLOCK.now(), max_epsilon)


def spend(
    ledger: LedgerFile,
    epsilon: float,
    study: str = "other",
    question: str = "q",
    source: str = "me.csv",
) -> None:
    event = Event("random-response", {}, LOCAL_PERSON, epsilon)
    ledger.reserve(
        study,
        question,
        event,
        source=source,
        recipient="https://other.example",
        title="Another study",
    )
    ledger.store(study, question, b"noisy")
    ledger.mark_sending(study, question)


@pytest.mark.parametrize("protocol", ["anonml", "ddml", "sdq", "pfds"])
def test_price_is_sum_of_all_releases(protocol: str, ledger: LedgerFile) -> None:
    one = make_priced_offer(make_manifest(protocol), ledger)
    assert grains_up(one.total_event.epsilon) == sum(
        grains_up(event.epsilon) for event in one.plan.charges
    )
    assert one.total_event.scope.unit == one.plan.charges[0].scope.unit
    assert one.statement.digest == one.manifest.short_digest and one.statement.budget is not None


def test_label_shows_limit_and_used_amount(ledger: LedgerFile) -> None:
    spend(ledger, 1.25)
    one = make_priced_offer(make_manifest("anonml", ("epsilon = 2.0", "epsilon = 1.5")), ledger)
    budget = one.statement.budget
    assert budget is not None and (budget.limit, budget.used, budget.after, budget.period) == (
        4.0,
        1.25,
        2.75,
        "a year",
    )
    ledger.set_limit(Limit(Unit.PERSON, grains_down(2.5), period=Period.EVER))
    budget = make_priced_offer(one.manifest, ledger).statement.budget
    assert (
        budget is not None
        and (budget.limit, budget.period) == (2.5, "in all")
        and "the ledger will refuse" in str(budget)
    )


def test_add_remove_release_counts_twice_under_replace(ledger: LedgerFile) -> None:
    one = make_priced_offer(make_manifest("sdq"), ledger)
    assert one.total_event.scope.relation is Relation.ADD_REMOVE
    budget = one.statement.budget
    assert budget is not None and budget.after == pytest.approx(2 * one.total_event.epsilon)


def test_refuse_if_over_limits_raises_above_max_epsilon(ledger: LedgerFile) -> None:
    one = make_priced_offer(make_manifest("anonml", ("epsilon = 2.0", "epsilon = 1.5")), ledger)
    refuse(one, ledger, 1.5)
    with pytest.raises(
        ConsentError,
        match=r"epsilon 1\.5, delta 0 \(person, replace, against everyone\); .* 1\.49 at most",
    ) as refused:
        refuse(one, ledger, 1.49)
    assert (
        refused.value.code == "CONSENT-001"
        and refused.value.fix is not None
        and refused.value.fix.endswith("--max-epsilon 1.5")
    )
    assert not ledger.entries()


def test_refuse_if_over_limits_compares_whole_price_with_ledger(ledger: LedgerFile) -> None:
    """Each update of the study would fit into the limit; all of them together do not."""
    one = make_priced_offer(make_manifest("ddml"), ledger)
    assert len(one.plan.charges) > 0
    ledger.set_limit(
        Limit(
            one.total_event.scope.unit,
            grains_down(one.total_event.epsilon) - 1,
            delta_grains=10**14,
        )
    )
    with pytest.raises(BudgetError) as refused:
        refuse(one, ledger)
    assert refused.value.code == "BUDGET-002"
    ledger.set_limit(
        Limit(one.total_event.scope.unit, grains_up(one.total_event.epsilon), delta_grains=10**14)
    )
    refuse(one, ledger)


def test_other_studies_count_towards_limit_and_own_reservations_do_not(
    ledger: LedgerFile,
) -> None:
    one = make_priced_offer(make_manifest("anonml"), ledger)
    assert one.total_event.epsilon == 2.0
    spend(ledger, 1.9, study=one.manifest.digest.hex())
    refuse(one, ledger)
    spend(ledger, 2.0)
    refuse(one, ledger)
    spend(ledger, 0.001, question="another")
    with pytest.raises(BudgetError, match=r"1\.999 of your yearly limit of 4\.0 is left"):
        refuse(one, ledger)


def test_limit_of_other_source_is_ignored(ledger: LedgerFile) -> None:
    ledger.set_limit(Limit(Unit.PERSON, 0, source="secret.csv"))
    refuse(make_priced_offer(make_manifest("anonml"), ledger), ledger)
    with pytest.raises(BudgetError):
        refuse(make_priced_offer(make_manifest("anonml"), ledger, "secret.csv"), ledger)


def test_limit_on_releases_counts_all_releases_of_study(ledger: LedgerFile) -> None:
    one = make_priced_offer(make_manifest("sdq"), ledger)
    n = len(one.plan.charges)
    assert n > 1
    ledger.set_limit(Limit(one.total_event.scope.unit, None, period=Period.MONTH, releases=n))
    refuse(one, ledger)
    spend(ledger, 0.1)
    with pytest.raises(
        BudgetError,
        match=f"makes up to {n} releases; {n - 1} of your monthly limit of {n} are left",
    ) as refused:
        refuse(one, ledger)
    assert refused.value.code == "BUDGET-003"


def test_limit_on_feature_applies_if_feature_is_read(ledger: LedgerFile) -> None:
    one = make_priced_offer(make_manifest("anonml"), ledger)
    if one.total_event.reads:
        ledger.set_limit(Limit(Unit.PERSON, 0, feature=one.total_event.reads[0]))
        with pytest.raises(BudgetError):
            refuse(one, ledger)


def test_offer_without_limit_has_no_budget_line_and_is_refused(
    ledger: LedgerFile,
) -> None:
    for usage in ledger.limits():
        ledger.set_limit(Limit(usage.limit.unit, None))
    one = make_priced_offer(make_manifest("anonml"), ledger)
    assert one.statement.budget is None
    with pytest.raises(BudgetError) as refused:
        refuse(one, ledger)
    assert refused.value.code == "BUDGET-001"


def test_price_is_figure_that_ledger_counts(ledger: LedgerFile) -> None:
    """Gaussian noise composes to less than the plain sum; add-remove counts twice under replace."""
    sums = ('trust = "local"', 'trust = "secure-sum"'), ("[privacy]", "[privacy]\ndelta = 1e-6")
    one = make_priced_offer(make_manifest("pfds", *sums), ledger)
    stated = grains_up(one.statement.epsilon)
    assert stated == grains_up(one.total_event.epsilon) < grains_up(one.statement.plain_sum)
    assert one.price == from_grains(2 * stated)
    refuse(one, ledger, float_from_grains(2 * stated))
    with pytest.raises(
        ConsentError, match=r"which counts as .* under replace; you allow"
    ) as caught:
        refuse(one, ledger, one.statement.epsilon)
    assert "as your ledger counts it" in (caught.value.why or "")
    ledger.set_limit(Limit(None, grains_down(40.0), delta_grains=10**14, max_rows_per_person=3))
    declared = make_priced_offer(one.manifest, ledger)
    assert declared.price == from_grains(6 * stated)


@pytest.mark.parametrize(
    ("protocol", "limit", "words"),
    [
        ("anonml", {}, "a year for everything about one person, in all studies together;"),
        ("ddml", {}, "a year for everything about one person, in all studies together;"),
        ("pfds", {}, "for everything about one row, in all studies together (a person with"),
        ("pfds", {"max_rows_per_person": 3}, "about one person with up to 3 rows, in all"),
        ("pfds", {"unit": Unit.RECORD}, "for the unit record alone;"),
        ("anonml", {"source": "me.csv"}, "together, from me.csv;"),
    ],
)
def test_label_says_what_limit_counts(
    protocol: str, limit: dict[str, Any], words: str, ledger: LedgerFile
) -> None:
    ledger.set_limit(Limit(**{"unit": None, "grains": grains_down(0.1), **limit}))
    budget = make_priced_offer(make_manifest(protocol), ledger).statement.budget
    assert words in str(budget)


def test_label_shows_sum_over_protocols_and_second_study_is_refused(ledger: LedgerFile) -> None:
    """Attack: epsilon 4 through AnonML and 4 more through DDML, whose label said "used 0"."""
    spend(ledger, 4.0)
    one = make_priced_offer(make_manifest("ddml"), ledger)
    assert one.total_event.scope.unit is Unit.UPDATE
    budget = one.statement.budget
    assert budget is not None and (budget.used, budget.limit) == (4.0, 4.0)
    assert "the ledger will refuse" in str(one.statement.budget)
    with pytest.raises(BudgetError, match=r"0 of your yearly limit of 4\.0 is left"):
        refuse(one, ledger)


def test_refuse_if_voided_raises_for_voided_answers(ledger: LedgerFile) -> None:
    manifest = make_manifest("anonml")
    study, event = manifest.digest.hex(), Event("random-response", {}, LOCAL_PERSON, 1.0)
    refuse_if_voided(manifest, ledger)
    ledger.reserve(study, "answer", event, source="me.csv", recipient="https://x.org", title="Naps")
    refuse_if_voided(manifest, ledger)
    ledger.void(study, "answer")
    with pytest.raises(BudgetError, match="gave up 1 drawn answer") as refused:
        refuse_if_voided(manifest, ledger)
    assert refused.value.code == "BUDGET-005" and refused.value.fix
    refuse_if_voided(make_manifest("ddml"), ledger)


def test_label_says_coordinator_could_recognise_ticket(
    ledger: LedgerFile,
) -> None:
    label = " ".join(
        str(make_priced_offer(make_manifest("anonml"), ledger).statement)
        .replace("\u2502", " ")
        .split()
    )
    assert "receives the ticket when you enrol and could recognise your packet by it" in label


def test_refuse_if_over_limits_raises_for_closed_study(ledger: LedgerFile) -> None:
    closes = ("[participation]", "[participation]\ncloses = 2030-01-01T00:00:00Z")
    assert make_manifest("ddml", closes).study.participation.closes == CLOCK.now()
    with pytest.raises(ConsentError, match="closed on 2030-01-01 at 00:00 UTC") as caught:
        refuse(make_priced_offer(make_manifest("ddml", closes), ledger), ledger)
    assert caught.value.code == "CONSENT-001"
    later = (closes[0], closes[1].replace("00Z", "01Z"))
    refuse(make_priced_offer(make_manifest("ddml", later), ledger), ledger)
