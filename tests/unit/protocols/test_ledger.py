"""The ledger in memory and the file behave alike: every test here runs on both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.errors import BudgetError, LocalProtocolError
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.ledger.limits import Limit, Period
from shoal.privacy.rounding import grains_down
from shoal.protocols.ledger import Account, MemoryLedger, StoredPayload

PRICE = Event("random-response", {"cardinality": 2}, LOCAL_PERSON, 0.5)
STUDY = bytes(32)
Both = MemoryLedger | LedgerFile


def limit(epsilon: float) -> Limit:
    return Limit(None, grains_down(epsilon), period=Period.EVER)


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Both]:
    if request.param == "memory":
        yield MemoryLedger(limit=1.0)
        return
    with LedgerFile(tmp_path / "ledger.db", ManualClock()) as file:
        file.set_limit(limit(1.0))
        yield file


@pytest.fixture
def account(ledger: Both) -> Account:
    return ledger.account(STUDY, "rows", "aggregator", "A study")


def spent(ledger: Any) -> int:
    return sum(total.spent for total in ledger.totals())


def refusal(act: Any) -> BudgetError:
    with pytest.raises(BudgetError) as caught:
        act()
    return caught.value


def test_memory_ledger_release_passes_all_states(ledger: Both, account: Account) -> None:
    assert not isinstance(account.reserve("q", PRICE), StoredPayload)
    assert not isinstance(account.reserve("q", PRICE), StoredPayload), (
        "nothing was stored: it may be drawn again"
    )
    account.store("q", b"noisy")
    account.store("q", b"noisy")
    assert spent(ledger) == 0
    again = account.reserve("q", PRICE)
    assert isinstance(again, StoredPayload)
    assert again.payload == b"noisy"
    assert (account.mark_sending("q"), spent(ledger)) == (b"noisy", 5 * 10**11)
    assert account.mark_sending("q") == b"noisy"
    account.mark_sent("q")
    account.mark_sent("q")
    account.store("q", b"noisy")
    assert (account.mark_sending("q"), spent(ledger)) == (b"noisy", 5 * 10**11)


def test_memory_ledger_lists_unsent_answers(ledger: Both, account: Account) -> None:
    ledger.set_limit(limit(9.0))
    for question in ("reserved", "stored", "sending", "sent", "voided"):
        account.reserve(question, PRICE)
    for question in ("stored", "sending", "sent", "voided"):
        account.store(question, question.encode())
    for question in ("sending", "sent"):
        account.mark_sending(question)
    account.mark_sent("sent")
    ledger.void(STUDY.hex(), "voided")
    assert dict(account.list_unsent()) == {"stored": b"stored", "sending": b"sending"}
    assert dict(replace(account, study=bytes(31) + b"x").list_unsent()) == {}
    assert [
        (key.question, entry.state.value) for key, entry in MemoryLedger().entries.items()
    ] == []


def test_memory_ledger_refuses_to_send_voided_answer(ledger: Both, account: Account) -> None:
    account.reserve("q", PRICE)
    account.store("q", b"noisy")
    ledger.void(STUDY.hex(), "q")
    ledger.void(STUDY.hex(), "q")
    for act in (lambda: account.mark_sending("q"), lambda: account.reserve("q", PRICE)):
        assert refusal(act).code == "BUDGET-005"
    with pytest.raises(LocalProtocolError):
        account.store("q", b"noisy")
    assert spent(ledger) == 0


def test_memory_ledger_voids_reserved_question(ledger: Both, account: Account) -> None:
    account.reserve("q", PRICE)
    ledger.void(STUDY.hex(), "q")
    account.reserve("other", PRICE)
    account.reserve("another", PRICE)


def test_memory_ledger_refuses_sending_after_limit_is_lowered(
    ledger: Both, account: Account
) -> None:
    account.reserve("q", PRICE)
    account.store("q", b"noisy")
    ledger.set_limit(limit(0.4))
    assert refusal(lambda: account.mark_sending("q")).code == "BUDGET-002"
    ledger.set_limit(limit(0.5))
    assert account.mark_sending("q") == b"noisy"


def test_memory_ledger_counts_limits_in_decimals(ledger: Both, account: Account) -> None:
    ledger.set_limit(limit(0.3))
    for question in ("one", "two", "three"):
        account.reserve(question, replace(PRICE, epsilon=0.1))
    assert (
        refusal(lambda: account.reserve("four", replace(PRICE, epsilon=1e-12))).code == "BUDGET-002"
    )


def test_memory_ledger_separates_sources(ledger: Both, account: Account) -> None:
    account.reserve("q", PRICE)
    account.store("q", b"noisy")
    for other in (
        replace(account, source="other rows"),
        replace(account, recipient="somebody else"),
    ):
        assert refusal(lambda other=other: other.reserve("q", PRICE)).code == "BUDGET-004"


def test_memory_ledger_rejects_skipped_and_repeated_transitions(account: Account) -> None:
    for attempt in (
        lambda: account.store("q", b"x"),
        lambda: account.mark_sending("q"),
        lambda: account.mark_sent("q"),
    ):
        with pytest.raises(LocalProtocolError) as caught:
            attempt()
        assert caught.value.code == "LEDGER-008"
    account.reserve("q", PRICE)
    for attempt in (lambda: account.mark_sending("q"), lambda: account.mark_sent("q")):
        with pytest.raises(LocalProtocolError):
            attempt()
    account.store("q", b"x")
    for attempt in (lambda: account.store("q", b"y"), lambda: account.mark_sent("q")):
        with pytest.raises(LocalProtocolError):
            attempt()
    assert account.mark_sending("q") == b"x"


def test_memory_ledger_limit_counts_reserved_costs(account: Account) -> None:
    account.reserve("one", PRICE)
    account.reserve("two", PRICE)
    with pytest.raises(BudgetError) as caught:
        account.reserve("three", PRICE)
    assert caught.value.code == "BUDGET-002"


def test_memory_ledger_rejects_second_price_of_question(account: Account) -> None:
    account.reserve("q", PRICE)
    with pytest.raises(BudgetError) as caught:
        account.reserve("q", Event("random-response", {"cardinality": 2}, LOCAL_PERSON, 0.25))
    assert caught.value.code == "BUDGET-004"


def test_memory_ledger_without_limit_grants_any_release() -> None:
    scopes = [
        Scope(unit, relation, "everyone")
        for unit in Unit
        for relation in (Relation.ADD_REMOVE, Relation.REPLACE)
    ]
    account = MemoryLedger().account(STUDY, "rows", "aggregator", "A study")
    for number, scope in enumerate(scopes):
        account.reserve(f"q{number}", Event("x", {}, scope, 100.0, delta=1e-6))
        account.store(f"q{number}", b"noisy")
        account.mark_sending(f"q{number}")


def test_memory_ledger_limit_on_epsilon_allows_delta() -> None:
    account = MemoryLedger(limit=1.0).account(STUDY, "rows", "aggregator", "A study")
    account.reserve("q", replace(PRICE, delta=1e-6))
