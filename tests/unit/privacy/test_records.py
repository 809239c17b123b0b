"""Records: one deterministic form, read back as the same or refused with a sentence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import cbor2
import numpy as np
import pytest

from shoal.errors import IntegrityError, UsageError
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Unit
from shoal.privacy.limits import Limit, Period
from shoal.privacy.records import Head, Key, LimitSet, Move, Opened, Record, Release, Reserve, State, Store, chain_hash, decode, encode

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
KEY = Key("d1", "q1")
EVENT = Event("random-response", {"m": 16, "p": 0.75, "kind": "k-ary"}, LOCAL_PERSON, 0.7, 1e-9, 0.01, ("age", "sex"))
RELEASE = Release(*KEY, EVENT, "me.csv", "https://study.example", "Sleep")
RECORDS: list[Record] = [
    Opened(AT),
    LimitSet(AT, Limit(Unit.RECORD, 5, Relation.ADD_REMOVE, Period.DAY, "me.csv", "age", 7)),
    LimitSet(AT, Limit(Unit.PERSON, None)),
    Reserve(AT, RELEASE),
    Store(AT, KEY, bytes(32), 200),
    *(Move(AT, KEY, state) for state in (State.SENDING, State.SENT, State.VOIDED)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_reads_back_as_the_same(record: Record) -> None:
    again = decode(encode(record), 1)
    assert again == record
    assert type(again) is type(record)


def test_the_bytes_of_a_record_never_change() -> None:
    assert encode(Move(AT, KEY, State.SENT)) == cbor2.dumps(
        {"at": 1893553445678901, "kind": "sent", "study": "d1", "question": "q1"}, canonical=True
    )
    assert chain_hash(1, bytes(32), b"body").hex() == "72792ed597d3302c68d206087859ce77f71b9f4bab2fed612962bc07cd4b4239"


def test_a_moment_is_the_same_in_every_zone() -> None:
    assert encode(Opened(AT)) == encode(Opened(AT.astimezone(timezone(timedelta(hours=9)))))


def test_a_price_of_one_is_the_price_of_1_0() -> None:
    def priced(epsilon: float) -> bytes:
        return encode(Reserve(AT, Release(*KEY, Event("test", {}, LOCAL_PERSON, epsilon, 0), "a", "b", "c")))

    assert priced(1) == priced(1.0) == priced(np.float64(1.0))


@pytest.mark.parametrize(
    "parameters", [{"m": True}, {"m": None}, {"m": [1]}, {"m": np.int64(3)}, {"m": float("nan")}, {"m": "\ud800"}, {3: 1}]
)
def test_nothing_is_written_that_could_not_be_read(parameters: dict[Any, Any]) -> None:
    event = Event("test", parameters, LOCAL_PERSON, 1.0)
    with pytest.raises(UsageError, match="A record of kind reserved cannot be written"):
        encode(Reserve(AT, Release(*KEY, event, "a", "b", "c")))


@pytest.mark.parametrize("name", ["study", "question", "source", "recipient", "title"])
@pytest.mark.parametrize("text", ["", "a\nb", "\x1b[2J", "x" * 501, None])
def test_a_release_has_short_printable_names(name: str, text: object) -> None:
    with pytest.raises(UsageError, match=f"cannot be the {name} of a ledger entry"):
        Release(**{**{n: getattr(RELEASE, n) for n in RELEASE.__slots__}, name: text})


def test_two_releases_are_the_same_but_for_their_titles() -> None:
    other = {n: getattr(RELEASE, n) for n in RELEASE.__slots__}
    assert RELEASE.is_same(Release(**{**other, "title": "Sleep, again"}))
    for name, value in (("event", EVENT.reading("age")), ("source", "you.csv"), ("recipient", "x"), ("question", "q2"), ("study", "d2")):
        assert not RELEASE.is_same(Release(**{**other, name: value}))


def _with(record: Record, **changes: object) -> bytes:
    return cbor2.dumps({**cbor2.loads(encode(record)), **changes}, canonical=True)


def _event(**changes: object) -> bytes:
    return _with(RECORDS[3], event={**cbor2.loads(encode(RECORDS[3]))["event"], **changes})


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
def test_a_record_of_the_wrong_form_is_an_integrity_error(body: bytes) -> None:
    with pytest.raises(IntegrityError) as error:
        decode(body, 17)
    assert error.value.code == "LEDGER-006"
    assert error.value.what.startswith("Record 17 of the ledger is not what was written: it cannot be read, ")


def test_the_hash_depends_on_every_part() -> None:
    hashes = {
        chain_hash(1, bytes(32), b"a"),
        chain_hash(2, bytes(32), b"a"),
        chain_hash(1, bytes(31) + b"1", b"a"),
        chain_hash(1, bytes(32), b"b"),
    }
    assert len(hashes) == 4


def test_a_head_is_a_number_and_a_hash() -> None:
    assert str(Head(3, bytes(32))) == "3:" + "00" * 32
