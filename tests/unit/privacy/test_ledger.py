"""The ledger's core: transitions, the chain, the fold, totals, and heads noted earlier."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, UsageError
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.ledger import HELD, SPENT, TRANSITIONS, Books, Total
from shoal.privacy.limits import Limit, Period
from shoal.privacy.records import Key, LimitSet, Move, Opened, Record, Release, Reserve, Row, State, Store, chain_hash, encode
from shoal.privacy.rounding import grains_down, grains_up

AT = datetime(2030, 1, 1, tzinfo=UTC)
LATER = AT + timedelta(days=200)
EVENT = Event("test", {}, LOCAL_PERSON, 0.5)
YEARLY = Limit(Unit.PERSON, grains_down(4.0))
KEY = Key("d1", "q1")
RELEASE = Release(*KEY, EVENT, "me.csv", "https://study.example", "Sleep")
STORE = Store(AT, KEY, bytes(32), 3)

PATHS: dict[State, list[Record]] = {
    State.RESERVED: [],
    State.STORED: [STORE],
    State.SENDING: [STORE, Move(LATER, KEY, State.SENDING)],
    State.SENT: [STORE, Move(LATER, KEY, State.SENDING), Move(LATER, KEY, State.SENT)],
    State.VOIDED: [STORE, Move(AT, KEY, State.VOIDED)],
}


def write(books: Books, *records: Record) -> list[Row]:
    rows = []
    for record in records:
        rows.append(books.seal(record))
        books.apply(rows[-1])
    return rows


def books_at(state: State) -> Books:
    books = Books()
    write(books, Opened(AT), LimitSet(AT, YEARLY), Reserve(AT, RELEASE), *PATHS[state])
    return books


def test_from_spent_there_is_no_way_back() -> None:
    assert HELD | SPENT | {State.VOIDED} == set(State) == set(TRANSITIONS)
    assert all(TRANSITIONS[state] <= SPENT for state in SPENT)
    assert not TRANSITIONS[State.VOIDED]


@pytest.mark.parametrize(("state", "goal"), list(product(State, State)))
def test_only_the_transitions_of_the_table_are_taken(state: State, goal: State) -> None:
    books = books_at(state)
    assert books.entries[KEY].state is state
    record: Record = STORE if goal is State.STORED else Move(AT, KEY, goal)
    if goal is State.RESERVED:
        record = Reserve(AT, RELEASE)
    head = books.head
    if goal in TRANSITIONS[state]:
        write(books, record)
        assert books.entries[KEY].state is goal
        return
    with pytest.raises(LocalProtocolError, match="LEDGER-008"):
        books.seal(record)
    body = encode(record)
    with pytest.raises(IntegrityError, match="LEDGER-006"):
        books.apply(Row(head.seq + 1, head.hash, chain_hash(head.seq + 1, head.hash, body), body))
    assert (books.head, books.entries[KEY].state) == (head, state)


def test_a_ledger_is_opened_once_and_first() -> None:
    with pytest.raises(LocalProtocolError, match="opened once"):
        Books().seal(Reserve(AT, RELEASE))
    with pytest.raises(LocalProtocolError, match="opened once"):
        books_at(State.RESERVED).seal(Opened(AT))


def test_what_was_never_reserved_cannot_go_on() -> None:
    books = Books()
    write(books, Opened(AT))
    with pytest.raises(LocalProtocolError, match="never reserved, and so cannot become stored"):
        books.seal(STORE)


def test_sealing_changes_nothing() -> None:
    books = books_at(State.RESERVED)
    assert books.seal(STORE) == books.seal(STORE)
    assert books.entries[KEY].state is State.RESERVED


def test_an_entry_remembers_its_bytes_and_its_times() -> None:
    entry = books_at(State.SENT).entries[KEY]
    assert (entry.digest, entry.size, entry.spent_at) == (bytes(32), 3, LATER)
    assert entry.times == ((State.RESERVED, AT), (State.STORED, AT), (State.SENDING, LATER), (State.SENT, LATER))
    data = entry.to_dict()
    assert data["times"] == {"reserved": AT.isoformat(), "stored": AT.isoformat(), "sending": LATER.isoformat(), "sent": LATER.isoformat()}
    assert (data["bytes"], data["sha256"]) == (3, "00" * 32)
    assert books_at(State.RESERVED).entries[KEY].to_dict()["sha256"] is None


ROWS = write(Books(), Opened(AT), LimitSet(AT, YEARLY), Reserve(AT, RELEASE), *PATHS[State.SENT])


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("number", range(len(ROWS)))
def test_a_change_to_any_column_of_any_row_is_found(number: int, column: int) -> None:
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
        books = Books()
        for row in ROWS[:number]:
            books.apply(row)
        with pytest.raises(IntegrityError, match=f"Record {number + 1} of the ledger"):
            books.apply(Row(*(change if i == column else old for i, old in enumerate(ROWS[number]))))  # type: ignore[arg-type]
        assert books.head.seq == number


@pytest.mark.parametrize("rows", [ROWS[1:], ROWS[:2] + ROWS[3:], [*ROWS[:2], ROWS[3], ROWS[2], *ROWS[4:]], [ROWS[0], *ROWS]])
def test_a_missing_exchanged_or_doubled_row_is_found(rows: list[Row]) -> None:
    books = Books()
    with pytest.raises(IntegrityError, match="missing, out of place"):
        for row in rows:
            books.apply(row)


@pytest.mark.parametrize("state", State)
def test_totals_are_what_the_entries_add_up_to(state: State) -> None:
    books = books_at(state)
    cost = grains_up(0.5)
    if state is State.VOIDED:
        assert books.totals() == ()
        assert books.charges() == []
        return
    spent, held = (cost, 0) if state in SPENT else (0, cost)
    assert books.totals() == (Total("me.csv", Unit.PERSON, Relation.REPLACE, ("everyone",), spent, held, 0, 0, 1),)
    assert [(usage.spent, usage.held) for usage in books.usage(AT)] == [(spent, held)]


def test_totals_are_kept_apart_by_source_unit_and_relation() -> None:
    books = Books()
    write(books, Opened(AT))
    scopes = [Scope(unit, relation, who) for unit in Unit for relation in Relation for who in ("everyone", "the miner")]
    for i, (source, scope) in enumerate(product(("a.csv", "b.csv"), scopes)):
        write(books, Reserve(AT, Release("d1", f"q{i}", Event("test", {}, scope, 0.25, 1e-9), source, "x", "y")))
    totals = books.totals()
    assert len({(total.source, total.unit, total.relation) for total in totals}) == len(totals) == 16
    assert all(total.adversaries == ("everyone", "the miner") and total.releases == 2 for total in totals)
    assert all((total.held, total.held_delta, total.spent, total.spent_delta) == (grains_up(0.5), 2 * 10**9, 0, 0) for total in totals)


def test_a_clock_set_back_hides_nothing_that_is_spent() -> None:
    books = Books()
    write(books, Opened(AT), LimitSet(AT, YEARLY))
    early = AT - timedelta(days=400)
    write(books, Reserve(early, Release("d1", "q1", Event("test", {}, LOCAL_PERSON, 4.0), "me.csv", "x", "y")))
    write(books, Store(early, Key("d1", "q1"), bytes(32), 1), Move(early, Key("d1", "q1"), State.SENDING))
    assert books.entries[Key("d1", "q1")].spent_at == AT
    [usage] = books.usage(AT)
    assert usage.left == 0


def test_a_limit_replaces_one_about_the_same_and_an_empty_one_removes_it() -> None:
    books = Books()
    by_number = replace(YEARLY, grains=None, releases=3)
    write(books, Opened(AT), LimitSet(AT, YEARLY), LimitSet(AT, replace(YEARLY, period=Period.DAY)), LimitSet(AT, by_number))
    assert list(books.limits.values()) == [replace(YEARLY, period=Period.DAY), by_number]
    write(books, LimitSet(AT, replace(YEARLY, grains=None)))
    assert list(books.limits.values()) == [replace(YEARLY, period=Period.DAY)]
    write(books, LimitSet(AT, replace(YEARLY, grains=None)))


def test_a_question_is_found_again_on_the_same_terms_only() -> None:
    books = books_at(State.STORED)
    assert books.find(replace(RELEASE, question="q2")) is None
    assert books.find(replace(RELEASE, title="Sleep, second wave")) == books.entries[KEY]
    with pytest.raises(BudgetError, match="BUDGET-004") as refusal:
        books.find(replace(RELEASE, event=replace(EVENT, epsilon=0.25)))
    assert refusal.value.why == "It is stored: epsilon 0.5 on me.csv, for https://study.example."


def test_a_voided_question_stays_unanswered() -> None:
    with pytest.raises(BudgetError, match="BUDGET-005"):
        books_at(State.VOIDED).find(RELEASE)


def test_a_held_release_is_sent_within_the_limits_of_that_day() -> None:
    books = books_at(State.STORED)
    entry = books.entries[KEY]
    books.refuse_if_over(replace(EVENT, epsilon=3.5), "me.csv", AT)
    with pytest.raises(BudgetError, match="BUDGET-002"):
        books.refuse_if_over(replace(EVENT, epsilon=3.6), "me.csv", AT)
    assert books.left(EVENT, "me.csv", AT) == grains_down(3.5)
    write(books, LimitSet(AT, replace(YEARLY, grains=grains_down(0.5))))
    books.refuse_to_send(entry, LATER)
    write(books, LimitSet(AT, replace(YEARLY, grains=grains_down(0.4))))
    with pytest.raises(BudgetError, match="BUDGET-002"):
        books.refuse_to_send(entry, LATER)


@pytest.mark.parametrize("seq", range(1, len(ROWS) + 1))
def test_a_noted_head_is_found_again(seq: int) -> None:
    books = books_at(State.SENT)
    digits = ROWS[seq - 1].hash.hex()
    for noted in (f"{seq}:{digits}", f" {seq}:{digits[:16].upper()}\n", digits, digits[:20]):
        books.check_head(noted)


def test_a_noted_head_that_is_gone_says_so() -> None:
    books, digits = books_at(State.STORED), ROWS[-1].hash.hex()
    with pytest.raises(IntegrityError, match="record 6; this ledger ends with record 4") as error:
        books.check_head(f"6:{digits}")
    assert error.value.code == "LEDGER-007"
    with pytest.raises(IntegrityError, match="Record 3 of this ledger is not the one"):
        books.check_head(f"3:{digits}")
    with pytest.raises(IntegrityError, match="The head that you noted is not in this ledger"):
        books.check_head(digits)
    with pytest.raises(IntegrityError, match="not in this ledger"):
        books.check_head("00" * 32)


@pytest.mark.parametrize(
    "noted", ["", "17", "17:", "17:abc", ":" + "z" * 64, "x:" + "a" * 64, "0:" + "a" * 64, "-1:" + "a" * 64, "a" * 65, "²:" + "a" * 64]
)
def test_a_head_that_cannot_be_read_is_a_usage_error(noted: str) -> None:
    with pytest.raises(UsageError, match="is not the head of a ledger"):
        Books().check_head(noted)
