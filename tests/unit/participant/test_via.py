"""Which way to a coordinator is meant, and the direct one."""

from __future__ import annotations

import asyncio

import pytest

from byways import Heard, Reply, Server
from participants import manifest_of
from shoal.clock import ManualClock
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.participant.client import Client
from shoal.participant.sealed import Ohttp
from shoal.participant.tor import Tor
from shoal.participant.via import Via, via_of
from shoal.participant.ways import Direct
from shoal.study.manifest import Manifest
from shoal.transport.routes import JSON, RAW, study_route

URL = "https://coordinator.example:8700"
ENTROPY = SeededEntropy(1)
STUDY = "ab" * 32
SHUFFLED = Manifest(
    manifest_of(
        "anonml",
        trust="shuffled",
        privacy={"epsilon": 2.0, "delta": 1e-6},
        participation={"minimum": 1000, "size": 1000, "honest_share": 0.9},
    ).study,
    issuer_key=bytes([0x80]) + bytes(95),
    gateway_key=bytes([9]) + bytes(31),
    relay="https://relay.example",
)


@pytest.mark.parametrize(
    ("text", "kind", "where"),
    [
        (None, Direct, URL),
        ("direct", Direct, URL),
        ("ohttp:https://relay.example/", Ohttp, "https://relay.example"),
        ("ohttp:http://127.0.0.1:8701", Ohttp, "http://127.0.0.1:8701"),
        ("tor", Tor, "127.0.0.1:9050"),
        ("tor:127.0.0.1:9150", Tor, "127.0.0.1:9150"),
        ("tor:localhost:9150", Tor, "localhost:9150"),
        ("tor:10.152.152.10:9050", Tor, "10.152.152.10:9050"),
        ("tor:[::1]:9150", Tor, "[::1]:9150"),
    ],
)
def test_a_way_by_its_name(text: str | None, kind: type[Via], where: str) -> None:
    via = via_of(text, URL, ENTROPY)
    assert type(via) is kind and where in via.words
    assert via.name == {Direct: "direct", Ohttp: "ohttp", Tor: "tor"}[kind]


def test_without_a_name_it_is_the_relay_that_the_manifest_names() -> None:
    assert isinstance(via_of(None, URL, ENTROPY, manifest=SHUFFLED), Ohttp)
    assert isinstance(via_of(None, URL, ENTROPY, manifest=manifest_of("anonml")), Direct)
    assert isinstance(via_of("tor", URL, ENTROPY, manifest=SHUFFLED), Tor)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "direct:",
        "Direct",
        "ohttp",
        "ohttp:",
        "ohttp:relay.example",
        "ohttp:http://relay.example",
        "ohttp:http://abc.onion",
        "tor:",
        "tor:9050",
        "tor::9050",
        "tor:127.0.0.1:0",
        "tor:127.0.0.1:65536",
        "tor:127.0.0.1:-1",
        "tor:127.0.0.1:" + "1" * 5000,
        "tor:127.0.0.1:009050",
        "tor:127.0.0.1:x",
        "tor:8.8.8.8:9050",
        "tor:proxy.example:9050",
        "vpn",
    ],
)
def test_what_is_no_way(text: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001") as error:
        via_of(text, URL, ENTROPY)
    assert error.value.fix


def test_an_onion_service_is_reached_over_tor_alone() -> None:
    for text in (None, "direct", "ohttp:https://relay.example"):
        with pytest.raises(UsageError, match="over Tor alone"):
            via_of(text, "http://abc.onion", ENTROPY)
    assert via_of("tor", "http://abc.onion", ENTROPY).name == "tor"


@pytest.mark.parametrize("text", ["direct", "tor"])
def test_a_shuffled_study_takes_answers_through_a_relay_alone(text: str) -> None:
    via = via_of(text, URL, ENTROPY)
    with pytest.raises(UsageError, match=rf"not by --via {text}") as error:
        asyncio.run(via.check(SHUFFLED))
    assert error.value.fix == "--via ohttp:https://relay.example"
    with pytest.raises(UsageError, match=rf"not by --via {text}"):
        via.allow(SHUFFLED)
    asyncio.run(via.check(manifest_of("anonml")))


def accepted(_: Heard) -> Reply:
    return 202, JSON, b""


def test_a_packet_goes_as_it_is_on_a_connection_of_its_own_from_the_address_that_is_given() -> None:
    server = Server(accepted)

    async def go() -> None:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            via = via_of(None, url, ENTROPY, local_address="127.0.7.9")
            assert via.seal(STUDY, b"packet") == b"packet"
            async with Client(url, ManualClock(), ENTROPY, via=via) as client, client.apart() as apart:
                assert client.via is apart.via is via
                for _ in range(3):
                    await via.post_packet(STUDY, b"packet", apart)
                for _ in range(2):
                    await client.submit_packet(STUDY, b"packet")

    asyncio.run(go())
    assert {(one.method, one.path, one.body, one.peer) for one in server.heard} == {
        ("POST", study_route(STUDY, "submissions"), b"packet", "127.0.7.9")
    }
    assert [one.connection for one in server.heard] == [1, 2, 3, 4, 4]
    assert [one.headers for one in server.heard] == [server.heard[0].headers] * 5
    assert server.heard[0].headers["content-type"] == RAW
