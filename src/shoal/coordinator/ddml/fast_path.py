"""ASGI fast path of DDML's draw and update, without a framework.

It surrounds the rest of the application (`shoal.coordinator.app`).

``POST .../draw``
    The body is not read. Response 200: epoch (8 bytes) and weights.
``POST .../update``
    Body: id (16 bytes), epoch (8 bytes, little-endian) and weights (int32). Response 202, empty.

If admission is anonymous, the response to an update is the same for every outcome, except 503 if it
could not be stored.
"""

from __future__ import annotations

import re
import sys
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.coordinator.ddml.instances.base import Body
from shoal.coordinator.ddml.studies import DDMLStudies, DDMLStudy
from shoal.transport.api import RAW, study_route
from shoal.transport.connections import send_whole
from shoal.transport.requests import DEFAULT_HEADERS, make_problem_response

_PATH = re.compile(study_route("([0-9a-f]{64})", "(draw|update)"))
_HEADERS = [(name.encode(), value.encode()) for name, value in DEFAULT_HEADERS.items()]


class _FixedResponse:
    """A response with a fixed head."""

    def __init__(self, status: HTTPStatus, n_bytes: int, *headers: tuple[bytes, bytes]) -> None:
        all_headers = [(b"content-length", b"%d" % n_bytes), *headers, *_HEADERS]
        self._start: Message = {
            "type": "http.response.start",
            "status": status.value,
            "headers": all_headers,
        }
        self._head = b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode())
        self._head += b"".join(b"%b: %b\r\n" % header for header in all_headers)

    async def __call__(self, send: Send, *body: Body) -> None:
        if not send_whole(send, self._head, *body):
            await send(self._start)
            await send({"type": "http.response.body", "body": b"".join(body)})


_ACCEPTED = _FixedResponse(HTTPStatus.ACCEPTED, 0)


class DDMLFastPath:
    """The outermost application of a coordinator.

    Parameters
    ----------
    inner
        Answers everything else, and these paths if the study is not of DDML or the method is not
        POST.
    """

    def __init__(self, studies: DDMLStudies, inner: ASGIApp) -> None:
        self._studies, self._inner = studies, inner
        self._endpoints: dict[str, _DrawEndpoint | _UpdateEndpoint] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            try:
                path = scope["path"]
                endpoint = self._endpoints.get(path) or await self._find_endpoint(path)
                if endpoint is not None:
                    await endpoint(scope, receive, send)
                    return
            except Exception as error:
                await _send_problem(error, scope, receive, send)
                return
        # The gateway passes opened requests to the whole application again.
        scope["app"] = self
        await self._inner(scope, receive, send)

    async def _find_endpoint(self, path: str) -> _DrawEndpoint | _UpdateEndpoint | None:
        match = _PATH.fullmatch(path)
        study = await self._studies.open_study(match[1]) if match else None
        if match is None or study is None:
            return None
        endpoint = self._endpoints[path] = (
            _DrawEndpoint(study) if match[2] == "draw" else _UpdateEndpoint(study)
        )
        return endpoint


class _DrawEndpoint:
    def __init__(self, study: DDMLStudy) -> None:
        self._draw = study.draw
        self._response = _FixedResponse(
            HTTPStatus.OK, study.n_draw_bytes, (b"content-type", RAW.encode())
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await self._response(send, *await self._draw())


class _UpdateEndpoint:
    def __init__(self, study: DDMLStudy) -> None:
        self._study, self._header = study, study.admission.header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            body = await self._read_body(body, receive)
        elif message["type"] == "http.disconnect":
            return
        if self._header is None:
            await self._study.update("", body, None)
        else:
            await self._study.update(_read_target(scope), body, _read_header(scope, self._header))
        await _ACCEPTED(send)

    async def _read_body(self, body: bytes, receive: Receive) -> bytes:
        """Read the body up to its end, or until it is too long.

        If the sender disconnects, the body is too short, and the response is not read.
        """
        chunks, n, is_more = [body], len(body), True
        while is_more and n <= self._study.n_update_bytes:
            message = await receive()
            chunks.append(message.get("body", b""))
            n += len(chunks[-1])
            is_more = message.get("more_body", False)
        return b"".join(chunks)


async def _send_problem(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    response = make_problem_response(error)
    response.headers.update(DEFAULT_HEADERS)
    if response.status_code == 500:
        print(
            f"shoal: a request failed with an internal error: {type(error).__name__}",
            file=sys.stderr,
        )
    await response(scope, receive, send)


def _read_target(scope: Scope) -> str:
    """Return the path and query as they were sent, which the signature covers."""
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return (path + b"?" + query if query else path).decode("latin-1")


def _read_header(scope: Scope, name: bytes) -> str | None:
    """Return a header that occurs once; None otherwise."""
    values = [value for header, value in scope["headers"] if header == name]
    return values[0].decode("latin-1") if len(values) == 1 else None
