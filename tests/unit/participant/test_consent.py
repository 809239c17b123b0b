"""What a participant agrees to: the whole price, the limit beside it, and every refusal before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.clock import ManualClock
from shoal.errors import BudgetError, ConsentError
from shoal.participant.consent import Asked, asked_of, refuse_if_too_much, refuse_if_voided
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Unit
from shoal.privacy.limits import Limit, Period
from shoal.privacy.rounding import grains_down, grains_up
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.templates import study_text

CLOCK = ManualClock()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerFile]:
    with LedgerFile(tmp_path / "ledger.db", CLOCK) as ledger:
        yield ledger


def manifest_of(protocol: str, *edits: tuple[str, str]) -> Manifest:
    text = study_text(protocol)
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return Manifest(parse(text))


def asked(manifest: Manifest, ledger: LedgerFile, source: str = "me.csv") -> Asked:
    return asked_of(manifest, ledger, source, CLOCK.now())


def refuse(one: Asked, ledger: LedgerFile, max_epsilon: float | None = None) -> None:
    refuse_if_too_much(one, ledger, CLOCK.now(), max_epsilon)


def spend(ledger: LedgerFile, epsilon: float, study: str = "other", question: str = "q", source: str = "me.csv") -> None:
    event = Event("random-response", {}, LOCAL_PERSON, epsilon)
    ledger.reserve(study, question, event, source=source, recipient="https://other.example", title="Another study")
    ledger.store(study, question, b"noisy")
    ledger.mark_sending(study, question)


@pytest.mark.parametrize("protocol", ["anonml", "ddml", "sdq", "pfds"])
def test_everything_costs_what_all_releases_cost_together(protocol: str, ledger: LedgerFile) -> None:
    one = asked(manifest_of(protocol), ledger)
    assert grains_up(one.everything.epsilon) == sum(grains_up(event.epsilon) for event in one.plan.charges)
    assert one.everything.scope.unit == one.plan.charges[0].scope.unit
    assert one.statement.digest == one.manifest.short and one.statement.budget is not None


def test_the_label_shows_the_limit_and_what_was_used_of_it(ledger: LedgerFile) -> None:
    spend(ledger, 1.25)
    one = asked(manifest_of("anonml", ("epsilon = 2.0", "epsilon = 1.5")), ledger)
    budget = one.statement.budget
    assert budget is not None and (budget.limit, budget.used, budget.after, budget.period) == (4.0, 1.25, 2.75, "a year")
    ledger.set_limit(Limit(Unit.PERSON, grains_down(2.5), period=Period.EVER))
    budget = asked(one.manifest, ledger).statement.budget
    assert budget is not None and (budget.limit, budget.period) == (2.5, "in all") and "the ledger will refuse" in str(budget)


def test_add_remove_counts_twice_under_replace(ledger: LedgerFile) -> None:
    one = asked(manifest_of("sdq"), ledger)
    assert one.everything.scope.relation is Relation.ADD_REMOVE
    budget = one.statement.budget
    assert budget is not None and budget.after == pytest.approx(2 * one.everything.epsilon)


def test_more_than_was_agreed_to_is_refused(ledger: LedgerFile) -> None:
    one = asked(manifest_of("anonml", ("epsilon = 2.0", "epsilon = 1.5")), ledger)
    refuse(one, ledger, 1.5)
    with pytest.raises(ConsentError, match=r"epsilon 1\.5, delta 0 \(person, replace, against everyone\); .* 1\.49 at most") as refused:
        refuse(one, ledger, 1.49)
    assert refused.value.code == "CONSENT-001" and refused.value.fix is not None and refused.value.fix.endswith("--max-epsilon 1.5")
    assert not ledger.entries()


def test_the_whole_price_is_held_against_the_ledger(ledger: LedgerFile) -> None:
    """Each update of the study would fit; all of them together do not."""
    one = asked(manifest_of("ddml"), ledger)
    assert len(one.plan.charges) > 0
    ledger.set_limit(Limit(one.everything.scope.unit, grains_down(one.everything.epsilon) - 1, delta_grains=10**14))
    with pytest.raises(BudgetError) as refused:
        refuse(one, ledger)
    assert refused.value.code == "BUDGET-002"
    ledger.set_limit(Limit(one.everything.scope.unit, grains_up(one.everything.epsilon), delta_grains=10**14))
    refuse(one, ledger)


def test_what_others_have_used_counts_and_what_the_study_itself_holds_does_not(ledger: LedgerFile) -> None:
    one = asked(manifest_of("anonml"), ledger)
    assert one.everything.epsilon == 2.0
    spend(ledger, 1.9, study=one.manifest.digest.hex())
    refuse(one, ledger)
    spend(ledger, 2.0)
    refuse(one, ledger)
    spend(ledger, 0.001, question="another")
    with pytest.raises(BudgetError, match=r"1\.999 of your yearly limit of 4\.0 is left"):
        refuse(one, ledger)


def test_a_limit_for_another_source_does_not_matter(ledger: LedgerFile) -> None:
    ledger.set_limit(Limit(Unit.PERSON, 0, source="secret.csv"))
    refuse(asked(manifest_of("anonml"), ledger), ledger)
    with pytest.raises(BudgetError):
        refuse(asked(manifest_of("anonml"), ledger, "secret.csv"), ledger)


def test_a_number_of_releases_is_kept_for_the_whole_study(ledger: LedgerFile) -> None:
    one = asked(manifest_of("sdq"), ledger)
    n = len(one.plan.charges)
    assert n > 1
    ledger.set_limit(Limit(one.everything.scope.unit, None, period=Period.MONTH, releases=n))
    refuse(one, ledger)
    spend(ledger, 0.1)
    with pytest.raises(BudgetError, match=f"makes up to {n} releases; {n - 1} of your monthly limit of {n} are left") as refused:
        refuse(one, ledger)
    assert refused.value.code == "BUDGET-003"


def test_a_limit_for_a_feature_that_is_read_counts(ledger: LedgerFile) -> None:
    one = asked(manifest_of("anonml"), ledger)
    if one.everything.reads:
        ledger.set_limit(Limit(Unit.PERSON, 0, feature=one.everything.reads[0]))
        with pytest.raises(BudgetError):
            refuse(one, ledger)


def test_without_any_limit_that_counts_there_is_no_line_and_the_ledger_refuses(ledger: LedgerFile) -> None:
    for usage in ledger.limits():
        ledger.set_limit(Limit(usage.limit.unit, None))
    one = asked(manifest_of("anonml"), ledger)
    assert one.statement.budget is None
    with pytest.raises(BudgetError) as refused:
        refuse(one, ledger)
    assert refused.value.code == "BUDGET-001"


def test_the_price_is_the_larger_of_what_the_label_states_and_what_the_ledger_counts(ledger: LedgerFile) -> None:
    """Gaussian noise composes to less than the plain sum of the charges, and that is what the label states."""
    sums = ('trust = "local"', 'trust = "secure-sum"'), ("[privacy]", "[privacy]\ndelta = 1e-6")
    one = asked(manifest_of("pfds", *sums), ledger)
    stated, counted = grains_up(one.statement.everything[0]), grains_up(one.everything.epsilon)
    assert stated < counted and grains_up(float(one.price)) == counted
    with pytest.raises(ConsentError, match="as your ledger counts it"):
        refuse(one, ledger, one.statement.everything[0])


def test_what_was_given_up_is_not_asked_again(ledger: LedgerFile) -> None:
    manifest = manifest_of("anonml")
    study, event = manifest.digest.hex(), Event("random-response", {}, LOCAL_PERSON, 1.0)
    refuse_if_voided(manifest, ledger)
    ledger.reserve(study, "answer", event, source="me.csv", recipient="https://x.org", title="Naps")
    refuse_if_voided(manifest, ledger)
    ledger.void(study, "answer")
    with pytest.raises(BudgetError, match="given up 1 answer") as refused:
        refuse_if_voided(manifest, ledger)
    assert refused.value.code == "BUDGET-005" and refused.value.fix
    refuse_if_voided(manifest_of("ddml"), ledger)


def test_the_label_says_that_the_coordinator_could_know_whose_ticket_it_is(ledger: LedgerFile) -> None:
    label = " ".join(str(asked(manifest_of("anonml"), ledger).statement).replace("\u2502", " ").split())
    assert "the coordinator is given the ticket when you enrol, and could tell that the packet is yours" in label


def test_a_study_that_has_closed_is_not_agreed_to(ledger: LedgerFile) -> None:
    closes = ("[participation]", "[participation]\ncloses = 2030-01-01T00:00:00Z")
    assert manifest_of("ddml", closes).study.participation.closes == CLOCK.now()
    with pytest.raises(ConsentError, match="closed on 2030-01-01 at 00:00 UTC") as caught:
        refuse(asked(manifest_of("ddml", closes), ledger), ledger)
    assert caught.value.code == "CONSENT-001"
    later = (closes[0], closes[1].replace("00Z", "01Z"))
    refuse(asked(manifest_of("ddml", later), ledger), ledger)
