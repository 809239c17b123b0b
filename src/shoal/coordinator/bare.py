"""DDML's two hot paths without a framework: a draw and an update are answered here, all else by the application inside.

===========================  ==================================================================  =====================================
POST .../draw                the body is not read                                                200: epoch (8 bytes) and weights
POST .../update              id (16 bytes), epoch (8 bytes, little-endian) and weights (int32)   202, empty
===========================  ==================================================================  =====================================

Where admission is anonymous, an update is answered alike whatever becomes of it, unless it could not be stored: then 503.
"""

from __future__ import annotations

import re
import sys
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.coordinator.devices import Devices, Entry
from shoal.coordinator.models.base import Body
from shoal.transport.connections import sent_whole
from shoal.transport.problems import HEADERS, problem
from shoal.transport.routes import RAW, study_route

_PATH = re.compile(study_route("([0-9a-f]{64})", "(draw|update)"))
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class _Answer:
    """An answer whose head is always the same."""

    def __init__(self, status: HTTPStatus, n_bytes: int, *headers: tuple[bytes, bytes]) -> None:
        all_headers = [(b"content-length", b"%d" % n_bytes), *headers, *_HEADERS]
        self._start: Message = {"type": "http.response.start", "status": status.value, "headers": all_headers}
        self._head = b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode())
        self._head += b"".join(b"%b: %b\r\n" % header for header in all_headers)

    async def __call__(self, send: Send, *body: Body) -> None:
        if not sent_whole(send, self._head, *body):
            await send(self._start)
            await send({"type": "http.response.body", "body": b"".join(body)})


_TAKEN = _Answer(HTTPStatus.ACCEPTED, 0)


class BareDDML:
    """The application of a coordinator.

    Parameters
    ----------
    devices
        What answers for studies of DDML.
    inner
        Answers everything else, and these paths too where there is no such study or the method is another.
    """

    def __init__(self, devices: Devices, inner: ASGIApp) -> None:
        self._devices, self._inner = devices, inner
        self._answers: dict[str, _Draw | _Update] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            try:
                answer = self._answers.get(scope["path"]) or await self._find(scope["path"])
                if answer is not None:
                    await answer(scope, receive, send)
                    return
            except Exception as error:
                await _fail(error, scope, receive, send)
                return
        # What comes out of a sealed request is for the whole application again.
        scope["app"] = self
        await self._inner(scope, receive, send)

    async def _find(self, path: str) -> _Draw | _Update | None:
        found = _PATH.fullmatch(path)
        entry = await self._devices.entry(found[1]) if found else None
        if found is None or entry is None:
            return None
        answer = self._answers[path] = _Draw(entry) if found[2] == "draw" else _Update(entry)
        return answer


class _Draw:
    def __init__(self, entry: Entry) -> None:
        self._draw = entry.draw
        self._answer = _Answer(HTTPStatus.OK, entry.n_drawn, (b"content-type", RAW.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await self._answer(send, *await self._draw())


class _Update:
    def __init__(self, entry: Entry) -> None:
        self._entry, self._header = entry, entry.admission.header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            body = await self._whole(body, receive)
        elif message["type"] == "http.disconnect":
            return
        if self._header is None:
            await self._entry.update("", body, None)
        else:
            await self._entry.update(_target(scope), body, _value(scope, self._header))
        await _TAKEN(send)

    async def _whole(self, body: bytes, receive: Receive) -> bytes:
        """The body to its end, or to where it is too long. What was cut short by the sender is too short, and the answer reaches nobody."""
        chunks, n, is_more = [body], len(body), True
        while is_more and n <= self._entry.n_bytes:
            message = await receive()
            chunks.append(message.get("body", b""))
            n += len(chunks[-1])
            is_more = message.get("more_body", False)
        return b"".join(chunks)


async def _fail(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem(error)
    answer.headers.update(HEADERS)
    if answer.status_code == 500:
        print(f"shoal: a request failed by a fault of ours: {type(error).__name__}", file=sys.stderr)
    await answer(scope, receive, send)


def _target(scope: Scope) -> str:
    """What was signed: the path with its query, as they were sent."""
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return (path + b"?" + query if query else path).decode("latin-1")


def _value(scope: Scope, name: bytes) -> str | None:
    """A header that came once."""
    found = [value for header, value in scope["headers"] if header == name]
    return found[0].decode("latin-1") if len(found) == 1 else None
