"""What a participant's requests go through, small enough for a test: a relay with its gateway, and a SOCKS port that keeps names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2

from shoal.transport import ohttp
from shoal.transport.bhttp import Answer, Request
from shoal.transport.forms import Problem, Relaying, to_json
from shoal.transport.routes import GATEWAY, JSON, KEYS, OPENED, PACKETS, PROBLEM, RAW, RELAYING, REQUESTS

Reply = tuple[int, str, bytes]
"""Status, content type and body."""


@dataclass
class Heard:
    """A request as a server has it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: str
    connection: int


@dataclass
class Server:
    """Answers HTTP by a function, and keeps what it hears."""

    reply: Callable[[Heard], Reply]
    heard: list[Heard] = field(default_factory=list)
    n_connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        number, peer = self.n_connections, writer.get_extra_info("peername")[0]
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split()
                self.heard.append(Heard(method, path, headers, body, peer, number))
                status, kind, answer = self.reply(self.heard[-1])
                head = f"HTTP/1.1 {status} Some\r\ncontent-type: {kind}\r\ncontent-length: {len(answer)}\r\n\r\n"
                writer.write(head.encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@dataclass
class Behind:
    """A relay and the gateway behind it in one: opens what it is sent, and answers by a function."""

    gateway: ohttp.Gateway
    answer: Callable[[Request], Answer] = lambda _: Answer(202)
    studies: dict[str, int] = field(default_factory=dict)
    instead: dict[str, Reply] = field(default_factory=dict)
    """By path: what is answered in place of the right thing."""
    requests: list[Request] = field(default_factory=list)
    packets: list[tuple[str, bytes]] = field(default_factory=list)

    def reply(self, heard: Heard) -> Reply:
        if heard.path in self.instead:
            return self.instead[heard.path]
        match heard.method, heard.path:
            case "GET", path if path == KEYS:
                return 200, ohttp.KEYS, self.gateway.configuration()
            case "GET", path if path == RELAYING:
                return 200, JSON, to_json(Relaying(to="http://127.0.0.1:1", studies=self.studies))
            case "POST", path if path == REQUESTS:
                plain, sealer = self.gateway.open(heard.body)
                self.requests.append(Request.from_bytes(plain))
                return 200, OPENED, sealer.seal(self.answer(self.requests[-1]).to_bytes())
            case "POST", path if path.startswith(PACKETS):
                self.packets.append((path.removeprefix(f"{PACKETS}/"), heard.body))
                return 202, JSON, b""
        return problem("HOST-001", 404)


def problem(code: str, status: int) -> Reply:
    return status, PROBLEM, to_json(Problem(title="It is so.", status=status, code=code))


@dataclass
class Asked:
    """A connection as a SOCKS port is asked for it: under which name and password, and where to."""

    name: bytes
    password: bytes
    kind: int
    host: str
    port: int


@dataclass
class Socks:
    """A SOCKS5 port (RFC 1928, 1929) that takes any name, connects to one server whatever it is asked for, and keeps what it was asked.

    Parameters
    ----------
    target
        The port of the server, on loopback.
    code
        What is answered to a request for a connection; 0 connects.
    methods
        What is answered to the methods that are offered; None for what is right.
    """

    target: int
    code: int = 0
    methods: bytes | None = None
    asked: list[Asked] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version, n_methods = await reader.readexactly(2)
        methods = await reader.readexactly(n_methods)
        assert version == 5 and methods == b"\x02"
        writer.write(b"\x05\x02" if self.methods is None else self.methods)
        (version,) = await reader.readexactly(1)
        name = await _sized(reader)
        password = await _sized(reader)
        writer.write(b"\x01\x00")
        _, _, _, kind = await reader.readexactly(4)
        raw = await _sized(reader) if kind == 3 else await reader.readexactly(4 if kind == 1 else 16)
        host = raw.decode() if kind == 3 else ".".join(map(str, raw))
        self.asked.append(Asked(name, password, kind, host, int.from_bytes(await reader.readexactly(2), "big")))
        writer.write(bytes([5, self.code, 0, 1]) + bytes(6))
        if self.code:
            return
        there = await asyncio.open_connection("127.0.0.1", self.target)
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, there[1]))
            group.create_task(_copy(there[0], writer))


async def _sized(reader: asyncio.StreamReader) -> bytes:
    (size,) = await reader.readexactly(1)
    return await reader.readexactly(size)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@dataclass(frozen=True)
class Front:
    """Hands on what it hears to a coordinator: as it is, or, as a relay does, sealed requests to its gateway."""

    url: str

    def reply(self, heard: Heard) -> Reply:
        path = GATEWAY if heard.path == REQUESTS else heard.path
        headers = {name: value for name, value in heard.headers.items() if name in ("content-type", "authorization", "shoal-ticket")}
        with httpx2.Client(trust_env=False) as http:
            answer = http.request(heard.method, self.url + path, headers=headers, content=heard.body)
        return answer.status_code, answer.headers.get("content-type", RAW), answer.content


@contextmanager
def standing(server: Server | Socks) -> Iterator[int]:
    """Serve on a port of its own, in a thread; the port."""
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end(listening), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(listening: asyncio.Server) -> None:
    listening.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
