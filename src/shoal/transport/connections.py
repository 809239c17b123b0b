"""HTTP connections with limits on time, number and memory, for `shoal.transport.server`.

uvicorn ends connections that are silent between two requests. `BoundedProtocol` also ends those
that never begin one, send headers or bodies slowly, or do not read the response. Header size is
limited.

Strangers share the memory and the file descriptors of a process with participants:

bytes in flight
    `shoal.transport.bodies` counts the bytes of request bodies, also those that uvicorn has
    received and the handler has not read yet.
connections
    `ConnectionTable` counts connections by address, in memory only, also those whose TLS handshake
    has not ended (`Acceptor`). If more than half of the capacity is used, an address gets no more
    than its share. If nearly all of it is used, idle connections are closed first, beginning with
    those of the address that has most. A line on standard error says so, once a minute.

A change must keep: all of this runs in the thread of the event loop, and no address is written.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shoal.messages.codec import MAX_BYTES
from shoal.transport.bodies import BODY_KEY, MAX_BYTES_IN_FLIGHT, BytesInFlight, RequestBody

READ_SECONDS = 30.0
"""Longest time of a request, from its first byte (or the connection) to the end of its body."""

WRITE_SECONDS = 30.0
"""Longest wait for a client that does not read the response."""

IDLE_SECONDS = 65
"""Longest pause between two requests; longer than a participant's, so that clients close first."""

HANDSHAKE_SECONDS = 10.0
"""Longest time until a TLS handshake has ended, and from then to the first byte of a request."""

MAX_CONNECTIONS = 8_192
"""Most connections of one process; fewer if it may have few file descriptors."""

MAX_HEAD_BYTES = 1 << 16
MAX_REQUEST_BYTES = 2 * MAX_BYTES
"""Limit for one request, chunks and trailers included; the limits of routes are smaller."""

_TOO_SLOW, _TOO_LARGE, _TOO_MUCH_HEAD, _OVERLOADED = (
    b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % status
    for status in (
        b"408 Request Timeout",
        b"413 Content Too Large",
        b"431 Request Header Fields Too Large",
        b"503 Service Unavailable\r\nretry-after: 1",
    )
)

_DESCRIPTORS, _RESERVED_DESCRIPTORS = 1 << 16, 256
"""File descriptors that a process asks for, and those for other uses than connections."""

_ACCEPTED_AT_ONCE = 64
_ADDRESS_PART, _NEAR_LIMIT, _CLOSED_AT_ONCE = 8, 0.9, 32
"""The share of an address is this part of the capacity. Above this part of the capacity, idle
connections are closed, this number at a time.
"""

_WARNING_SECONDS = 60.0
_INTERFACE_BITS = 64
"""Last bits of an IPv6 address: a subscriber has all addresses that differ only in them."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Limits of a process.

    Parameters
    ----------
    max_body_bytes
        Limit for the bytes of all request bodies in memory.
    sees_addresses
        Whether connections come from the addresses of the senders; not behind a proxy.
    """

    max_body_bytes: int = MAX_BYTES_IN_FLIGHT
    sees_addresses: bool = True


def raise_descriptor_limit() -> int:
    """Raise the soft limit of file descriptors; return how many connections they allow.

    A connection may need two descriptors: a relay forwards requests.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, (soft - _RESERVED_DESCRIPTORS) // 2))


def normalize_sender(address: str) -> str:
    """Return the sender of an address: for IPv6, the network of one subscriber.

    Examples
    --------
    >>> (
    ...     normalize_sender("192.0.2.7"),
    ...     normalize_sender("2001:db8:1:2:3:4:5:6"),
    ...     normalize_sender("::ffff:192.0.2.7"),
    ...     normalize_sender("a socket"),
    ... )
    ('192.0.2.7', '2001:db8:1:2::', '192.0.2.7', 'a socket')
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> _INTERFACE_BITS << _INTERFACE_BITS))


