"""The path over a SOCKS port: remote name resolution, and one user name per connection."""

from __future__ import annotations

import asyncio
import importlib.util
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shoal.clock import ManualClock
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, TransportError, UsageError, format_install_command
from shoal.participant.client import Client
from shoal.participant.network.tor import TorPath
from shoal.transport.api import JSON
from tests.support.machines import Heard, Reply, Server, Socks
from tests.support.tls import make_certificates

T = TypeVar("T")

STUDY = "ab" * 32
ONION = "http://2gzyxa5ihm7nsggfxnu52rck2vv4rvmdlkiu3zzui5du4xyclen53wid.onion"


def accept(_: Heard) -> Reply:
    return 202, JSON, b""


def over_tor(
    act: Callable[[Client], Awaitable[T]], url: str = ONION, **options: Any
) -> tuple[T, Socks, Server]:
    """Return the result of a client behind a SOCKS port, the port, and the server behind it."""
    server, found = Server(accept), Socks(0, **options)

    async def go() -> T:
        async with (
            await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening,
            await asyncio.start_server(found.serve, "127.0.0.1", 0) as port,
        ):
            found.target = listening.sockets[0].getsockname()[1]
            via = TorPath(
                url, SeededEntropy(2), host="127.0.0.1", port=port.sockets[0].getsockname()[1]
            )
            async with Client(url, ManualClock(), SeededEntropy(1), network_path=via) as client:
                return await act(client)

    return asyncio.run(go()), found, server


async def send(client: Client) -> None:
    for _ in range(2):
        await client.submit_packet(STUDY, b"letter")
    async with client.open_isolated() as apart:
        for _ in range(3):
            await client.network_path.post_packet(
                STUDY, client.network_path.seal(STUDY, b"packet"), apart
            )


def test_each_isolated_request_uses_new_connection_with_new_credentials() -> None:
    _, port, server = over_tor(send)
    assert [one.connection for one in server.heard] == [1, 1, 2, 3, 4]
    assert len(port.asked) == 4
    assert len({one.name for one in port.asked} | {one.password for one in port.asked}) == 8
    assert (
        {len(one.name) for one in port.asked} == {len(one.password) for one in port.asked} == {32}
    )
    assert [one.headers for one in server.heard] == [server.heard[0].headers] * 5


@pytest.mark.parametrize("url", [ONION, f"{ONION}:8700", "http://localhost:8700"])
def test_host_name_is_resolved_by_tor(url: str) -> None:
    _, port, _ = over_tor(send, url)
    host, _, number = url.removeprefix("http://").partition(":")
    assert {(one.kind, one.host, one.port) for one in port.asked} == {(3, host, int(number or 80))}


CODES = {
    1: "General SOCKS server failure",
    4: "Host unreachable",
    5: "Connection refused",
    6: "TTL expired",
}


@pytest.mark.parametrize("code", CODES)
def test_coordinator_unreachable_over_tor_raises_error_with_its_address(code: int) -> None:
    async def act(client: Client) -> None:
        async with client.open_isolated() as apart:
            for one in (client, apart):
                with pytest.raises(
                    TransportError, match=r"NET-004  Tor at .* cannot reach the coordinator at"
                ) as error:
                    await one.submit_packet(STUDY, b"packet")
                assert CODES[code] in str(error.value) and error.value.fix

    over_tor(act, code=code)


@pytest.mark.parametrize("methods", [b"\x05\xff", b"\x05\x00", b"hello", b"", b"\x05"])
def test_port_without_socks_raises_transport_error(methods: bytes) -> None:
    async def act(client: Client) -> None:
        async with client.open_isolated() as apart:
            with pytest.raises(TransportError, match="NET-004"):
                await apart.submit_packet(STUDY, b"packet")

    async def shut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(3)
        writer.write(methods)
        writer.close()

    async def go() -> None:
        async with await asyncio.start_server(shut, "127.0.0.1", 0) as port:
            via = TorPath(ONION, SeededEntropy(2), port=port.sockets[0].getsockname()[1])
            async with Client(ONION, ManualClock(), SeededEntropy(1), network_path=via) as client:
                await act(client)

    asyncio.run(go())


def test_unreachable_tor_raises_error_and_is_retried() -> None:
    async def go() -> None:
        listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        async with Client(
            ONION,
            ManualClock(),
            SeededEntropy(1),
            network_path=TorPath(ONION, SeededEntropy(2), port=port),
        ) as client:
            with pytest.raises(
                TransportError, match=rf"NET-004  Tor at 127.0.0.1:{port} cannot be reached"
            ) as error:
                await client.submit_packet(STUDY, b"packet")
            assert error.value.fix is not None and "Start Tor" in error.value.fix

    asyncio.run(go())


def test_untrusted_certificate_over_tor_is_rejected(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    server, found = Server(accept), Socks(0)

    async def go() -> None:
        async with (
            await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context) as listening,
            await asyncio.start_server(found.serve, "127.0.0.1", 0) as port,
        ):
            found.target = listening.sockets[0].getsockname()[1]
            url, number = f"https://localhost:{found.target}", port.sockets[0].getsockname()[1]
            for ca in (None, made.ca):
                via = TorPath(url, SeededEntropy(2), ca, port=number)
                async with (
                    Client(url, ManualClock(), SeededEntropy(1), network_path=via) as client,
                    client.open_isolated() as apart,
                ):
                    if ca is None:
                        with pytest.raises(RemoteProtocolError, match="NET-003"):
                            await apart.submit_packet(STUDY, b"packet")
                    else:
                        await apart.submit_packet(STUDY, b"packet")

    asyncio.run(go())
    assert [one.body for one in server.heard] == [b"packet"]


def test_missing_extra_raises_error_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="USAGE-002") as error:
        TorPath(ONION, SeededEntropy(2))
    assert error.value.fix == format_install_command("anonymous")
