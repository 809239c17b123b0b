"""OHTTP gateway (RFC 9458).

The route ``/v1/gateway`` calls `answer_sealed`: it opens a sealed request, answers it inside the
application as if it had arrived over HTTP, and seals the response. The route ``batches`` calls
`open_packet_or_empty`.

A sealed request is a participant's. It reaches the routes of participants and no others: not those
of the analyst, of the operator or of a relay, and not the gateway again. If a request cannot be
opened, the response says only that.
"""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import format_datetime

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope

from shoal.errors import RemoteProtocolError
from shoal.transport import bhttp, ohttp
from shoal.transport.api import PROBLEM, STUDIES, Problem, study_route, to_json
from shoal.transport.packets import open_packet
from shoal.transport.requests import not_found_error

_DIGEST = "[0-9a-f]{64}"
_GET_PARTS = ("manifest", "label", "board", "progress", "model", "members", "received")
_POST_PARTS = ("enrolments", "messages", "mailbox", "leave", "submissions", "draw", "update")
_ALLOWED = {
    "GET": re.compile(
        rf"{STUDIES}|{study_route(_DIGEST)}|" + study_route(_DIGEST, f"(?:{'|'.join(_GET_PARTS)})")
    ),
    "POST": re.compile(study_route(_DIGEST, f"(?:{'|'.join(_POST_PARTS)})")),
}
_CONNECTION_HEADERS = ("connection", "keep-alive", "transfer-encoding", "date")
"""Headers of a response that belong to a connection or are written here."""


def is_for_participants(method: str, path: str) -> bool:
    """Return whether a route can be reached through the gateway.

    Examples
    --------
    >>> (
    ...     is_for_participants("GET", "/v1/studies"),
    ...     is_for_participants("POST", "/v1/studies"),
    ...     is_for_participants("POST", "/v1/gateway"),
    ... )
    (True, False, False)
    """
    return method in _ALLOWED and _ALLOWED[method].fullmatch(path) is not None


async def answer_sealed(
    gateway: ohttp.Gateway, app: ASGIApp, sealed: bytes, now: datetime, receive: Receive
) -> bytes:
    """Return the sealed response to a sealed request.

    Parameters
    ----------
    app
        The application that answers the opened request.
    now
        Date of the response.
    receive
        Of the outer request: work for the inner one stops when the connection ends.

    Raises
    ------
    RemoteProtocolError
        ``CRYPTO-001``: the data cannot be opened, or contains no request.
    ClientDisconnect
        The connection has ended.
    """
    try:
        opened, sealer = gateway.open(sealed)
        request = bhttp.BinaryRequest.from_bytes(opened)
    except RemoteProtocolError:
        raise RemoteProtocolError("CRYPTO-001", "The sealed request cannot be opened.") from None
    path, _, query = request.path.partition("?")
    if is_for_participants(request.method, path):
        scope = _make_scope(request, path, query)
        response = await _call_app(app, scope, request.body, now, receive)
    else:
        problem = Problem.from_error(not_found_error("This path does not exist."), 404)
        response = bhttp.BinaryResponse(
            404, (("content-type", PROBLEM), _date_header(now)), to_json(problem)
        )
    plain = response.to_bytes()
    return sealer.seal(plain.ljust(bhttp.compute_padded_size(len(plain)), b"\x00"))


def open_packet_or_empty(gateway: ohttp.Gateway, study: str, size: int, sealed: bytes) -> bytes:
    """Open a packet of a batch.

    A packet that cannot be opened, or is of another study, becomes empty bytes, so that it is
    counted as invalid. A packet of another length than the study's sealed packets is not tried.
    """
    if len(sealed) != size:
        return b""
    try:
        return open_packet(gateway, study, sealed)
    except RemoteProtocolError:
        return b""


def _make_scope(request: bhttp.BinaryRequest, path: str, query: str) -> Scope:
    """Return the ASGI scope of a request; it does not contain who forwarded it, or from where."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [
            (name.encode("ascii"), value.encode("ascii")) for name, value in request.headers
        ],
        "client": None,
        "server": None,
    }


async def _call_app(
    app: ASGIApp, scope: Scope, body: bytes, now: datetime, receive: Receive
) -> bhttp.BinaryResponse:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, headers, parts = 0, [_date_header(now)], []

    async def receive_inner() -> Message:
        return pending.pop() if pending else await receive()

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            named = (
                (name.decode("ascii").lower(), value.decode("ascii"))
                for name, value in message["headers"]
            )
            headers.extend(
                (name, value) for name, value in named if name not in _CONNECTION_HEADERS
            )
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive_inner, send)
    if not status:
        raise ClientDisconnect
    return bhttp.BinaryResponse(status, tuple(headers), b"".join(parts))


def _date_header(now: datetime) -> tuple[str, str]:
    return "date", format_datetime(now, usegmt=True)
