"""One worker process and its settings.

A worker has its own store connection, `CoordinatorService` and HTTP server. It runs in the process
of ``shoal serve``, or in one of several processes that `shoal.coordinator.supervisor` starts.

``python -m shoal.coordinator.worker`` reads its settings as one line of JSON from standard input.
The parent keeps this pipe open while it lives, and a worker ends when the pipe is closed. Workers
share nothing but the store and the listening socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

from shoal.clock import SystemClock, to_milliseconds
from shoal.coordinator.app import make_app
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store import open_store
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError, StoreError
from shoal.transport.bodies import MAX_BYTES_IN_FLIGHT
from shoal.transport.connections import ConnectionSettings
from shoal.transport.server import Server, load_server_tls_context, run_server


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a worker, from the process that starts it.

    Parameters
    ----------
    store, models
        URLs, which may contain passwords; ``models`` is None if DDML instances are in the store.
    tls_cert, tls_key
        Files, or None for no TLS.
    max_body_bytes, is_behind_proxy
        See `shoal.transport.connections.ConnectionSettings`.

    Examples
    --------
    >>> WorkerSettings.from_line(WorkerSettings("sqlite:c.db", is_behind_proxy=True).to_line(7))[1]
    7
    """

    store: str = field(repr=False)
    models: str | None = field(default=None, repr=False)
    tls_cert: str | None = None
    tls_key: str | None = None
    max_body_bytes: int = MAX_BYTES_IN_FLIGHT
    is_behind_proxy: bool = False

    def to_line(self, listener: int) -> bytes:
        """Encode the settings as one line, with the number of the listening socket."""
        return json.dumps({**asdict(self), "listener": listener}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> tuple[WorkerSettings, int]:
        """Decode a line of `to_line`."""
        content = json.loads(line)
        listener: int = content.pop("listener")
        return cls(**content), listener


TIDY_SECONDS = 5.0
"""Longest rewrite of the store when a worker stops; the next worker completes it."""

RETRY_SECONDS = 1.0
"""Pause between attempts to open a store that is unavailable when a worker starts."""


async def serve(
    settings: WorkerSettings,
    listener: socket.socket,
    on_ready: Callable[[], object] = lambda: None,
    parent: int | None = None,
) -> None:
    """Answer requests until SIGTERM, SIGINT or the end of the parent; then finish open requests.

    Parameters
    ----------
    on_ready
        Called when requests are answered and signals end the service in good order.
    parent
        A file descriptor that is closed when the parent ends.
    """
    tls = (
        load_server_tls_context(Path(settings.tls_cert), Path(settings.tls_key))
        if settings.tls_cert and settings.tls_key
        else None
    )
    entropy = SystemEntropy()
    clock = SystemClock()
    with (
        open_store(settings.store) as store,
        open_instance_store(settings.models, settings.store) as instances,
    ):
        service = CoordinatorService(store, instances, clock, entropy, entropy.bytes(16).hex())
        limits = ConnectionSettings(
            settings.max_body_bytes, sees_addresses=not settings.is_behind_proxy
        )
        server = Server(make_app(service), tls, on_ready, service.mailbox.notifier.close, limits)
        if parent is not None:
            _stop_with_parent(parent, server)
        await service.start()
        try:
            await server.serve([listener])
        finally:
            await service.stop()
            with suppress(StoreError):  # the next worker tidies a store that cannot be reached
                until = monotonic() + TIDY_SECONDS
                store.tidy(to_milliseconds(clock.now()), lambda _: monotonic() > until)


def _stop_with_parent(parent: int, server: Server) -> None:
    """Stop the server when the parent ends.

    Without a parent no process would replace this worker, and the next coordinator needs the port.
    """
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(parent)
        server.should_exit = True

    loop.add_reader(parent, stop)


def run(
    settings: WorkerSettings,
    listener: socket.socket,
    on_ready: Callable[[], object] = lambda: None,
    parent: int | None = None,
) -> None:
    """Run `serve` in a new event loop."""
    run_server(serve(settings, listener, on_ready, parent))


def run_with_retries(settings: WorkerSettings, listener: socket.socket, parent: int) -> None:
    """Run `serve`; while the parent lives, retry if the store is unavailable.

    The parent has used the store before, so its URL is right.
    """
    is_reported = False
    while True:
        try:
            return run(settings, listener, parent=parent)
        except StoreError as error:
            if error.code != "STORE-001":
                raise
            if not is_reported:
                print(error, file=sys.stderr)
            is_reported = True
        is_parent_gone = bool(select.select([parent], [], [], RETRY_SECONDS)[0])
        if is_parent_gone:
            return None


def _read_first_line(source: int) -> bytes:
    """Read the first line and no further byte; return empty bytes if there is none."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(source, 1)):
        line += byte
    return line


def main() -> int:
    """Run a worker that another process has started; return its exit code."""
    # An interrupt at the terminal also reaches the parent, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = _read_first_line(0)
    if not line:
        return 0
    settings, listener = WorkerSettings.from_line(line)
    try:
        with socket.socket(fileno=listener) as inherited:
            run_with_retries(settings, inherited, parent=0)
    except ShoalError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
