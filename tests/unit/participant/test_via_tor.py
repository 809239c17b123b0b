"""Over a SOCKS port, as Tor has one: names are looked up at the far end, and what is apart has a name of its own there each time."""

from __future__ import annotations

import asyncio
import importlib.util
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from byways import Heard, Reply, Server, Socks
from certificates import make_certificates
from shoal.clock import ManualClock
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, TransportError, UsageError
from shoal.participant.client import Client
from shoal.participant.tor import Tor
from shoal.transport.routes import JSON

T = TypeVar("T")

STUDY = "ab" * 32
ONION = "http://2gzyxa5ihm7nsggfxnu52rck2vv4rvmdlkiu3zzui5du4xyclen53wid.onion"


def accepted(_: Heard) -> Reply:
    return 202, JSON, b""


def over_tor(act: Callable[[Client], Awaitable[T]], url: str = ONION, **options: Any) -> tuple[T, Socks, Server]:
    """What comes of a client behind a SOCKS port, the port, and the server that it leads to."""
    server, found = Server(accepted), Socks(0, **options)

    async def go() -> T:
        async with (
            await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening,
            await asyncio.start_server(found.serve, "127.0.0.1", 0) as port,
        ):
            found.target = listening.sockets[0].getsockname()[1]
            via = Tor(url, SeededEntropy(2), host="127.0.0.1", port=port.sockets[0].getsockname()[1])
            async with Client(url, ManualClock(), SeededEntropy(1), via=via) as client:
                return await act(client)

    return asyncio.run(go()), found, server


async def send(client: Client) -> None:
    for _ in range(2):
        await client.submit_packet(STUDY, b"letter")
    async with client.apart() as apart:
        for _ in range(3):
            await client.via.post_packet(STUDY, client.via.seal(STUDY, b"packet"), apart)


def test_every_packet_has_a_connection_with_a_name_and_password_of_its_own() -> None:
    _, port, server = over_tor(send)
    assert [one.connection for one in server.heard] == [1, 1, 2, 3, 4]
    assert len(port.asked) == 4
    assert len({one.name for one in port.asked} | {one.password for one in port.asked}) == 8
    assert {len(one.name) for one in port.asked} == {len(one.password) for one in port.asked} == {32}
    assert [one.headers for one in server.heard] == [server.heard[0].headers] * 5


@pytest.mark.parametrize("url", [ONION, f"{ONION}:8700", "http://localhost:8700"])
def test_the_name_goes_to_the_port_and_is_not_looked_up_here(url: str) -> None:
    _, port, _ = over_tor(send, url)
    host, _, number = url.removeprefix("http://").partition(":")
    assert {(one.kind, one.host, one.port) for one in port.asked} == {(3, host, int(number or 80))}


CODES = {1: "General SOCKS server failure", 4: "Host unreachable", 5: "Connection refused", 6: "TTL expired"}


@pytest.mark.parametrize("code", CODES)
def test_a_coordinator_that_tor_does_not_reach_is_named(code: int) -> None:
    async def act(client: Client) -> None:
        async with client.apart() as apart:
            for one in (client, apart):
                with pytest.raises(TransportError, match=r"NET-004  Tor at .* does not reach the coordinator at") as error:
                    await one.submit_packet(STUDY, b"packet")
                assert CODES[code] in str(error.value) and error.value.fix

    over_tor(act, code=code)


@pytest.mark.parametrize("methods", [b"\x05\xff", b"\x05\x00", b"hello", b"", b"\x05"])
def test_what_is_no_socks_port_is_not_tor(methods: bytes) -> None:
    async def act(client: Client) -> None:
        async with client.apart() as apart:
            with pytest.raises(TransportError, match="NET-004"):
                await apart.submit_packet(STUDY, b"packet")

    async def shut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(3)
        writer.write(methods)
        writer.close()

    async def go() -> None:
        async with await asyncio.start_server(shut, "127.0.0.1", 0) as port:
            via = Tor(ONION, SeededEntropy(2), port=port.sockets[0].getsockname()[1])
            async with Client(ONION, ManualClock(), SeededEntropy(1), via=via) as client:
                await act(client)

    asyncio.run(go())


def test_tor_that_is_away_is_a_sentence_and_asked_again() -> None:
    async def go() -> None:
        listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        async with Client(ONION, ManualClock(), SeededEntropy(1), via=Tor(ONION, SeededEntropy(2), port=port)) as client:
            with pytest.raises(TransportError, match=rf"NET-004  Tor at 127.0.0.1:{port} cannot be reached") as error:
                await client.submit_packet(STUDY, b"packet")
            assert error.value.fix is not None and "Start Tor" in error.value.fix

    asyncio.run(go())


def test_the_certificate_behind_tor_is_checked(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    server, found = Server(accepted), Socks(0)

    async def go() -> None:
        async with (
            await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context) as listening,
            await asyncio.start_server(found.serve, "127.0.0.1", 0) as port,
        ):
            found.target = listening.sockets[0].getsockname()[1]
            url, number = f"https://localhost:{found.target}", port.sockets[0].getsockname()[1]
            for ca in (None, made.ca):
                via = Tor(url, SeededEntropy(2), ca, port=number)
                async with Client(url, ManualClock(), SeededEntropy(1), via=via) as client, client.apart() as apart:
                    if ca is None:
                        with pytest.raises(RemoteProtocolError, match="NET-003"):
                            await apart.submit_packet(STUDY, b"packet")
                    else:
                        await apart.submit_packet(STUDY, b"packet")

    asyncio.run(go())
    assert [one.body for one in server.heard] == [b"packet"]


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="USAGE-002") as error:
        Tor(ONION, SeededEntropy(2))
    assert error.value.fix == "pip install 'shoal[anonymous]'"
