"""Errors as answers: which status a code has, the problem document, and the guard around all routes through which nothing else leaves."""

from __future__ import annotations

import sys

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.errors import RemoteProtocolError, ShoalError, SpecError, StoreError, TransportError
from shoal.transport.forms import Problem, to_json
from shoal.transport.routes import PROBLEM
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
"""Of the codes whose status is not 400, where whoever asked is to blame."""

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""What every answer has, unless its route says otherwise."""


class RequestError(RemoteProtocolError):
    """An error whose status the route knows better than the table, with headers that go with it."""

    def __init__(
        self, status: int, code: str, what: str, *, why: str | None = None, fix: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(code, what, why=why, fix=fix)
        self.status, self.headers = status, headers or {}


def not_here(what: str) -> RequestError:
    """The error for a study, or a part of one, that the coordinator does not have."""
    return RequestError(404, "HOST-001", what)


def over(study: str) -> RequestError:
    """The error for what comes after a study's end."""
    return RequestError(410, "HOST-002", f"Study {study:.16} has ended.", fix="Nothing more is taken; ask for its model.")


def status_of(error: ShoalError) -> int:
    """The status of an error's answer.

    Examples
    --------
    >>> status_of(RemoteProtocolError("MSG-002", "7 bytes are not CBOR.")), status_of(RemoteProtocolError("AUTH-001", "Not signed."))
    (400, 401)
    """
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, StoreError):
        return 503
    if isinstance(error, RemoteProtocolError | SpecError | TransportError):
        return STATUS.get(error.code, 400)
    return 500


def problem(error: Exception, who: str = "coordinator") -> Response:
    """The answer to an error. Of what is the coordinator's own trouble, or the relay's, it says no more than that there is some."""
    headers = dict(error.headers) if isinstance(error, RequestError) else {}
    status = status_of(error) if isinstance(error, ShoalError) else 500
    if status == 503:
        error = TransportError("HOST-004", f"The {who} cannot do this now.", fix="Send the same request again after a while.")
        headers["retry-after"] = str(RETRY_SECONDS)
    elif status == 500 or not isinstance(error, ShoalError):
        error = TransportError("HOST-007", f"The {who} failed on this request.", why="The fault is its own.")
    elif status == 401:
        headers["www-authenticate"] = f"{SCHEME}, Bearer"
    return Response(to_json(Problem.of(error, status)), status, headers, media_type=PROBLEM)


class Guard:
    """Answers whatever an application raises, and gives every answer its headers. Only the type of what is unexpected is reported."""

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
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:
            answer = problem(error, self._who)
            if answer.status_code == 500:
                print(f"shoal: a request failed by a fault of ours: {type(error).__name__}", file=sys.stderr)
            if not is_begun:
                await answer(scope, receive, send_with_headers)
