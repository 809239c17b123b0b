"""Server-sent events: totals of a study as they change, for an open page.

An event contains the same data as ``GET .../progress``, rounded in the same way, so that a stream
reveals nothing more than repeated requests. One query a second serves all streams of a study. A
stream ends with its study, with the worker, and after `LONGEST_SECONDS`; a browser then reconnects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from shoal.coordinator.service import CoordinatorService
from shoal.errors import ShoalError, TransportError
from shoal.transport.requests import read_digest, read_query

MAX_STREAMS = 64
"""Open streams of one worker; further ones are answered with 503."""

PAUSE_SECONDS = 1
"""Pause between two events of a stream."""

QUIET_SECONDS = 15.0
"""Pause after which a stream without news sends a comment, which detects a closed connection."""

LONGEST_SECONDS = 600.0

_AFTER_ALL = 10**15 - 1
"""No message has a larger number: to wait for messages after it is to wait for the end of the study
or of the worker.
"""

_HEADERS = {"x-accel-buffering": "no", "cross-origin-resource-policy": "same-origin"}


class _EventStreamResponse(StreamingResponse):
    """A stream that reports its end, even if it ends before it begins."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(events, headers=_HEADERS, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


@dataclass
class EventStreams:
    """All streams of a worker."""

    _service: CoordinatorService
    _n_open: int = 0
    _readings: dict[str, tuple[float, asyncio.Task[dict[str, Any]]]] = field(default_factory=dict)
    _pauses: dict[str, asyncio.Task[bool]] = field(default_factory=dict)

    async def open_stream(self, _: CoordinatorService, request: Request) -> Response:
        """Send events until the study ends."""
        read_query(request)
        digest = read_digest(request)
        await self._service.get_study(digest)
        if self._n_open >= MAX_STREAMS:
            raise TransportError("HOST-004", "Too many pages follow studies at the same time.")
        # Counted before it begins: of many simultaneous requests none has begun yet.
        self._n_open += 1
        return _EventStreamResponse(self._generate_events(digest), self._on_stream_end)

    def _on_stream_end(self) -> None:
        self._n_open -= 1
        if not self._n_open:
            self._readings.clear()
            self._pauses.clear()

    async def _generate_events(self, digest: str) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until, last_sent, last_totals = loop.time() + LONGEST_SECONDS, loop.time(), None
        try:
            while True:
                totals = await self._read_totals(digest)
                if totals != last_totals:
                    yield f"event: progress\ndata: {json.dumps(totals)}\n\n".encode()
                    last_totals, last_sent = totals, loop.time()
                elif loop.time() - last_sent >= QUIET_SECONDS:
                    yield b": still here\n\n"
                    last_sent = loop.time()
                if (
                    totals["status"] != "open"
                    or loop.time() >= until
                    or not await self._pause(digest)
                ):
                    return
        except ShoalError:
            # For example, the store is unavailable: the stream ends and the browser reconnects.
            return

    async def _pause(self, digest: str) -> bool:
        """Wait with all streams of the study for the next query; return False at a stop."""
        pause = self._pauses.get(digest)
        if pause is None or pause.done():
            pause = self._pauses[digest] = asyncio.create_task(self._wait_for_next(digest))
        return await asyncio.shield(pause)

    async def _wait_for_next(self, digest: str) -> bool:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        status = (await self._service.mailbox.fetch(digest, None, _AFTER_ALL, PAUSE_SECONDS)).status
        left = PAUSE_SECONDS - (loop.time() - begun)
        if status == "open" and left > PAUSE_SECONDS / 2:
            # Only a stop of the worker ends the wait early.
            return False
        await asyncio.sleep(max(0.0, left))
        return True

    async def _read_totals(self, digest: str) -> dict[str, Any]:
        """Return the totals, at most half a pause old."""
        now = asyncio.get_running_loop().time()
        known = self._readings.get(digest)
        if known is None or now - known[0] >= PAUSE_SECONDS / 2:
            known = self._readings[digest] = (
                now,
                asyncio.create_task(self._service.get_progress(digest)),
            )
        return await asyncio.shield(known[1])
