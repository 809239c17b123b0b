"""The shared HTTP client: total time limits for responses, from a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest

from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.participant.client import Client
from shoal.participant.network.ohttp import OhttpPath
from shoal.relay.client import CoordinatorClient
from shoal.transport.api import MAX_WAIT_SECONDS
from shoal.transport.client import RESPONSE_SECONDS, HttpParty

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 1000000\r\n\r\n"


async def trickle_body(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def trickle_head(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in HEAD * 100:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize("handler", [trickle_body, trickle_head])
def test_send_gives_up_response_that_arrives_byte_by_byte(handler: Handler) -> None:
    """Each read is in time, so that only a limit on the whole response ends it."""

    async def visit() -> float:
        async with serving(handler) as url, httpx2.AsyncHTTPTransport() as transport:
            party, started = HttpParty("coordinator", url, seconds=0.5), time.monotonic()
            with pytest.raises(TransportError, match="whole response within") as error:
                await party.request(transport, "GET", "/")
            assert error.value.code == "NET-001"
            return time.monotonic() - started

    # Without a limit the first response would take 14 hours.
    assert asyncio.run(asyncio.wait_for(visit(), 30)) >= 0.5


def test_send_allows_time_for_long_poll() -> None:
    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(1.5)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()

    async def visit(wait: float) -> bytes:
        async with serving(answer_late) as url, httpx2.AsyncHTTPTransport() as transport:
            party = HttpParty("coordinator", url, seconds=0.2).allow_wait(wait)
            return await party.request(transport, "GET", "/", 16)

    assert asyncio.run(visit(60)) == b"ok"
    with pytest.raises(TransportError, match="whole response"):
        asyncio.run(visit(0))


def test_participant_and_relay_use_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    async def send(self: HttpParty, *_: object, **__: object) -> bytes:
        limits.append(self.seconds)
        raise TransportError("NET-001", "No response.")

    async def visit() -> None:
        url = "http://127.0.0.1:1"
        for path in (None, OhttpPath(url, url, gateway_key=bytes(32))):
            async with Client(url, SystemClock(), SystemEntropy(), network_path=path) as client:
                for request in (
                    client.fetch_studies(),
                    client.fetch_broadcasts("ab" * 32, 0, MAX_WAIT_SECONDS),
                ):
                    with pytest.raises(TransportError):
                        await request
        async with CoordinatorClient(url) as relay:
            with pytest.raises(TransportError):
                await relay.forward_request(b"sealed")

    monkeypatch.setattr(HttpParty, "send", send)
    asyncio.run(visit())
    poll = RESPONSE_SECONDS + MAX_WAIT_SECONDS
    assert limits == [RESPONSE_SECONDS, poll, RESPONSE_SECONDS, poll, poll]
