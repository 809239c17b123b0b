"""Sealed requests: answered as if they had come over HTTP, for participants' routes and no others; and batches of sealed packets."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from http_cases import MANIFESTS
from participants import study_of
from relay_cases import Scene, member, packet_of, scene
from shoal.coordinator import gateway as gateway_module
from shoal.coordinator.gateway import MAX_SEALED_BYTES, answered, is_for_participants
from shoal.coordinator.publishing import publish
from shoal.coordinator.routes import ROUTES
from shoal.crypto.credentials import Registration
from shoal.crypto.roster import Identity
from shoal.entropy import SystemEntropy
from shoal.errors import RemoteProtocolError
from shoal.study.anonymity import name_of_pseudonym, scope_of
from shoal.study.manifest import Manifest
from shoal.transport import bhttp, ohttp
from shoal.transport.forms import (
    Batch,
    Enrolled,
    Enrolment,
    Issuing,
    Letters,
    Members,
    Problem,
    Received,
    Taken,
    from_cbor,
    from_json,
    to_cbor,
    to_json,
)
from shoal.transport.packets import packet_size
from shoal.transport.routes import CBOR, GATEWAY, ISSUING, JSON, KEYS, OPENED, PROBLEM, RAW, SEALED, STUDIES, study_route
from shoal.transport.sealing import seal_packet
from shoal.transport.signing import sign

NOT_FOR_PARTICIPANTS = {
    ("POST", STUDIES),
    ("POST", study_route("{digest}", "close")),
    ("POST", study_route("{digest}", "batches")),
    ("GET", ISSUING),
    ("GET", KEYS),
    ("POST", GATEWAY),
    ("GET", "/v1/openapi.json"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
}


def run(folder: Path, test: Any, **options: Any) -> None:
    async def main() -> None:
        async with scene(folder, **options) as s:
            await test(s)

    asyncio.run(main())


async def post(s: Scene, body: bytes, kind: str = SEALED) -> httpx2.Response:
    return await s.coordinator.post(GATEWAY, content=body, headers={"content-type": kind})


async def ask(s: Scene, method: str, path: str, body: bytes = b"", **headers: str) -> bhttp.Answer:
    """The answer to a sealed request."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    sealed, opener = ohttp.encapsulate(s.office.gateway.key, bhttp.Request(method, path, named, body).to_bytes())
    found = await post(s, sealed)
    assert (found.status_code, found.headers["content-type"], found.headers["cache-control"]) == (200, OPENED, "no-store")
    opened = opener.open(found.content)
    assert len(opened) % bhttp.GRAIN == 0, "a relay sees steps of its size"
    return bhttp.Answer.from_bytes(opened)


def code_of(answer: bhttp.Answer) -> tuple[int, str]:
    assert dict(answer.headers)["content-type"] == PROBLEM
    return answer.status, from_json(answer.body, Problem).code


def test_the_routes_that_can_be_reached() -> None:
    reached = {(way.method, way.path) for way in ROUTES if is_for_participants(way.method, way.path.replace("{digest}", "7f" * 32))}
    assert {(way.method, way.path) for way in ROUTES} - reached == NOT_FOR_PARTICIPANTS


