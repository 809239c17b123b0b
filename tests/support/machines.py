"""Helpers for tests of every protocol: machines, drivers, randomness and network parts.

Machines that are watched or crash, one step of a peer, and the bytes that a run has sent. Drivers
of a protocol for contract tests: the loop and simulated networks, from good to hardly usable. A
test whether two orders are independent. Randomness for two runs that must draw the same: one stream
for each machine, independent of the numbers of its inputs. Small stand-ins for the network path of
a participant: a relay with its gateway, and a SOCKS port that records names.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx2
import numpy as np

from shoal.entropy import Entropy, SeededEntropy
from shoal.messages.base import Message, Registry
from shoal.messages.codec import decode, dump, load
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Account,
    Effects,
    Finish,
    Input,
    MemoryLedger,
    OutgoingMessage,
    Peer,
    ProtocolOutcome,
    Received,
    Release,
    Send,
    Work,
    run_input,
)
from shoal.simulation.network import Faults, run_network
from shoal.transport import ohttp
from shoal.transport.api import (
    GATEWAY,
    JSON,
    KEYS,
    OHTTP_RESPONSE,
    PACKETS,
    PROBLEM,
    RAW,
    RELAYING,
    REQUESTS,
    Problem,
    RelayedStudies,
    to_json,
)
from shoal.transport.bhttp import BinaryRequest, BinaryResponse


class Saving:
    """A machine that crashes before every step and resumes from the saved state."""

    def step(
        self, state: Any, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[Any, Effects]:
        return super().step(load(dump(state), type(state)), given, now, entropy)  # type: ignore[misc,no-any-return]


class Logging:
    """A machine that records every input with the state before it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log: list[tuple[Any, Input]] = []
        self.is_logging = True

    def step(
        self, state: Any, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[Any, Effects]:
        if self.is_logging:
            self.log.append((state, given))
        return super().step(state, given, now, entropy)  # type: ignore[misc,no-any-return]


class Chatty:
    """A mutant that sends a release as a free message."""

    def ask(self, state: Any, question: str) -> tuple[Any, Effects]:
        return state, (Send(AGGREGATOR, self.answer(state, question, SeededEntropy(1))),)  # type: ignore[attr-defined]


class Unpriced:
    """A mutant that draws without asking its ledger."""

    def ask(self, state: Any, question: str) -> tuple[Any, Effects]:
        return state, (Release(question, self.answer(state, question, SeededEntropy(1))),)  # type: ignore[attr-defined]


def before(
    machine: Any, kind: type[Any], number: int = 0, sender: str | None = None
) -> tuple[Any, Any]:
    """Return the state before the n-th input of a kind, and the input."""
    found = [
        (state, getattr(given, "message", given))
        for state, given in machine.log
        if isinstance(getattr(given, "message", given), kind)
        and sender in (None, getattr(given, "sender", None))
    ]
    return found[number]


def give(
    peer: Peer[Any],
    state: Any,
    given: Input | Message,
    ledger: MemoryLedger | None = None,
    seed: int = 1,
) -> tuple[Any, list[Message], tuple[Work, ...]]:
    """Give a peer an input; return its messages and all its effects."""
    given = Received(AGGREGATOR, given) if isinstance(given, Message) else given
    account = Account(
        MemoryLedger() if ledger is None else ledger, peer.study, "rows", AGGREGATOR, "a test"
    )
    state, work = run_input(peer, state, given, START, SeededEntropy(seed), account)
    return (
        state,
        [
            decode(item.payload, peer.messages, peer.study)
            for item in work
            if isinstance(item, OutgoingMessage)
        ],
        work,
    )


def endings(work: tuple[Work, ...]) -> list[Finish | Abort]:
    return [item for item in work if isinstance(item, Finish | Abort)]


def spent(ledger: MemoryLedger) -> int:
    """Return the price of all answers that may have been sent, in grains of epsilon."""
    return sum(total.spent for total in ledger.totals())


def answers_by_peer(
    messages: Registry, outcome: ProtocolOutcome, study: bytes
) -> dict[tuple[str, str], set[bytes]]:
    """Return the different bytes sent for each answer, by peer and question."""
    left: dict[tuple[str, str], set[bytes]] = {}
    for sent in outcome.sent:
        if decode(sent.payload, messages, study).spends:
            left.setdefault((sent.sender, str(sent.question)), set()).add(sent.payload)
    return left


Run = Callable[..., ProtocolOutcome]

LOSSY = Faults(loss=0.4, duplicate=0.5, min_delay=1, max_delay=900)
HEAVY = Faults(
    loss=0.3, duplicate=0.3, min_delay=5, max_delay=2_000, crash=0.05, downtime=3_000, retry=400
)


def over(faults: Faults) -> Run:
    """Return a driver with a network that has these faults."""
    return lambda aggregator, peers, entropy, **options: run_network(
        aggregator, peers, entropy, faults, **options
    )


def compute_chance(places: Sequence[tuple[int, int]]) -> float:
    """Return the chance that two independent orders agree or disagree this much.

    Exact, by Kendall's rank correlation.
    """
    n = len(places)
    ranks = np.argsort(np.argsort(np.array(places), axis=0), axis=0)
    second = ranks[np.argsort(ranks[:, 0]), 1]
    n_inversions = sum(int((second[i + 1 :] < second[i]).sum()) for i in range(n))
    # The inversions of a random order are a sum of independent numbers, the i-th of them uniform
    # below i.
    law = np.ones(1)
    for i in range(2, n + 1):
        law = np.convolve(law, np.full(i, 1 / i))
    return float(2 * min(law[: n_inversions + 1].sum(), law[n_inversions:].sum()))


class Streams(SeededEntropy):
    """A seeded source from whose seed every machine has its stream, by who it belongs to.

    A driver gives each input a stream by its number. One that rings alarms, or hears of things in
    another order, would number otherwise than `run_local`; what a machine draws, it draws in the
    same order over every driver.

    Parameters
    ----------
    seed
        That of all machines.
    owners
        Whose a machine is, by the name that its driver has for it: at home every machine has the
        same, and in memory the coordinator's.
    """

    def __init__(self, seed: str, owners: Mapping[str, str]) -> None:
        super().__init__(f"{seed} of {sorted(owners.values())}")
        self._seed, self._owners = seed, owners
        self._streams: dict[str, SeededEntropy] = {}

    def spawn(self, *path: int | str) -> SeededEntropy:
        if path[0] != "machine":
            return super().spawn(*path)
        name = str(path[1])
        owner = self._owners.get(name, name)
        if owner not in self._streams:
            self._streams[owner] = SeededEntropy(f"{self._seed}, the machine of {owner}")
        return self._streams[owner]


Reply = tuple[int, str, bytes]
"""Status, content type and body."""


@dataclass
class Heard:
    """A request as a server received it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: str
    connection: int


@dataclass
class Server:
    """An HTTP server that answers with a function and records requests."""

    reply: Callable[[Heard], Reply]
    heard: list[Heard] = field(default_factory=list)
    n_connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        number, peer = self.n_connections, writer.get_extra_info("peername")[0]
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in lines if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split()
                self.heard.append(Heard(method, path, headers, body, peer, number))
                status, kind, answer = self.reply(self.heard[-1])
                head = (
                    f"HTTP/1.1 {status} Some\r\ncontent-type: {kind}\r\ncontent-length: "
                    f"{len(answer)}\r\n\r\n"
                )
                writer.write(head.encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@dataclass
class Behind:
    """A relay with its gateway, which opens sealed requests and answers with a function."""

    gateway: ohttp.Gateway
    answer: Callable[[BinaryRequest], BinaryResponse] = lambda _: BinaryResponse(202)
    studies: dict[str, int] = field(default_factory=dict)
    instead: dict[str, Reply] = field(default_factory=dict)
    """By path: what is answered in place of the right thing."""
    requests: list[BinaryRequest] = field(default_factory=list)
    packets: list[tuple[str, bytes]] = field(default_factory=list)

    def reply(self, heard: Heard) -> Reply:
        if heard.path in self.instead:
            return self.instead[heard.path]
        match heard.method, heard.path:
            case "GET", path if path == KEYS:
                return 200, ohttp.KEYS_CONTENT_TYPE, self.gateway.encode_key_configuration()
            case "GET", path if path == RELAYING:
                return (
                    200,
                    JSON,
                    to_json(RelayedStudies(to="http://127.0.0.1:1", studies=self.studies)),
                )
            case "POST", path if path == REQUESTS:
                plain, sealer = self.gateway.open(heard.body)
                self.requests.append(BinaryRequest.from_bytes(plain))
                return 200, OHTTP_RESPONSE, sealer.seal(self.answer(self.requests[-1]).to_bytes())
            case "POST", path if path.startswith(PACKETS):
                self.packets.append((path.removeprefix(f"{PACKETS}/"), heard.body))
                return 202, JSON, b""
        return problem("HOST-001", 404)


def problem(code: str, status: int) -> Reply:
    return status, PROBLEM, to_json(Problem(title="It is so.", status=status, code=code))


@dataclass
class Asked:
    """A connection request at a SOCKS port: user name, password and target."""

    name: bytes
    password: bytes
    kind: int
    host: str
    port: int


@dataclass
class Socks:
    """A SOCKS5 port (RFC 1928, 1929) that takes any name, connects to one server whatever it is
    asked for, and keeps what it was asked.

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
        raw = (
            await _sized(reader) if kind == 3 else await reader.readexactly(4 if kind == 1 else 16)
        )
        host = raw.decode() if kind == 3 else ".".join(map(str, raw))
        self.asked.append(
            Asked(name, password, kind, host, int.from_bytes(await reader.readexactly(2), "big"))
        )
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
    """A proxy in front of a coordinator, or a relay that forwards sealed requests."""

    url: str

    def reply(self, heard: Heard) -> Reply:
        path = GATEWAY if heard.path == REQUESTS else heard.path
        headers = {
            name: value
            for name, value in heard.headers.items()
            if name in ("content-type", "authorization", "shoal-ticket")
        }
        with httpx2.Client(trust_env=False) as http:
            answer = http.request(
                heard.method, self.url + path, headers=headers, content=heard.body
            )
        return answer.status_code, answer.headers.get("content-type", RAW), answer.content


@contextmanager
def standing(server: Server | Socks) -> Iterator[int]:
    """Serve on a free port in a thread; yield the port."""
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
