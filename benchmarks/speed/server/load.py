"""A load generator: open connections that send a request after each answer.

It is one thread that waits for all connections. Bodies are sent without a copy and answers are read
into one buffer for each connection, so that it needs little processor time; `Load.busy` is its
share. If that is near 1, the figures are limited by the load generator and not by the coordinator.
The number of requests in flight is the number of connections: latencies are those of a coordinator
that is never idle.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

N_CONNECTIONS = 16

Body = bytes | memoryview
Answer = tuple[int, memoryview]
"""Status and body; the body is valid until the next request is sent."""

Talk = Generator[Sequence[Body], Answer, None]
"""Requests of one connection, each as parts that are sent one after the other."""

_PATIENCE_SECONDS = 60.0


@dataclass
class Tally:
    """Number of requests, first and last time, and durations."""

    until: float
    seconds: list[float] = field(default_factory=list)
    ended: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether another request may begin."""
        return time.perf_counter() < self.until

    def note(self, began: float) -> None:
        self.ended = time.perf_counter()
        self.seconds.append(self.ended - began)

    def quantile(self, q: float) -> float:
        return float(np.quantile(self.seconds, q))


@dataclass(frozen=True)
class Load:
    """A load in figures: number, rate, quantiles of durations, and the generator's share.

    Parameters
    ----------
    n, rate
        In all, and a second.
    p50, p99
        Milliseconds.
    busy
        Processor seconds of the loader a second.
    """

    n: int
    rate: float
    p50: float
    p99: float
    busy: float


class _Connection:
    """Connection that sends the requests of its talk and passes it the answers."""

    def __init__(self, port: int, talk: Talk, largest: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._talk = talk
        self._buffer = bytearray(largest + 4096)
        self._view = memoryview(self._buffer)
        self._n_read, self._n_all, self._n_head = 0, 0, 0
        self._parts: list[Body] = []

    def begin(self) -> bool:
        """Send the first request; return False if there is none."""
        return self._next(lambda: next(self._talk))

    @property
    def is_sending(self) -> bool:
        return bool(self._parts)

    def write(self) -> None:
        """Send until the kernel accepts no more."""
        try:
            n = self.socket.sendmsg(self._parts)
        except BlockingIOError:
            return
        while self._parts and n >= len(self._parts[0]):
            n -= len(self._parts.pop(0))
        if n:
            self._parts[0] = memoryview(self._parts[0])[n:]

    def read(self) -> bool:
        """Read on; return False after the last answer."""
        n = self.socket.recv_into(self._view[self._n_read :])
        if n == 0:
            raise RuntimeError("the coordinator has closed a connection of the loader")
        self._n_read += n
        if not self._n_head:
            self._n_head = self._buffer.find(b"\r\n\r\n", 0, self._n_read) + 4
            if self._n_head < 4:
                self._n_head = 0
                return True
            head = bytes(self._view[: self._n_head])
            length = head.index(b"content-length: ") + 16
            self._n_all = self._n_head + int(head[length : head.index(b"\r", length)])
        if self._n_read < self._n_all:
            return True
        status, body = int(self._view[9:12]), self._view[self._n_head : self._n_all]
        return self._next(lambda: self._talk.send((status, body)))

    def _next(self, following: Callable[[], Sequence[Body]]) -> bool:
        try:
            self._parts = list(following())
        except StopIteration:
            return False
        self._n_read = self._n_head = 0
        self.write()
        return True


def load(
    port: int,
    talk: Callable[[Tally], Talk],
    seconds: float,
    largest: int,
    n_connections: int = N_CONNECTIONS,
) -> Load:
    """Load a coordinator for some seconds; finish and count the requests begun by then.

    Parameters
    ----------
    port
        Where it listens on loopback.
    talk
        Makes the requests of one connection. It ends when its tally is no longer on, and notes what
        it did.
    seconds, n_connections
        For how long, and by how many connections.
    largest
        Bytes of the largest body of an answer.
    """
    began, cpu = time.perf_counter(), time.process_time()
    tally = Tally(began + seconds)
    gc.disable()
    try:
        _run([_Connection(port, talk(tally), largest) for _ in range(n_connections)])
    finally:
        gc.enable()
    n, took = len(tally.seconds), tally.ended - began
    return Load(
        n,
        n / took,
        1e3 * tally.quantile(0.5),
        1e3 * tally.quantile(0.99),
        (time.process_time() - cpu) / took,
    )


def _run(connections: list[_Connection]) -> None:
    with ExitStack() as stack, select.epoll() as poll:
        for one in connections:
            stack.enter_context(one.socket)
        at_work = {one.socket.fileno(): one for one in connections if one.begin()}
        asked = {number: _interest(one) for number, one in at_work.items()}
        for number, interest in asked.items():
            poll.register(number, interest)
        while at_work:
            ready = poll.poll(_PATIENCE_SECONDS)
            if not ready:
                raise RuntimeError(
                    f"the coordinator has not answered the loader for {_PATIENCE_SECONDS:g} s"
                )
            for number, what in ready:
                one = at_work[number]
                if what & select.EPOLLOUT:
                    one.write()
                if what & ~select.EPOLLOUT and not one.read():
                    poll.unregister(number)
                    del at_work[number]
                elif (interest := _interest(one)) != asked[number]:
                    asked[number] = interest
                    poll.modify(number, interest)


def _interest(one: _Connection) -> int:
    return select.EPOLLIN | select.EPOLLOUT if one.is_sending else select.EPOLLIN


def head(path: str, n_bytes: int, *more: str) -> bytes:
    """Return the head of a request with a body of this length."""
    lines = (f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {n_bytes}", *more)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def echoes(bodies: Sequence[bytes], path: str = "/echo") -> Callable[[Tally], Talk]:
    """Yield bodies of one length that are sent back, one after the other."""
    n_bytes = len(bodies[0])
    request, turn = head(path, n_bytes), cycle(bodies)

    def talk(tally: Tally) -> Talk:
        while tally.is_on:
            began = time.perf_counter()
            status, answer = yield request, next(turn)
            if status != 200 or len(answer) != n_bytes:
                raise RuntimeError(f"an echo was answered with {status} and {len(answer)} bytes")
            tally.note(began)

    return talk
