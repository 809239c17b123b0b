"""Through a relay: what the relay sees, what the gateway sees, and what is refused of either."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from byways import Behind, Reply, Server, problem
from certificates import make_certificates
from participants import manifest_of
from shoal.clock import ManualClock
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, ShoalError, TransportError
from shoal.participant.client import Client, RefusedError
from shoal.participant.sealed import Ohttp
from shoal.study.manifest import Manifest
from shoal.transport import ohttp
from shoal.transport.bhttp import Answer, Request
from shoal.transport.forms import Enrolled, Enrolment, Problem, Received, to_cbor, to_json
from shoal.transport.ohttp import Gateway
from shoal.transport.packets import packet_size
from shoal.transport.routes import JSON, KEYS, OPENED, PACKETS, RELAYING, REQUESTS, study_route
from shoal.transport.sealing import open_packet, sealed_size
from shoal.transport.signing import verify

T = TypeVar("T")

GATEWAY = Gateway.from_seed(bytes(range(32)))
OTHER = Gateway.from_seed(bytes(32))
STUDY = "ab" * 32
URL = "https://coordinator.example:8700/somewhere"
ME = Identity.from_seed(bytes(32))
ISSUER = bytes([0x80]) + bytes(95)


def manifest(gateway: Gateway | None = GATEWAY, protocol: str = "anonml", **more: Any) -> Manifest:
    return Manifest(manifest_of(protocol, 3, **more).study, issuer_key=ISSUER, gateway_key=None if gateway is None else gateway.key)


TOKENS = manifest()
SERVED = {TOKENS.digest.hex(): packet_size(TOKENS)}


def through(
    behind: Behind, act: Callable[[Client, Ohttp], Awaitable[T]], *, key: bytes | None = None, address: str | None = None
) -> tuple[T, Server]:
    """What comes of a client that goes through a relay, and the relay."""
    server = Server(behind.reply)

    async def go() -> T:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            via = Ohttp(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", URL, None, key, address)
            async with Client(URL, ManualClock(), SeededEntropy(1), via=via) as client:
                return await act(client, via)

    return asyncio.run(go()), server


def test_a_request_arrives_as_if_it_had_come_directly_and_the_relay_sees_sealed_bytes() -> None:
    behind = Behind(GATEWAY, lambda _: Answer(200, (("content-type", JSON),), to_json(Enrolled(name="participant-1"))))

    async def act(client: Client, _: Ohttp) -> Enrolled:
        return await client.enrol(STUDY, ME, Enrolment(invitation="a code of mine"))

    enrolled, relay = through(behind, act)
    assert enrolled == Enrolled(name="participant-1")
    (request,) = behind.requests
    headers = dict(request.headers)
    assert (request.method, request.path, request.authority) == ("POST", study_route(STUDY, "enrolments"), "")
    assert set(headers) == {"user-agent", "accept", "accept-encoding", "content-type", "authorization"}
    now = int(ManualClock().now().timestamp() * 1000)
    assert verify(headers["authorization"], request.method, request.path, request.body, now).key == ME.public
    keys, sealed = relay.heard
    assert (keys.method, keys.path) == ("GET", KEYS) and (sealed.method, sealed.path) == ("POST", REQUESTS)
    assert set(sealed.headers) == {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"}
    for secret in (b"a code of mine", STUDY.encode(), ME.public, b"coordinator", b"enrolments"):
        assert secret not in sealed.body and secret not in repr(sealed.headers).encode() + sealed.path.encode()


def test_what_is_asked_does_not_show_in_its_length() -> None:
    behind = Behind(GATEWAY, lambda _: Answer(200, (), to_cbor(Received(phase=0))))

    async def act(client: Client, _: Ohttp) -> None:
        await client.received(STUDY)
        for body in (b"", bytes(500)):
            await client.submit_packet(STUDY, body)
        await client.message(STUDY, ME, bytes(300))

    _, relay = through(behind, act, key=GATEWAY.key)
    assert {len(one.body) for one in relay.heard} == {1024 + ohttp.REQUEST_OVERHEAD}
    assert len({one.body[7:39] for one in relay.heard}) == 4


def test_requests_that_are_apart_have_a_connection_each_from_the_address_that_is_given() -> None:
    async def act(client: Client, via: Ohttp) -> None:
        for _ in range(2):
            await client.submit(STUDY, b"x")
        async with client.apart() as apart:
            for _ in range(2):
                await apart.submit(STUDY, b"x")
            for _ in range(2):
                await via.post_packet(STUDY, via.seal(STUDY, bytes(640)), apart)

    _, relay = through(Behind(GATEWAY), act, key=GATEWAY.key, address="127.0.9.3")
    assert [one.connection for one in relay.heard] == [1, 1, 2, 3, 4, 5]
    assert {one.peer for one in relay.heard} == {"127.0.9.3"}
    # Participants' requests differ in nothing but their sealed bytes.
    assert len({tuple(sorted(one.headers.items())) for one in relay.heard if one.path == REQUESTS}) == 1


def test_a_packet_is_sealed_once_and_goes_to_the_spool_as_it_is() -> None:
    behind = Behind(GATEWAY, studies=SERVED)

    async def act(client: Client, via: Ohttp) -> bytes:
        await via.check(TOKENS)
        sealed = via.seal(STUDY, bytes(640))
        async with client.apart() as apart:
            await via.post_packet(STUDY, sealed, apart)
            await via.post_packet(STUDY, sealed, apart)
        return sealed

    sealed, relay = through(behind, act)
    assert behind.packets == [(STUDY, sealed)] * 2
    assert open_packet(GATEWAY, STUDY, sealed) == bytes(640) and len(sealed) == sealed_size(640)
    assert [one.path for one in relay.heard] == [KEYS, RELAYING, f"{PACKETS}/{STUDY}", f"{PACKETS}/{STUDY}"]


def test_before_the_key_is_known_nothing_is_sealed() -> None:
    with pytest.raises(LocalProtocolError, match="PROTO-001"):
        Ohttp("https://relay.example", URL).seal(STUDY, b"packet")


@pytest.mark.parametrize(
    ("found", "studies", "kind", "words"),
    [
        (manifest(None), SERVED, RemoteProtocolError, "names no gateway's key"),
        (manifest(OTHER), SERVED, RemoteProtocolError, "another gateway's key"),
        (TOKENS, {}, TransportError, "does not serve"),
        (TOKENS, {"00" * 32: packet_size(TOKENS)}, TransportError, "does not serve"),
        (TOKENS, {TOKENS.digest.hex(): 64}, RemoteProtocolError, "takes packets of 64 bytes"),
    ],
)
def test_a_relay_that_is_not_the_studys_is_refused(found: Manifest, studies: dict[str, int], kind: type[ShoalError], words: str) -> None:
    async def act(_: Client, via: Ohttp) -> None:
        with pytest.raises(kind, match="NET-005") as error:
            await via.check(found)
        assert words in error.value.what

    through(Behind(GATEWAY, studies=studies), act)


def test_a_relay_of_another_gateway_is_refused_without_asking_it() -> None:
    via = Ohttp("https://relay.example", URL, None, GATEWAY.key)
    via.allow(TOKENS)
    Ohttp("https://relay.example", URL).allow(TOKENS)
    for found in (manifest(OTHER), manifest(None)):
        with pytest.raises(RemoteProtocolError, match="NET-005"):
            via.allow(found)


def test_how_many_studies_a_relay_lists_is_told_once_it_is_known() -> None:
    async def act(_: Client, via: Ohttp) -> None:
        assert "other" not in via.words
        await via.check(TOKENS)
        assert via.words.endswith("the two together see all. Besides this study it lists 2 others")

    through(Behind(GATEWAY, studies={**SERVED, "00" * 32: 64, "11" * 32: 64}), act)


def test_a_relay_that_is_the_studys_is_asked_once() -> None:
    async def act(_: Client, via: Ohttp) -> None:
        await via.check(TOKENS)
        await via.check(TOKENS)

    _, relay = through(Behind(GATEWAY, studies=SERVED), act)
    assert [one.path for one in relay.heard] == [KEYS, RELAYING]
    # The manifest's key is the one that is used, whatever the relay says.
    _, relay = through(Behind(OTHER, studies=SERVED), act, key=GATEWAY.key)
    assert [one.path for one in relay.heard] == [RELAYING]


def test_a_study_without_packets_need_not_be_listed() -> None:
    devices = manifest(protocol="ddml", ddml={"n_instances": 2, "admission": "token"}, privacy={"epsilon": 4.0, "n_updates": 2})

    async def act(_: Client, via: Ohttp) -> None:
        await via.check(devices)

    assert [one.path for one in through(Behind(GATEWAY), act)[1].heard] == [KEYS]


def test_the_coordinator_refuses_through_the_relay_in_its_own_words() -> None:
    told = to_json(Problem(title="It is so.", status=410, code="HOST-002"))

    async def act(client: Client, _: Ohttp) -> None:
        with pytest.raises(RefusedError, match=r"HOST-002  The coordinator says: It is so\.") as error:
            await client.received(STUDY)
        assert error.value.status == 410

    through(Behind(GATEWAY, lambda _: Answer(410, (), told)), act)


def test_the_coordinators_time_comes_through_the_relay() -> None:
    theirs = ManualClock().now() + timedelta(hours=3)
    refusal = Answer(401, (("date", format_datetime(theirs, usegmt=True)),), to_json(Problem(title="Late.", status=401, code="AUTH-003")))
    behind = Behind(GATEWAY)
    behind.answer = lambda _: Answer(202) if len(behind.requests) > 1 else refusal

    async def act(client: Client, _: Ohttp) -> None:
        await client.message(STUDY, ME, b"message")

    through(behind, act)
    times = [int(dict(one.headers)["authorization"].split()[2]) for one in behind.requests]
    assert times[1] - times[0] == 3 * 3_600_000


SEALED_FOR_ANOTHER = OTHER.open(ohttp.encapsulate(OTHER.key, b"x")[0])[1].seal(Answer(202).to_bytes())
BAD: dict[str, tuple[str, Reply, type[ShoalError], str, str]] = {
    "no keys": (KEYS, (200, ohttp.KEYS, b"keys"), TransportError, "NET-002", "no gateway's key"),
    "keys are refused": (KEYS, problem("HOST-001", 404), RefusedError, "HOST-001", "The relay says"),
    "the gateway is away": (REQUESTS, problem("HOST-004", 503), TransportError, "HOST-004", "The relay says, with status 503"),
    "it does not open": (REQUESTS, problem("CRYPTO-001", 400), RefusedError, "CRYPTO-001", "The relay says: It is so."),
    "no answer": (REQUESTS, (502, "text/html", b"<html>"), TransportError, "NET-002", "The relay answers with status 502"),
    "not sealed": (REQUESTS, (200, OPENED, Answer(202).to_bytes()), TransportError, "NET-002", "no gateway's answer"),
    "sealed for another": (REQUESTS, (200, OPENED, SEALED_FOR_ANOTHER), TransportError, "NET-002", "no gateway's answer"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer_is_an_error_that_names_the_relay(name: str) -> None:
    path, instead, kind, code, words = BAD[name]

    async def act(client: Client, _: Ohttp) -> None:
        with pytest.raises(kind) as error:
            await client.submit(STUDY, b"x")
        assert error.value.code == code and words in error.value.what and "relay" in error.value.what

    through(Behind(GATEWAY, instead={path: instead}), act)


def test_what_is_sealed_and_no_answer_of_http_is_none() -> None:
    class Rough(Answer):
        def to_bytes(self, _: int | None = None) -> bytes:
            return b"hello"

    async def act(client: Client, _: Ohttp) -> None:
        with pytest.raises(TransportError, match=r"NET-002.*no gateway's answer"):
            await client.submit(STUDY, b"x")

    through(Behind(GATEWAY, lambda _: Rough(202)), act)


def test_a_packet_that_the_relay_does_not_take_is_refused_for_good() -> None:
    async def act(client: Client, via: Ohttp) -> None:
        with pytest.raises(RefusedError, match="RELAY-001  The relay says"):
            await via.post_packet(STUDY, via.seal(STUDY, b"packet"), client)

    through(Behind(GATEWAY, instead={f"{PACKETS}/{STUDY}": problem("RELAY-001", 400)}), act, key=GATEWAY.key)


def test_a_packet_of_a_study_that_the_relay_does_not_know_is_sent_again() -> None:
    """One that has just started knows none, before it has asked the coordinator."""

    async def act(client: Client, via: Ohttp) -> None:
        with pytest.raises(TransportError, match=r"NET-005.*does not serve the study with digest abab-abab-abab"):
            await via.post_packet(STUDY, via.seal(STUDY, b"packet"), client)

    through(Behind(GATEWAY, instead={f"{PACKETS}/{STUDY}": problem("RELAY-001", 404)}), act, key=GATEWAY.key)


def test_a_spool_that_is_full_is_asked_again() -> None:
    async def act(client: Client, via: Ohttp) -> None:
        with pytest.raises(TransportError, match="The relay says, with status 503"):
            await via.post_packet(STUDY, via.seal(STUDY, b"packet"), client)

    through(Behind(GATEWAY, instead={f"{PACKETS}/{STUDY}": problem("RELAY-002", 503)}), act, key=GATEWAY.key)


@pytest.mark.parametrize("listed", [b"[]", b'{"to": "x", "studies": {"ab": 1}}', b'{"to": "x", "studies": {}, "more": 1}'])
def test_what_is_no_list_of_a_relay_is_no_answer(listed: bytes) -> None:
    async def act(_: Client, via: Ohttp) -> None:
        with pytest.raises(TransportError, match=r"NET-002.*The relay answers with something that is not Relaying"):
            await via.check(TOKENS)

    through(Behind(GATEWAY, instead={RELAYING: (200, JSON, listed)}), act)


def test_a_relay_that_is_away_is_named() -> None:
    async def go() -> None:
        listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        via = Ohttp(f"http://127.0.0.1:{port}", URL, None, GATEWAY.key)
        async with Client(URL, ManualClock(), SeededEntropy(1), via=via) as client:
            for act in (client.submit(STUDY, b"x"), via.post_packet(STUDY, b"x", client)):
                with pytest.raises(TransportError, match=rf"NET-001  The relay at http://127.0.0.1:{port} cannot be reached"):
                    await act

    asyncio.run(go())


def test_the_certificate_of_a_relay_is_checked(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    behind = Behind(GATEWAY)
    server = Server(behind.reply)

    async def go() -> None:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context) as listening:
            relay = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            async with Client(URL, ManualClock(), SeededEntropy(1), via=Ohttp(relay, URL)) as client:
                with pytest.raises(RemoteProtocolError, match=r"NET-003.*certificate of the relay"):
                    await client.submit(STUDY, b"x")
            async with Client(URL, ManualClock(), SeededEntropy(1), via=Ohttp(relay, URL, made.ca)) as client:
                await client.submit(STUDY, b"x")

    asyncio.run(go())
    assert behind.requests == [
        Request("POST", study_route(STUDY, "submissions"), behind.requests[0].headers, b"x"),
    ]
