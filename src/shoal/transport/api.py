"""Paths and request/response bodies of the HTTP API.

Coordinator, relay and participant use it. The bodies are those that are not messages of a
protocol: published studies, enrolment, queued messages, problem documents. They are as strict as
messages, and their field names and encodings must not change. Bodies are JSON (`from_json`,
`to_json`), or deterministic CBOR if they contain bytes (`from_cbor`, `to_cbor`).

A path names a study by the digest of its manifest, 64 hexadecimal digits.
"""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, FailFast, Field, ValidationError

from shoal.errors import RemoteProtocolError, ShoalError
from shoal.messages import codec
from shoal.messages.base import Record, describe_validation_error
from shoal.messages.codec import check_value_count
from shoal.study.manifest import is_reserved
from shoal.study.settings import Line

F = TypeVar("F", bound=Record)

Status = Literal["open", "done", "failed", "closed"]
"""Status of a study: it runs; it has a model; it failed; the analyst has closed it."""

MAX_CONTROL_BYTES = 1 << 14
MAX_VALUES = 1 << 18
"""Most values in a CBOR body. A queued message has seven; the limit on bytes is reached first."""
MAX_WAIT_SECONDS = 30
TICKET_BYTES = 32
NAME_BYTES = 32
"""Size of a member's key, and of the name of a packet."""
LEAST_IN_PAGE, MOST_IN_PAGE = 1 << 11, 1 << 12
"""Keys or names in one page of a list, 128 kB at most; the last page may have fewer, also none.

The borders between pages do not depend on the request. A page contains the first name after that of
the request, and may begin before it.
"""


def _check_participant_name(name: str) -> str:
    if is_reserved(name):
        raise ValueError("is not a participant's")
    return name


def _check_names_length(names: bytes) -> bytes:
    if len(names) % NAME_BYTES:
        raise ValueError(f"is not {NAME_BYTES} bytes for each")
    return names


Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Names = Annotated[bytes, AfterValidator(_check_names_length)]
PhaseNumber = Annotated[str, Field(pattern=r"^(?:0|[1-9][0-9]{0,8})$")]
Hex = Annotated[str, Field(pattern=r"^(?:[0-9a-f]{2})*$", max_length=1000)]


class SignedManifest(Record):
    """A manifest with the coordinator's key and its signature (CBOR)."""

    manifest: bytes
    key: Annotated[bytes, Field(min_length=32, max_length=32)]
    signature: Annotated[bytes, Field(min_length=64, max_length=64)]


class Enrolment(Record):
    """A request to take part; the signature of the request contains the key (JSON).

    Parameters
    ----------
    invitation
        The code, if the study is by invitation.
    ticket
        Hexadecimal digits of a ticket that the participant has drawn, if anonymous packets are
        admitted by tickets.
    commitment
        Hexadecimal digits of a commitment with its proof, if they are admitted by tokens: see
        `shoal.crypto.credentials.issuance`.
    """

    invitation: Annotated[str, Field(max_length=100)] | None = None
    ticket: Hex32 | None = None
    commitment: Hex | None = None


class Enrolled(Record):
    """The name of a participant in a study (JSON).

    Parameters
    ----------
    position
        Position of a holder or database; None for people and devices.
    issued
        Hexadecimal digits of the issuer's signature on the commitment, if one was sent.
    """

    name: Annotated[Line, AfterValidator(_check_participant_name)]
    position: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    issued: Hex | None = None


class MemberList(Record):
    """Public keys of all members with a credential that is valid in a study (CBOR).

    The keys are sorted and concatenated. They are the anonymity set of a packet's sender.
    """

    joined: Names = b""

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(
            self.joined[i : i + NAME_BYTES] for i in range(0, len(self.joined), NAME_BYTES)
        )


class ReceivedPackets(Record):
    """Digests of the names of received packets, sorted and concatenated (CBOR).

    Senders look for their own packets in it.
    """

    phase: Annotated[int, Field(ge=0, lt=1 << 31)]
    names: Names = b""


class PacketBatch(Record):
    """Sealed packets that a relay sends in one request, shuffled (CBOR)."""

    packets: Annotated[tuple[bytes, ...], FailFast()] = ()


class BatchReceipt(Record):
    """Outcome of a batch (CBOR).

    Parameters
    ----------
    taken
        Number of its packets that are stored, now or before; None if the batch was rejected
        because too few of its packets are valid.
    invalid
        Positions of packets that are invalid or repeat another packet of the batch. The relay may
        send the others again.
    """

    taken: Annotated[int, Field(ge=0)] | None
    invalid: Annotated[tuple[Annotated[int, Field(ge=0)], ...], FailFast()] = ()


class Issuing(Record):
    """The coordinator's keys that manifests contain, in hexadecimal digits (JSON)."""

    issuer_key: Hex
    gateway_key: Hex32


