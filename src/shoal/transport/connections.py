"""uvicorn as coordinators and relays run it: no log of requests, and no connection that is held for ever by one who is slow.

uvicorn ends a connection that is silent between two requests. It would wait for ever for one that never begins, for headers and bodies
that trickle, and for one who does not read the answer: here these end too, by one look a second at all connections. Headers are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shoal.messages.codec import MAX_BYTES
from shoal.transport.listening import BACKLOG

READ_SECONDS = 30.0
"""How long a request may take to come, from its first byte (or the connection) to the last of its body."""

WRITE_SECONDS = 30.0
"""How long an answer may wait for one who does not read it."""

IDLE_SECONDS = 65
"""How long a connection is kept between two requests: longer than participants keep theirs, so that they close first."""

STOP_SECONDS = 8
"""How long requests under way may take to end after the coordinator was told to stop."""

MAX_CONNECTIONS = 8_192
"""Of one worker; further ones are answered with 503."""

MAX_HEAD_BYTES = 1 << 16
MAX_REQUEST_BYTES = 2 * MAX_BYTES
"""Of all that comes for one request, chunks and trailers included. Routes have limits of their own, which are smaller."""

_TOO_SLOW, _TOO_LARGE, _TOO_MUCH_HEAD = (
    b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % status
    for status in (b"408 Request Timeout", b"413 Content Too Large", b"431 Request Header Fields Too Large")
)


def sent_whole(send: Send, head: bytes, *body: bytes | memoryview) -> bool:
    """Answer a request with one write. uvicorn makes two of it, and a write costs as much as all the rest of a small answer.

    Parameters
    ----------
    send
        As an ASGI application is given it.
    head, body
        The status line and the headers, which say how long the body is, without the empty line after them; and the body, in any number
        of parts, which are not copied.

    Returns
    -------
    bool
        False where nothing was written, and the answer is to be sent as any other: something is between the application and uvicorn, the
        connection is about to close, or the other side does not read.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.response_started:
        return False
    if cycle.disconnected or not cycle.keep_alive or cycle.flow.write_paused:
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    start = b"".join([head, *(b"%b: %b\r\n" % header for header in cycle.default_headers), b"\r\n"])
    if body:
        cycle.transport.writelines((start, *body))
    else:
        cycle.transport.write(start)
    cycle.message_event.set()
    cycle.on_response()
    return True


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's connection, which also knows since when it waits for the other side, and how much of a request has come."""

    reading_since: float | None = None
    writing_since: float | None = None
    n_bytes = 0
    is_in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.reading_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.reading_since is not None:
            self.n_bytes += len(data)
            if self.n_bytes > (MAX_REQUEST_BYTES if self.is_in_body else MAX_HEAD_BYTES):
                self._refuse(_TOO_LARGE if self.is_in_body else _TOO_MUCH_HEAD)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.reading_since, self.n_bytes, self.is_in_body = self.loop.time(), 0, False

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.is_in_body = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.reading_since, self.is_in_body = None, False

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writing_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.writing_since = None

    def end_if_slow(self, now: float) -> None:
        """Close the connection if it waits for too long, and cut it off if it does not even close."""
        is_stuck = self.writing_since is not None and now - self.writing_since > WRITE_SECONDS
        if is_stuck:
            self.transport.abort()
        elif self.transport.is_closing():
            self.writing_since = self.writing_since or now
        elif self.reading_since is not None and now - self.reading_since > READ_SECONDS:
            self._refuse(_TOO_SLOW)
        elif self.reading_since is None and self.timeout_keep_alive_task is None and self.cycle.response_complete:
            self.reading_since = now  # empty lines end uvicorn's own wait, and begin nothing

    def _refuse(self, answer: bytes) -> None:
        # The cycle is that of the request before, as long as this one's headers are not complete.
        is_answered = self.cycle is not None and self.cycle.response_started
        if not is_answered or (self.cycle.response_complete and not self.is_in_body):
            self.transport.write(answer)
        self.transport.close()


def end_slow(connections: Iterable[object], now: float) -> None:
    """One look at all connections."""
    for connection in list(connections):
        if isinstance(connection, BoundedProtocol):
            connection.end_if_slow(now)


class _Plain(logging.Handler):
    """Errors on standard error, each in one line. The text of an exception may hold what a participant sent: only its type is told."""

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        with suppress(OSError, ValueError):  # nobody reads them any more
            print(f"shoal: {record.getMessage().splitlines()[0]}{': ' + failure if failure else ''}", file=sys.stderr)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Have errors of uvicorn and of the event loop said in plain lines, and nowhere else."""
    loggers, handler = [logging.getLogger(name) for name in ("uvicorn", "asyncio")], _Plain(logging.ERROR)
    propagates = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, was in zip(loggers, propagates, strict=True):
            logger.removeHandler(handler)
            logger.propagate = was


class Server(uvicorn.Server):
    """uvicorn without a log of requests: it ends slow connections, and after a signal it returns.

    Parameters
    ----------
    app
        An ASGI application.
    tls
        As `tls_context` makes it; None for none.
    announce
        Called when it answers, and a signal ends it in good order.
    on_stop
        Called when it is to stop, so that those who wait for something are answered now.
    """

    def __init__(
        self,
        app: Any,
        tls: ssl.SSLContext | None = None,
        announce: Callable[[], object] = lambda: None,
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        self._announce = announce
        self._on_stop = on_stop
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            # Strangers decide how many warnings there are.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Note signals, and do not raise them again when it has stopped, as uvicorn would."""
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            end_slow(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)
