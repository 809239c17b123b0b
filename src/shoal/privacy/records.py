"""The ledger's records: what is written, as deterministic CBOR, and the hashes that chain it together.

Every field is checked when a record is read, whoever wrote it; `encode` writes nothing that `decode` would not read back as the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import cbor2

from shoal.errors import IntegrityError, ShoalError, UsageError
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.limits import Limit, Period, check_text

_DOMAIN = b"shoal ledger 1\0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class State(StrEnum):
    """How far a release has come."""

    RESERVED = "reserved"
    STORED = "stored"
    SENDING = "sending"
    SENT = "sent"
    VOIDED = "voided"


class Key(NamedTuple):
    """Names a release: digest of the manifest, and question."""

    study: str
    question: str


@dataclass(frozen=True, slots=True)
class Release:
    """What is to be released, about which data, to whom.

    Parameters
    ----------
    study
        Digest of the manifest.
    question
        Which of the study's questions it answers; study and question name a release once and for all.
    event
        The release, priced by the participant's own code.
    source
        Which of the participant's data it is about.
    recipient
        To whom it goes.
    title
        The study's title, for people.
    """

    study: str
    question: str
    event: Event
    source: str
    recipient: str
    title: str

    def __post_init__(self) -> None:
        for name in ("study", "question", "source", "recipient", "title"):
            check_text(name, getattr(self, name))

    @property
    def key(self) -> Key:
        return Key(self.study, self.question)

    def is_same(self, other: Release) -> bool:
        """Whether both describe one release; titles are for people and do not matter."""
        return (self.key, self.event, self.source, self.recipient) == (other.key, other.event, other.source, other.recipient)


class Opened(NamedTuple):
    """The first record."""

    at: datetime


class LimitSet(NamedTuple):
    """A limit was set, or removed where it caps nothing."""

    at: datetime
    limit: Limit


class Reserve(NamedTuple):
    """A release was reserved."""

    at: datetime
    release: Release


class Store(NamedTuple):
    """A release was drawn; its bytes are in the outbox and have this SHA-256."""

    at: datetime
    key: Key
    digest: bytes
    size: int

    @property
    def state(self) -> State:
        return State.STORED


class Move(NamedTuple):
    """A release was marked as sending, sent or voided."""

    at: datetime
    key: Key
    state: State


Record = Opened | LimitSet | Reserve | Store | Move


class Row(NamedTuple):
    """A record as it is stored."""

    seq: int
    prev: bytes
    hash: bytes
    body: bytes


class Head(NamedTuple):
    """The last record's number and hash: all that one must note down to recognise the ledger later."""

    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"


def chain_hash(seq: int, prev: bytes, body: bytes) -> bytes:
    """The hash of a record: over its number, the hash before it, and its body."""
    return hashlib.sha256(_DOMAIN + seq.to_bytes(8, "big") + prev + body).digest()


def damaged(seq: int, reason: str) -> IntegrityError:
    return IntegrityError(
        "LEDGER-006",
        f"Record {seq} of the ledger is not what was written: {reason}.",
        why="The file was changed by something other than shoal, or the disk is failing.",
        fix="Nothing is released until it is whole again: restore a backup that has your last noted head (shoal ledger verify --head).",
    )


