"""Signatures and the analyst's key at the routes; a rejected request changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from starlette.requests import Request

from shoal.clock import ManualClock
from shoal.coordinator.authentication import verify_signer
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.transport.api import CBOR, JSON, STUDIES, Enrolment, Poll, study_route, to_json
from shoal.transport.signing import FRESH_SECONDS, RequestSignature, sign_request
from tests.support.http import (
    ANONML,
    PFDS,
    Coordinator,
    coordinator,
    participant,
    read_problem,
    tables,
)

SIGNED = {
    "messages": (tables(), CBOR),
    "mailbox": (to_json(Poll()), JSON),
    "leave": (b"", None),
}
ENROLMENT = to_json(Enrolment())
DOCUMENT = (Path(__file__).parents[3] / "docs/reference/http.md").read_text()


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    with coordinator(tmp_path, "anonml", "pfds") as found:
        assert found.enrol(PFDS).status_code == 200
        yield found


def is_unchanged(c: Coordinator) -> bool:
    return (
        c.totals(PFDS) == (1, 0, {})
        and c.totals(ANONML) == (0, 0, {})
        and c.store.find_name(PFDS, participant().public_key) == "holder-0"
    )


@pytest.mark.parametrize("what", [*SIGNED, "enrolments"])
def test_invalid_signature_is_rejected(c: Coordinator, what: str) -> None:
    body, kind = SIGNED.get(what, (ENROLMENT, JSON))
    target = study_route(PFDS, what)

    def asked(header: str | None, sent: bytes = body) -> tuple[int, str]:
        answer = c.post(
            PFDS, what, sent, kind, **({} if header is None else {"authorization": header})
        )
        assert "www-authenticate" in answer.headers
        return read_problem(answer)

    good = c.header(target, body, participant())
    assert asked(None) == asked("Bearer x") == asked("shoal x") == (401, "AUTH-001")
    assert (
        asked("Shoal x")
        == asked(good + "0")
        == asked(good.upper().replace("SHOAL", "Shoal"))
        == (401, "AUTH-002")
    )
    other_end = "0" if good[-1] != "0" else "1"
    assert asked(good[:-1] + other_end) == (401, "AUTH-002")
    assert asked(good.replace(participant().public_key.hex(), participant(1).public_key.hex())) == (
        401,
        "AUTH-002",
    )
    assert asked(c.header(study_route(ANONML, what), body, participant())) == (401, "AUTH-002")
    assert asked(c.header(study_route(PFDS, "board"), body, participant())) == (401, "AUTH-002")
    assert asked(c.header(f"{target}?", body, participant())) == (401, "AUTH-002")
    assert asked(c.header(target, body, participant(), method="GET")) == (401, "AUTH-002")
    assert asked(c.header(target, body + b" ", participant())) == (401, "AUTH-002")
    assert asked(c.header(target, body, participant(), late=FRESH_SECONDS + 1)) == (401, "AUTH-003")
    assert asked(c.header(target, body, participant(), late=-FRESH_SECONDS - 1)) == (
        401,
        "AUTH-003",
    )
    assert is_unchanged(c)


def test_key_of_small_order_is_rejected(c: Coordinator) -> None:
    body, kind = SIGNED["mailbox"]
    time = int(c.clock.now().timestamp() * 1000)
    header = f"Shoal {'01' + '00' * 31} {time} {'00' * 16} {'01' + '00' * 63}"
    assert read_problem(c.post(PFDS, "mailbox", body, kind, authorization=header)) == (
        401,
        "AUTH-002",
    )


def test_two_authorization_headers_are_rejected(c: Coordinator) -> None:
    body, kind = SIGNED["mailbox"]
    header = c.header(study_route(PFDS, "mailbox"), body, participant())
    headers = [("authorization", header), ("authorization", header), ("content-type", str(kind))]
    assert read_problem(
        c.http.post(study_route(PFDS, "mailbox"), content=body, headers=headers)
    ) == (
        401,
        "AUTH-002",
    )


@pytest.mark.parametrize("what", SIGNED)
def test_key_that_is_not_enrolled_is_rejected(c: Coordinator, what: str) -> None:
    """Enrolled elsewhere or nowhere: the answer is the same."""
    body, kind = SIGNED[what]
    assert c.enrol(ANONML, 1).status_code == 200
    elsewhere, nowhere = (c.signed(PFDS, what, body, kind, participant(i)) for i in (1, 2))
    assert read_problem(elsewhere) == (403, "ENROL-001")
    assert elsewhere.content == nowhere.content
    assert c.totals(PFDS) == (1, 0, {})


@pytest.mark.parametrize("what", SIGNED)
def test_replayed_request_is_rejected(c: Coordinator, what: str) -> None:
    body, kind = SIGNED[what]
    header = c.header(study_route(PFDS, what), body, participant())
    first, second = (c.post(PFDS, what, body, kind, authorization=header) for _ in range(2))
    assert first.is_success
    # A participant who has left is not known any more.
    assert read_problem(second) == ((403, "ENROL-001") if what == "leave" else (401, "AUTH-005"))
    c.clock.advance(2 * FRESH_SECONDS + 1)
    assert read_problem(c.post(PFDS, what, body, kind, authorization=header))[0] in (401, 403)


def test_replayed_leave_does_not_end_new_enrolment(c: Coordinator) -> None:
    header = c.header(study_route(PFDS, "leave"), b"", participant())
    assert c.post(PFDS, "leave", authorization=header).status_code == 204
    assert c.enrol(PFDS).json()["name"] == "holder-0"
    assert read_problem(c.post(PFDS, "leave", authorization=header)) == (401, "AUTH-005")
    assert c.store.find_name(PFDS, participant().public_key) == "holder-0"


@pytest.mark.parametrize("route", [STUDIES, study_route(PFDS, "close")])
def test_analyst_routes_need_analyst_key(c: Coordinator, route: str) -> None:
    signed = c.header(route, b"", participant())
    for header in (None, signed, "Bearer", "Basic " + c.key, c.key):
        answer = c.http.post(route, headers={} if header is None else {"authorization": header})
        assert read_problem(answer) == (401, "AUTH-001")
    for key in ("", "x", c.key[:-1], "ab" * 32, "\u00ff"):
        answer = c.http.post(route, headers={b"authorization": f"Bearer {key}".encode("latin-1")})
        assert read_problem(answer) == (401, "AUTH-002" if key else "AUTH-001")
        assert c.key not in answer.text
    assert c.get(PFDS).json()["status"] == "open"
    assert is_unchanged(c)


def test_signature_covers_method_path_and_query_as_sent() -> None:
    clock, entropy = ManualClock(), SeededEntropy(0)
    time = int(clock.now().timestamp() * 1000)

    def asked(method: str, target: str) -> RequestSignature:
        header = sign_request(participant(), "GET", "/a%20b?c=%64", b"", time, entropy)
        path, _, query = target.encode().partition(b"?")
        scope = {"type": "http", "method": method, "raw_path": path, "query_string": query}
        return verify_signer(
            Request({**scope, "headers": [(b"authorization", header.encode())]}), b"", clock
        )

    assert asked("GET", "/a%20b?c=%64").key == participant().public_key
    for method, target in (
        ("POST", "/a%20b?c=%64"),
        ("GET", "/a b?c=%64"),
        ("GET", "/a%20b?c=d"),
        ("GET", "/a%20b"),
    ):
        with pytest.raises(RemoteProtocolError, match="AUTH-002"):
            asked(method, target)


def test_example_in_documentation_verifies() -> None:
    class Counting(SeededEntropy):
        def bytes(self, n: int) -> bytes:
            return bytes(range(n))

    identity, body = Identity.from_seed(bytes(range(32))), b'{"after":3,"wait_seconds":20}'
    time = int(ManualClock().now().timestamp() * 1000)
    assert str(time) in DOCUMENT
    assert body.decode() in DOCUMENT
    header = sign_request(
        identity, "POST", study_route("7f" * 32, "mailbox"), body, time, Counting(0)
    )
    assert f"Authorization: {header}\n" in DOCUMENT
    assert f"POST {study_route('7f' * 32, 'mailbox')}\n" in DOCUMENT
    listing = DOCUMENT.partition("the signed bytes are\n\n```\n")[2].partition("```")[0]
    shown = bytes.fromhex(
        "".join(re.split(" {2,}", line.strip())[0] for line in listing.splitlines())
    )
    Ed25519PublicKey.from_public_bytes(identity.public_key).verify(
        bytes.fromhex(header.split()[-1]), shown
    )
