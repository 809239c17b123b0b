"""The bodies that are not messages of a protocol: what is published, enrolment, letters, a problem. Strict, like messages.

JSON for control (`from_json`, `to_json`), deterministic CBOR where there are bytes in it (`from_cbor`, `to_cbor`).
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, FailFast, Field, ValidationError

from shoal.errors import RemoteProtocolError, ShoalError
from shoal.messages import codec
from shoal.messages.base import Record, describe
from shoal.messages.measuring import check_values
from shoal.study.manifest import is_reserved
from shoal.study.values import Line

F = TypeVar("F", bound=Record)

Status = Literal["open", "done", "failed", "closed"]
"""Of a study: it goes on; it has a model; it came to nothing; the analyst has closed it."""

MAX_CONTROL_BYTES = 1 << 14
MAX_VALUES = 1 << 18
"""Of a form in CBOR: five for a letter, of which there are fewer than fit into the bytes that are sent at once."""
MAX_WAIT_SECONDS = 30
TICKET_BYTES = 32
NAME_BYTES = 32
"""Of a member's key, and of the name of a packet."""
MOST_IN_PAGE = 1 << 17
"""So many keys or names are told at once. Whoever gets as many asks for those after the last."""


def _own_name(name: str) -> str:
    if is_reserved(name):
        raise ValueError("is not a participant's")
    return name


def _whole_names(names: bytes) -> bytes:
    if len(names) % NAME_BYTES:
        raise ValueError(f"is not {NAME_BYTES} bytes for each")
    return names


Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Names = Annotated[bytes, AfterValidator(_whole_names)]
Hex = Annotated[str, Field(pattern=r"^(?:[0-9a-f]{2})*$", max_length=1000)]


class Published(Record):
    """A manifest with the coordinator's key and its signature (CBOR)."""

    manifest: bytes
    key: Annotated[bytes, Field(min_length=32, max_length=32)]
    signature: Annotated[bytes, Field(min_length=64, max_length=64)]


class Enrolment(Record):
    """A participant asks to take part; the request's signature says under which key (JSON).

    Parameters
    ----------
    invitation
        The code, where the study is by invitation.
    ticket
        Hexadecimal digits of a ticket that the participant has drawn, where anonymous packets are admitted by tickets.
    commitment
        Hexadecimal digits of a commitment with its proof, where they are admitted by tokens: see `shoal.crypto.credentials`.
    """

    invitation: Annotated[str, Field(max_length=100)] | None = None
    ticket: Hex32 | None = None
    commitment: Hex | None = None


class Enrolled(Record):
    """The name under which the aggregator knows a participant; for holders and databases also their position (JSON).

    Parameters
    ----------
    name, position
        Who the participant is in the study.
    issued
        Hexadecimal digits of what the issuer has signed, for one that has sent a commitment.
    """

    name: Annotated[Line, AfterValidator(_own_name)]
    position: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    issued: Hex | None = None


class Members(Record):
    """The public keys of all to whom credentials were issued that count in a study, one after another, sorted (CBOR).

    It is the set in which a packet's sender hides.
    """

    joined: Names = b""

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(self.joined[i : i + NAME_BYTES] for i in range(0, len(self.joined), NAME_BYTES))


class Received(Record):
    """What has arrived in a phase, for its senders to find their own: digests of packets' names, one after another, in order (CBOR)."""

    phase: Annotated[int, Field(ge=0, lt=1 << 31)]
    names: Names = b""


class Batch(Record):
    """Sealed packets that a relay hands over at once, shuffled (CBOR)."""

    packets: Annotated[tuple[bytes, ...], FailFast()] = ()


class Taken(Record):
    """What became of a batch (CBOR).

    Parameters
    ----------
    taken
        How many of its packets are in, now or before; None where it was refused, since too few of them are valid.
    invalid
        Places in the batch of packets that are none, or are one of its others again: without them it may come again.
    """

    taken: Annotated[int, Field(ge=0)] | None
    invalid: Annotated[tuple[Annotated[int, Field(ge=0)], ...], FailFast()] = ()


class Issuing(Record):
    """The keys of a coordinator that belong into manifests: of its issuer and of its gateway, in hexadecimal digits (JSON)."""

    issuer_key: Hex
    gateway_key: Hex32


class Relaying(Record):
    """What a relay serves: the coordinator's address, and digests of its open studies with the size of their packets (JSON)."""

    to: str
    studies: dict[Hex32, Annotated[int, Field(ge=1)]]


class Poll(Record):
    """Everything up to ``after`` is saved here; send what came later, or wait for it (JSON)."""

    after: Annotated[int, Field(ge=0, lt=1 << 53)] = 0
    wait_seconds: Annotated[int, Field(ge=0, le=MAX_WAIT_SECONDS)] = 0


class Letter(Record):
    """A message for one participant, or for everyone, under a number that grows."""

    number: Annotated[int, Field(ge=1, lt=1 << 53)]
    payload: bytes


class Letters(Record):
    """What has come since, in order, and how the study stands (CBOR)."""

    letters: Annotated[tuple[Letter, ...], FailFast()] = ()
    status: Status = "open"


class Problem(Record):
    """An error as RFC 9457 has it, with shoal's code (problem+json)."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str | None = None
    fix: str | None = None

    @classmethod
    def of(cls, error: ShoalError, status: int) -> Problem:
        return cls(title=error.what, status=status, code=error.code, detail=error.why, fix=error.fix)


def to_json(form: Record) -> bytes:
    return form.model_dump_json().encode()


def from_json(data: bytes, kind: type[F], max_bytes: int = MAX_CONTROL_BYTES) -> F:
    """The form that some JSON is; `RemoteProtocolError` for anything else. ``false`` is not a number, nor ``1.0`` a whole one."""
    _check_size(data, max_bytes)
    try:
        return kind.model_validate(json.loads(data, parse_constant=_not_json, object_pairs_hook=_object))
    except ValidationError as error:
        raise RemoteProtocolError("MSG-005", f"{kind.__name__} does not fit its declaration: {describe(error)}.") from None
    except (ValueError, RecursionError):
        raise RemoteProtocolError("MSG-002", f"{len(data)} bytes are not JSON.") from None


def to_cbor(form: Record) -> bytes:
    return codec.dump(form)


def from_cbor(data: bytes, kind: type[F], max_bytes: int = codec.MAX_BYTES) -> F:
    """The form that some CBOR is; `RemoteProtocolError` for anything else, before it takes much memory."""
    check_values(data, MAX_VALUES)
    plain = codec.loads(data, max_bytes)
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise RemoteProtocolError("MSG-005", f"{kind.__name__} does not fit its declaration: {describe(error)}.") from None


def _check_size(data: bytes, max_bytes: int) -> None:
    if len(data) > max_bytes:
        raise RemoteProtocolError("MSG-001", f"A body of {len(data)} bytes is too large.", why=f"The limit is {max_bytes} bytes.")


def _not_json(word: str) -> None:
    raise ValueError(word)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key comes twice")
    return dict(pairs)
