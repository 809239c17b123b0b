"""Bytes of request bodies in the memory of a process.

`shoal.transport.connections` counts the bytes of a body when they are received, before a handler
reads them. They count until the handler has ended, or has released them because it reads the body
as a stream. If there is no room, the unfinished body that has used most memory for longest is
refused with 503: a client that sends its body without delay is not refused because of others that
never end theirs. Bodies that are larger than `SMALL_BYTES` may use three quarters of the limit, so
that large bodies never keep out small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BYTES_IN_FLIGHT = 256_000_000
"""Default limit for the bytes of all request bodies in the memory of a process."""

SMALL_BYTES = 1 << 16
"""Bytes of each body that do not count as large."""

BODY_KEY = "shoal.body"
"""Key of a request's `RequestBody` in its ASGI scope."""


@dataclass(eq=False)
class RequestBody:
    """The bytes of one request's body in memory.

    Parameters
    ----------
    refuse
        Answers 503, closes the connection and frees the bytes.
    begun
        Time of the first byte.
    """

    in_flight: BytesInFlight
    refuse: Callable[[], None]
    begun: float
    n_bytes: int = 0
    is_complete: bool = False

    @property
    def n_large(self) -> int:
        return max(0, self.n_bytes - SMALL_BYTES)

    def release(self, n_bytes: int) -> None:
        """Subtract bytes that the handler of the request has processed and dropped."""
        self.in_flight.change(self, -min(n_bytes, self.n_bytes))


class BytesInFlight:
    """The bytes of all request bodies in the memory of a process.

    Parameters
    ----------
    now
        Returns the time of the event loop.
    warn
        Receives a line for the operator when a body is refused.
    """

    def __init__(self, limit: int, now: Callable[[], float], warn: Callable[[str], None]) -> None:
        self.total = self.large = 0
        self._limit, self._large_limit, self._now, self._warn = limit, limit * 3 // 4, now, warn
        self._unfinished: dict[RequestBody, None] = {}

    def open(self, refuse: Callable[[], None]) -> RequestBody:
        """Return the account of a body whose first bytes have been received."""
        body = RequestBody(self, refuse, self._now())
        self._unfinished[body] = None
        return body

    def add(self, body: RequestBody, n_bytes: int) -> None:
        """Count received bytes; refuse unfinished bodies, perhaps this one, if there is no room."""
        self.change(body, n_bytes)
        while self.total > self._limit or self.large > self._large_limit:
            self._warn(
                f"{self.total:,} bytes of requests are in memory; the limit is {self._limit:,}. "
                "Requests are refused with 503"
            )
            is_large = self.large > self._large_limit
            now = self._now()
            candidates = [one for one in self._unfinished if not is_large or one.n_large]
            # If all bodies are complete, they are being processed, and only this one can go.
            victim = max(candidates, key=lambda one: one.n_bytes * (now - one.begun), default=body)
            self.close(victim)
            victim.refuse()
            if victim is body:
                return

    def complete(self, body: RequestBody) -> None:
        """Record that all bytes of a body have been received."""
        body.is_complete = True
        self._unfinished.pop(body, None)

    def close(self, body: RequestBody) -> None:
        """Subtract all bytes of a body: its handler has ended."""
        self.change(body, -body.n_bytes)
        self._unfinished.pop(body, None)

    def change(self, body: RequestBody, n_bytes: int) -> None:
        """Add to the bytes of a body; the number may be negative."""
        before = body.n_large
        body.n_bytes += n_bytes
        self.total += n_bytes
        self.large += body.n_large - before


class CountingApp:
    """An ASGI application that releases the bytes of a request's body when it has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            body: RequestBody | None = scope.pop(BODY_KEY, None)
            if body is not None:
                body.in_flight.close(body)


def release_body_bytes(scope: Scope, n_bytes: int) -> None:
    """Subtract bytes of a request's body that its handler has processed and dropped."""
    body: RequestBody | None = scope.get(BODY_KEY)
    if body is not None:
        body.release(n_bytes)