def test_an_answer_is_the_one_that_comes_over_http(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        for path in (STUDIES, *(study_route(s.digest, what) for what in ("", "manifest", "label", "board?after=0", "progress", "members"))):
            straight, sealed = await s.coordinator.get(path), await ask(s, "GET", path)
            assert (sealed.status, sealed.body) == (straight.status_code, straight.content)
            headers = dict(sealed.headers)
            assert parsedate_to_datetime(headers.pop("date")) == s.clock.now()
            assert headers == dict(straight.headers)
        assert from_cbor((await ask(s, "GET", study_route(s.digest, "board"))).body, Letters).letters

    run(tmp_path, test)


def test_refusals_are_sealed_too(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        assert code_of(await ask(s, "GET", study_route("00" * 32))) == (404, "HOST-001")
        assert code_of(await ask(s, "GET", study_route(s.digest, "board?after=x"))) == (400, "HOST-006")
        assert code_of(await ask(s, "GET", study_route(s.digest, "model"))) == (409, "HOST-002")
        assert code_of(await ask(s, "POST", study_route(s.digest, "enrolments"), b"{}", content_type=JSON)) == (401, "AUTH-001")

    run(tmp_path, test)


@pytest.mark.parametrize(("method", "path"), sorted(NOT_FOR_PARTICIPANTS))
def test_other_routes_are_not_there(tmp_path: Path, method: str, path: str) -> None:
    async def test(s: Scene) -> None:
        answer = await ask(s, method, path.replace("{digest}", s.digest), authorization="Bearer 00")
        assert code_of(answer) == (404, "HOST-001")

    run(tmp_path, test)


def test_a_sealed_request_in_a_sealed_request_is_not_opened(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        inner, _ = ohttp.encapsulate(s.office.gateway.key, bhttp.Request("GET", STUDIES).to_bytes())
        assert code_of(await ask(s, "POST", GATEWAY, inner, content_type=SEALED)) == (404, "HOST-001")
        for path in (f"{GATEWAY}?x", "/v1/studies/../gateway", "//v1/gateway", "/v1/studies/%2e%2e/gateway"):
            assert code_of(await ask(s, "POST", path, inner, content_type=SEALED)) == (404, "HOST-001")

    run(tmp_path, test)


def test_what_does_not_open_is_told_nothing_else(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        good, _ = ohttp.encapsulate(s.office.gateway.key, bhttp.Request("GET", STUDIES).to_bytes())
        other = ohttp.Gateway.from_seed(bytes(range(32))).key
        bad = [
            b"",
            b"rubbish",
            good[:-1],
            good[:-1] + bytes([good[-1] ^ 1]),
            bytes([good[0] ^ 1]) + good[1:],
            ohttp.seal(other, bhttp.Request("GET", STUDIES).to_bytes()),
            ohttp.seal(s.office.gateway.key, b"no request"),
            ohttp.seal(s.office.gateway.key, bhttp.Answer(200).to_bytes()),
            ohttp.seal(s.office.gateway.key, b""),
        ]
        answers = [await post(s, body) for body in bad]
        assert {(one.status_code, one.content, one.headers["content-type"]) for one in answers} == {(400, answers[0].content, PROBLEM)}
        told = from_json(answers[0].content, Problem)
        assert (told.code, told.detail, told.fix) == ("CRYPTO-001", None, None)
        for body, kind, expected in ((good, "text/plain", 415), (bytes(MAX_SEALED_BYTES + 1), SEALED, 413)):
            assert (await post(s, body, kind)).status_code == expected

    run(tmp_path, test)


def test_a_signature_holds_for_what_is_inside(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        identity, entropy = Identity.from_seed(bytes(range(32))), SystemEntropy()
        registration = Registration.draw(entropy)
        commitment = registration.commitment(s.office.keys.issuer.key, scope_of(s.manifest))
        body = to_json(Enrolment(commitment=commitment.hex()))
        target = study_route(s.digest, "enrolments")
        header = sign(identity, "POST", target, body, round(s.clock.now().timestamp() * 1000), entropy)
        answer = await ask(s, "POST", target, body, content_type=JSON, authorization=header)
        issued = from_json(answer.body, Enrolled).issued
        assert answer.status == 200 and issued is not None
        registration.accept(s.office.keys.issuer.key, scope_of(s.manifest), bytes.fromhex(issued))
        members = await ask(s, "GET", study_route(s.digest, "members"))
        assert from_cbor(members.body, Members).keys == (identity.public,)

    run(tmp_path, test)


def test_a_device_draws_by_the_bare_path(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        devices = MANIFESTS["ddml"]
        publish(s.store, devices, round(s.clock.now().timestamp() * 1000))
        route = study_route(devices.digest.hex(), "draw")
        straight, sealed = await s.coordinator.post(route), await ask(s, "POST", route)
        assert (straight.status_code, sealed.status) == (200, 200)
        assert len(sealed.body) == len(straight.content) > 8
        assert dict(sealed.headers)["content-type"] == RAW

    run(tmp_path, test)


def test_an_application_that_fails_is_the_coordinators_fault(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        async def broken(*_: Any) -> None:
            raise ValueError

        sealed, _ = ohttp.encapsulate(s.office.gateway.key, bhttp.Request("GET", STUDIES).to_bytes())
        with pytest.raises(ValueError):
            await answered(s.office.gateway, broken, sealed, s.clock.now())
        with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
            await answered(s.office.gateway, broken, sealed[1:], s.clock.now())

    run(tmp_path, test)


def test_keys_for_manifests_and_for_requests(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        issuing = from_json((await s.coordinator.get(ISSUING)).content, Issuing)
        assert (issuing.issuer_key, issuing.gateway_key) == (s.office.keys.issuer.key.hex(), s.office.gateway.key.hex())
        found = await s.coordinator.get(KEYS)
        assert found.headers["content-type"] == ohttp.KEYS
        assert ohttp.key_of(found.content) == s.office.gateway.key

    run(tmp_path, test)


# packets


async def batch(s: Scene, *packets: bytes, study: str | None = None) -> httpx2.Response:
    body = to_cbor(Batch(packets=packets))
    return await s.coordinator.post(study_route(study or s.digest, "batches"), content=body, headers={"content-type": CBOR})


def taken(answer: httpx2.Response) -> Taken:
    assert answer.headers["content-type"] == CBOR
    return from_cbor(answer.content, Taken)


def test_what_cannot_be_a_packet_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening one takes a multiplication on a curve: neither what has another length nor more than a batch has is worth that."""
    opened: list[int] = []
    open_packet = gateway_module.open_packet
    monkeypatch.setattr(gateway_module, "open_packet", lambda *given: opened.append(len(given[2])) or open_packet(*given))

    async def test(s: Scene) -> None:
        good = s.sealed(0)
        assert taken(await batch(s, b"", good[:-1], good + b"x", bytes(56), good)) == Taken(taken=1, invalid=(0, 1, 2, 3))
        assert opened == [len(good)]
        monkeypatch.setattr(gateway_module, "most_in_batch", lambda size: 3 if size == packet_size(s.manifest) else 0)
        refused = await batch(s, *[bytes(len(good))] * 4)
        assert (refused.status_code, refused.json()["code"]) == (400, "MSG-005") and len(opened) == 1
        assert (await batch(s, *[bytes(len(good))] * 3)).status_code == 200

    run(tmp_path, test)


def test_a_batch_is_taken_once(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        sealed = [s.sealed(i) for i in range(3)]
        first, second = await batch(s, *sealed), await batch(s, *sealed)
        assert (first.status_code, taken(first), taken(second)) == (200, Taken(taken=3), Taken(taken=3))
        assert await s.totals() == (3, {})

    run(tmp_path, test)


def test_what_is_no_packet_of_the_study_is_counted(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        key, packet = s.office.gateway.key, packet_of(s.manifest, member(s.office.keys, s.manifest, 0))
        other = bhttp.Request("POST", study_route(s.digest, "submissions"), (("x", "y"),), packet)
        bad = [b"rubbish", seal_packet(key, "00" * 32, packet), ohttp.seal(key, other.to_bytes()), seal_packet(key, s.digest, packet[:-1])]
        found = await batch(s, *bad, s.sealed(1))
        assert taken(found) == Taken(taken=1, invalid=(0, 1, 2, 3))
        assert await s.totals() == (1, {"MSG-005": 4})

    run(tmp_path, test)


def test_a_batch_that_is_none(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        route = study_route(s.digest, "batches")
        for body, kind, expected in ((b"rubbish", CBOR, 400), (to_cbor(Batch()), JSON, 415), (b"\xa1\x61x\x01", CBOR, 400)):
            assert (await s.coordinator.post(route, content=body, headers={"content-type": kind})).status_code == expected
        assert taken(await batch(s)) == Taken(taken=0)
        assert (await batch(s, study="00" * 32)).status_code == 404
        tickets = Manifest(study_of("anonml", 3))
        publish(s.store, tickets, round(s.clock.now().timestamp() * 1000))
        for what in ("members", "received"):
            assert (await s.coordinator.get(study_route(tickets.digest.hex(), what))).status_code == 404
        assert (await batch(s, study=tickets.digest.hex())).status_code == 404

    run(tmp_path, test)


def test_a_packet_by_itself_is_answered_alike_whatever_becomes_of_it(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        packet = packet_of(s.manifest, member(s.office.keys, s.manifest, 0))
        bodies = [
            packet,
            packet,
            packet[:-1],
            packet + b"x",
            b"",
            b"x" * 100_000,
            packet_of(s.manifest, member(s.office.keys, s.manifest, 0), report=b"\x01"),
        ]
        route = study_route(s.digest, "submissions")
        answers = [await s.coordinator.post(route, content=body, headers={"content-type": RAW}) for body in bodies]
        answers += [await s.coordinator.post(route, content=packet)]
        assert {(one.status_code, one.content, tuple(sorted(one.headers.items()))) for one in answers} == {
            (202, b"", tuple(sorted(answers[0].headers.items())))
        }
        sealed = await ask(s, "POST", route, packet_of(s.manifest, member(s.office.keys, s.manifest, 1)), content_type=RAW)
        assert (sealed.status, sealed.body) == (202, b"")
        accepted, refused = await s.totals()
        assert accepted == 2 and refused == {"HOST-005": 1, "MSG-005": 4}

    run(tmp_path, test)


def test_what_arrived_is_told_once_all_were_due(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        credentials = [member(s.office.keys, s.manifest, i) for i in range(3)]
        packets = [packet_of(s.manifest, one) for one in credentials]
        assert (await batch(s, *(seal_packet(s.office.gateway.key, s.digest, one) for one in packets))).status_code == 200
        route = study_route(s.digest, "received")
        assert (await s.coordinator.get(route)).status_code == 409
        s.clock.advance(741)
        found = from_cbor((await ask(s, "GET", route)).body, Received)
        names = sorted(name_of_pseudonym(packet[1:49]) for packet in packets)
        assert found == Received(phase=0, names=b"".join(names))
        later = from_cbor((await ask(s, "GET", f"{route}?after={names[0].hex()}")).body, Received)
        assert later == Received(phase=0, names=b"".join(names[1:]))
        for query in ("after=", "after=x", f"after={names[0].hex()}&after={names[1].hex()}", f"before={names[0].hex()}", "after=AA" * 8):
            for what in ("received", "members"):
                assert code_of(await ask(s, "GET", study_route(s.digest, f"{what}?{query}"))) == (400, "HOST-006")

    run(tmp_path, test)