class RelayedStudies(Record):
    """Studies that a relay serves (JSON).

    Parameters
    ----------
    to
        The coordinator's address.
    studies
        Digests of open studies, with the size of their packets.
    asks
        Digests of studies, with the SHA-256 of the first signed opening of each phase that the
        relay has read. Participants compare it with what they were shown.
    """

    to: str
    studies: dict[Hex32, Annotated[int, Field(ge=1)]]
    asks: dict[Hex32, dict[PhaseNumber, Hex32]] = Field(default_factory=dict)


class Poll(Record):
    """A request for the messages after number ``after``; earlier ones may be deleted (JSON)."""

    after: Annotated[int, Field(ge=0, lt=1 << 53)] = 0
    wait_seconds: Annotated[int, Field(ge=0, le=MAX_WAIT_SECONDS)] = 0


class QueuedMessage(Record):
    """A message to one participant or to everyone; numbers increase.

    Parameters
    ----------
    signature
        The coordinator's signature (`shoal.transport.signing.sign_broadcast`), if the message is to
        everyone in a study with tokens.
    """

    number: Annotated[int, Field(ge=1, lt=1 << 53)]
    payload: bytes
    signature: Annotated[bytes, Field(min_length=64, max_length=64)] | None = None


class MessagePage(Record):
    """Messages in order, and the status of the study (CBOR)."""

    letters: Annotated[tuple[QueuedMessage, ...], FailFast()]
    status: Status


class Problem(Record):
    """An error as RFC 9457 defines it, with shoal's code (problem+json)."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str | None = None
    fix: str | None = None

    @classmethod
    def from_error(cls, error: ShoalError, status: int) -> Problem:
        return cls(
            title=error.what, status=status, code=error.code, detail=error.why, fix=error.fix
        )


def to_json(form: Record) -> bytes:
    return form.model_dump_json().encode()


def from_json(data: bytes, kind: type[F], max_bytes: int = MAX_CONTROL_BYTES) -> F:
    """Decode a JSON body; raise `RemoteProtocolError` if it is not of this kind.

    ``false`` is not a number, and ``1.0`` is not a whole number.
    """
    _check_size(data, max_bytes)
    try:
        return kind.model_validate(
            json.loads(data, parse_constant=_reject_constant, object_pairs_hook=_make_object)
        )
    except ValidationError as error:
        raise RemoteProtocolError(
            "MSG-005",
            f"{kind.__name__} does not fit its declaration: {describe_validation_error(error)}.",
        ) from None
    except (ValueError, RecursionError):
        raise RemoteProtocolError("MSG-002", f"{len(data)} bytes are not JSON.") from None


def to_cbor(form: Record) -> bytes:
    return codec.dump(form)


def from_cbor(data: bytes, kind: type[F], max_bytes: int = codec.MAX_BYTES) -> F:
    """Decode a CBOR body; raise `RemoteProtocolError` if it is not of this kind.

    The number of values is limited before anything is decoded, to limit memory.
    """
    check_value_count(data, MAX_VALUES)
    plain = codec.loads(data, max_bytes)
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise RemoteProtocolError(
            "MSG-005",
            f"{kind.__name__} does not fit its declaration: {describe_validation_error(error)}.",
        ) from None


def _check_size(data: bytes, max_bytes: int) -> None:
    if len(data) > max_bytes:
        raise RemoteProtocolError(
            "MSG-001",
            f"A body of {len(data)} bytes is too large.",
            why=f"The limit is {max_bytes} bytes.",
        )


def _reject_constant(word: str) -> None:
    raise ValueError(word)


def _make_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


ROOT = "/v1"
STUDIES = f"{ROOT}/studies"
OPENAPI = f"{ROOT}/openapi.json"

ISSUING = f"{ROOT}/issuing"
GATEWAY = f"{ROOT}/gateway"
KEYS = f"{ROOT}/ohttp-keys"
"""Of a coordinator: its keys for manifests, the gateway for sealed requests, and the gateway's key
as RFC 9458 encodes it.
"""

RELAYING = f"{ROOT}/relaying"
REQUESTS = f"{ROOT}/requests"
PACKETS = f"{ROOT}/packets"
"""Of a relay: the studies that it serves, sealed requests that are answered immediately, and
(followed by a study) sealed packets for its spool.
"""

CBOR = "application/cbor"
JSON = "application/json"
PROBLEM = "application/problem+json"
RAW = "application/octet-stream"
OHTTP_REQUEST, OHTTP_RESPONSE = "message/ohttp-req", "message/ohttp-res"


def study_route(study: str, what: str = "") -> str:
    """Return the path of a study, or of one of its parts.

    Parameters
    ----------
    study
        The digest in hexadecimal.
    what
        ``manifest``, ``label``, ``board``, ``progress``, ``model``, ``members``, ``received``
        (read); ``enrolments``, ``mailbox``, ``messages``, ``leave`` (signed); ``batches`` (from
        the relay); ``submissions``, ``draw``, ``update`` (anonymous, except an update under DDML's
        admission ``signed``); ``close`` (from the analyst).

    Examples
    --------
    >>> study_route("7f" * 32, "board")[-12:]
    '7f7f7f/board'
    """
    return f"{STUDIES}/{study}/{what}" if what else f"{STUDIES}/{study}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host's address.

    Examples
    --------
    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
