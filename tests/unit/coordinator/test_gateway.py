"""Sealed requests to routes of participants, and batches of sealed packets."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.requests import ClientDisconnect

from shoal.coordinator import gateway as gateway_module
from shoal.coordinator import handlers as handlers_module
from shoal.coordinator.app import make_app
from shoal.coordinator.gateway import answer_sealed, is_for_participants
from shoal.coordinator.routes import ROUTES
from shoal.crypto.credentials.issuance import Registration
from shoal.crypto.identity import Identity
from shoal.entropy import SystemEntropy
from shoal.errors import RemoteProtocolError
from shoal.study.delivery import compute_scope, hash_pseudonym
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport import bhttp, ohttp
from shoal.transport.api import (
    CBOR,
    GATEWAY,
    ISSUING,
    JSON,
    KEYS,
    OHTTP_REQUEST,
    OHTTP_RESPONSE,
    PROBLEM,
    RAW,
    STUDIES,
    BatchReceipt,
    Enrolled,
    Enrolment,
    Issuing,
    MemberList,
    MessagePage,
    PacketBatch,
    Problem,
    ReceivedPackets,
    from_cbor,
    from_json,
    study_route,
    to_cbor,
    to_json,
)
from shoal.transport.packets import DEFAULT_SEALED_BYTES, compute_max_sealed_bytes, seal_packet
from shoal.transport.signing import sign_request
from tests.support.coordinator import publish_manifest
from tests.support.http import MANIFESTS
from tests.support.participants import compute_packet_size, make_study
from tests.support.relay import Scene, make_packet, member, scene

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


async def post(s: Scene, body: bytes, kind: str = OHTTP_REQUEST) -> httpx2.Response:
    return await s.coordinator.post(GATEWAY, content=body, headers={"content-type": kind})


async def ask(
    s: Scene, method: str, path: str, body: bytes = b"", **headers: str
) -> bhttp.BinaryResponse:
    """The answer to a sealed request."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    sealed, opener = ohttp.encapsulate(
        s.service.gateway.key, bhttp.BinaryRequest(method, path, named, body).to_bytes()
    )
    found = await post(s, sealed)
    assert (found.status_code, found.headers["content-type"], found.headers["cache-control"]) == (
        200,
        OHTTP_RESPONSE,
        "no-store",
    )
    opened = opener.open(found.content)
    assert len(opened) % bhttp.PADDING_MULTIPLE == 0, "a relay sees steps of its size"
    return bhttp.BinaryResponse.from_bytes(opened)


def code_of(answer: bhttp.BinaryResponse) -> tuple[int, str]:
    assert dict(answer.headers)["content-type"] == PROBLEM
    return answer.status, from_json(answer.body, Problem).code


def test_gateway_reaches_routes_of_participants() -> None:
    reached = {
        (way.method, way.path)
        for way in ROUTES
        if is_for_participants(way.method, way.path.replace("{digest}", "7f" * 32))
    }
    assert {(way.method, way.path) for way in ROUTES} - reached == NOT_FOR_PARTICIPANTS


