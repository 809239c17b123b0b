"""Read requests strictly; problem+json responses; dispatch by path and method.

The coordinator and the relay use it. Bodies have a limit and one content type, and queries contain
whole numbers; everything else is rejected here. `ErrorMiddleware` surrounds all routes: every error
leaves as a problem document, and unexpected exceptions reveal nothing but their type, in the log.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.errors import RemoteProtocolError, ShoalError, SpecError, StoreError, TransportError
from shoal.messages.base import Record
from shoal.transport.api import (
    JSON,
    MAX_CONTROL_BYTES,
    MAX_WAIT_SECONDS,
    PROBLEM,
    Problem,
    from_json,
    to_json,
)
from shoal.transport.signing import SCHEME

RETRY_SECONDS = 1

STATUS = {
    "AUTH-001": 401,
    "AUTH-002": 401,
    "AUTH-003": 401,
    "AUTH-005": 401,
    "ENROL-001": 403,
    "ENROL-002": 409,
    "HOST-001": 404,
    "HOST-002": 409,
    "HOST-004": 503,
    "HOST-005": 409,
    "MSG-001": 413,
}
"""Status of error codes that blame the caller and do not have status 400."""

DEFAULT_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Headers of every response, unless its route sets them."""

RequestHandler = Callable[[Request], Awaitable[Response]]


class RequestError(RemoteProtocolError):
    """An error with a status of its route, not of the table, and with extra headers."""

    def __init__(
        self,
        status: int,
        code: str,
        what: str,
        *,
        why: str | None = None,
        fix: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(code, what, why=why, fix=fix)
        self.status, self.headers = status, headers or {}


def not_found_error(what: str) -> RequestError:
    """Make the error for a study or resource that does not exist."""
    return RequestError(404, "HOST-001", what)


def study_ended_error(study: str) -> RequestError:
    """Make the error for a message that arrives after the end of its study."""
    return RequestError(
        410,
        "HOST-002",
        f"Study {study:.16} has ended.",
        fix="Send no more messages; fetch its model.",
    )


def find_status(error: ShoalError) -> int:
    """Return the HTTP status for an error.

    Examples
    --------
    >>> (
    ...     find_status(RemoteProtocolError("MSG-002", "7 bytes are not CBOR.")),
    ...     find_status(RemoteProtocolError("AUTH-001", "Not signed.")),
    ... )
    (400, 401)
    """
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, StoreError):
        return 503
    if isinstance(error, RemoteProtocolError | SpecError | TransportError):
        return STATUS.get(error.code, 400)
    return 500


def make_problem_response(error: Exception, who: str = "coordinator") -> Response:
    """Return the response for an error.

    An internal error of the coordinator or relay is reported without its details.
    """
    headers = dict(error.headers) if isinstance(error, RequestError) else {}
    status = find_status(error) if isinstance(error, ShoalError) else 500
    if status == 503:
        error = TransportError(
            "HOST-004",
            f"The {who} cannot do this now.",
            fix="Send the same request again after a while.",
        )
        headers["retry-after"] = str(RETRY_SECONDS)
    elif status == 500 or not isinstance(error, ShoalError):
        error = TransportError(
            "HOST-007", f"The {who} failed on this request.", why="This is an error in its code."
        )
    elif status == 401:
        headers["www-authenticate"] = f"{SCHEME}, Bearer"
    return Response(to_json(Problem.from_error(error, status)), status, headers, media_type=PROBLEM)


class ErrorMiddleware:
    """Turn exceptions of an application into responses, and add default headers.

    Only the type of an unexpected exception is printed.
    """

    def __init__(self, app: ASGIApp, who: str = "coordinator") -> None:
        self._app, self._who = app, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:
            response = make_problem_response(error, self._who)
            if response.status_code == 500:
                print(
                    f"shoal: a request failed with an internal error: {type(error).__name__}",
                    file=sys.stderr,
                )
            if not is_begun:
                await response(scope, receive, send_with_headers)


def make_router(handlers: Mapping[str, Mapping[str, RequestHandler]]) -> Router:
    """Return a router from path -> method -> handler.

    Other paths are answered with 404 and other methods with 405, HEAD and OPTIONS included: pages
    of other origins get nothing here.
    """
    routes = [Route(path, _MethodDispatcher(methods)) for path, methods in handlers.items()]
    return Router(routes, redirect_slashes=False, default=_raise_not_found)


