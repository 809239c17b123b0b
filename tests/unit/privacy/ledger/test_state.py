"""Ledger state: transitions, the hash chain, totals, and heads noted earlier."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, StoreError, UsageError
from shoal.privacy.accountant import rho_to_epsilon
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.ledger.charges import StudyBudget
from shoal.privacy.ledger.limits import DEFAULT_LIMITS, Limit, Period
from shoal.privacy.ledger.records import (
    DateRecord,
    LedgerRecord,
    LedgerRelease,
    LedgerRow,
    LimitRecord,
    OpeningRecord,
    ReleaseKey,
    ReleaseState,
    ReserveRecord,
    StoreRecord,
    TransitionRecord,
    chain_hash,
    encode_record,
)
from shoal.privacy.ledger.state import (
    HELD_STATES,
    MAX_CLOCK_LEAD,
    SPENT_STATES,
    TRANSITIONS,
    LedgerState,
    LedgerTotal,
)
from shoal.privacy.rounding import delta_grains_down, delta_grains_up, grains_down, grains_up

AT = datetime(2030, 1, 1, tzinfo=UTC)
LATER = AT + timedelta(days=200)
EVENT = Event("test", {}, LOCAL_PERSON, 0.5)
YEARLY = Limit(Unit.PERSON, grains_down(4.0))
KEY = ReleaseKey("d1", "q1")
RELEASE = LedgerRelease(*KEY, EVENT, "me.csv", "https://study.example", "Sleep")
STORE = StoreRecord(AT, KEY, bytes(32), 3)

PATHS: dict[ReleaseState, list[LedgerRecord]] = {
    ReleaseState.RESERVED: [],
    ReleaseState.STORED: [STORE],
    ReleaseState.SENDING: [STORE, TransitionRecord(LATER, KEY, ReleaseState.SENDING)],
    ReleaseState.SENT: [
        STORE,
        TransitionRecord(LATER, KEY, ReleaseState.SENDING),
        TransitionRecord(LATER, KEY, ReleaseState.SENT),
    ],
    ReleaseState.VOIDED: [STORE, TransitionRecord(AT, KEY, ReleaseState.VOIDED)],
}


def replace_key(record: StoreRecord, key: ReleaseKey) -> StoreRecord:
    return record._replace(key=key)


def write(books: LedgerState, *records: LedgerRecord) -> list[LedgerRow]:
    rows = []
    for record in records:
        rows.append(books.make_row(record))
        books.apply(rows[-1])
    return rows


def books_at(state: ReleaseState) -> LedgerState:
    books = LedgerState()
    write(
        books, OpeningRecord(AT), LimitRecord(AT, YEARLY), ReserveRecord(AT, RELEASE), *PATHS[state]
    )
    return books


def test_spent_state_never_becomes_unspent() -> None:
    assert (
        HELD_STATES | SPENT_STATES | {ReleaseState.VOIDED} == set(ReleaseState) == set(TRANSITIONS)
    )
    assert all(TRANSITIONS[state] <= SPENT_STATES for state in SPENT_STATES)
    assert not TRANSITIONS[ReleaseState.VOIDED]


@pytest.mark.parametrize(("state", "goal"), list(product(ReleaseState, ReleaseState)))
def test_only_transitions_of_the_table_are_allowed(state: ReleaseState, goal: ReleaseState) -> None:
    books = books_at(state)
    assert books.entries[KEY].state is state
    record: LedgerRecord = STORE if goal is ReleaseState.STORED else TransitionRecord(AT, KEY, goal)
    if goal is ReleaseState.RESERVED:
        record = ReserveRecord(AT, RELEASE)
    head = books.head
    if goal in TRANSITIONS[state]:
        write(books, record)
        assert books.entries[KEY].state is goal
        return
    with pytest.raises(LocalProtocolError, match="LEDGER-008"):
        books.make_row(record)
    body = encode_record(record)
    with pytest.raises(IntegrityError, match="LEDGER-006"):
        books.apply(
            LedgerRow(head.seq + 1, head.hash, chain_hash(head.seq + 1, head.hash, body), body)
        )
    assert (books.head, books.entries[KEY].state) == (head, state)


def test_opening_record_must_be_first_and_unique() -> None:
    with pytest.raises(LocalProtocolError, match="one opening record"):
        LedgerState().make_row(ReserveRecord(AT, RELEASE))
    with pytest.raises(LocalProtocolError, match="one opening record"):
        books_at(ReleaseState.RESERVED).make_row(OpeningRecord(AT))


def test_transition_of_unreserved_question_is_rejected() -> None:
    books = LedgerState()
    write(books, OpeningRecord(AT))
    with pytest.raises(LocalProtocolError, match="never reserved and cannot become stored"):
        books.make_row(STORE)


def test_apply_unstored_applies_and_numbers_records_without_a_chain() -> None:
    books = LedgerState()
    for record in (OpeningRecord(AT), ReserveRecord(AT, RELEASE), STORE):
        books.apply_unstored(record)
    assert books.head == (3, bytes(32)) and books.entries[KEY].state is ReleaseState.STORED
    with pytest.raises(LocalProtocolError, match="cannot become stored"):
        books.apply_unstored(STORE)
    assert books.head.seq == 3


def test_make_row_does_not_change_state() -> None:
    books = books_at(ReleaseState.RESERVED)
    assert books.make_row(STORE) == books.make_row(STORE)
    assert books.entries[KEY].state is ReleaseState.RESERVED


def test_entry_keeps_digest_size_and_times() -> None:
    entry = books_at(ReleaseState.SENT).entries[KEY]
    assert (entry.digest, entry.size, entry.spent_at) == (bytes(32), 3, LATER)
    assert entry.times == (
        (ReleaseState.RESERVED, AT),
        (ReleaseState.STORED, AT),
        (ReleaseState.SENDING, LATER),
        (ReleaseState.SENT, LATER),
    )
    data = entry.to_dict()
    assert data["times"] == {
        "reserved": AT.isoformat(),
        "stored": AT.isoformat(),
        "sending": LATER.isoformat(),
        "sent": LATER.isoformat(),
    }
    assert (data["bytes"], data["sha256"]) == (3, "00" * 32)
    assert books_at(ReleaseState.RESERVED).entries[KEY].to_dict()["sha256"] is None


ROWS = write(
    LedgerState(),
    OpeningRecord(AT),
    LimitRecord(AT, YEARLY),
    ReserveRecord(AT, RELEASE),
    *PATHS[ReleaseState.SENT],
)


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("number", range(len(ROWS)))
def test_apply_detects_change_of_any_column(number: int, column: int) -> None:
    value = ROWS[number][column]
    changes = [value + 1, value - 1, str(value), None] if isinstance(value, int) else []
    if isinstance(value, bytes):
        changes = [
            *(value[:i] + bytes([value[i] ^ 1]) + value[i + 1 :] for i in range(len(value))),
            value[:-1],
            value + b"\0",
            "text",
            None,
        ]
    for change in changes:
        books = LedgerState()
        for row in ROWS[:number]:
            books.apply(row)
        with pytest.raises(IntegrityError, match=f"Record {number + 1} of the ledger"):
            books.apply(
                LedgerRow(*(change if i == column else old for i, old in enumerate(ROWS[number])))
            )  # type: ignore[arg-type]
        assert books.head.seq == number


@pytest.mark.parametrize(
    "rows",
    [ROWS[1:], ROWS[:2] + ROWS[3:], [*ROWS[:2], ROWS[3], ROWS[2], *ROWS[4:]], [ROWS[0], *ROWS]],
)
def test_apply_detects_missing_swapped_and_repeated_rows(rows: list[LedgerRow]) -> None:
    books = LedgerState()
    with pytest.raises(IntegrityError, match="missing, out of place"):
        for row in rows:
            books.apply(row)


@pytest.mark.parametrize("state", ReleaseState)
def test_totals_equal_sums_of_entries(state: ReleaseState) -> None:
    books = books_at(state)
    cost = grains_up(0.5)
    if state is ReleaseState.VOIDED:
        assert books.compute_totals() == ()
        assert books.list_charges() == []
        return
    spent, held = (cost, 0) if state in SPENT_STATES else (0, cost)
    assert books.compute_totals() == (
        LedgerTotal("me.csv", Unit.PERSON, Relation.REPLACE, ("everyone",), spent, held, 0, 0, 1),
    )
    assert [(usage.spent, usage.held) for usage in books.list_usage(AT)] == [(spent, held)]


def test_totals_are_separate_per_source_unit_and_relation() -> None:
    books = LedgerState()
    write(books, OpeningRecord(AT))
    scopes = [
        Scope(unit, relation, who)
        for unit in Unit
        for relation in Relation
        for who in ("everyone", "the miner")
    ]
    for i, (source, scope) in enumerate(product(("a.csv", "b.csv"), scopes)):
        write(
            books,
            ReserveRecord(
                AT,
                LedgerRelease(
                    "d1", f"q{i}", Event("test", {}, scope, 0.25, 1e-9), source, "x", "y"
                ),
            ),
        )
    totals = books.compute_totals()
    assert (
        len({(total.source, total.unit, total.relation) for total in totals}) == len(totals) == 16
    )
    assert all(
        total.adversaries == ("everyone", "the miner") and total.releases == 2 for total in totals
    )
    assert all(
        (total.held, total.held_delta, total.spent, total.spent_delta)
        == (grains_up(0.5), 2 * 10**9, 0, 0)
        for total in totals
    )


def test_clock_set_back_does_not_hide_spent_releases() -> None:
    books = LedgerState()
    write(books, OpeningRecord(AT), LimitRecord(AT, YEARLY))
    early = AT - timedelta(days=400)
    write(
        books,
        ReserveRecord(
            early,
            LedgerRelease("d1", "q1", Event("test", {}, LOCAL_PERSON, 4.0), "me.csv", "x", "y"),
        ),
    )
    write(
        books,
        StoreRecord(early, ReleaseKey("d1", "q1"), bytes(32), 1),
        TransitionRecord(early, ReleaseKey("d1", "q1"), ReleaseState.SENDING),
    )
    assert books.entries[ReleaseKey("d1", "q1")].spent_at == AT
    [usage] = books.list_usage(AT)
    assert usage.remaining == 0


def test_limit_replaces_limit_with_same_key_and_empty_limit_removes_it() -> None:
    books = LedgerState()
    by_number = replace(YEARLY, grains=None, releases=3)
    write(
        books,
        OpeningRecord(AT),
        LimitRecord(AT, YEARLY),
        LimitRecord(AT, replace(YEARLY, period=Period.DAY)),
        LimitRecord(AT, by_number),
    )
    assert list(books.limits.values()) == [replace(YEARLY, period=Period.DAY), by_number]
    write(books, LimitRecord(AT, replace(YEARLY, grains=None)))
    assert list(books.limits.values()) == [replace(YEARLY, period=Period.DAY)]
    write(books, LimitRecord(AT, replace(YEARLY, grains=None)))


def test_find_entry_rejects_question_with_other_terms() -> None:
    books = books_at(ReleaseState.STORED)
    assert books.find_entry(replace(RELEASE, question="q2")) is None
    assert books.find_entry(replace(RELEASE, title="Sleep, second wave")) == books.entries[KEY]
    with pytest.raises(BudgetError, match="BUDGET-004") as refusal:
        books.find_entry(replace(RELEASE, event=replace(EVENT, epsilon=0.25)))
    assert refusal.value.why == "It is stored: epsilon 0.5 on me.csv, for https://study.example."


def test_find_entry_rejects_voided_question() -> None:
    with pytest.raises(BudgetError, match="BUDGET-005"):
        books_at(ReleaseState.VOIDED).find_entry(RELEASE)


def test_held_release_is_checked_against_limits_when_sent() -> None:
    books = books_at(ReleaseState.STORED)
    entry = books.entries[KEY]
    other = replace(RELEASE, question="q2")
    books.refuse_if_over(replace(other, event=replace(EVENT, epsilon=3.5)), AT)
    with pytest.raises(BudgetError, match="BUDGET-002"):
        books.refuse_if_over(replace(other, event=replace(EVENT, epsilon=3.6)), AT)
    write(books, LimitRecord(AT, replace(YEARLY, grains=grains_down(0.5))))
    books.refuse_sending_if_over(entry, LATER)
    write(books, LimitRecord(AT, replace(YEARLY, grains=grains_down(0.4))))
    with pytest.raises(BudgetError, match="BUDGET-002"):
        books.refuse_sending_if_over(entry, LATER)


@pytest.mark.parametrize("seq", range(1, len(ROWS) + 1))
def test_check_head_accepts_noted_heads(seq: int) -> None:
    books = books_at(ReleaseState.SENT)
    digits = ROWS[seq - 1].hash.hex()
    for noted in (f"{seq}:{digits}", f" {seq}:{digits[:16].upper()}\n", digits, digits[:20]):
        books.check_head(noted)


def test_check_head_rejects_heads_not_in_chain() -> None:
    books, digits = books_at(ReleaseState.STORED), ROWS[-1].hash.hex()
    with pytest.raises(IntegrityError, match="record 6; this ledger ends with record 4") as error:
        books.check_head(f"6:{digits}")
    assert error.value.code == "LEDGER-007"
    with pytest.raises(IntegrityError, match="Record 3 of this ledger does not have the hash"):
        books.check_head(f"3:{digits}")
    with pytest.raises(IntegrityError, match="The head that you noted is not in this ledger"):
        books.check_head(digits)
    with pytest.raises(IntegrityError, match="not in this ledger"):
        books.check_head("00" * 32)


@pytest.mark.parametrize(
    "noted",
    [
        "",
        "17",
        "17:",
        "17:abc",
        ":" + "z" * 64,
        "x:" + "a" * 64,
        "0:" + "a" * 64,
        "-1:" + "a" * 64,
        "a" * 65,
        "²:" + "a" * 64,
    ],
)
def test_check_head_rejects_malformed_heads(noted: str) -> None:
    with pytest.raises(UsageError, match="is not the head of a ledger"):
        LedgerState().check_head(noted)


def test_common_limit_of_older_ledger_is_largest_of_single_units() -> None:
    books = LedgerState()
    write(books, OpeningRecord(AT))
    assert books.make_common_limit() == DEFAULT_LIMITS[0]
    for limit in (
        Limit(Unit.PERSON, grains_down(6.0), delta_grains=5),
        Limit(Unit.UPDATE, grains_down(1.0), delta_grains=7),
        Limit(Unit.RECORD, grains_down(9.0), period=Period.MONTH),
        Limit(Unit.RECORD, grains_down(8.0), source="a.csv"),
        Limit(Unit.RECORD, None, releases=3),
    ):
        write(books, LimitRecord(AT, limit))
    assert books.make_common_limit() == Limit(None, grains_down(6.0), delta_grains=7)
    write(books, LimitRecord(AT, Limit(None, None)))
    assert books.make_common_limit() is None, "the owner removed it"


def test_totals_and_limits_count_study_with_budget_once() -> None:
    books = LedgerState()
    common = Limit(None, grains_down(4.0), delta_grains=delta_grains_down(1e-4))
    write(books, OpeningRecord(AT), LimitRecord(AT, common))
    budget = StudyBudget(0.024, 1e-6)
    scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "everyone")
    event = Event("test", {}, scope, 0.4, 2.5e-7, rho=0.006)
    releases = [replace(RELEASE, question=f"q{i}", event=event, budget=budget) for i in range(4)]
    whole = grains_up(rho_to_epsilon(*budget))
    for i, release in enumerate(releases):
        books.refuse_if_over(release, AT)
        write(books, ReserveRecord(AT, release), replace_key(STORE, release.key))
        [total], [usage] = books.compute_totals(), books.list_usage(AT)
        assert (total.spent, total.held, total.held_delta) == (0, whole, delta_grains_up(1e-6))
        assert (usage.held, usage.releases) == (2 * whole, i + 1)
    write(books, TransitionRecord(AT, releases[0].key, ReleaseState.SENDING))
    [total] = books.compute_totals()
    assert (total.spent, total.held) == (whole, 0), "what is left of the study costs nothing more"
    beyond = replace(RELEASE, question="q9", event=event, budget=budget)
    write(books, ReserveRecord(AT, beyond))
    [total] = books.compute_totals()
    assert (total.spent, total.held) == (whole, grains_up(0.4)), "a release beyond the budget"


def test_only_dated_records_move_the_checked_time() -> None:
    books = books_at(ReleaseState.STORED)
    assert not books.is_clock_ahead(AT + MAX_CLOCK_LEAD)
    late = AT + MAX_CLOCK_LEAD + timedelta(microseconds=1)
    assert books.is_clock_ahead(late)
    write(books, LimitRecord(late, YEARLY), TransitionRecord(late, KEY, ReleaseState.VOIDED))
    with pytest.raises(StoreError, match="LEDGER-012"):
        books.refuse_if_ahead(late)
    write(books, DateRecord(late))
    books.refuse_if_ahead(late)
    write(books, DateRecord(AT))
    books.refuse_if_ahead(late)


def test_sending_moves_the_checked_time() -> None:
    books = books_at(ReleaseState.SENDING)
    books.refuse_if_ahead(LATER + MAX_CLOCK_LEAD)
