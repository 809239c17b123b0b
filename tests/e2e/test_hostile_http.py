"""Invalid requests over real sockets: each is rejected with its code and changes nothing.

Responses to anonymous requests do not depend on their content.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cbor2
import pytest

from shoal.crypto.identity import Identity
from shoal.messages import codec
from shoal.messages.codec import encode
from shoal.protocols.anonml.messages import AnonMLAsk, AnonMLPublication
from shoal.protocols.pfds.messages import MESSAGES as PFDS_MESSAGES
from shoal.transport.api import CBOR, JSON, MAX_CONTROL_BYTES, OPENAPI, RAW, STUDIES, study_route
from shoal.transport.connections import MAX_REQUEST_BYTES
from tests.support.coordinator import identity, make_manifest, ticket
from tests.support.hostile import (
    DIGESTS,
    GONE,
    MANIFESTS,
    MEMBER,
    STRANGER,
    Connection,
    HostileCoordinator,
    Reply,
    answer,
    chunked,
    hostile_coordinator,
    request,
    signature,
    tables,
)

Bytes = Callable[[HostileCoordinator], bytes]

NOWHERE = "7f" * 32
MESSAGES, MAILBOX, ENROLMENTS = "messages", "mailbox", "enrolments"


@dataclass(frozen=True)
class Case:
    """A request, and the status and code of its rejection."""

    name: str
    send: Bytes
    status: int
    code: str | None


def route(study: str, what: str = "") -> str:
    return study_route(DIGESTS.get(study, study), what)


def signed(
    study: str,
    what: str,
    body: bytes,
    kind: str = JSON,
    who: Identity = MEMBER,
    *,
    late: float = 0,
    header: str | None = None,
    **other: Any,
) -> bytes:
    """Return a signed request; the signature may be for another request."""
    target = route(study, what)
    for_what = {"target": target, "content": body, "method": "POST", **other}
    made = header or signature(
        for_what["target"], for_what["content"], who, method=for_what["method"], late=late
    )
    return request("POST", target, body, {"content-type": kind, "authorization": made})


def of_cbor(name: str, body: bytes, code: str, study: str = "pfds") -> Case:
    return Case(
        f"message {name}",
        lambda _: signed(study, MESSAGES, body, CBOR),
        413 if code == "MSG-001" else 400,
        code,
    )


def of_form(
    name: str,
    study: str,
    what: str,
    body: bytes,
    status: int = 400,
    code: str = "MSG-005",
    who: Identity = MEMBER,
) -> Case:
    return Case(f"{what} {name}", lambda _: signed(study, what, body, who=who), status, code)


def of_signature(name: str, status: int, code: str, make: Callable[[], bytes]) -> Case:
    return Case(f"signature {name}", lambda _: make(), status, code)


def of_head(
    name: str, status: int, code: str | None, method: str, target: str, **headers: str
) -> Case:
    return Case(
        f"head {name}",
        lambda _: request(
            method, target, b"", {k.replace("_", "-"): v for k, v in headers.items()}
        ),
        status,
        code,
    )


def of_analyst(
    name: str,
    status: int,
    code: str,
    target: str,
    body: bytes = b"",
    kind: str = CBOR,
    key: str | None = None,
) -> Case:
    def send(c: HostileCoordinator) -> bytes:
        return request(
            "POST", target, body, {"content-type": kind, "authorization": key or f"Bearer {c.key}"}
        )

    return Case(f"analyst {name}", send, status, code)


def envelope(**changes: Any) -> bytes:
    """Return a message of the PFDS study with some changes."""
    return cbor2.dumps({**cbor2.loads(tables()), **changes}, canonical=True)


def nested(n: int) -> dict[str, Any]:
    found: Any = 0
    for _ in range(n):
        found = (found,)
    return {"counts": found}


def padded(n: int) -> bytes:
    return b'{"ticket": "' + b"0" * (n - 14) + b'"}'


TABLES = tables()
BODY = cbor2.loads(TABLES)["body"]
COUNTS = BODY["counts"]
ASK = encode(AnonMLAsk(study=MANIFESTS["anonml"].digest, phase=0, publication=AnonMLPublication()))

CBOR_CASES = (
    of_cbor("empty", b"", "MSG-002"),
    of_cbor("cut short", TABLES[:-1], "MSG-002"),
    of_cbor("cut in half", TABLES[: len(TABLES) // 2], "MSG-002"),
    of_cbor("with one byte more", TABLES + b"\x00", "MSG-003"),
    of_cbor("twice", TABLES + TABLES, "MSG-003"),
    of_cbor("with a bit of its head flipped", bytes([TABLES[0] ^ 0x80]) + TABLES[1:], "MSG-003"),
    of_cbor(
        "with a bit of its study flipped",
        TABLES.replace(MANIFESTS["pfds"].digest, bytes(32)),
        "MSG-006",
    ),
    of_cbor("arrays in arrays", b"\x81" * 10_000, "MSG-002"),
    of_cbor("maps in maps", b"\xa1\x61a" * 5_000, "MSG-002"),
    of_cbor("tags around tags", b"\xc1" * 10_000, "MSG-002"),
    of_cbor("100,000 arrays in arrays", b"\x81" * 100_000, "MSG-001"),
    of_cbor("100,000 maps in maps", b"\xa1\x61a" * 100_000, "MSG-001"),
    of_cbor("100,000 tags around tags", b"\xc1" * 100_000, "MSG-001"),
    of_cbor("endless arrays in each other", b"\x9f" * 100_000, "MSG-002"),
    of_cbor("as deep as is read, and in its place", envelope(body=nested(12)), "MSG-005"),
    of_cbor("one deeper than is read", envelope(body=nested(40)), "MSG-002"),
    of_cbor("bytes of a huge length", b"\x5b\x7f" + b"\xff" * 7, "MSG-002"),
    of_cbor("text of a huge length", b"\x7b\x00\x00\x00\xff" + b"\xff" * 4, "MSG-002"),
    of_cbor("an array of a huge length", b"\x9b\x00\x00\x00\xff" + b"\xff" * 4, "MSG-002"),
    of_cbor("a map of a huge length", b"\xbb\x00\x00\x00\xff" + b"\xff" * 4, "MSG-002"),
    of_cbor("huge arrays in each other", b"\x9a\x7f\xff\xff\xff" * 15, "MSG-002"),
    of_cbor("a key twice", b"\xa2\x61a\x01\x61a\x01", "MSG-002"),
    of_cbor("an array without a length", b"\x9f\x01\xff", "MSG-002"),
    of_cbor("bytes without a length", b"\x5f\x41a\xff", "MSG-002"),
    of_cbor("a map without a length", b"\xbf\x61a\x01\xff", "MSG-002"),
    of_cbor("a tag around text", b"\xc0\x6a2026-01-01", "MSG-002"),
    of_cbor("a big number", b"\xc2\x49" + b"\xff" * 9, "MSG-002"),
    of_cbor("a reference to itself", b"\xd8\x1c\x81\xd8\x1d\x00", "MSG-002"),
    of_cbor("not a number", b"\xf9\x7e\x00", "MSG-002"),
    of_cbor("infinity", b"\xf9\x7c\x00", "MSG-002"),
    of_cbor("undefined", b"\xf7", "MSG-002"),
    of_cbor("a number of 64 bits", b"\x1b" + b"\xff" * 8, "MSG-002"),
    of_cbor("a number that could be shorter", b"\x18\x01", "MSG-003"),
    of_cbor("a float that could be shorter", b"\xfb\x3f\xf0" + bytes(6), "MSG-003"),
    of_cbor("keys out of order", b"\xa2\x61b\x01\x61a\x01", "MSG-003"),
    of_cbor("text that is no text", b"\x62\xff\xfe", "MSG-002"),
    of_cbor("a number as key", b"\xa1\x01\x01", "MSG-002"),
    of_cbor("no map", b"\x01", "MSG-004"),
    of_cbor("10,000 empty maps", b"\x99\x27\x10" + b"\xa0" * 10_000, "MSG-004"),
    of_cbor("a million numbers", b"\x9a\x00\x0f\x42\x40" + bytes(1_000_000), "MSG-001"),
    of_cbor("a million empty maps", b"\x9a\x00\x0f\x42\x40" + b"\xa0" * 1_000_000, "MSG-001"),
    of_cbor("false for its version", envelope(version=False), "MSG-004"),
    of_cbor("true for its version", envelope(version=True), "MSG-004"),
    of_cbor("another version", envelope(version=2), "MSG-004"),
    of_cbor("another type", envelope(type="pfds.nothing"), "MSG-004"),
    of_cbor("another protocol", answer(), "MSG-004"),
    of_cbor("another study of the protocol", answer(study="invited"), "MSG-006", "anonml"),
    of_cbor("a field more", envelope(body={**BODY, "more": 1}), "MSG-005"),
    of_cbor("a field less", envelope(body={}), "MSG-005"),
    of_cbor("false for a number", envelope(body={"counts": {**COUNTS, "count": False}}), "MSG-005"),
    of_cbor(
        "a float for a whole number",
        envelope(body={"counts": {**COUNTS, "count": float(COUNTS["count"])}}),
        "MSG-005",
    ),
    of_cbor(
        "an array that is shorter than it says",
        envelope(body={"counts": {**COUNTS, "data": b""}}),
        "MSG-005",
    ),
    of_cbor(
        "objects for an array's numbers",
        envelope(body={"counts": {**COUNTS, "element": "object"}}),
        "MSG-005",
    ),
    of_cbor("a letter of the aggregator", ASK, "PROTO-003", "anonml"),
    of_cbor("an anonymous packet under a name", answer(), "PROTO-003", "anonml"),
    of_cbor("to a study of devices", answer(), "PROTO-003", "signed"),
    Case(
        "message too large",
        lambda _: signed("pfds", MESSAGES, bytes(PFDS_MESSAGES.max_bytes + 1), CBOR),
        413,
        "MSG-001",
    ),
    Case(
        "message of no type",
        lambda _: signed("pfds", MESSAGES, TABLES, "text/html"),
        415,
        "HOST-006",
    ),
    Case(
        "message under the name of another's bytes",
        lambda _: signed("pfds", MESSAGES, tables(2), CBOR),
        409,
        "HOST-005",
    ),
)

FORM_CASES = (
    of_form("NaN", "anonml", ENROLMENTS, b'{"ticket": NaN}', code="MSG-002"),
    of_form("false", "anonml", ENROLMENTS, b'{"invitation": false}'),
    of_form("a ticket of another length", "anonml", ENROLMENTS, b'{"ticket": "00"}', who=STRANGER),
    of_form(
        "a ticket in large letters",
        "anonml",
        ENROLMENTS,
        b'{"ticket": "' + b"A" * 64 + b'"}',
        who=STRANGER,
    ),
    of_form(
        "a ticket and a line's end",
        "anonml",
        ENROLMENTS,
        b'{"ticket": "' + b"0" * 64 + b'\\n"}',
        who=STRANGER,
    ),
    of_form("no ticket", "anonml", ENROLMENTS, b"{}", who=STRANGER),
    of_form("half a character", "invited", ENROLMENTS, b'{"invitation": "\\ud800"}', who=STRANGER),
    of_form(
        "a key twice", "anonml", ENROLMENTS, b'{"ticket": null, "ticket": null}', code="MSG-002"
    ),
    of_form("arrays in arrays", "anonml", ENROLMENTS, b"[" * 16_000, code="MSG-002"),
    of_form("objects in objects", "anonml", ENROLMENTS, b'{"a":' * 3_000, code="MSG-002"),
    of_form("another field", "anonml", ENROLMENTS, b'{"name": "holder-0"}'),
    of_form("just too large", "anonml", ENROLMENTS, padded(MAX_CONTROL_BYTES + 1), 413, "MSG-001"),
    of_form("as large as can be", "anonml", ENROLMENTS, padded(MAX_CONTROL_BYTES)),
    of_form(
        "another ticket than before",
        "anonml",
        ENROLMENTS,
        b'{"ticket": "' + b"7" * 64 + b'"}',
        409,
        "ENROL-002",
    ),
    of_form(
        "somebody else's ticket",
        "anonml",
        ENROLMENTS,
        b'{"ticket": "' + ticket(0).hex().encode() + b'"}',
        409,
        "ENROL-002",
        STRANGER,
    ),
    of_form("of one on no roster", "sdq", ENROLMENTS, b"{}", 403, "ENROL-001", STRANGER),
    of_form(
        "without an invitation",
        "invited",
        ENROLMENTS,
        b'{"ticket": "' + b"7" * 64 + b'"}',
        403,
        "ENROL-001",
        STRANGER,
    ),
    of_form(
        "after the end", "closed", ENROLMENTS, b'{"ticket": "' + b"7" * 64 + b'"}', 403, "ENROL-001"
    ),
    of_form("false", "pfds", MAILBOX, b'{"after": false}'),
    of_form("true to wait", "pfds", MAILBOX, b'{"wait_seconds": true}'),
    of_form("a float", "pfds", MAILBOX, b'{"after": 1.0}'),
    of_form("a number in quotes", "pfds", MAILBOX, b'{"after": "1"}'),
    of_form("below zero", "pfds", MAILBOX, b'{"after": -1}'),
    of_form("beyond all numbers", "pfds", MAILBOX, b'{"after": 9007199254740992}'),
    of_form(
        "a number of 5,000 digits",
        "pfds",
        MAILBOX,
        b'{"after": ' + b"9" * 5_000 + b"}",
        code="MSG-002",
    ),
    of_form("infinity", "pfds", MAILBOX, b'{"after": Infinity}', code="MSG-002"),
    of_form("1e999", "pfds", MAILBOX, b'{"after": 1e999}'),
    of_form("a long wait", "pfds", MAILBOX, b'{"wait_seconds": 31}'),
    of_form("UTF-16", "pfds", MAILBOX, '{"after": false}'.encode("utf-16")),
    of_form("a body where none is", "pfds", "leave", b"{}", 413, "MSG-001"),
    Case("form of another type", lambda _: signed("pfds", MAILBOX, b"{}", CBOR), 415, "HOST-006"),
    Case(
        "form of no type", lambda _: request("POST", route("pfds", MAILBOX), b"{}"), 415, "HOST-006"
    ),
)

_SMALL = [
    bytes(32),
    b"\x01" + bytes(31),
    b"\xec" + b"\xff" * 30 + b"\x7f",
    b"\xee" + b"\xff" * 30 + b"\x7f",
    b"\xff" * 32,
]
_ZERO = f"{'00' * 16} {'01' + '00' * 63}"


def _header(**changes: str) -> str:
    scheme, key, at, nonce, proof = signature(route("pfds", MAILBOX), b"{}").split(" ")
    parts = {"scheme": scheme, "key": key, "at": at, "nonce": nonce, "proof": proof, **changes}
    return " ".join(parts.values())


SIGNATURE_CASES = (
    of_signature(
        "none",
        401,
        "AUTH-001",
        lambda: request("POST", route("pfds", MAILBOX), b"{}", {"content-type": JSON}),
    ),
    of_signature(
        "none to enrol",
        401,
        "AUTH-001",
        lambda: request("POST", route("pfds", ENROLMENTS), b"{}", {"content-type": JSON}),
    ),
    of_signature("none to leave", 401, "AUTH-001", lambda: request("POST", route("pfds", "leave"))),
    of_signature(
        "none to send",
        401,
        "AUTH-001",
        lambda: request("POST", route("pfds", MESSAGES), TABLES, {"content-type": CBOR}),
    ),
    of_signature(
        "of another scheme",
        401,
        "AUTH-001",
        lambda: signed("pfds", MAILBOX, b"{}", header=_header(scheme="Basic")),
    ),
    of_signature(
        "in large letters",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", header=_header(key=MEMBER.public_key.hex().upper())),
    ),
    of_signature(
        "of zeros",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", header=_header(proof="00" * 64)),
    ),
    of_signature(
        "cut short", 401, "AUTH-002", lambda: signed("pfds", MAILBOX, b"{}", header=_header()[:-1])
    ),
    of_signature(
        "with another nonce",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", header=_header(nonce="00" * 16)),
    ),
    of_signature(
        "with another time",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", header=_header(at="1893456000000")),
    ),
    of_signature(
        "under another's key",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", header=_header(key=STRANGER.public_key.hex())),
    ),
    of_signature(
        "of a time without end",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", header=_header(at="9" * 400)),
    ),
    of_signature(
        "of a negative time",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", header=_header(at="-1")),
    ),
    of_signature(
        "for another body",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", content=b'{"after":1}'),
    ),
    of_signature(
        "for another route",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", target=route("pfds", ENROLMENTS)),
    ),
    of_signature(
        "for another study",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", target=route("pfds sum", MAILBOX)),
    ),
    of_signature(
        "for another method", 401, "AUTH-002", lambda: signed("pfds", MAILBOX, b"{}", method="GET")
    ),
    of_signature(
        "for a query",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}", target=route("pfds", MAILBOX) + "?x=1"),
    ),
    of_signature("too old", 401, "AUTH-003", lambda: signed("pfds", MAILBOX, b"{}", late=130)),
    of_signature(
        "of the future", 401, "AUTH-003", lambda: signed("pfds", MAILBOX, b"{}", late=-130)
    ),
    of_signature(
        "too old to enrol",
        401,
        "AUTH-003",
        lambda: signed("pfds", ENROLMENTS, b"{}", who=STRANGER, late=130),
    ),
    of_signature(
        "of a stranger", 403, "ENROL-001", lambda: signed("pfds", MAILBOX, b"{}", who=STRANGER)
    ),
    of_signature(
        "of a stranger who sends",
        403,
        "ENROL-001",
        lambda: signed("pfds", MESSAGES, TABLES, CBOR, STRANGER),
    ),
    of_signature(
        "of one who has left",
        403,
        "ENROL-001",
        lambda: signed("pfds", MESSAGES, TABLES, CBOR, GONE),
    ),
    of_signature(
        "of one who has left and leaves",
        403,
        "ENROL-001",
        lambda: signed("pfds", "leave", b"", who=GONE),
    ),
    of_signature(
        "of one on the roster who has not enrolled",
        403,
        "ENROL-001",
        lambda: signed("sdq", MAILBOX, b"{}", who=identity(1)),
    ),
    *(
        of_signature(
            f"of a key of small order, {i}",
            401,
            "AUTH-002",
            lambda key=key: signed("pfds", MAILBOX, b"{}", header=f"Shoal {key.hex()} 1 {_ZERO}"),
        )
        for i, key in enumerate(_SMALL)
    ),
    of_signature(
        "twice over",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}").replace(
            b"\r\n\r\n", b"\r\nauthorization: " + _header().encode() + b"\r\n\r\n", 1
        ),
    ),
    of_signature(
        "on an encoded path",
        401,
        "AUTH-002",
        lambda: signed("pfds", MAILBOX, b"{}").replace(b"/mailbox", b"/%6dailbox", 1),
    ),
)

ANALYST_CASES = (
    Case(
        "analyst no key",
        lambda _: request("POST", STUDIES, MANIFESTS["pfds"].to_bytes(), {"content-type": CBOR}),
        401,
        "AUTH-001",
    ),
    Case(
        "analyst no key to close",
        lambda _: request("POST", route("pfds", "close")),
        401,
        "AUTH-001",
    ),
    of_analyst(
        "another key",
        401,
        "AUTH-002",
        STUDIES,
        MANIFESTS["pfds"].to_bytes(),
        key="Bearer " + "00" * 32,
    ),
    of_analyst("an empty key", 401, "AUTH-001", route("pfds", "close"), key="Bearer "),
    of_analyst(
        "a key of strange letters",
        401,
        "AUTH-002",
        route("pfds", "close"),
        key="Bearer \xff\xfe\xe9",
    ),
    of_analyst("a long key", 401, "AUTH-002", route("pfds", "close"), key="Bearer " + "0" * 10_000),
    of_analyst("another scheme", 401, "AUTH-001", route("pfds", "close"), key="Basic " + "00" * 32),
    Case(
        "analyst a part of the key",
        lambda c: request(
            "POST", route("pfds", "close"), b"", {"authorization": f"Bearer {c.key[:-1]}"}
        ),
        401,
        "AUTH-002",
    ),
    Case(
        "analyst a participant's signature", lambda _: signed("pfds", "close", b""), 401, "AUTH-001"
    ),
    of_analyst("close with a body", 413, "MSG-001", route("pfds", "close"), b"x"),
    of_analyst("close nothing", 404, "HOST-001", study_route(NOWHERE, "close")),
    of_analyst("publish nothing", 400, "MANIFEST-001", STUDIES),
    of_analyst(
        "publish a manifest cut short",
        400,
        "MANIFEST-001",
        STUDIES,
        MANIFESTS["pfds"].to_bytes()[:-5],
    ),
    of_analyst("publish arrays in arrays", 400, "MANIFEST-001", STUDIES, b"\x81" * 100_000),
    of_analyst("publish a message", 400, "MANIFEST-001", STUDIES, TABLES),
    of_analyst(
        "publish a shuffled study", 400, "HOST-003", STUDIES, make_manifest("shuffled").to_bytes()
    ),
    of_analyst("publish JSON", 415, "HOST-006", STUDIES, b"{}", JSON),
    of_analyst("publish too much", 413, "MSG-001", STUDIES, bytes(codec.MAX_BYTES + 1)),
    *(
        of_analyst(
            f"publish with {query}",
            400,
            "HOST-006",
            f"{STUDIES}?{query}",
            MANIFESTS["pfds"].to_bytes(),
        )
        for query in (
            "patience=0",
            "patience=false",
            "patience=1.0",
            "patience=-1",
            "patience=1e3",
            "patience=1&patience=2",
            "patience=",
            "x=1",
        )
    ),
)

HEAD_CASES = (
    *(
        of_head(f"{method} of all studies", 405, "HOST-006", method, STUDIES)
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
    ),
    *(
        of_head(f"GET {what}", 405, "HOST-006", "GET", route("pfds", what))
        for what in (MESSAGES, MAILBOX, ENROLMENTS, "leave", "submissions", "close")
    ),
    *(
        of_head(f"GET {what}", 405, "HOST-006", "GET", route("open", what))
        for what in ("draw", "update")
    ),
    *(
        of_head(f"POST {what}", 405, "HOST-006", "POST", route("pfds", what))
        for what in ("", "manifest", "label", "board", "progress", "model")
    ),
    *(
        of_head(f"POST {path}", 405, "HOST-006", "POST", path)
        for path in (OPENAPI, "/healthz", "/readyz", "/metrics")
    ),
    *(
        of_head(f"GET {path[:20]} to {path[-28:]}", 404, "HOST-001", "GET", path)
        for path in (
            "/x",
            "//",
            "/v1",
            "/v1/",
            "/v1/studies/",
            "//v1/studies",
            "/v1//studies",
            "/V1/studies",
            "/v1/studies/..",
            "/v1/studies/../studies",
            "/v1/%2e%2e/v1/studies",
            "/v1/studies/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
            "/v1/studies/%00",
            "/v1/studies/%ff%fe",
            "/v1/studies/%",
            "/v1/studies/%C3%A9",
            "/v1/studies\\x",
            "/v1/studies;x=1",
            f"{route('pfds')}/",
            f"{route('pfds')}%00",
            f"{route('pfds')}%0a",
            f"{route('pfds', 'label')}/",
            f"{route('pfds', 'label')}%20",
            f"{route('pfds')}//label",
            f"/v1/studies/{DIGESTS['pfds'].upper()}",
            f"/v1/studies/{DIGESTS['pfds'][:-1]}",
            f"/v1/studies/{DIGESTS['pfds'][:12]}",
            f"/v1/studies/{NOWHERE}",
            f"/v1/studies/{NOWHERE}/board?wait=30",
            "/v1/studies/" + "7" * 30_000,
            "/v1/studies/" + "%2e" * 10_000,
        )
    ),
    *(
        of_head(f"POST nowhere {what}", 404, "HOST-001", "POST", study_route(NOWHERE, what))
        for what in ("submissions", "draw", "update")
    ),
    of_head("draw of no device", 404, "HOST-001", "POST", route("pfds", "draw")),
    of_head("draw after the end", 410, "HOST-002", "POST", route("over", "draw")),
    of_head("a model that is not there", 409, "HOST-002", "GET", route("pfds", "model")),
    of_head("a model that will never be", 410, "HOST-002", "GET", route("closed", "model")),
    *(
        of_head(f"board?{query[:40]}", 400, "HOST-006", "GET", f"{route('pfds', 'board')}?{query}")
        for query in (
            "after=false",
            "after=1.0",
            "after=-1",
            "after=+1",
            "after=%31%00",
            "wait=31",
            "wait=nan",
            "after=1&after=1",
            "x",
            "after=" + "9" * 5_000,
            "after=%C2%B2",
        )
    ),
    of_head("a query where none is", 400, "HOST-006", "GET", "/healthz?x=1"),
)

CASES = (*CBOR_CASES, *FORM_CASES, *SIGNATURE_CASES, *ANALYST_CASES, *HEAD_CASES)


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileCoordinator]:
    with hostile_coordinator(tmp_path_factory.mktemp("hostile")) as coordinator:
        yield coordinator


def check_well(connection: Connection) -> None:
    """Check that the connection and the coordinator accept another request."""
    assert connection.send(request("GET", "/healthz"))
    reply = connection.read()
    assert reply is not None and reply.status == 200


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_invalid_request_is_rejected_and_changes_nothing(c: HostileCoordinator, case: Case) -> None:
    before = c.settled()
    with Connection(c.port) as connection:
        connection.send(case.send(c))
        reply = connection.read()
        assert reply is not None
        assert reply.problem == (case.status, case.code)
        if ("connection", "close") not in reply.headers:
            check_well(connection)
    after = c.settled()
    if case.code == "HOST-005":
        # Its signature is used up: it must not be taken later, when the name is free.
        assert len(after.pop("nonce")) == 1 + len(before.pop("nonce"))
    elif case.name.startswith("enrolments"):
        # So is that of an enrolment that the store rejects: a replay must cost nothing.
        assert len(after.pop("nonce")) - len(before.pop("nonce")) in (0, 1)
    assert after == before


def test_cases_cover_many_kinds_of_request() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 150


# what comes again


@pytest.mark.parametrize(
    ("study", "what", "body", "kind"),
    [
        ("pfds", MAILBOX, b"{}", JSON),
        ("pfds", MESSAGES, TABLES, CBOR),
        ("pfds", ENROLMENTS, b"{}", JSON),
    ],
)
def test_signature_is_valid_for_one_request(
    c: HostileCoordinator, study: str, what: str, body: bytes, kind: str
) -> None:
    caught = signed(study, what, body, kind)
    assert c.ask(caught).status in (200, 202)
    before = c.settled()
    assert [c.ask(caught).problem for _ in range(3)] == [(401, "AUTH-005")] * 3
    assert c.settled() == before


def test_replayed_enrolment_does_not_undo_leave(c: HostileCoordinator) -> None:
    who = identity(50)
    caught = signed("pfds", ENROLMENTS, b"{}", who=who)
    assert c.ask(caught).status == 200
    left = signed("pfds", "leave", b"", who=who)
    assert c.ask(left).status == 204
    before = c.settled()
    assert c.ask(caught).problem == (401, "AUTH-005")
    assert c.ask(left).problem == (403, "ENROL-001")
    assert c.settled() == before


def test_invitation_admits_one_person(c: HostileCoordinator) -> None:
    code = c.invitations[1]
    first = c.enrol("invited", identity(51), invitation=code, ticket=ticket(51).hex())
    assert first.status == 200
    before = c.settled()
    for used in (c.invitations[0], code, code.upper(), code.replace("-", " "), "", "x" * 100):
        assert c.enrol(
            "invited", identity(52), invitation=used, ticket=ticket(52).hex()
        ).problem == (403, "ENROL-001")
    after = c.settled()
    assert len(after.pop("nonce")) == 6 + len(before.pop("nonce"))
    assert after == before


# what is hardly HTTP


def read_statuses(c: HostileCoordinator, data: bytes) -> set[int]:
    """Return the statuses of all responses to some bytes, until the other side closes."""
    statuses = set()
    with Connection(c.port) as connection:
        connection.send(data)
        connection.finish()
        while (reply := connection.read()) is not None:
            statuses.add(reply.status)
    return statuses


_INNER = request("POST", route("pfds", "close"), b"", {"authorization": "Bearer KEY"})
_HEAD = f"POST {route('anonml', 'submissions')} HTTP/1.1\r\nhost: a\r\n".encode()

SHAPES = {
    "both lengths": _HEAD
    + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    + _INNER,
    "both lengths, the other way": _HEAD
    + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n"
    + _INNER,
    "two lengths": _HEAD + b"content-length: 0\r\ncontent-length: 5\r\n\r\n" + _INNER,
    "two lengths in one": _HEAD + b"content-length: 0, 5\r\n\r\n" + _INNER,
    "a length below zero": _HEAD + b"content-length: -1\r\n\r\n" + _INNER,
    "a length with a sign": _HEAD + b"content-length: +5\r\n\r\nabcde" + _INNER,
    "a length in hexadecimal": _HEAD + b"content-length: 0x5\r\n\r\nabcde" + _INNER,
    "a length of 100 digits": _HEAD + b"content-length: " + b"9" * 100 + b"\r\n\r\n" + _INNER,
    "a length in a folded line": _HEAD + b"x: a\r\n content-length: 5\r\n\r\nabcde" + _INNER,
    "a space before the colon": _HEAD + b"content-length : 5\r\n\r\nabcde" + _INNER,
    "an unknown encoding": _HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + _INNER,
    "chunked is not the last": _HEAD
    + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n"
    + _INNER,
    "chunks of no number": _HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + _INNER,
    "chunks below zero": _HEAD + b"transfer-encoding: chunked\r\n\r\n-1\r\n" + _INNER,
    "chunks beyond all sizes": _HEAD
    + b"transfer-encoding: chunked\r\n\r\n"
    + b"f" * 17
    + b"\r\n"
    + _INNER,
    "chunks longer than they say": _HEAD
    + b"transfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n"
    + _INNER,
    "a zero in a header": _HEAD + b"x: a\x00b\r\ncontent-length: 0\r\n\r\n" + _INNER,
    "a zero in the path": b"GET /healthz\x00 HTTP/1.1\r\nhost: a\r\n\r\n" + _INNER,
    "a line's end in the path": b"GET /health\rz HTTP/1.1\r\nhost: a\r\n\r\n" + _INNER,
    "letters beyond ASCII in the path": b"GET /v1/\xc3\xa9 HTTP/1.1\r\nhost: a\r\n\r\n" + _INNER,
    "a header without a name": b"GET /healthz HTTP/1.1\r\n: a\r\n\r\n" + _INNER,
    "no such method": b"G@T /healthz HTTP/1.1\r\nhost: a\r\n\r\n" + _INNER,
    "no such version": b"GET /healthz HTTP/9.9\r\nhost: a\r\n\r\n" + _INNER,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _INNER,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + _INNER,
    "noise": bytes(range(256)) * 4,
    "too many headers": b"GET /healthz HTTP/1.1\r\n"
    + b"".join(b"x-%d: y\r\n" % i for i in range(20_000))
    + b"\r\n"
    + _INNER,
    "a long header": b"GET /healthz HTTP/1.1\r\nx: " + b"y" * (1 << 17) + b"\r\n\r\n" + _INNER,
    "a long path": b"GET /" + b"y" * (1 << 17) + b" HTTP/1.1\r\n\r\n" + _INNER,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_malformed_http_is_rejected_and_smuggles_no_request(
    c: HostileCoordinator, shape: str
) -> None:
    before = c.settled()
    statuses = read_statuses(c, SHAPES[shape].replace(b"KEY", c.key.encode()))
    assert (
        statuses <= {202, 400, 408, 413, 431, 505} and statuses & {400, 413, 431, 505}
    ) or not statuses, statuses
    assert c.ask(request("GET", "/healthz")).status == 200
    assert c.settled() == before


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET http://elsewhere/healthz HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        (b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", 404),
        (
            b"GET /healthz HTTP/1.1\r\nconnection: upgrade\r\nupgrade: "
            b"websocket\r\nsec-websocket-key: a\r\n\r\n",
            200,
        ),
        (
            b"GET /healthz HTTP/1.1\r\nconnection: upgrade, http2-settings\r\nupgrade: "
            b"h2c\r\nhttp2-settings: a\r\n\r\n",
            200,
        ),
        (b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 200),
    ],
)
def test_unused_http_features_have_no_effect(
    c: HostileCoordinator, data: bytes, status: int
) -> None:
    assert c.ask(data).status == status


def test_pipelined_requests_are_answered_in_order(c: HostileCoordinator) -> None:
    paths = [
        "/healthz",
        "/nowhere",
        route("pfds", "label"),
        route("pfds", "model"),
        "/healthz?x=1",
        OPENAPI,
    ] * 20
    with Connection(c.port) as connection:
        connection.send(b"".join(request("GET", path) for path in paths))
        replies = [connection.read() for _ in paths]
    assert [reply.status if reply else None for reply in replies] == [
        200,
        404,
        200,
        409,
        400,
        200,
    ] * 20


def test_wrong_content_length_is_rejected(c: HostileCoordinator) -> None:
    before = c.settled()
    whole = signed("pfds", MAILBOX, b"{}")
    with Connection(c.port) as connection:
        connection.send(whole.replace(b"content-length: 2", b"content-length: 3"))
        connection.finish()
        assert connection.read() is None
    with Connection(c.port) as connection:
        connection.send(whole.replace(b"content-length: 2", b"content-length: 1"))
        reply = connection.read()
        assert reply is not None and reply.status == 400 and connection.is_closed()
    assert c.settled() == before


# what is large


def stream_until_response(
    connection: Connection, head: bytes, piece: bytes, most: int
) -> tuple[int, Reply | None]:
    """Send a head and then pieces until there is a response; return the number of bytes."""
    connection.send(head)
    n = 0
    while n < most and not select.select([connection.fileno()], [], [], 0)[0]:
        connection.send(piece)
        n += len(piece)
    return n, connection.read()


@pytest.mark.parametrize("framing", ["content-length: 100000000", "transfer-encoding: chunked"])
@pytest.mark.parametrize(
    ("target", "kind", "expected"),
    [
        (route("pfds", MESSAGES), CBOR, (413, "MSG-001")),
        (route("pfds", MAILBOX), JSON, (413, "MSG-001")),
        (route("pfds", "leave"), CBOR, (413, "MSG-001")),
        (route("signed", "update"), RAW, (413, "MSG-001")),
        (route("anonml", "submissions"), CBOR, (202, None)),
        (route("open", "update"), RAW, (202, None)),
        (route("token", "update"), RAW, (202, None)),
    ],
)
def test_endless_body_is_rejected_early(
    c: HostileCoordinator, framing: str, target: str, kind: str, expected: tuple[int, str | None]
) -> None:
    before, held = c.settled(), c.memory()
    head = (
        f"POST {target} HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\n{framing}\r\n\r\n".encode()
    )
    piece = (
        bytes(1 << 20)
        if "length" in framing
        else chunked(bytes(1 << 20), 1 << 20)[: -len(b"0\r\n\r\n")]
    )
    with Connection(c.port) as connection:
        n, reply = stream_until_response(connection, head, piece, 100_000_000)
        assert reply is not None and reply.problem == expected
        assert n <= MAX_REQUEST_BYTES
        while connection.send(piece):
            n += len(piece)
            assert n < MAX_REQUEST_BYTES + (1 << 24), "it reads on for ever"
    assert c.memory() - held < 100 << 20
    assert c.settled() == before


def test_decompression_bombs_use_no_memory(c: HostileCoordinator) -> None:
    before = c.memory()
    c.forget_peak()
    for bomb in (
        b"\x00",
        b"\xa0",
        b"\x80",
        b"\x81",
        b"\xa1\x61a",
        b"\xc1",
        b"\x40",
        b"\x9a\x7f\xff\xff\xff",
    ):
        for large in (
            bomb * ((1 << 16) // len(bomb)),
            bomb * (PFDS_MESSAGES.max_bytes // 2 // len(bomb)),
        ):
            body = b"\x9a" + (len(large) // len(bomb)).to_bytes(4, "big") + large
            assert c.ask(signed("pfds", MESSAGES, body, CBOR)).status in (400, 413)
            assert c.post(route("anonml", "submissions"), body, CBOR).status == 202
    for case in CBOR_CASES:
        c.ask(case.send(c))
    assert c.peak() - before < 100 << 20


# what is anonymous


def seen(c: HostileCoordinator, data: bytes) -> object:
    return c.ask(data).seen


def test_response_does_not_depend_on_submission(c: HostileCoordinator) -> None:
    anonml, closed = route("anonml", "submissions"), route("closed", "submissions")
    kind = {"content-type": CBOR}
    good = request("POST", anonml, answer(), kind)
    usual = seen(c, good)
    before, refused = c.settled(), c.refused("anonml")
    rubbish = {
        "again": good,
        "other bytes under its name": request("POST", anonml, answer(report=b"\x01"), kind),
        "under no ticket": request("POST", anonml, answer(77), kind),
        "empty": request("POST", anonml, b"", kind),
        "no CBOR": request("POST", anonml, b"rubbish", kind),
        "cut short": request("POST", anonml, answer()[:-1], kind),
        "arrays in arrays": request("POST", anonml, b"\x81" * 100_000, kind),
        "of another study": request("POST", anonml, answer(study="invited"), kind),
        "to be sent under a name": request("POST", route("pfds", "submissions"), TABLES, kind),
        "the aggregator's": request("POST", anonml, ASK, kind),
        "false for a phase": request(
            "POST", anonml, answer().replace(b"phase\x00", b"phase\xf4"), kind
        ),
        "too large": request("POST", anonml, answer(report=bytes(1 << 15)) * 3, kind),
        "far too large": request("POST", anonml, bytes(codec.MAX_BYTES + 1), kind),
        "in chunks": _HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(answer(), 7),
        "of no type": request("POST", anonml, answer()),
        "of another type": request("POST", anonml, answer(), {"content-type": "text/html"}),
        "with a query": request("POST", f"{anonml}?x=1", answer(), kind),
        "with a signature": request("POST", anonml, answer(), {**kind, "authorization": _header()}),
        "late": request("POST", closed, answer(study="closed"), kind),
        "late rubbish": request("POST", closed, b"rubbish", kind),
        "to a study of devices": request("POST", route("open", "submissions"), b"rubbish", kind),
    }
    assert {name: seen(c, data) == usual for name, data in rubbish.items()} == dict.fromkeys(
        rubbish, True
    )
    assert c.settled() == before
    expected = {
        "AUTH-002": 1,
        "HOST-005": 1,
        "MSG-001": 3,
        "MSG-002": 3,
        "MSG-005": 1,
        "MSG-006": 1,
        "PROTO-003": 1,
    }
    assert c.counted("anonml", refused, expected) == expected
    c.counted("closed", {}, {"HOST-002": 1, "MSG-002": 1})
    c.counted("pfds", {}, {"PROTO-003": 1})


def update(name: int, epoch: int, weights: bytes) -> bytes:
    """Return the body of an update."""
    return name.to_bytes(16, "big") + epoch.to_bytes(8, "little") + weights


def test_response_does_not_depend_on_update(c: HostileCoordinator) -> None:
    drawn = c.post(route("open", "draw")).body
    weights = drawn[8:]
    high, low = (end * (len(weights) // 4) for end in (b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80"))
    good = update(1, 0, weights)
    usual = seen(c, request("POST", route("open", "update"), good, {"content-type": RAW}))
    before, refused = c.settled(), c.refused("open")
    rubbish = {
        "again": good,
        "empty": b"",
        "an id alone": bytes(16),
        "one byte less": good[:-1],
        "one byte more": good + b"x",
        "far too large": bytes(codec.MAX_BYTES + 1),
        "of the future": update(2, 1, weights),
        "of the end of time": update(3, 2**64 - 1, weights),
        "far from all others": update(4, 0, high),
        "out of range": update(5, 0, low),
        "CBOR": TABLES,
    }
    assert {
        name: seen(c, request("POST", route("open", "update"), body)) == usual
        for name, body in rubbish.items()
    } == dict.fromkeys(rubbish, True)
    assert seen(c, request("POST", route("over", "update"), good)) == usual
    assert (
        seen(
            c,
            request(
                "POST",
                route("open", "update") + "?x=1",
                good,
                {"authorization": "x", "shoal-ticket": "y"},
            ),
        )
        == usual
    )
    assert c.settled() == before
    expected = {"MSG-005": 4, "DDML-001": 2, "spam": 1}
    assert c.counted("open", refused, expected) == expected
    c.counted("open", refused, {"MSG-001": 3})
    c.counted("over", {}, {"HOST-002": 1})


def test_response_does_not_depend_on_ticket(c: HostileCoordinator) -> None:
    weights = c.post(route("token", "draw")).body[8:]
    target, mine = route("token", "update"), ticket(0).hex()
    usual = seen(c, request("POST", target, update(1, 0, weights), {"shoal-ticket": f"{mine} 0"}))
    before, refused = c.settled(), c.refused("token")
    others = {
        "again": f"{mine} 0",
        "not issued": f"{ticket(9).hex()} 0",
        "a number too many": f"{mine} 2",
        "a number without end": f"{mine} {'9' * 400}",
        "no number": mine,
        "a number below zero": f"{mine} -1",
        "false": f"{mine} false",
        "in large letters": f"{'AA' * 32} 0",
        "empty": "",
        "strange letters": "\xe9\xff",
    }
    assert {
        name: seen(c, request("POST", target, update(1, 0, weights), {"shoal-ticket": given}))
        == usual
        for name, given in others.items()
    } == dict.fromkeys(others, True)
    twice = request("POST", target, update(1, 0, weights), {"shoal-ticket": f"{mine} 0"}).replace(
        b"\r\n\r\n", f"\r\nshoal-ticket: {mine} 1\r\n\r\n".encode(), 1
    )
    assert (
        seen(c, twice)
        == usual
        == seen(c, request("POST", target, update(2, 0, weights), {"shoal-ticket": f"{mine} 0"}))
    )
    assert seen(c, request("POST", target, update(3, 0, weights))) == usual
    assert c.settled() == before
    expected = {"AUTH-001": len(others), "AUTH-002": 1, "HOST-005": 1}
    assert c.counted("token", refused, expected) == expected


FIRST = "update?number=0"
UPDATES = {
    "unsigned": (401, "AUTH-001", lambda body: request("POST", route("signed", FIRST), body)),
    "of a stranger": (403, "ENROL-001", lambda body: signed("signed", FIRST, body, RAW, STRANGER)),
    "too old": (401, "AUTH-003", lambda body: signed("signed", FIRST, body, RAW, late=130)),
    "for another study": (
        401,
        "AUTH-002",
        lambda body: signed("signed", FIRST, body, RAW, target=route("open", FIRST)),
    ),
    "for another body": (
        401,
        "AUTH-002",
        lambda body: signed("signed", FIRST, body, RAW, content=body + b"x"),
    ),
    "for another number": (
        401,
        "AUTH-002",
        lambda body: signed("signed", FIRST, body, RAW, target=route("signed", "update?number=1")),
    ),
    "one byte less": (400, "MSG-005", lambda body: signed("signed", FIRST, body[:-1], RAW)),
    "one byte more": (413, "MSG-001", lambda body: signed("signed", FIRST, body + b"x", RAW)),
    "of the future": (
        400,
        "DDML-001",
        lambda body: signed("signed", FIRST, update(7, 1, body[24:]), RAW),
    ),
    "out of range": (
        400,
        "MSG-005",
        lambda body: signed(
            "signed", FIRST, update(8, 0, b"\x00\x00\x00\x80" * (len(body[24:]) // 4)), RAW
        ),
    ),
    "with its query signed otherwise": (
        401,
        "AUTH-002",
        lambda body: signed("signed", FIRST, body, RAW).replace(
            b"/update?number=0 ", b"/update?number=0&x=1 ", 1
        ),
    ),
    "on an encoded path": (
        401,
        "AUTH-002",
        lambda body: signed("signed", FIRST, body, RAW).replace(b"/update?", b"/%75pdate?", 1),
    ),
    **{
        f"of the query {query!r:.30}": (
            400,
            "HOST-006",
            lambda body, query=query: signed("signed", f"update{query}", body, RAW),
        )
        for query in (
            "",
            "?number=",
            "?number=2",
            "?number=-1",
            "?number=false",
            "?number=1.0",
            "?number=0&number=1",
            "?x=1&number=0",
        )
    },
    "of a number without end": (
        400,
        "HOST-006",
        lambda body: signed("signed", f"update?number={'9' * 400}", body, RAW),
    ),
}


@pytest.mark.parametrize("name", UPDATES)
def test_invalid_signed_update_gets_error_code(c: HostileCoordinator, name: str) -> None:
    status, code, make = UPDATES[name]
    body = update(6, 0, c.post(route("signed", "draw")).body[8:])
    before = c.settled()
    assert c.ask(make(body)).problem == (status, code)
    assert c.settled() == before


def test_key_cannot_exceed_updates_of_study(c: HostileCoordinator) -> None:
    weights = c.post(route("signed", "draw")).body[8:]
    first, second = (update(name, 0, weights) for name in (20, 21))
    # The same bytes may come again; others not, and none beyond the last number.
    for body, number in ((first, 0), (first, 0), (second, 1)):
        assert c.ask(signed("signed", f"update?number={number}", body, RAW)).status == 202
    before = c.settled()
    assert before["ddml"] != [] and len(before["ddml_update"]) >= 2
    for body, number, told in (
        (second, 0, (409, "HOST-005")),
        (first, 1, (409, "HOST-005")),
        (update(22, 0, weights), 2, (400, "HOST-006")),
    ):
        assert c.ask(signed("signed", f"update?number={number}", body, RAW)).problem == told
    assert c.settled() == before


def test_flood_of_invalid_requests_is_only_counted(c: HostileCoordinator) -> None:
    before, refused, held = c.settled(), c.refused("open"), c.memory()
    flood = request("POST", route("open", "update"), b"rubbish") * 5_000
    with Connection(c.port) as connection:
        for _ in range(10):
            connection.send(flood[: len(flood) // 10])
            replies = [connection.read() for _ in range(500)]
            assert {reply.status if reply else None for reply in replies} == {202}
    assert c.settled() == before
    assert c.counted("open", refused, {"MSG-005": 5_000}) == {"MSG-005": 5_000}
    assert c.memory() - held < 100 << 20


def test_status_shows_totals_only(c: HostileCoordinator) -> None:
    shown = (
        c.ask(request("GET", route("anonml", "progress"))).body
        + c.ask(request("GET", "/metrics")).body
    )
    assert b"shoal_refused_total" in shown
    for secret in (ticket(0).hex(), MEMBER.public_key.hex(), c.key, *c.invitations):
        assert secret.encode() not in shown