class _MethodDispatcher:
    """All methods of one path."""

    def __init__(self, handlers: Mapping[str, RequestHandler]) -> None:
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["method"])
        if handler is None:
            allowed = ", ".join(sorted(self._handlers))
            raise RequestError(
                405,
                "HOST-006",
                "This route does not accept that method.",
                fix=f"Use {allowed}.",
                headers={"allow": allowed},
            )
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


async def _raise_not_found(*_: object) -> None:
    raise not_found_error("This path does not exist.")


T = TypeVar("T")
F = TypeVar("F", bound=Record)

MESSAGE_NUMBERS = range(10**15)
"""Numbers of messages that a query may contain."""
WAIT_SECONDS = range(MAX_WAIT_SECONDS + 1)
PHASE_TIMEOUTS = range(1, 366 * 86_400 + 1)
"""Seconds."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_WHOLE = re.compile(r"[0-9]{1,15}")


def read_digest(request: Request) -> str:
    """Return the digest in a path; raise ``HOST-001`` if it cannot be a digest."""
    digest: str = request.path_params["digest"]
    if not _DIGEST.fullmatch(digest):
        raise not_found_error(
            "The path of a study contains the 64 hexadecimal digits of its digest."
        )
    return digest


def check_content_type(request: Request, wanted: str) -> None:
    """Raise ``HOST-006`` for a body of another content type; parameters are ignored."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        raise RequestError(
            415,
            "HOST-006",
            f"The body's content type is not {wanted}.",
            fix=f"Content-Type: {wanted}",
            headers={"accept": wanted},
        )


def read_query(request: Request, allowed: Mapping[str, range] | None = None) -> dict[str, int]:
    """Return the whole numbers of a query, each in its range and at most once.

    Raise ``HOST-006`` for any other query.
    """
    found: dict[str, int] = {}
    allowed = allowed or {}
    for name, value in request.query_params.multi_items():
        if name not in allowed:
            names = ", ".join(allowed) or "none"
            raise RequestError(
                400,
                "HOST-006",
                "The query has a parameter that this route does not accept.",
                why=f"Allowed parameters: {names}.",
            )
        if name in found or not _WHOLE.fullmatch(value) or int(value) not in allowed[name]:
            least, most = allowed[name][0], allowed[name][-1]
            raise RequestError(
                400,
                "HOST-006",
                f"The query's {name} is not one whole number from {least} to {most}.",
            )
        found[name] = int(value)
    return found


async def read_body_up_to(request: Request, limit: int) -> bytes:
    """Return the body, cut after one byte more than the limit.

    A result longer than the limit means that the body is too large.
    """
    if read_content_length(request) > limit:
        return bytes(limit + 1)
    chunks, n = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        n += len(chunk)
        if n > limit:
            break
    return b"".join(chunks)[: limit + 1]


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body; raise ``MSG-001`` if it is too large, without reading all of it."""
    body = await read_body_up_to(request, limit)
    if len(body) > limit:
        raise body_too_large_error(limit)
    return body


def body_too_large_error(limit: int) -> RequestError:
    """Make the error for a body that is not read to its end."""
    # The rest of the body is not read, so the connection cannot be used again.
    return RequestError(
        413,
        "MSG-001",
        "The body is too large.",
        why=f"The limit is {limit} bytes.",
        headers={"connection": "close"},
    )


async def run_until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work; cancel it if the connection ends before.

    The body must have been read. Raise `ClientDisconnect` if the connection ends.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_end(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _wait_for_end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_empty_body(request: Request) -> bytes:
    """Return the empty body of a request; raise ``MSG-001`` if it is not empty."""
    return await read_body(request, 0)


async def read_form(request: Request, kind: type[F]) -> tuple[F, bytes]:
    """Return a JSON form, and its bytes as they were sent."""
    check_content_type(request, JSON)
    body = await read_body(request, MAX_CONTROL_BYTES)
    return from_json(body, kind), body


def read_content_length(request: Request) -> int:
    """Return the stated length; the received bytes are counted in addition."""
    stated = request.headers.get("content-length", "")
    return int(stated) if _WHOLE.fullmatch(stated) else 0
