"""Ledger records: one deterministic encoding, and integrity errors for other bytes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import cbor2
import numpy as np
import pytest

from shoal.errors import IntegrityError, UsageError
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Unit
from shoal.privacy.ledger.charges import StudyBudget
from shoal.privacy.ledger.limits import Limit, Period
from shoal.privacy.ledger.records import (
    DateRecord,
    LedgerHead,
    LedgerRecord,
    LedgerRelease,
    LimitRecord,
    OpeningRecord,
    ReleaseKey,
    ReleaseState,
    ReserveRecord,
    StoreRecord,
    TransitionRecord,
    chain_hash,
    decode_record,
    encode_record,
)

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
KEY = ReleaseKey("d1", "q1")
EVENT = Event(
    "random-response",
    {"m": 16, "p": 0.75, "kind": "k-ary"},
    LOCAL_PERSON,
    0.7,
    1e-9,
    0.01,
    ("age", "sex"),
)
RELEASE = LedgerRelease(*KEY, EVENT, "me.csv", "https://study.example", "Sleep")
RECORDS: list[LedgerRecord] = [
    OpeningRecord(AT),
    LimitRecord(AT, Limit(Unit.RECORD, 5, Relation.ADD_REMOVE, Period.DAY, "me.csv", "age", 7)),
    LimitRecord(AT, Limit(Unit.PERSON, None)),
    ReserveRecord(AT, RELEASE),
    StoreRecord(AT, KEY, bytes(32), 200),
    *(
        TransitionRecord(AT, KEY, state)
        for state in (ReleaseState.SENDING, ReleaseState.SENT, ReleaseState.VOIDED)
    ),
    DateRecord(AT),
    LimitRecord(AT, Limit(None, 5)),
    LimitRecord(AT, Limit(None, 5, max_rows_per_person=3)),
    ReserveRecord(AT, replace(RELEASE, budget=StudyBudget(0.03, 1e-6))),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record_round_trips(record: LedgerRecord) -> None:
    again = decode_record(encode_record(record), 1)
    assert again == record
    assert type(again) is type(record)


def test_records_without_budget_are_those_of_earlier_versions() -> None:
    for record in (LimitRecord(AT, Limit(Unit.PERSON, 5)), ReserveRecord(AT, RELEASE)):
        fields = cbor2.loads(encode_record(record))
        assert not fields.keys() & {"max_rows_per_person", "study_rho", "study_delta"}


@pytest.mark.parametrize("name", ["study_rho", "study_delta"])
@pytest.mark.parametrize("value", [None, 1, 0.0, float("nan"), "missing"])
def test_decode_rejects_incomplete_and_invalid_budgets(name: str, value: object) -> None:
    record = ReserveRecord(AT, replace(RELEASE, budget=StudyBudget(0.03, 1e-6)))
    fields = {**cbor2.loads(encode_record(record)), name: value}
    if value == "missing":
        del fields[name]
    with pytest.raises(IntegrityError, match="LEDGER-006"):
        decode_record(cbor2.dumps(fields, canonical=True), 3)


def test_budgets_1_and_1_0_have_same_encoding() -> None:
    one, two = (
        encode_record(ReserveRecord(AT, replace(RELEASE, budget=StudyBudget(rho, 1e-6))))
        for rho in (1, 1.0)
    )
    assert one == two


def test_record_encoding_is_fixed() -> None:
    assert encode_record(TransitionRecord(AT, KEY, ReleaseState.SENT)) == cbor2.dumps(
        {"at": 1893553445678901, "kind": "sent", "study": "d1", "question": "q1"}, canonical=True
    )
    assert (
        chain_hash(1, bytes(32), b"body").hex()
        == "72792ed597d3302c68d206087859ce77f71b9f4bab2fed612962bc07cd4b4239"
    )


def test_record_time_does_not_depend_on_time_zone() -> None:
    assert encode_record(OpeningRecord(AT)) == encode_record(
        OpeningRecord(AT.astimezone(timezone(timedelta(hours=9))))
    )


def test_prices_1_and_1_0_have_same_encoding() -> None:
    def priced(epsilon: float) -> bytes:
        return encode_record(
            ReserveRecord(
                AT, LedgerRelease(*KEY, Event("test", {}, LOCAL_PERSON, epsilon, 0), "a", "b", "c")
            )
        )

    assert priced(1) == priced(1.0) == priced(np.float64(1.0))


@pytest.mark.parametrize(
    "parameters",
    [
        {"m": True},
        {"m": None},
        {"m": [1]},
        {"m": np.int64(3)},
        {"m": float("nan")},
        {"m": "\ud800"},
        {3: 1},
    ],
)
def test_encode_rejects_records_that_decode_would_reject(parameters: dict[Any, Any]) -> None:
    event = Event("test", parameters, LOCAL_PERSON, 1.0)
    with pytest.raises(UsageError, match="A record of kind reserved cannot be written"):
        encode_record(ReserveRecord(AT, LedgerRelease(*KEY, event, "a", "b", "c")))


@pytest.mark.parametrize("name", ["study", "question", "source", "recipient", "title"])
@pytest.mark.parametrize("text", ["", "a\nb", "\x1b[2J", "x" * 501, None])
def test_release_rejects_long_and_unprintable_names(name: str, text: object) -> None:
    with pytest.raises(UsageError, match=f"cannot be the {name} of a ledger entry"):
        LedgerRelease(**{**{n: getattr(RELEASE, n) for n in RELEASE.__slots__}, name: text})


def test_is_same_ignores_titles() -> None:
    other = {n: getattr(RELEASE, n) for n in RELEASE.__slots__}
    assert RELEASE.is_same(LedgerRelease(**{**other, "title": "Sleep, again"}))
    for name, value in (
        ("event", EVENT.with_reads("age")),
        ("source", "you.csv"),
        ("recipient", "x"),
        ("question", "q2"),
        ("study", "d2"),
    ):
        assert not RELEASE.is_same(LedgerRelease(**{**other, name: value}))


def _with(record: LedgerRecord, **changes: object) -> bytes:
    return cbor2.dumps({**cbor2.loads(encode_record(record)), **changes}, canonical=True)


def _event(**changes: object) -> bytes:
    return _with(RECORDS[3], event={**cbor2.loads(encode_record(RECORDS[3]))["event"], **changes})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        cbor2.dumps(7),
        cbor2.dumps({"kind": 7}),
        cbor2.dumps({"kind": "refunded", "at": 1}),
        cbor2.dumps({"kind": "opened"}),
        _with(RECORDS[0], more=1),
        _with(RECORDS[0], at=True),
        _with(RECORDS[0], at=10**30),
        _with(RECORDS[1], unit="galaxy"),
        _with(RECORDS[1], grains=-1),
        _with(RECORDS[1], feature=""),
        _with(RECORDS[3], event=7),
        _with(RECORDS[3], title="\x07"),
        _with(RECORDS[4], size=1.5),
        _event(epsilon=-1.0),
        _event(epsilon=float("nan")),
        _event(epsilon=1),
        _event(rho="x"),
        _event(reads=[1]),
        _event(parameters={b"m": 1}),
        _event(parameters={"m": None}),
        b"\xa2\x64kind\x66opened\x64kind\x66opened",
        b"\x81" * 100 + b"\x00",
    ],
)
def test_decode_raises_integrity_error_for_malformed_record(body: bytes) -> None:
    with pytest.raises(IntegrityError) as error:
        decode_record(body, 17)
    assert error.value.code == "LEDGER-006"
    assert error.value.what.startswith("Record 17 of the ledger is damaged: it cannot be read, ")


def test_chain_hash_depends_on_every_part() -> None:
    hashes = {
        chain_hash(1, bytes(32), b"a"),
        chain_hash(2, bytes(32), b"a"),
        chain_hash(1, bytes(31) + b"1", b"a"),
        chain_hash(1, bytes(32), b"b"),
    }
    assert len(hashes) == 4


def test_head_text_is_number_and_hash() -> None:
    assert str(LedgerHead(3, bytes(32))) == "3:" + "00" * 32
