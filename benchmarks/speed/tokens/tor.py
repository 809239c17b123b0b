"""Requests over a private Tor network on this machine, like a participant's packets.

Each request has a separate circuit, or all share one. All relays share this machine's processors,
so the number of requests a second is far below that of a client of the public network, and the
processor time of a request is that of the client and of all three relays together.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2

from benchmarks.measure import Measure
from shoal.entropy import SystemEntropy
from shoal.participant.network.tor import TorPath
from tools.tornet import HOST, TorNetwork, missing, tor_network

PACKET_BYTES = 2048
N_REQUESTS, N_AT_ONCE = 300, 16
_TICKS = os.sysconf("SC_CLK_TCK")


def measures() -> Iterator[Measure]:
    """Yield requests a second and processor time of one, with and without isolation."""
    if reason := missing():
        print(f"tokens: nothing over Tor, as {reason}", file=sys.stderr)
        return
    with tor_network() as network:
        for name, is_apart in (("shared_circuit", False), ("isolated", True)):
            per_second, cpu_ms = asyncio.run(_load(network, is_apart=is_apart))
            yield Measure("tokens", f"tor_requests_per_s_{name}", per_second, "1/s", "higher")
            yield Measure(
                "tokens",
                "tor_cpu_ms_per_packet" if is_apart else f"tor_cpu_ms_{name}",
                cpu_ms,
                "ms",
                "lower",
            )


async def _load(network: TorNetwork, *, is_apart: bool) -> tuple[float, float]:
    """Return requests a second, and milliseconds of all Tor processes for each."""
    async with await asyncio.get_running_loop().create_server(_Accept, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        via = TorPath(f"http://{HOST}:{port}", SystemEntropy(), host=HOST, port=network.socks_port)
        carrier, gate = via.make_transport(is_isolated=is_apart), asyncio.Semaphore(N_AT_ONCE)

        async def one() -> None:
            async with gate:
                request = httpx2.Request(
                    "POST", f"http://{HOST}:{port}/", content=bytes(PACKET_BYTES)
                )
                response = await carrier.handle_async_request(request)
                await response.aread()
                await response.aclose()
                if response.status_code != 202:
                    raise RuntimeError(
                        f"a request over Tor was answered with {response.status_code}"
                    )

        await one()
        began, cpu = time.perf_counter(), _cpu_seconds(network.pids)
        await asyncio.gather(*(one() for _ in range(N_REQUESTS)))
        took, cpu = time.perf_counter() - began, _cpu_seconds(network.pids) - cpu
        await carrier.aclose()
    return N_REQUESTS / took, 1000 * cpu / N_REQUESTS


class _Accept(asyncio.Protocol):
    """Server that answers every request with 202."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        _, end, body = self._buffer.partition(b"\r\n\r\n")
        if end and len(body) >= PACKET_BYTES:
            self._buffer = body[PACKET_BYTES:]
            self._transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")


def _cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor time of some processes so far."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(one[11]) + int(one[12]) for one in fields) / _TICKS
