"""A server of bytes in a thread, and raw connections to it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from shoal.transport.connections import ConnectionSettings, ConnectionTable
from shoal.transport.server import Server, format_url, open_listener


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", scope["path"] != "/early"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    if scope["path"] == "/broken":
        raise ValueError("what a participant sent")
    large = b"x" * (1 << 24 if scope["path"] == "/large" else 0)
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(body + large))],
        }
    )
    await send({"type": "http.response.body", "body": body + large})


@contextmanager
def serving(
    tls: ssl.SSLContext | None = None,
    app: Any = echo,
    settings: ConnectionSettings | None = None,
    *,
    capacity: int | None = None,
) -> Iterator[tuple[Server, str]]:
    """A service of its own thread; it ends when the caller is done."""
    listener, ready = open_listener("127.0.0.1", 0), threading.Event()
    server = Server(app, tls, ready.set, settings=settings)
    if capacity is not None:
        server.table = ConnectionTable(settings or ConnectionSettings(), capacity, time.monotonic)
    url = format_url("127.0.0.1", listener, has_tls=tls is not None)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            # Signals are for the main thread alone.
            runner.run(server._serve([listener]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        yield server, url
    finally:
        server.should_exit = True
        thread.join()


def connected(url: str) -> socket.socket:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side ends."""
    said = b""
    try:
        while more := connection.recv(1 << 16):
            said += more
    except ConnectionResetError:
        pass
    return said
