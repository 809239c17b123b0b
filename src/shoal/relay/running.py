"""A relay in a process of its own: its spool, what it follows and releases, and its HTTP service."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import uvloop

from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError, StoreError
from shoal.relay.app import Desk, make_app
from shoal.relay.following import Following
from shoal.relay.releasing import Releasing
from shoal.relay.remote import Remote
from shoal.relay.spool import Spool
from shoal.transport.connections import Server, plain_errors
from shoal.transport.dumps import forbid_core_dumps

STEP_SECONDS = 1.0
"""How often a relay sees what is due."""

TIDY_SECONDS, TIDY_SHARE = 30.0, 20
"""How often the spool is written anew at most, and how many times as long as that takes it is then left alone at least."""


@dataclass(frozen=True)
class Settings:
    """What a relay is told.

    Parameters
    ----------
    to, ca
        The coordinator's address, and certificates to trust in place of the system's.
    spool
        The file of the spool.
    tls
        How it speaks TLS; None for not.
    """

    to: str
    spool: Path
    ca: Path | None = None
    tls: ssl.SSLContext | None = None


async def serve(settings: Settings, listener: socket.socket, announce: Callable[[list[str]], object] = lambda _: None) -> None:
    """Relay until SIGTERM or SIGINT. What is in the spool then goes on at the next start.

    Parameters
    ----------
    settings, listener
        Where everything is, and the socket to accept from.
    announce
        Called when requests are answered, with the digests of the studies that are served.
    """
    clock = SystemClock()
    with Spool(settings.spool, SystemEntropy()) as spool, ThreadPoolExecutor(1, "shoal-spool") as executor:
        async with Remote(settings.to, settings.ca) as remote:
            following = Following(remote, spool, clock)
            releasing = Releasing(following, remote, spool, clock)
            look, release = _Told(following.look), _Told(releasing.step)
            await look()
            # Without TLS everything comes from this machine, or from whatever stands in front and speaks it.
            desk = Desk(following, remote, spool, clock, executor, sees_senders=settings.tls is not None)
            server = Server(make_app(desk), settings.tls, lambda: announce(sorted(following.served)), desk.stop)
            tasks = [asyncio.create_task(_step(look, release)), asyncio.create_task(_tidy(spool))]
            for task in tasks:
                # A relay that releases nothing any more should not go on to take packets.
                task.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
            try:
                await server.serve([listener])
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                with suppress(StoreError):
                    await asyncio.to_thread(spool.tidy)
            for fault in ended:
                if isinstance(fault, Exception):
                    raise fault


class _Told:
    """Work of which the operator is told what goes wrong: once of each kind of error, until all is well again."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._told: set[str] = set()

    async def __call__(self) -> None:
        try:
            await self._work()
            self._told.clear()
        except ShoalError as error:
            if error.code not in self._told:
                print(f"relay: {error}", file=sys.stderr, flush=True)
            self._told.add(error.code)


async def _step(look: _Told, release: _Told) -> None:
    """Follow and release for ever. What is noted on the disk leaves whether or not the coordinator's list can be had."""
    while True:
        await look()
        await release()
        await asyncio.sleep(STEP_SECONDS)


async def _tidy(spool: Spool) -> None:
    """Let the file forget in which order packets came, again and again."""
    wait = TIDY_SECONDS
    while True:
        await asyncio.sleep(wait)
        began = monotonic()
        with suppress(StoreError):
            await asyncio.to_thread(spool.tidy)
        wait = max(TIDY_SECONDS, TIDY_SHARE * (monotonic() - began))


def run(settings: Settings, listener: socket.socket, announce: Callable[[list[str]], object] = lambda _: None) -> None:
    """`serve` in an event loop of its own, with uvicorn's errors as plain lines and without core dumps."""
    forbid_core_dumps()
    with plain_errors(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, listener, announce))
