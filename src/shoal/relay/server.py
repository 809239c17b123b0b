"""Run a relay: its spool, the tracker, the batch releaser and the HTTP service.

``shoal relay`` calls `run_relay`. If tracking or releasing fails unexpectedly, the relay stops: a
relay that releases nothing must not accept packets.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError, StoreError
from shoal.relay.app import RelayHandlers, make_app
from shoal.relay.batches import BatchReleaser
from shoal.relay.client import CoordinatorClient
from shoal.relay.spool import Spool
from shoal.relay.studies import StudyTracker
from shoal.transport.connections import ConnectionSettings
from shoal.transport.server import Server, run_server

STEP_SECONDS = 1.0
"""Pause between two checks for due work."""

REWRITE_SECONDS, REWRITE_SHARE = 30.0, 20
"""Shortest pause between two rewrites of the spool, and shortest pause as a multiple of the time
that a rewrite takes.
"""


@dataclass(frozen=True)
class RelaySettings:
    """Settings of a relay.

    Parameters
    ----------
    to
        The coordinator's address.
    spool
        File of the spool.
    ca
        Certificates to trust instead of the system's.
    tls
        None for no TLS.
    connections
        Limits of the process.
    """

    to: str
    spool: Path
    ca: Path | None = None
    tls: ssl.SSLContext | None = None
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)


async def serve_relay(
    settings: RelaySettings,
    listener: socket.socket,
    on_ready: Callable[[list[str]], object] = lambda _: None,
) -> None:
    """Relay until SIGTERM or SIGINT; packets in the spool are sent after the next start.

    Parameters
    ----------
    on_ready
        Called when requests are answered, with the digests of the open studies.
    """
    clock = SystemClock()
    with (
        Spool(settings.spool, SystemEntropy()) as spool,
        ThreadPoolExecutor(1, "shoal-spool") as executor,
    ):
        async with CoordinatorClient(settings.to, settings.ca) as client:
            tracker = StudyTracker(client, spool, clock)
            releaser = BatchReleaser(tracker, client, spool, clock)
            poll, release = _ErrorReporter(tracker.poll), _ErrorReporter(releaser.run_due)
            await poll()
            # Without TLS all connections come from this machine or from a proxy in front.
            sees_senders = settings.tls is not None and settings.connections.sees_addresses
            handlers = RelayHandlers(
                tracker, client, spool, clock, executor, sees_senders=sees_senders
            )
            server = Server(
                make_app(handlers),
                settings.tls,
                lambda: on_ready(sorted(tracker.studies)),
                handlers.stop,
                settings.connections,
            )
            tasks = [
                asyncio.create_task(_poll_and_release(poll, release)),
                asyncio.create_task(_rewrite_periodically(spool)),
            ]
            for task in tasks:
                # A relay that releases nothing must not accept packets.
                task.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
            try:
                await server.serve([listener])
            finally:
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                with suppress(StoreError):
                    await asyncio.to_thread(spool.rewrite_sorted)
            for result in results:
                if isinstance(result, Exception):
                    raise result


class _ErrorReporter:
    """Run work and print its errors: each code once, until the work succeeds again."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._reported: set[str] = set()

    async def __call__(self) -> None:
        try:
            await self._work()
            self._reported.clear()
        except ShoalError as error:
            if error.code not in self._reported:
                print(f"relay: {error}", file=sys.stderr, flush=True)
            self._reported.add(error.code)


async def _poll_and_release(poll: _ErrorReporter, release: _ErrorReporter) -> None:
    """Poll and release for ever; stored batches leave even if the poll fails."""
    while True:
        await poll()
        await release()
        await asyncio.sleep(STEP_SECONDS)


async def _rewrite_periodically(spool: Spool) -> None:
    """Erase from the file, again and again, in which order packets came."""
    wait = REWRITE_SECONDS
    while True:
        await asyncio.sleep(wait)
        start = monotonic()
        with suppress(StoreError):
            await asyncio.to_thread(spool.rewrite_sorted)
        wait = max(REWRITE_SECONDS, REWRITE_SHARE * (monotonic() - start))


def run_relay(
    settings: RelaySettings,
    listener: socket.socket,
    on_ready: Callable[[list[str]], object] = lambda _: None,
) -> None:
    """Run `serve_relay` in a new event loop."""
    run_server(serve_relay(settings, listener, on_ready))
