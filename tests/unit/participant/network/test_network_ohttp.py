"""The path through a relay: what relay and gateway see, and what is refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shoal.clock import ManualClock
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, ShoalError, TransportError
from shoal.participant.client import Client, RefusedError
from shoal.participant.network.ohttp import OhttpPath
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport import ohttp
from shoal.transport.api import (
    JSON,
    KEYS,
    OHTTP_RESPONSE,
    PACKETS,
    RELAYING,
    REQUESTS,
    Enrolled,
    Enrolment,
    Problem,
    ReceivedPackets,
    RelayedStudies,
    study_route,
    to_cbor,
    to_json,
)
from shoal.transport.bhttp import BinaryRequest, BinaryResponse
from shoal.transport.ohttp import Gateway
from shoal.transport.packets import compute_sealed_size, open_packet
from shoal.transport.signing import verify_request
from tests.support.machines import Behind, Reply, Server, problem
from tests.support.participants import compute_packet_size, make_manifest
from tests.support.tls import make_certificates

T = TypeVar("T")

GATEWAY = Gateway.from_seed(bytes(range(32)))
OTHER = Gateway.from_seed(bytes(32))
STUDY = "ab" * 32
URL = "https://coordinator.example:8700/somewhere"
ME = Identity.from_seed(bytes(32))
ISSUER = bytes([0x80]) + bytes(95)


def manifest(gateway: Gateway | None = GATEWAY, protocol: str = "anonml", **more: Any) -> Manifest:
    return Manifest(
        make_manifest(protocol, 3, **more).study,
        issuer_key=ISSUER,
        gateway_key=None if gateway is None else gateway.key,
    )


TOKENS = manifest()
SERVED = {TOKENS.digest.hex(): compute_packet_size(TOKENS)}


def through(
    behind: Behind,
    act: Callable[[Client, OhttpPath], Awaitable[T]],
    *,
    key: bytes | None = None,
    address: str | None = None,
) -> tuple[T, Server]:
    """Return the result of a client that uses a relay, and the relay."""
    server = Server(behind.reply)

    async def go() -> T:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            via = OhttpPath(
                f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", URL, None, key, address
            )
            async with Client(URL, ManualClock(), SeededEntropy(1), network_path=via) as client:
                return await act(client, via)

    return asyncio.run(go()), server


def test_request_arrives_unchanged_and_relay_sees_encrypted_bytes() -> None:
    behind = Behind(
        GATEWAY,
        lambda _: BinaryResponse(
            200, (("content-type", JSON),), to_json(Enrolled(name="participant-1"))
        ),
    )

    async def act(client: Client, _: OhttpPath) -> Enrolled:
        return await client.enrol(STUDY, ME, Enrolment(invitation="a code of mine"))

    enrolled, relay = through(behind, act)
    assert enrolled == Enrolled(name="participant-1")
    (request,) = behind.requests
    headers = dict(request.headers)
    assert (request.method, request.path, request.authority) == (
        "POST",
        study_route(STUDY, "enrolments"),
        "",
    )
    assert set(headers) == {
        "user-agent",
        "accept",
        "accept-encoding",
        "content-type",
        "authorization",
    }
    now = int(ManualClock().now().timestamp() * 1000)
    assert (
        verify_request(
            headers["authorization"], request.method, request.path, request.body, now
        ).key
        == ME.public_key
    )
    keys, sealed = relay.heard
    assert (keys.method, keys.path) == ("GET", KEYS) and (sealed.method, sealed.path) == (
        "POST",
        REQUESTS,
    )
    assert set(sealed.headers) == {
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
    }
    for secret in (b"a code of mine", STUDY.encode(), ME.public_key, b"coordinator", b"enrolments"):
        assert (
            secret not in sealed.body
            and secret not in repr(sealed.headers).encode() + sealed.path.encode()
        )


def test_requests_are_padded_to_equal_length() -> None:
    behind = Behind(GATEWAY, lambda _: BinaryResponse(200, (), to_cbor(ReceivedPackets(phase=0))))

    async def act(client: Client, _: OhttpPath) -> None:
        await client.fetch_received(STUDY)
        for body in (b"", bytes(500)):
            await client.submit_packet(STUDY, body)
        await client.send_message(STUDY, ME, bytes(300))

    _, relay = through(behind, act, key=GATEWAY.key)
    assert {len(one.body) for one in relay.heard} == {1024 + ohttp.REQUEST_OVERHEAD}
    assert len({one.body[7:39] for one in relay.heard}) == 4


def test_isolated_requests_use_new_connections_from_local_address() -> None:
    async def act(client: Client, via: OhttpPath) -> None:
        for _ in range(2):
            await client.submit_message(STUDY, b"x")
        async with client.open_isolated() as apart:
            for _ in range(2):
                await apart.submit_message(STUDY, b"x")
            for _ in range(2):
                await via.post_packet(STUDY, via.seal(STUDY, bytes(640)), apart)

    _, relay = through(Behind(GATEWAY), act, key=GATEWAY.key, address="127.0.9.3")
    assert [one.connection for one in relay.heard] == [1, 1, 2, 3, 4, 5]
    assert {one.peer for one in relay.heard} == {"127.0.9.3"}
    # Participants' requests differ in nothing but their sealed bytes.
    assert (
        len({tuple(sorted(one.headers.items())) for one in relay.heard if one.path == REQUESTS})
        == 1
    )


def test_packet_is_encrypted_once_and_posted_unchanged() -> None:
    behind = Behind(GATEWAY, studies=SERVED)

    async def act(client: Client, via: OhttpPath) -> bytes:
        await via.check(StudyHandle(TOKENS))
        sealed = via.seal(STUDY, bytes(640))
        async with client.open_isolated() as apart:
            await via.post_packet(STUDY, sealed, apart)
            await via.post_packet(STUDY, sealed, apart)
        return sealed

    sealed, relay = through(behind, act)
    assert behind.packets == [(STUDY, sealed)] * 2
    assert open_packet(GATEWAY, STUDY, sealed) == bytes(640) and len(sealed) == compute_sealed_size(
        640
    )
    assert [one.path for one in relay.heard] == [
        KEYS,
        RELAYING,
        f"{PACKETS}/{STUDY}",
        f"{PACKETS}/{STUDY}",
    ]


def test_seal_raises_before_gateway_key_is_known() -> None:
    with pytest.raises(LocalProtocolError, match="PROTO-001"):
        OhttpPath("https://relay.example", URL).seal(STUDY, b"packet")


@pytest.mark.parametrize(
    ("found", "studies", "kind", "words"),
    [
        (manifest(None), SERVED, RemoteProtocolError, "has no gateway key"),
        (manifest(OTHER), SERVED, RemoteProtocolError, "a different gateway key"),
        (TOKENS, {}, TransportError, "does not serve"),
        (TOKENS, {"00" * 32: compute_packet_size(TOKENS)}, TransportError, "does not serve"),
        (TOKENS, {TOKENS.digest.hex(): 64}, RemoteProtocolError, "takes packets of 64 bytes"),
    ],
)
def test_check_refuses_relay_of_other_study(
    found: Manifest, studies: dict[str, int], kind: type[ShoalError], words: str
) -> None:
    async def act(_: Client, via: OhttpPath) -> None:
        with pytest.raises(kind, match="NET-005") as error:
            await via.check(StudyHandle(found))
        assert words in error.value.what

    through(Behind(GATEWAY, studies=studies), act)


def test_check_allowed_refuses_other_gateway_key_without_request() -> None:
    via = OhttpPath("https://relay.example", URL, None, GATEWAY.key)
    via.check_allowed(TOKENS)
    OhttpPath("https://relay.example", URL).check_allowed(TOKENS)
    for found in (manifest(OTHER), manifest(None)):
        with pytest.raises(RemoteProtocolError, match="NET-005"):
            via.check_allowed(found)


def test_description_states_number_of_other_studies_after_check() -> None:
    async def act(_: Client, via: OhttpPath) -> None:
        assert "other" not in via.description
        await via.check(StudyHandle(TOKENS))
        assert via.description.endswith(
            "if the two work together, they know both. The relay serves 2 other studies"
        )

    through(Behind(GATEWAY, studies={**SERVED, "00" * 32: 64, "11" * 32: 64}), act)


def test_check_asks_relay_once() -> None:
    async def act(_: Client, via: OhttpPath) -> None:
        await via.check(StudyHandle(TOKENS))
        await via.check(StudyHandle(TOKENS))

    _, relay = through(Behind(GATEWAY, studies=SERVED), act)
    assert [one.path for one in relay.heard] == [KEYS, RELAYING]
    # The manifest's key is the one that is used, whatever the relay says.
    _, relay = through(Behind(OTHER, studies=SERVED), act, key=GATEWAY.key)
    assert [one.path for one in relay.heard] == [RELAYING]


def test_check_accepts_unlisted_study_without_packets() -> None:
    devices = manifest(
        protocol="ddml",
        ddml={"n_instances": 2, "admission": "token"},
        privacy={"epsilon": 4.0, "n_updates": 2},
    )

    async def act(_: Client, via: OhttpPath) -> None:
        await via.check(StudyHandle(devices))

    assert [one.path for one in through(Behind(GATEWAY), act)[1].heard] == [KEYS]


def test_refusal_of_coordinator_passes_through_relay() -> None:
    told = to_json(Problem(title="It is so.", status=410, code="HOST-002"))

    async def act(client: Client, _: OhttpPath) -> None:
        with pytest.raises(
            RefusedError, match=r"HOST-002  The coordinator says: It is so\."
        ) as error:
            await client.fetch_received(STUDY)
        assert error.value.status == 410

    through(Behind(GATEWAY, lambda _: BinaryResponse(410, (), told)), act)


def test_date_of_coordinator_passes_through_relay() -> None:
    theirs = ManualClock().now() + timedelta(hours=3)
    refusal = BinaryResponse(
        401,
        (("date", format_datetime(theirs, usegmt=True)),),
        to_json(Problem(title="Late.", status=401, code="AUTH-003")),
    )
    behind = Behind(GATEWAY)
    behind.answer = lambda _: BinaryResponse(202) if len(behind.requests) > 1 else refusal

    async def act(client: Client, _: OhttpPath) -> None:
        await client.send_message(STUDY, ME, b"message")

    through(behind, act)
    times = [int(dict(one.headers)["authorization"].split()[2]) for one in behind.requests]
    assert times[1] - times[0] == 3 * 3_600_000


SEALED_FOR_ANOTHER = OTHER.open(ohttp.encapsulate(OTHER.key, b"x")[0])[1].seal(
    BinaryResponse(202).to_bytes()
)
BAD: dict[str, tuple[str, Reply, type[ShoalError], str, str]] = {
    "no keys": (
        KEYS,
        (200, ohttp.KEYS_CONTENT_TYPE, b"keys"),
        TransportError,
        "NET-002",
        "not a gateway key",
    ),
    "keys are refused": (
        KEYS,
        problem("HOST-001", 404),
        RefusedError,
        "HOST-001",
        "The relay says",
    ),
    "the gateway is away": (
        REQUESTS,
        problem("HOST-004", 503),
        TransportError,
        "HOST-004",
        "The relay says, with status 503",
    ),
    "it does not open": (
        REQUESTS,
        problem("CRYPTO-001", 400),
        RefusedError,
        "CRYPTO-001",
        "The relay says: It is so.",
    ),
    "no answer": (
        REQUESTS,
        (502, "text/html", b"<html>"),
        TransportError,
        "NET-002",
        "The relay sent status 502",
    ),
    "not sealed": (
        REQUESTS,
        (200, OHTTP_RESPONSE, BinaryResponse(202).to_bytes()),
        TransportError,
        "NET-002",
        "not a gateway's response",
    ),
    "sealed for another": (
        REQUESTS,
        (200, OHTTP_RESPONSE, SEALED_FOR_ANOTHER),
        TransportError,
        "NET-002",
        "not a gateway's response",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_response_raises_error_that_names_relay(name: str) -> None:
    path, instead, kind, code, words = BAD[name]

    async def act(client: Client, _: OhttpPath) -> None:
        with pytest.raises(kind) as error:
            await client.submit_message(STUDY, b"x")
        assert (
            error.value.code == code and words in error.value.what and "relay" in error.value.what
        )

    through(Behind(GATEWAY, instead={path: instead}), act)


def test_encrypted_bytes_that_are_not_http_are_rejected() -> None:
    class Rough(BinaryResponse):
        def to_bytes(self, _: int | None = None) -> bytes:
            return b"hello"

    async def act(client: Client, _: OhttpPath) -> None:
        with pytest.raises(TransportError, match=r"NET-002.*not a gateway's response"):
            await client.submit_message(STUDY, b"x")

    through(Behind(GATEWAY, lambda _: Rough(202)), act)


def test_refused_packet_raises_refused_error() -> None:
    async def act(client: Client, via: OhttpPath) -> None:
        with pytest.raises(RefusedError, match="RELAY-001  The relay says"):
            await via.post_packet(STUDY, via.seal(STUDY, b"packet"), client)

    through(
        Behind(GATEWAY, instead={f"{PACKETS}/{STUDY}": problem("RELAY-001", 400)}),
        act,
        key=GATEWAY.key,
    )


def test_packet_of_unlisted_study_raises_transport_error() -> None:
    """A relay that has just started lists no study before it has asked the coordinator."""

    async def act(client: Client, via: OhttpPath) -> None:
        with pytest.raises(
            TransportError, match=r"NET-005.*does not serve the study with digest abab-abab-abab"
        ):
            await via.post_packet(STUDY, via.seal(STUDY, b"packet"), client)

    through(
        Behind(GATEWAY, instead={f"{PACKETS}/{STUDY}": problem("RELAY-001", 404)}),
        act,
        key=GATEWAY.key,
    )


def test_full_spool_raises_transport_error() -> None:
    async def act(client: Client, via: OhttpPath) -> None:
        with pytest.raises(TransportError, match="The relay says, with status 503"):
            await via.post_packet(STUDY, via.seal(STUDY, b"packet"), client)

    through(
        Behind(GATEWAY, instead={f"{PACKETS}/{STUDY}": problem("RELAY-002", 503)}),
        act,
        key=GATEWAY.key,
    )


@pytest.mark.parametrize(
    "listed",
    [b"[]", b'{"to": "x", "studies": {"ab": 1}}', b'{"to": "x", "studies": {}, "more": 1}'],
)
def test_check_rejects_bad_list_of_studies(listed: bytes) -> None:
    async def act(_: Client, via: OhttpPath) -> None:
        with pytest.raises(TransportError, match=r"NET-002.*The relay"):
            await via.check(StudyHandle(TOKENS))

    through(Behind(GATEWAY, instead={RELAYING: (200, JSON, listed)}), act)


def test_unreachable_relay_raises_error_with_its_address() -> None:
    async def go() -> None:
        listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        via = OhttpPath(f"http://127.0.0.1:{port}", URL, None, GATEWAY.key)
        async with Client(URL, ManualClock(), SeededEntropy(1), network_path=via) as client:
            for act in (client.submit_message(STUDY, b"x"), via.post_packet(STUDY, b"x", client)):
                with pytest.raises(
                    TransportError,
                    match=rf"NET-001  The relay at http://127.0.0.1:{port} cannot be reached",
                ):
                    await act

    asyncio.run(go())


def test_untrusted_certificate_of_relay_is_rejected(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    behind = Behind(GATEWAY)
    server = Server(behind.reply)

    async def go() -> None:
        async with await asyncio.start_server(
            server.serve, "127.0.0.1", 0, ssl=context
        ) as listening:
            relay = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            async with Client(
                URL, ManualClock(), SeededEntropy(1), network_path=OhttpPath(relay, URL)
            ) as client:
                with pytest.raises(RemoteProtocolError, match=r"NET-003.*certificate of the relay"):
                    await client.submit_message(STUDY, b"x")
            async with Client(
                URL, ManualClock(), SeededEntropy(1), network_path=OhttpPath(relay, URL, made.ca)
            ) as client:
                await client.submit_message(STUDY, b"x")

    asyncio.run(go())
    assert behind.requests == [
        BinaryRequest("POST", study_route(STUDY, "submissions"), behind.requests[0].headers, b"x"),
    ]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [({}, False), ({"1": "ab" * 32}, False), ({"0": "ab" * 32}, True), ({"0": "cd" * 32}, None)],
)
def test_confirm_ask_compares_question_with_the_one_of_the_relay(
    shown: dict[str, str], expected: bool | None
) -> None:
    listed = RelayedStudies(to=URL, studies=SERVED, asks={TOKENS.digest.hex(): shown})

    async def act(_: Client, via: OhttpPath) -> bool | None:
        try:
            return await via.confirm_ask(StudyHandle(TOKENS), 0, b"\xab" * 32)
        except RemoteProtocolError as error:
            assert error.code == "ANONML-003" and "was shown another question" in error.what
            return None

    found, _ = through(Behind(GATEWAY, instead={RELAYING: (200, JSON, to_json(listed))}), act)
    assert found is expected
