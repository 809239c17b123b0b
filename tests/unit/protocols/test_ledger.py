"""The ledger in memory keeps the order of the real one."""

from __future__ import annotations

import pytest

from shoal.errors import BudgetError, LocalProtocolError
from shoal.privacy.events import LOCAL_PERSON, Event
from shoal.privacy.records import State
from shoal.protocols.ledger import Account, Drawn, MemoryLedger

PRICE = Event("random-response", {"cardinality": 2}, LOCAL_PERSON, 0.5)
STUDY = bytes(32)


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(limit=1.0)


@pytest.fixture
def account(ledger: MemoryLedger) -> Account:
    return Account(ledger, STUDY, "rows", "aggregator", "A study")


def test_a_release_goes_through_its_states(ledger: MemoryLedger, account: Account) -> None:
    key = (STUDY.hex(), "q")
    assert not isinstance(account.reserve("q", PRICE), Drawn)
    assert not isinstance(account.reserve("q", PRICE), Drawn), "nothing was stored: it may be drawn again"
    account.store("q", b"noisy")
    assert (ledger.entries[key].state, ledger.spent) == (State.STORED, 0.0)
    again = account.reserve("q", PRICE)
    assert isinstance(again, Drawn)
    assert again.payload == b"noisy"
    assert (account.mark_sending("q"), ledger.spent) == (b"noisy", 0.5)
    assert account.mark_sending("q") == b"noisy"
    account.mark_sent("q")
    account.mark_sent("q")
    assert (account.mark_sending("q"), ledger.entries[key].state, ledger.spent) == (b"noisy", State.SENT, 0.5)


def test_no_step_is_skipped_or_taken_twice(account: Account) -> None:
    for attempt in (lambda: account.store("q", b"x"), lambda: account.mark_sending("q"), lambda: account.mark_sent("q")):
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


def test_the_limit_counts_what_is_held(account: Account) -> None:
    account.reserve("one", PRICE)
    account.reserve("two", PRICE)
    with pytest.raises(BudgetError) as caught:
        account.reserve("three", PRICE)
    assert caught.value.code == "BUDGET-002"


def test_a_question_has_one_price(account: Account) -> None:
    account.reserve("q", PRICE)
    with pytest.raises(BudgetError) as caught:
        account.reserve("q", Event("random-response", {"cardinality": 2}, LOCAL_PERSON, 0.25))
    assert caught.value.code == "BUDGET-004"
