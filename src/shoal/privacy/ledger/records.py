"""Ledger records and their deterministic CBOR encoding.

`shoal.privacy.ledger.state` makes and applies records; `chain_hash` links each to the one before.

Every field is checked when a record is read. `encode_record` writes no bytes that `decode_record`
would not read back as an equal record.
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
from shoal.privacy.ledger.charges import StudyBudget
from shoal.privacy.ledger.limits import Limit, Period, check_ledger_text

_DOMAIN = b"shoal ledger 1\0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class ReleaseState(StrEnum):
    """The state of a release."""

    RESERVED = "reserved"
    STORED = "stored"
    SENDING = "sending"
    SENT = "sent"
    VOIDED = "voided"


class ReleaseKey(NamedTuple):
    """The identifier of a release: digest of the manifest, and question."""

    study: str
    question: str


@dataclass(frozen=True, slots=True)
class LedgerRelease:
    """A release before it is drawn: which data it is about and who receives it.

    Parameters
    ----------
    study
        Digest of the manifest.
    question
        The study's question that it answers; study and question identify a release permanently.
    event
        The release, priced by the participant's own code.
    source
        The participant's data source that it is about.
    title
        The study's title, for display.
    budget
        The budget of the whole study, if rho is composed within it.
    """

    study: str
    question: str
    event: Event
    source: str
    recipient: str
    title: str
    budget: StudyBudget | None = None

    def __post_init__(self) -> None:
        for name in ("study", "question", "source", "recipient", "title"):
            check_ledger_text(name, getattr(self, name))
        if self.budget is not None:
            self.budget.check()

    @property
    def key(self) -> ReleaseKey:
        return ReleaseKey(self.study, self.question)

    def is_same(self, other: LedgerRelease) -> bool:
        """Return whether both describe one release; titles and budgets are not compared.

        Earlier versions of shoal stored no budget.
        """
        return (self.key, self.event, self.source, self.recipient) == (
            other.key,
            other.event,
            other.source,
            other.recipient,
        )


class OpeningRecord(NamedTuple):
    """The first record."""

    at: datetime


class DateRecord(NamedTuple):
    """The owner confirmed that the clock shows the right date."""

    at: datetime


class LimitRecord(NamedTuple):
    """A limit was set, or removed if it caps nothing."""

    at: datetime
    limit: Limit


class ReserveRecord(NamedTuple):
    """A release was reserved."""

    at: datetime
    release: LedgerRelease


class StoreRecord(NamedTuple):
    """A release was drawn; its bytes are in the outbox and have this SHA-256."""

    at: datetime
    key: ReleaseKey
    digest: bytes
    size: int

    @property
    def state(self) -> ReleaseState:
        return ReleaseState.STORED


class TransitionRecord(NamedTuple):
    """A release was marked as sending, sent or voided."""

    at: datetime
    key: ReleaseKey
    state: ReleaseState


LedgerRecord = (
    OpeningRecord | DateRecord | LimitRecord | ReserveRecord | StoreRecord | TransitionRecord
)


class LedgerRow(NamedTuple):
    """A record as it is stored."""

    seq: int
    prev: bytes
    hash: bytes
    body: bytes


class LedgerHead(NamedTuple):
    """The last record's number and hash.

    Noting it down is enough to recognise the ledger later.
    """

    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"


def chain_hash(seq: int, prev: bytes, body: bytes) -> bytes:
    """Return the hash of a record: over its number, the hash before it, and its body."""
    return hashlib.sha256(_DOMAIN + seq.to_bytes(8, "big") + prev + body).digest()


def damaged_record_error(seq: int, reason: str) -> IntegrityError:
    return IntegrityError(
        "LEDGER-006",
        f"Record {seq} of the ledger is damaged: {reason}.",
        why="A program other than shoal changed the file, or the disk is failing. Nothing is "
        "released from a damaged ledger.",
        fix="Restore a backup that contains your last noted head (shoal ledger verify --head).",
    )


def encode_record(record: LedgerRecord) -> bytes:
    """Encode a record as deterministic CBOR, the bytes that are hashed."""
    fields: dict[str, object] = {"at": (record.at - _EPOCH) // _MICROSECOND}
    match record:
        case OpeningRecord():
            fields |= {"kind": "opened"}
        case DateRecord():
            fields |= {"kind": "date"}
        case LimitRecord(limit=limit):
            fields |= {
                "kind": "limit",
                "unit": None if limit.unit is None else limit.unit.value,
                "relation": limit.relation.value,
                "period": limit.period.value,
            }
            fields |= {
                "grains": limit.grains,
                "releases": limit.releases,
                "source": limit.source,
                "feature": limit.feature,
            }
            fields |= {"delta_grains": limit.delta_grains}
            if limit.max_rows_per_person > 1:
                fields |= {"max_rows_per_person": limit.max_rows_per_person}
        case ReserveRecord(release=release):
            fields |= {
                "kind": "reserved",
                "study": release.study,
                "question": release.question,
                "event": _encode_event(release.event),
            }
            fields |= {
                "source": release.source,
                "recipient": release.recipient,
                "title": release.title,
            }
            if release.budget is not None:
                rho, delta = map(float, release.budget)
                fields |= {"study_rho": rho, "study_delta": delta}
        case StoreRecord(key=key):
            fields |= {
                "kind": "stored",
                **key._asdict(),
                "digest": record.digest,
                "size": record.size,
            }
        case _:
            fields |= {"kind": record.state.value, **record.key._asdict()}
    try:
        body = cbor2.dumps(fields, canonical=True)
        reason = (
            None if decode_record(body, 0) == record else "decoding it gives a different record"
        )
    except (cbor2.CBORError, ValueError) as error:
        reason = str(error)
    except IntegrityError as error:
        reason = error.what
    if reason:
        raise UsageError(
            "LEDGER-009", f"A record of kind {fields['kind']} cannot be written: {reason}."
        )
    return body


def decode_record(body: bytes, seq: int) -> LedgerRecord:
    """Decode a record and check every field."""
    try:
        return _parse_record(
            cbor2.loads(
                body,
                max_depth=4,
                allow_indefinite=False,
                allow_duplicate_keys=False,
                strict_hashable_types=True,
            )
        )
    except ShoalError as error:
        raise damaged_record_error(seq, f"it cannot be read, {error.what}") from None
    except (cbor2.CBORError, ValueError, OverflowError) as error:
        raise damaged_record_error(seq, f"it cannot be read, {error}") from None


_Shape = Mapping[str, tuple[type, ...]]
_OPTIONAL_INT, _OPTIONAL_STR, _OPTIONAL_FLOAT = (
    (int, type(None)),
    (str, type(None)),
    (float, type(None)),
)
_STEP_SHAPE: _Shape = {"kind": (str,), "at": (int,), "study": (str,), "question": (str,)}
_SHAPES: Mapping[str, _Shape] = {
    "opened": {"kind": (str,), "at": (int,)},
    "date": {"kind": (str,), "at": (int,)},
    "limit": {"kind": (str,), "at": (int,), "relation": (str,), "period": (str,)}
    | {
        "unit": _OPTIONAL_STR,
        "grains": _OPTIONAL_INT,
        "releases": _OPTIONAL_INT,
        "source": _OPTIONAL_STR,
        "feature": _OPTIONAL_STR,
    }
    | {"delta_grains": _OPTIONAL_INT},
    ReleaseState.RESERVED: {
        **_STEP_SHAPE,
        "event": (dict,),
        "source": (str,),
        "recipient": (str,),
        "title": (str,),
    },
    ReleaseState.STORED: {**_STEP_SHAPE, "digest": (bytes,), "size": (int,)},
    ReleaseState.SENDING: _STEP_SHAPE,
    ReleaseState.SENT: _STEP_SHAPE,
    ReleaseState.VOIDED: _STEP_SHAPE,
}
_ADDED_SHAPES: Mapping[str, _Shape] = {
    "limit": {"max_rows_per_person": (int,)},
    ReleaseState.RESERVED: {"study_rho": (float,), "study_delta": (float,)},
}
"""Fields of version 4, which a record has all or none of; records of earlier versions have none."""
_EVENT_SHAPE: _Shape = {
    "mechanism": (str,),
    "parameters": (dict,),
    "unit": (str,),
    "relation": (str,),
    "adversary": (str,),
} | {
    "epsilon": (float,),
    "delta": (float,),
    "rho": _OPTIONAL_FLOAT,
    "reads": (list,),
}


def _check_shape(data: Any, shape: _Shape) -> dict[str, Any]:
    """Return the data if it is a map with exactly these fields and types."""
    if type(data) is not dict or data.keys() != shape.keys():
        raise ValueError("it does not have the fields of its kind")
    for name, types in shape.items():
        if type(data[name]) not in types:
            raise ValueError(f"its field {name} is of the wrong type")
    return data


def _parse_record(data: Any) -> LedgerRecord:
    kind = data.get("kind") if type(data) is dict else None
    if type(kind) is not str or kind not in _SHAPES:
        raise ValueError("its kind is unknown")
    added = _ADDED_SHAPES.get(kind, {})
    fields = _check_shape(data, {**_SHAPES[kind], **(added if data.keys() & added else {})})
    at = _EPOCH + fields["at"] * _MICROSECOND
    if kind == "opened":
        return OpeningRecord(at)
    if kind == "date":
        return DateRecord(at)
    if kind == "limit":
        return LimitRecord(at, _parse_limit(fields))
    key = ReleaseKey(fields["study"], fields["question"])
    if kind == ReleaseState.RESERVED:
        return ReserveRecord(
            at,
            LedgerRelease(
                *key,
                _parse_event(fields["event"]),
                fields["source"],
                fields["recipient"],
                fields["title"],
                _parse_budget(fields),
            ),
        )
    if kind == ReleaseState.STORED:
        return StoreRecord(at, key, fields["digest"], fields["size"])
    return TransitionRecord(at, key, ReleaseState(kind))


def _parse_limit(fields: dict[str, Any]) -> Limit:
    unit, relation, period = (
        None if fields["unit"] is None else Unit(fields["unit"]),
        Relation(fields["relation"]),
        Period(fields["period"]),
    )
    caps = fields["releases"], fields["delta_grains"], fields.get("max_rows_per_person", 1)
    return Limit(
        unit, fields["grains"], relation, period, fields["source"], fields["feature"], *caps
    )


def _parse_budget(fields: dict[str, Any]) -> StudyBudget | None:
    return (
        StudyBudget(fields["study_rho"], fields["study_delta"]) if "study_rho" in fields else None
    )


def _parse_event(data: Any) -> Event:
    fields = _check_shape(data, _EVENT_SHAPE)
    parameters, reads = fields["parameters"], tuple(fields["reads"])
    if any(type(name) is not str for name in (*parameters, *reads)) or any(
        type(value) not in (int, float, str) for value in parameters.values()
    ):
        raise ValueError("a parameter or a feature of its event is of the wrong type")
    scope = _parse_scope(fields["unit"], fields["relation"], fields["adversary"])
    return Event(
        fields["mechanism"],
        parameters,
        scope,
        fields["epsilon"],
        fields["delta"],
        fields["rho"],
        reads,
    )


@lru_cache(maxsize=256)
def _parse_scope(unit: str, relation: str, adversary: str) -> Scope:
    return Scope(Unit(unit), Relation(relation), adversary)


def _encode_event(event: Event) -> dict[str, object]:
    # Prices typed as 1 and as 1.0 are equal and are stored as the same bytes.
    prices = {
        "epsilon": float(event.epsilon),
        "delta": float(event.delta),
        "rho": None if event.rho is None else float(event.rho),
    }
    return event.to_dict() | prices