def encode(record: Record) -> bytes:
    """A record as deterministic CBOR, the bytes that are hashed."""
    fields: dict[str, object] = {"at": (record.at - _EPOCH) // _MICROSECOND}
    match record:
        case Opened():
            fields |= {"kind": "opened"}
        case LimitSet(limit=limit):
            fields |= {"kind": "limit", "unit": limit.unit.value, "relation": limit.relation.value, "period": limit.period.value}
            fields |= {"grains": limit.grains, "releases": limit.releases, "source": limit.source, "feature": limit.feature}
            fields |= {"delta_grains": limit.delta_grains}
        case Reserve(release=release):
            fields |= {"kind": "reserved", "study": release.study, "question": release.question, "event": _event_fields(release.event)}
            fields |= {"source": release.source, "recipient": release.recipient, "title": release.title}
        case Store(key=key):
            fields |= {"kind": "stored", **key._asdict(), "digest": record.digest, "size": record.size}
        case _:
            fields |= {"kind": record.state.value, **record.key._asdict()}
    try:
        body = cbor2.dumps(fields, canonical=True)
        reason = None if decode(body, 0) == record else "it would not read back as the same"
    except (cbor2.CBORError, ValueError) as error:
        reason = str(error)
    except IntegrityError as error:
        reason = error.what
    if reason:
        raise UsageError("LEDGER-009", f"A record of kind {fields['kind']} cannot be written: {reason}.")
    return body


def decode(body: bytes, seq: int) -> Record:
    """A record from its bytes, checked in every field."""
    try:
        return _record(cbor2.loads(body, max_depth=4, allow_indefinite=False, allow_duplicate_keys=False, strict_hashable_types=True))
    except ShoalError as error:
        raise damaged(seq, f"it cannot be read, {error.what}") from None
    except (cbor2.CBORError, ValueError, OverflowError) as error:
        raise damaged(seq, f"it cannot be read, {error}") from None


_Shape = Mapping[str, tuple[type, ...]]
_OPTIONAL_INT, _OPTIONAL_STR, _OPTIONAL_FLOAT = (int, type(None)), (str, type(None)), (float, type(None))
_STEP: _Shape = {"kind": (str,), "at": (int,), "study": (str,), "question": (str,)}
_SHAPES: Mapping[str, _Shape] = {
    "opened": {"kind": (str,), "at": (int,)},
    "limit": {"kind": (str,), "at": (int,), "unit": (str,), "relation": (str,), "period": (str,)}
    | {"grains": _OPTIONAL_INT, "releases": _OPTIONAL_INT, "source": _OPTIONAL_STR, "feature": _OPTIONAL_STR}
    | {"delta_grains": _OPTIONAL_INT},
    State.RESERVED: {**_STEP, "event": (dict,), "source": (str,), "recipient": (str,), "title": (str,)},
    State.STORED: {**_STEP, "digest": (bytes,), "size": (int,)},
    State.SENDING: _STEP,
    State.SENT: _STEP,
    State.VOIDED: _STEP,
}
_EVENT: _Shape = {"mechanism": (str,), "parameters": (dict,), "unit": (str,), "relation": (str,), "adversary": (str,)} | {
    "epsilon": (float,),
    "delta": (float,),
    "rho": _OPTIONAL_FLOAT,
    "reads": (list,),
}


def _shaped(data: Any, shape: _Shape) -> dict[str, Any]:
    """A map that has exactly these fields, each of its type."""
    if type(data) is not dict or data.keys() != shape.keys():
        raise ValueError("it does not have the fields of its kind")
    for name, types in shape.items():
        if type(data[name]) not in types:
            raise ValueError(f"its field {name} is of the wrong type")
    return data


def _record(data: Any) -> Record:
    kind = data.get("kind") if type(data) is dict else None
    if type(kind) is not str or kind not in _SHAPES:
        raise ValueError("it is of no known kind")
    fields = _shaped(data, _SHAPES[kind])
    at = _EPOCH + fields["at"] * _MICROSECOND
    if kind == "opened":
        return Opened(at)
    if kind == "limit":
        return LimitSet(at, _limit(fields))
    key = Key(fields["study"], fields["question"])
    if kind == State.RESERVED:
        return Reserve(at, Release(*key, _event(fields["event"]), fields["source"], fields["recipient"], fields["title"]))
    if kind == State.STORED:
        return Store(at, key, fields["digest"], fields["size"])
    return Move(at, key, State(kind))


def _limit(fields: dict[str, Any]) -> Limit:
    unit, relation, period = Unit(fields["unit"]), Relation(fields["relation"]), Period(fields["period"])
    caps = fields["releases"], fields["delta_grains"]
    return Limit(unit, fields["grains"], relation, period, fields["source"], fields["feature"], *caps)


def _event(data: Any) -> Event:
    fields = _shaped(data, _EVENT)
    parameters, reads = fields["parameters"], tuple(fields["reads"])
    if any(type(name) is not str for name in (*parameters, *reads)) or any(
        type(value) not in (int, float, str) for value in parameters.values()
    ):
        raise ValueError("a parameter or a feature of its event is of the wrong type")
    scope = _scope(fields["unit"], fields["relation"], fields["adversary"])
    return Event(fields["mechanism"], parameters, scope, fields["epsilon"], fields["delta"], fields["rho"], reads)


@lru_cache(maxsize=256)
def _scope(unit: str, relation: str, adversary: str) -> Scope:
    return Scope(Unit(unit), Relation(relation), adversary)


def _event_fields(event: Event) -> dict[str, object]:
    # A price typed as 1 and one typed as 1.0 are the same, and are stored the same.
    prices = {"epsilon": float(event.epsilon), "delta": float(event.delta), "rho": None if event.rho is None else float(event.rho)}
    return event.to_dict() | prices
