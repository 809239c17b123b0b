"""Totals of a study as they change, for a page that is open: server-sent events.

An event is what ``GET .../progress`` tells, rounded as it is there, and nothing else; whoever asks that route again and again learns as
much. However many pages are open, one look a second serves all that follow a study. A stream ends with its study, with the worker, and
after a while by itself: a browser then comes again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from shoal.coordinator.office import Office
from shoal.errors import ShoalError, TransportError
from shoal.transport.reading import digest_of, query_of

MOST_STREAMS = 64
"""That one worker keeps open; further ones are answered with 503."""

PAUSE_SECONDS = 1
"""Between two events of a stream."""

QUIET_SECONDS = 15.0
"""After which a stream without news says that it is still there, so that one whose reader has gone is noticed."""

LONGEST_SECONDS = 600.0

_BEYOND = 10**15 - 1
"""No letter has a larger number: to ask for those after it is to wait for the end of the study, or of the worker."""

_HEADERS = {"x-accel-buffering": "no", "cross-origin-resource-policy": "same-origin"}


class _Stream(StreamingResponse):
    """A stream that says when it is over, however it ended, and be it before it began."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(events, headers=_HEADERS, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class Streams:
    """All streams of a worker."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._n_open = 0
        self._looks: dict[str, tuple[float, asyncio.Task[dict[str, Any]]]] = {}
        self._pauses: dict[str, asyncio.Task[bool]] = {}

    async def follow(self, office: Office, request: Request) -> Response:  # noqa: ARG002
        """Answer with events until the study ends."""
        query_of(request)
        digest = digest_of(request)
        await self._office.study(digest)
        if self._n_open >= MOST_STREAMS:
            raise TransportError("HOST-004", "Too many pages follow studies at once.")
        # Counted here, and not when it begins: of many that are asked for at once none has begun yet.
        self._n_open += 1
        return _Stream(self._events(digest), self._ended)

    def _ended(self) -> None:
        self._n_open -= 1
        if not self._n_open:
            self._looks.clear()
            self._pauses.clear()

    async def _events(self, digest: str) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until, spoke, told = loop.time() + LONGEST_SECONDS, loop.time(), None
        try:
            while True:
                totals = await self._look(digest)
                if totals != told:
                    yield f"event: progress\ndata: {json.dumps(totals)}\n\n".encode()
                    told, spoke = totals, loop.time()
                elif loop.time() - spoke >= QUIET_SECONDS:
                    yield b": still here\n\n"
                    spoke = loop.time()
                if totals["status"] != "open" or loop.time() >= until or not await self._pause(digest):
                    return
        except ShoalError:
            # The store is away, say: the stream ends as if the worker had stopped, and the browser comes again.
            return

    async def _pause(self, digest: str) -> bool:
        """Wait for the next look, together with all that follow the study; False where the worker stops."""
        pause = self._pauses.get(digest)
        if pause is None or pause.done():
            pause = self._pauses[digest] = asyncio.create_task(self._wait(digest))
        return await asyncio.shield(pause)

    async def _wait(self, digest: str) -> bool:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        status = (await self._office.board(digest, _BEYOND, PAUSE_SECONDS)).status
        left = PAUSE_SECONDS - (loop.time() - begun)
        if status == "open" and left > PAUSE_SECONDS / 2:
            # Nobody else ends the wait before its time.
            return False
        await asyncio.sleep(max(0.0, left))
        return True

    async def _look(self, digest: str) -> dict[str, Any]:
        """The totals as they were less than a pause ago."""
        now = asyncio.get_running_loop().time()
        known = self._looks.get(digest)
        if known is None or now - known[0] >= PAUSE_SECONDS / 2:
            known = self._looks[digest] = (now, asyncio.create_task(self._office.progress(digest)))
        return await asyncio.shield(known[1])
