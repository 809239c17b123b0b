"""Parsing of ``--via``, and the direct network path."""

from __future__ import annotations

import asyncio

import pytest

from shoal.clock import ManualClock
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.participant.client import Client
from shoal.participant.network import NetworkPath, parse_via
from shoal.participant.network.base import DirectPath
from shoal.participant.network.ohttp import OhttpPath
from shoal.participant.network.tor import TorPath
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport.api import JSON, RAW, study_route
from tests.support.machines import Heard, Reply, Server
from tests.support.participants import make_manifest

URL = "https://coordinator.example:8700"
ENTROPY = SeededEntropy(1)
STUDY = "ab" * 32
SHUFFLED = Manifest(
    make_manifest(
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
        (None, DirectPath, URL),
        ("direct", DirectPath, URL),
        ("ohttp:https://relay.example/", OhttpPath, "https://relay.example"),
        ("ohttp:http://127.0.0.1:8701", OhttpPath, "http://127.0.0.1:8701"),
        ("tor", TorPath, "127.0.0.1:9050"),
        ("tor:127.0.0.1:9150", TorPath, "127.0.0.1:9150"),
        ("tor:localhost:9150", TorPath, "localhost:9150"),
        ("tor:10.152.152.10:9050", TorPath, "10.152.152.10:9050"),
        ("tor:[::1]:9150", TorPath, "[::1]:9150"),
    ],
)
def test_parse_via_returns_path_by_name(
    text: str | None, kind: type[NetworkPath], where: str
) -> None:
    via = parse_via(text, URL, ENTROPY)
    assert type(via) is kind and where in via.description
    assert via.name == {DirectPath: "direct", OhttpPath: "ohttp", TorPath: "tor"}[kind]


def test_parse_via_without_text_uses_relay_of_manifest() -> None:
    assert isinstance(parse_via(None, URL, ENTROPY, manifest=SHUFFLED), OhttpPath)
    assert isinstance(parse_via(None, URL, ENTROPY, manifest=make_manifest("anonml")), DirectPath)
    assert isinstance(parse_via("tor", URL, ENTROPY, manifest=SHUFFLED), TorPath)


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
def test_parse_via_rejects_unknown_path(text: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001") as error:
        parse_via(text, URL, ENTROPY)
    assert error.value.fix


def test_parse_via_reaches_onion_service_only_over_tor() -> None:
    for text in (None, "direct", "ohttp:https://relay.example"):
        with pytest.raises(UsageError, match="only over Tor"):
            parse_via(text, "http://abc.onion", ENTROPY)
    assert parse_via("tor", "http://abc.onion", ENTROPY).name == "tor"


@pytest.mark.parametrize("text", ["direct", "tor"])
def test_check_refuses_shuffled_study_without_relay(text: str) -> None:
    via = parse_via(text, URL, ENTROPY)
    with pytest.raises(UsageError, match=rf"not with --via {text}") as error:
        asyncio.run(via.check(StudyHandle(SHUFFLED)))
    assert error.value.fix == "Use the relay: --via ohttp:https://relay.example"
    with pytest.raises(UsageError, match=rf"not with --via {text}"):
        via.check_allowed(SHUFFLED)
    asyncio.run(via.check(StudyHandle(make_manifest("anonml"))))


def accept(_: Heard) -> Reply:
    return 202, JSON, b""


def test_direct_path_posts_packet_unchanged_on_new_connection_from_local_address() -> None:
    server = Server(accept)

    async def go() -> None:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            via = parse_via(None, url, ENTROPY, local_address="127.0.7.9")
            assert via.seal(STUDY, b"packet") == b"packet"
            async with (
                Client(url, ManualClock(), ENTROPY, network_path=via) as client,
                client.open_isolated() as apart,
            ):
                assert client.network_path is apart.network_path is via
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