class ConnectionTable:
    """The open connections of a process, by address.

    Parameters
    ----------
    capacity
        Most connections.
    now
        Returns the time of the event loop.
    """

    def __init__(
        self, settings: ConnectionSettings, capacity: int, now: Callable[[], float]
    ) -> None:
        self.capacity, self._sees_addresses, self._now = capacity, settings.sees_addresses, now
        self.bytes = BytesInFlight(settings.max_body_bytes, now, self.warn)
        self._share = max(1, capacity // _ADDRESS_PART)
        self._counts: Counter[str] = Counter()
        self._n_open = 0
        self._idle: dict[str, dict[BoundedProtocol, None]] = {}
        self._next_warning = 0.0

    def admit(self, address: str) -> bool:
        """Count a new connection; return False if there is no room for it.

        Idle connections are closed to make room.
        """
        if self._n_open >= _NEAR_LIMIT * self.capacity:
            self.warn(
                f"{self._n_open:,} connections are open; the limit of this process is "
                f"{self.capacity:,}. Idle ones are closed first"
            )
            self._close_idle(max(self._idle, key=lambda one: len(self._idle[one]), default=""))
        is_over_share = (
            self._sees_addresses
            and 2 * self._n_open > self.capacity
            and self._counts[address] >= self._share
        )
        if is_over_share and not self._close_idle(address, 1):
            return False
        if self._n_open >= self.capacity:
            return False
        self._n_open += 1
        self._counts[address] += 1
        return True

    def forget(self, address: str) -> None:
        """Subtract a connection that has ended."""
        self._n_open -= 1
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def set_idle(self, connection: BoundedProtocol, *, is_idle: bool) -> None:
        """Record whether a connection waits for a request."""
        if is_idle:
            self._idle.setdefault(connection.address, {})[connection] = None
        elif (some := self._idle.get(connection.address)) is not None:
            some.pop(connection, None)
            if not some:
                del self._idle[connection.address]

    def warn(self, line: str) -> None:
        """Print a line on standard error, at most once a minute."""
        if self._now() >= self._next_warning:
            self._next_warning = self._now() + _WARNING_SECONDS
            print(f"shoal: {line}.", file=sys.stderr, flush=True)

    def _close_idle(self, address: str, most: int = _CLOSED_AT_ONCE) -> bool:
        """Close the idle connections of an address that have waited longest."""
        found = list(self._idle.get(address, ()))[:most]
        for connection in found:
            self.set_idle(connection, is_idle=False)
            connection.transport.close()
        return bool(found)


def send_whole(send: Send, head: bytes, *body: bytes | memoryview) -> bool:
    """Send a response with one write; return False if nothing was written.

    uvicorn makes two writes, and a write takes the same time as all other work for a small
    response.

    Parameters
    ----------
    send
        The callable that an ASGI application gets.
    head
        Status line and headers, with the length of the body, without the empty line after them.
    body
        Parts of the body, which are not copied.

    Returns
    -------
    bool
        False if the response must be sent the usual way: a middleware is in between, the
        connection is about to close, or the client does not read.
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
    """uvicorn's connection with the times since when it waits, and the bytes of the request.

    Parameters
    ----------
    table
        Has counted the connection.
    """

    reading_since: float | None = None
    writing_since: float | None = None
    n_bytes = 0
    is_in_body = False
    is_silent = True

    def __init__(self, table: ConnectionTable, **given: Any) -> None:
        super().__init__(**given)
        self.table = table
        self.address = ""
        self._is_counted, self._is_open = True, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_open = True
        self.reading_since = self.loop.time()
        self.table.set_idle(self, is_idle=True)

    def forget(self) -> None:
        """Subtract the connection, once."""
        if self._is_counted:
            self._is_counted = False
            self.table.forget(self.address)

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        if not self._is_open:
            return  # the handshake failed
        self.table.set_idle(self, is_idle=False)
        for cycle, _ in self.pipeline:
            # Their handlers never begin.
            _close_body(cycle)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_silent:
            self.is_silent = False
            self.table.set_idle(self, is_idle=False)
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

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete or cycle.disconnected:
            return
        super().on_body(body)
        scope = cast("dict[str, Any]", cycle.scope)
        counted: RequestBody | None = scope.get(BODY_KEY)
        if counted is None:
            counted = scope[BODY_KEY] = self.table.bytes.open(lambda: self._refuse_body(cycle))
        self.table.bytes.add(counted, len(body))

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.reading_since, self.is_in_body = None, False
        counted: RequestBody | None = cast("dict[str, Any]", self.cycle.scope).get(BODY_KEY)
        if counted is not None:
            self.table.bytes.complete(counted)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.reading_since is None:
            self.is_silent = True
            self.table.set_idle(self, is_idle=True)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writing_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.writing_since = None

    def close_if_slow(self, now: float) -> None:
        """Close the connection if it waits for too long; abort it if closing takes too long."""
        is_stuck = self.writing_since is not None and now - self.writing_since > WRITE_SECONDS
        if is_stuck:
            self.transport.abort()
        elif self.transport.is_closing():
            self.writing_since = self.writing_since or now
        elif self.reading_since is not None and self.is_in_body and self.flow.read_paused:
            # The handler has not read what was received: the client is not slow.
            self.reading_since = now
        elif self.reading_since is not None and now - self.reading_since > (
            HANDSHAKE_SECONDS if self.is_silent else READ_SECONDS
        ):
            self._refuse(_TOO_SLOW)
        elif (
            self.reading_since is None
            and self.timeout_keep_alive_task is None
            and self.cycle.response_complete
        ):
            # Empty lines end uvicorn's keep-alive timeout without beginning a request.
            self.reading_since = now

    def _refuse(self, response: bytes) -> None:
        # Until the headers of this request are complete, the cycle is that of the previous one.
        is_answered = self.cycle is not None and self.cycle.response_started
        if not is_answered or (self.cycle.response_complete and not self.is_in_body):
            self.transport.write(response)
        self.transport.close()

    def _refuse_body(self, cycle: RequestResponseCycle) -> None:
        """Answer 503, free the bytes of a body, and let its handler end."""
        cycle.body = bytearray()
        cycle.disconnected = True
        cycle.message_event.set()
        if not cycle.response_started:
            self.transport.write(_OVERLOADED)
        self.transport.close()


def _close_body(cycle: RequestResponseCycle) -> None:
    body: RequestBody | None = cast("dict[str, Any]", cycle.scope).get(BODY_KEY)
    if body is not None:
        body.in_flight.close(body)


class Acceptor:
    """Accept the connections of a listening socket.

    asyncio's servers show a connection only after its TLS handshake. Connections are accepted here,
    so that each counts from its beginning.

    Parameters
    ----------
    make_protocol
        Makes the protocol of a connection.
    tls
        None for no TLS.
    """

    def __init__(
        self,
        listener: socket.socket,
        table: ConnectionTable,
        make_protocol: Callable[[], BoundedProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listener, self._table, self._tls = listener, table, tls
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept connections from now on."""
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept_waiting)

    def stop(self) -> None:
        """Accept no more connections, and end those whose handshake has not ended."""
        self._loop.remove_reader(self._listener)
        for task in self._handshakes:
            task.cancel()

    def _accept_waiting(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._table.warn(f"Connections cannot be accepted: {error.strerror}")
                return
            address = normalize_sender(str(peer[0])) if isinstance(peer, tuple) else ""
            if not self._table.admit(address):
                self._refuse(connection)
                continue
            task = self._loop.create_task(self._open(connection, address))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _refuse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)
            if self._tls is None:
                connection.send(_OVERLOADED)

    async def _open(self, connection: socket.socket, address: str) -> None:
        protocol = self._make_protocol()
        protocol.address = address
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_SECONDS,
            )
        except BaseException as error:
            protocol.forget()
            connection.close()
            if not isinstance(error, OSError):
                raise


def close_slow_connections(connections: Iterable[object], now: float) -> None:
    """Close all connections that wait for too long."""
    for connection in list(connections):
        if isinstance(connection, BoundedProtocol):
            connection.close_if_slow(now)
