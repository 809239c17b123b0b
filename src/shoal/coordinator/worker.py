"""One worker of a coordinator: its store, its office, its HTTP service; in the process of ``shoal serve`` itself, or one of several.

``python -m shoal.coordinator.worker`` reads its settings as one line of JSON from standard input, which stays open for as long as the
process that started it lives. Workers share nothing but the store and the listening socket.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvloop

from shoal.clock import SystemClock
from shoal.coordinator.app import make_app
from shoal.coordinator.models import open_models
from shoal.coordinator.office import Office
from shoal.coordinator.settings import Settings
from shoal.coordinator.store.opening import open_store
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError, StoreError
from shoal.transport.connections import Server, plain_errors
from shoal.transport.dumps import forbid_core_dumps
from shoal.transport.listening import tls_context

RETRY_SECONDS = 1.0
"""How soon a worker looks again for a store that is away when it starts."""


async def serve(
    settings: Settings, listener: socket.socket, announce: Callable[[], object] = lambda: None, parent: int | None = None
) -> None:
    """Answer requests until SIGTERM or SIGINT, or until the parent has gone; then finish those under way.

    Parameters
    ----------
    settings, listener
        Where everything is, and the socket to accept from.
    announce
        Called when requests are answered, and signals end the service in good order.
    parent
        A file descriptor that ends when the parent does.
    """
    tls = tls_context(Path(settings.tls_cert), Path(settings.tls_key)) if settings.tls_cert and settings.tls_key else None
    entropy = SystemEntropy()
    clock = SystemClock()
    with open_store(settings.store) as store, open_models(settings.models, settings.store) as models:
        office = Office(store, models, clock, entropy, entropy.bytes(16).hex())
        server = Server(make_app(office), tls, announce, office.hang_up)
        if parent is not None:
            _follow(parent, server)
        await office.start()
        try:
            await server.serve([listener])
        finally:
            await office.stop()
            with suppress(StoreError):  # one that cannot be reached is tidied by the next
                store.tidy(round(clock.now().timestamp() * 1000))


def _follow(parent: int, server: Server) -> None:
    """End when the parent does: from then on nobody replaces this worker, and the next coordinator wants the port."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(parent)
        server.should_exit = True

    loop.add_reader(parent, gone)


def run(settings: Settings, listener: socket.socket, announce: Callable[[], object] = lambda: None, parent: int | None = None) -> None:
    """`serve` in an event loop of its own, with uvicorn's errors as plain lines and without core dumps."""
    forbid_core_dumps()
    with plain_errors(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, listener, announce, parent))


def run_patiently(settings: Settings, listener: socket.socket, parent: int) -> None:
    """`run` in a process of its own. A store that is away is waited for, for as long as the parent lives, since the parent has used it."""
    has_told = False
    while True:
        try:
            return run(settings, listener, parent=parent)
        except StoreError as error:
            if error.code != "STORE-001":
                raise
            if not has_told:
                print(error, file=sys.stderr)
            has_told = True
        is_parent_gone = bool(select.select([parent], [], [], RETRY_SECONDS)[0])
        if is_parent_gone:
            return None


def _first_line(source: int) -> bytes:
    """The first line, and not a byte more; empty where there is none."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(source, 1)):
        line += byte
    return line


def main() -> int:
    """The entry point of a worker that another process has started; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption at the terminal reaches the parent too, which then ends this one
    line = _first_line(0)
    if not line:
        return 0
    settings, listener = Settings.from_line(line)
    try:
        with socket.socket(fileno=listener) as inherited:
            run_patiently(settings, inherited, parent=0)
    except ShoalError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
