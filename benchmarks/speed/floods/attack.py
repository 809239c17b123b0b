"""One attacking process; `benchmarks.speed.floods` starts it with a name and a file.

The file has the target and the prepared bytes (`Target`). The process runs until its standard input
is closed. All of its connections come from one address, 127.0.0.2, which is not that of honest
participants. It stays on the loopback interface.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import cbor2

from shoal.transport.api import CBOR, GATEWAY, JSON, OHTTP_REQUEST, study_route

ADDRESS = "127.0.0.2"
N_BODIES, BODY_BYTES = 60, 16 << 20
N_BATCHES, N_READERS, N_REPLAYS = 40, 32, 32
N_CONNECTIONS = 8_200
_CHUNK = bytes(1 << 16)


@dataclass(frozen=True)
class Target:
    """What is attacked.

    Parameters
    ----------
    batches
        Encoded batches: one bad packet many times, and one that is sealed in many ways.
    registration, signature
        The body and the header of a registration that is rejected.
    n_connections
        Most connections; None for those of the attack.
    """

    port: int
    study: str
    batches: tuple[bytes, ...]
    registration: bytes
    signature: str
    n_connections: int | None = None

    def save(self, path: Path) -> None:
        path.write_bytes(cbor2.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Target:
        plain = cbor2.loads(path.read_bytes())
        return cls(**{**plain, "batches": tuple(plain["batches"])})


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(target: Target) -> Connection:
    return await asyncio.open_connection("127.0.0.1", target.port, local_addr=(ADDRESS, 0))


def make_head(method: str, path: str, n_bytes: int, *headers: str) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "host: a", f"content-length: {n_bytes}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def read_response(reader: asyncio.StreamReader) -> None:
    """Read one response with a stated length, and drop it."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))


async def send_unfinished_body(target: Target, number: int) -> None:
    """B1: send a large body without its last byte, and wait."""
    path, kind = (
        (GATEWAY, OHTTP_REQUEST) if number % 2 else (study_route(target.study, "batches"), CBOR)
    )
    reader, writer = await connect(target)
    try:
        writer.write(make_head("POST", path, BODY_BYTES, f"content-type: {kind}"))
        # The beginning of a batch with one very long packet.
        writer.write(b"\xa1\x67packets\x81\x5a\x7f\xff\xff\xff")
        for _ in range((BODY_BYTES - 100) // len(_CHUNK)):
            writer.write(_CHUNK)
            await writer.drain()
        await reader.read()
    finally:
        writer.close()


async def send_batches(target: Target, number: int) -> None:
    """B2: send batches of packets with bad tokens."""
    reader, writer = await connect(target)
    try:
        body = target.batches[number % len(target.batches)]
        path = study_route(target.study, "batches")
        writer.write(make_head("POST", path, len(body), f"content-type: {CBOR}"))
        writer.write(body)
        await writer.drain()
        await read_response(reader)
    finally:
        writer.close()


async def read_members(target: Target, _: int) -> None:
    """B3: request the list of members after random names."""
    reader, writer = await connect(target)
    try:
        for _ in range(100):
            path = f"{study_route(target.study, 'members')}?after={random.randbytes(32).hex()}"
            writer.write(make_head("GET", path, 0))
            await read_response(reader)
    finally:
        writer.close()


async def hold_connection(target: Target, number: int) -> None:
    """B4: open a connection and send nothing, or half a request."""
    reader, writer = await connect(target)
    try:
        if number % 2:
            writer.write(b"POST /v1/gateway HTTP/1.1\r\n")
        await reader.read()
    finally:
        writer.close()


async def replay_registration(target: Target, _: int) -> None:
    """B5: send one rejected registration again and again."""
    reader, writer = await connect(target)
    try:
        path, body = study_route(target.study, "enrolments"), target.registration
        headers = (f"authorization: {target.signature}", f"content-type: {JSON}")
        for _ in range(100):
            writer.write(make_head("POST", path, len(body), *headers) + body)
            await read_response(reader)
    finally:
        writer.close()


ATTACKS: dict[str, tuple[Callable[[Target, int], Awaitable[None]], int]] = {
    "bodies": (send_unfinished_body, N_BODIES),
    "batches": (send_batches, N_BATCHES),
    "lists": (read_members, N_READERS),
    "connections": (hold_connection, N_CONNECTIONS),
    "registrations": (replay_registration, N_REPLAYS),
}
"""Floods by name: what each connection does, again and again, and how many there are."""


async def run(name: str, target: Target) -> None:
    """Attack until standard input is closed."""
    attack, n = ATTACKS[name]

    async def repeat(number: int) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await attack(target, number)
            await asyncio.sleep(0.01)

    n = min(n, target.n_connections or n)
    tasks = [asyncio.create_task(repeat(number)) for number in range(n)]
    await asyncio.to_thread(os.read, 0, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(run(sys.argv[1], Target.load(Path(sys.argv[2]))))