def test_sealed_response_equals_http_response(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        for path in (
            STUDIES,
            *(
                study_route(s.digest, what)
                for what in ("", "manifest", "label", "board?after=0", "progress", "members")
            ),
        ):
            straight, sealed = await s.coordinator.get(path), await ask(s, "GET", path)
            assert (sealed.status, sealed.body) == (straight.status_code, straight.content)
            headers = dict(sealed.headers)
            assert parsedate_to_datetime(headers.pop("date")) == s.clock.now()
            assert headers == dict(straight.headers)
        assert from_cbor(
            (await ask(s, "GET", study_route(s.digest, "board"))).body, MessagePage
        ).letters

    run(tmp_path, test)


def test_error_responses_are_sealed(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        assert code_of(await ask(s, "GET", study_route("00" * 32))) == (404, "HOST-001")
        assert code_of(await ask(s, "GET", study_route(s.digest, "board?after=x"))) == (
            400,
            "HOST-006",
        )
        assert code_of(await ask(s, "GET", study_route(s.digest, "model"))) == (409, "HOST-002")
        assert code_of(
            await ask(s, "POST", study_route(s.digest, "enrolments"), b"{}", content_type=JSON)
        ) == (401, "AUTH-001")

    run(tmp_path, test)


@pytest.mark.parametrize(("method", "path"), sorted(NOT_FOR_PARTICIPANTS))
def test_gateway_hides_other_routes(tmp_path: Path, method: str, path: str) -> None:
    async def test(s: Scene) -> None:
        answer = await ask(s, method, path.replace("{digest}", s.digest), authorization="Bearer 00")
        assert code_of(answer) == (404, "HOST-001")

    run(tmp_path, test)


def test_nested_sealed_request_is_not_opened(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        inner, _ = ohttp.encapsulate(
            s.service.gateway.key, bhttp.BinaryRequest("GET", STUDIES).to_bytes()
        )
        assert code_of(await ask(s, "POST", GATEWAY, inner, content_type=OHTTP_REQUEST)) == (
            404,
            "HOST-001",
        )
        for path in (
            f"{GATEWAY}?x",
            "/v1/studies/../gateway",
            "//v1/gateway",
            "/v1/studies/%2e%2e/gateway",
        ):
            assert code_of(await ask(s, "POST", path, inner, content_type=OHTTP_REQUEST)) == (
                404,
                "HOST-001",
            )

    run(tmp_path, test)


def test_unopenable_request_gets_no_details(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        good, _ = ohttp.encapsulate(
            s.service.gateway.key, bhttp.BinaryRequest("GET", STUDIES).to_bytes()
        )
        other = ohttp.Gateway.from_seed(bytes(range(32))).key
        bad = [
            b"",
            b"rubbish",
            good[:-1],
            good[:-1] + bytes([good[-1] ^ 1]),
            bytes([good[0] ^ 1]) + good[1:],
            ohttp.seal_request(other, bhttp.BinaryRequest("GET", STUDIES).to_bytes()),
            ohttp.seal_request(s.service.gateway.key, b"no request"),
            ohttp.seal_request(s.service.gateway.key, bhttp.BinaryResponse(200).to_bytes()),
            ohttp.seal_request(s.service.gateway.key, b""),
        ]
        answers = [await post(s, body) for body in bad]
        assert {(one.status_code, one.content, one.headers["content-type"]) for one in answers} == {
            (400, answers[0].content, PROBLEM)
        }
        told = from_json(answers[0].content, Problem)
        assert (told.code, told.detail, told.fix) == ("CRYPTO-001", None, None)
        for body, kind, expected in (
            (good, "text/plain", 415),
            (bytes(DEFAULT_SEALED_BYTES + 1), OHTTP_REQUEST, 413),
        ):
            assert (await post(s, body, kind)).status_code == expected

    run(tmp_path, test)


def test_signature_covers_inner_request(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        identity, entropy = Identity.from_seed(bytes(range(32))), SystemEntropy()
        registration = Registration.draw(entropy)
        commitment = registration.make_commitment(
            s.service.keys.issuer.key, compute_scope(s.manifest)
        )
        body = to_json(Enrolment(commitment=commitment.hex()))
        target = study_route(s.digest, "enrolments")
        header = sign_request(
            identity, "POST", target, body, round(s.clock.now().timestamp() * 1000), entropy
        )
        answer = await ask(s, "POST", target, body, content_type=JSON, authorization=header)
        issued = from_json(answer.body, Enrolled).issued
        assert answer.status == 200 and issued is not None
        registration.accept(
            s.service.keys.issuer.key, compute_scope(s.manifest), bytes.fromhex(issued)
        )
        members = await ask(s, "GET", study_route(s.digest, "members"))
        assert from_cbor(members.body, MemberList).keys == (identity.public_key,)

    run(tmp_path, test)


def test_sealed_draw_uses_fast_path(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        devices = MANIFESTS["ddml"]
        publish_manifest(s.store, devices, round(s.clock.now().timestamp() * 1000))
        route = study_route(devices.digest.hex(), "draw")
        straight, sealed = await s.coordinator.post(route), await ask(s, "POST", route)
        assert (straight.status_code, sealed.status) == (200, 200)
        assert len(sealed.body) == len(straight.content) > 8
        assert dict(sealed.headers)["content-type"] == RAW

    run(tmp_path, test)


def test_sealed_request_may_be_as_large_as_study_needs(tmp_path: Path) -> None:
    """A stranger cannot fill memory with requests that no study needs."""

    async def test(s: Scene) -> None:
        assert await s.service.find_max_sealed_bytes() == DEFAULT_SEALED_BYTES
        n_weights = 50_000
        handle = StudyHandle(s.manifest)
        body = bytes(24 + 4 * n_weights)
        sealed = ohttp.seal_request(
            s.service.gateway.key,
            bhttp.BinaryRequest("POST", study_route(s.digest, "update"), (), body).to_bytes(),
        )
        assert (await post(s, sealed)).status_code == 413
        large = SimpleNamespace(
            packet_size=None,
            protocol=SimpleNamespace(has_updates=True),
            params=SimpleNamespace(n_weights=n_weights),
        )
        assert compute_max_sealed_bytes(handle) == DEFAULT_SEALED_BYTES
        assert len(sealed) <= compute_max_sealed_bytes(large) < 2 * len(sealed)

    run(tmp_path, test)


def test_work_for_sealed_request_stops_when_connection_ends(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        ended = asyncio.Event()

        async def receive() -> Any:
            await ended.wait()
            return {"type": "http.disconnect"}

        sealed, _ = ohttp.encapsulate(
            s.service.gateway.key,
            bhttp.BinaryRequest("GET", study_route(s.digest, "board?after=99&wait=30")).to_bytes(),
        )
        app = make_app(s.service)
        waiting = asyncio.create_task(
            answer_sealed(s.service.gateway, app, sealed, s.clock.now(), receive)
        )
        await asyncio.sleep(0.2)
        assert not waiting.done()
        ended.set()
        with pytest.raises(ClientDisconnect):
            await asyncio.wait_for(waiting, 10)

    run(tmp_path, test)


def test_failing_application_gives_internal_error(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        async def broken(*_: Any) -> None:
            raise ValueError

        sealed, _ = ohttp.encapsulate(
            s.service.gateway.key, bhttp.BinaryRequest("GET", STUDIES).to_bytes()
        )
        with pytest.raises(ValueError):
            await answer_sealed(s.service.gateway, broken, sealed, s.clock.now(), broken)
        with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
            await answer_sealed(s.service.gateway, broken, sealed[1:], s.clock.now(), broken)

    run(tmp_path, test)


def test_coordinator_serves_issuing_and_gateway_keys(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        issuing = from_json((await s.coordinator.get(ISSUING)).content, Issuing)
        assert (issuing.issuer_key, issuing.gateway_key) == (
            s.service.keys.issuer.key.hex(),
            s.service.gateway.key.hex(),
        )
        found = await s.coordinator.get(KEYS)
        assert found.headers["content-type"] == ohttp.KEYS_CONTENT_TYPE
        assert ohttp.parse_key_configuration(found.content) == s.service.gateway.key

    run(tmp_path, test)


# packets


async def batch(s: Scene, *packets: bytes, study: str | None = None) -> httpx2.Response:
    body = to_cbor(PacketBatch(packets=packets))
    return await s.coordinator.post(
        study_route(study or s.digest, "batches"), content=body, headers={"content-type": CBOR}
    )


def taken(answer: httpx2.Response) -> BatchReceipt:
    assert answer.headers["content-type"] == CBOR
    return from_cbor(answer.content, BatchReceipt)


def test_packet_of_wrong_length_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening one takes a multiplication on a curve: neither what has another length nor more than
    a batch has is worth that.
    """
    opened: list[int] = []
    open_packet = gateway_module.open_packet
    monkeypatch.setattr(
        gateway_module,
        "open_packet",
        lambda *given: opened.append(len(given[2])) or open_packet(*given),
    )

    async def test(s: Scene) -> None:
        good = s.sealed(0)
        assert taken(await batch(s, b"", good[:-1], good + b"x", bytes(56), good)) == BatchReceipt(
            taken=1, invalid=(0, 1, 2, 3)
        )
        assert opened == [len(good)]
        monkeypatch.setattr(
            handlers_module,
            "compute_max_part",
            lambda size: 3 if size == compute_packet_size(s.manifest) else 0,
        )
        refused = await batch(s, *[bytes(len(good))] * 4)
        assert (refused.status_code, refused.json()["code"]) == (400, "MSG-005") and len(
            opened
        ) == 1
        assert (await batch(s, *[bytes(len(good))] * 3)).status_code == 200

    run(tmp_path, test)


def test_repeated_batch_is_stored_once(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        sealed = [s.sealed(i) for i in range(3)]
        first, second = await batch(s, *sealed), await batch(s, *sealed)
        assert (first.status_code, taken(first), taken(second)) == (
            200,
            BatchReceipt(taken=3),
            BatchReceipt(taken=3),
        )
        assert await s.totals() == (3, {})

    run(tmp_path, test)


def test_invalid_packets_of_batch_are_counted(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        key, packet = (
            s.service.gateway.key,
            make_packet(s.manifest, member(s.service.keys, s.manifest, 0)),
        )
        other = bhttp.BinaryRequest(
            "POST", study_route(s.digest, "submissions"), (("x", "y"),), packet
        )
        bad = [
            b"rubbish",
            seal_packet(key, "00" * 32, packet),
            ohttp.seal_request(key, other.to_bytes()),
            seal_packet(key, s.digest, packet[:-1]),
        ]
        found = await batch(s, *bad, s.sealed(1))
        assert taken(found) == BatchReceipt(taken=1, invalid=(0, 1, 2, 3))
        assert await s.totals() == (1, {"MSG-005": 4})

    run(tmp_path, test)


def test_invalid_batch_is_rejected(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        route = study_route(s.digest, "batches")
        for body, kind, expected in (
            (b"rubbish", CBOR, 400),
            (to_cbor(PacketBatch()), JSON, 415),
            (b"\xa1\x61x\x01", CBOR, 400),
        ):
            assert (
                await s.coordinator.post(route, content=body, headers={"content-type": kind})
            ).status_code == expected
        assert taken(await batch(s)) == BatchReceipt(taken=0)
        assert (await batch(s, study="00" * 32)).status_code == 404
        tickets = Manifest(make_study("anonml", 3))
        publish_manifest(s.store, tickets, round(s.clock.now().timestamp() * 1000))
        for what in ("members", "received"):
            assert (
                await s.coordinator.get(study_route(tickets.digest.hex(), what))
            ).status_code == 404
        assert (await batch(s, study=tickets.digest.hex())).status_code == 404

    run(tmp_path, test)


def test_single_packet_gets_same_response_for_every_outcome(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        packet = make_packet(s.manifest, member(s.service.keys, s.manifest, 0))
        bodies = [
            packet,
            packet,
            packet[:-1],
            packet + b"x",
            b"",
            b"x" * 100_000,
            make_packet(s.manifest, member(s.service.keys, s.manifest, 0), report=b"\x01"),
        ]
        route = study_route(s.digest, "submissions")
        answers = [
            await s.coordinator.post(route, content=body, headers={"content-type": RAW})
            for body in bodies
        ]
        answers += [await s.coordinator.post(route, content=packet)]
        assert {
            (one.status_code, one.content, tuple(sorted(one.headers.items()))) for one in answers
        } == {(202, b"", tuple(sorted(answers[0].headers.items())))}
        sealed = await ask(
            s,
            "POST",
            route,
            make_packet(s.manifest, member(s.service.keys, s.manifest, 1)),
            content_type=RAW,
        )
        assert (sealed.status, sealed.body) == (202, b"")
        accepted, refused = await s.totals()
        assert accepted == 2 and refused == {"HOST-005": 1, "MSG-005": 4}

    run(tmp_path, test)


def test_received_list_is_published_after_collection_window(tmp_path: Path) -> None:
    async def test(s: Scene) -> None:
        credentials = [member(s.service.keys, s.manifest, i) for i in range(3)]
        packets = [make_packet(s.manifest, one) for one in credentials]
        assert (
            await batch(s, *(seal_packet(s.service.gateway.key, s.digest, one) for one in packets))
        ).status_code == 200
        route = study_route(s.digest, "received")
        assert (await s.coordinator.get(route)).status_code == 409
        s.clock.advance(821)
        found = from_cbor((await ask(s, "GET", route)).body, ReceivedPackets)
        names = sorted(hash_pseudonym(packet[1:49]) for packet in packets)
        assert found == ReceivedPackets(phase=0, names=b"".join(names))
        later = from_cbor(
            (await ask(s, "GET", f"{route}?after={names[0].hex()}")).body, ReceivedPackets
        )
        assert later == found, "the page that contains the next name"
        last = from_cbor(
            (await ask(s, "GET", f"{route}?after={names[-1].hex()}")).body, ReceivedPackets
        )
        assert last == ReceivedPackets(phase=0)
        for query in (
            "after=",
            "after=x",
            f"after={names[0].hex()}&after={names[1].hex()}",
            f"before={names[0].hex()}",
            "after=AA" * 8,
        ):
            for what in ("received", "members"):
                assert code_of(await ask(s, "GET", study_route(s.digest, f"{what}?{query}"))) == (
                    400,
                    "HOST-006",
                )

    run(tmp_path, test)
