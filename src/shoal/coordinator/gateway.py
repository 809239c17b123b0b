"""The gateway (RFC 9458): a sealed request is opened, answered inside the application as if it had come over HTTP, and the answer sealed.

What a relay brings is a participant's, and so it reaches the routes that participants use and no others: not the analyst's, not those of
whoever runs the coordinator, not the relay's, and not the gateway again. Of a request that does not open nothing is said but that.
"""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Scope

from shoal.errors import RemoteProtocolError
from shoal.transport import bhttp, ohttp
from shoal.transport.batches import most_in_batch
from shoal.transport.forms import Problem, to_json
from shoal.transport.problems import not_here
from shoal.transport.routes import PROBLEM, STUDIES, study_route
from shoal.transport.sealing import open_packet, sealed_size

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SEALED_BYTES = bhttp.MAX_MESSAGE_BYTES + ohttp.REQUEST_OVERHEAD

_DIGEST = "[0-9a-f]{64}"
_READ = ("manifest", "label", "board", "progress", "model", "members", "received")
_SENT = ("enrolments", "messages", "mailbox", "leave", "submissions", "draw", "update")
_ALLOWED = {
    "GET": re.compile(rf"{STUDIES}|{study_route(_DIGEST)}|{study_route(_DIGEST, '(?:' + '|'.join(_READ) + ')')}"),
    "POST": re.compile(study_route(_DIGEST, f"(?:{'|'.join(_SENT)})")),
}
_OWN = ("connection", "keep-alive", "transfer-encoding", "date")
"""Headers of an answer that belong to a connection, or are written here."""


def is_for_participants(method: str, path: str) -> bool:
    """Whether a route is one that can be reached through the gateway.

    Examples
    --------
    >>> is_for_participants("GET", "/v1/studies"), is_for_participants("POST", "/v1/studies"), is_for_participants("POST", "/v1/gateway")
    (True, False, False)
    """
    return method in _ALLOWED and _ALLOWED[method].fullmatch(path) is not None


async def answered(gateway: ohttp.Gateway, app: ASGIApp, sealed: bytes, now: datetime) -> bytes:
    """The sealed answer to a sealed request.

    Parameters
    ----------
    gateway, app
        Who opens it, and the application that answers it.
    sealed
        The request.
    now
        What the answer is dated by.

    Raises
    ------
    RemoteProtocolError
        ``CRYPTO-001``: it does not open, or there is no request in it.
    """
    try:
        opened, sealer = gateway.open(sealed)
        request = bhttp.Request.from_bytes(opened)
    except RemoteProtocolError:
        raise RemoteProtocolError("CRYPTO-001", "The sealed request cannot be opened.") from None
    path, _, query = request.path.partition("?")
    if is_for_participants(request.method, path):
        answer = await _call(app, _scope(request, path, query), request.body, now)
    else:
        told = Problem.of(not_here("There is nothing under this path."), 404)
        answer = bhttp.Answer(404, (("content-type", PROBLEM), _dated(now)), to_json(told))
    plain = answer.to_bytes()
    return sealer.seal(plain.ljust(bhttp.padded_size(len(plain)), b"\x00"))


def opened_packets(gateway: ohttp.Gateway, study: str, sealed: Sequence[bytes], packet_size: int) -> list[bytes]:
    """The packets of a batch; of those that do not open, or are another study's, nothing, for them to be counted as no packets.

    Those of another length than sealed packets of the study have are not tried, and ``MSG-005`` where there are more than a batch may have.
    """
    most, size = most_in_batch(packet_size), sealed_size(packet_size)
    if len(sealed) > most:
        raise RemoteProtocolError("MSG-005", f"A batch of {len(sealed):,} packets is too large.", why=f"The limit is {most:,}.")
    return [_opened(gateway, study, one) if len(one) == size else b"" for one in sealed]


def _opened(gateway: ohttp.Gateway, study: str, sealed: bytes) -> bytes:
    try:
        return open_packet(gateway, study, sealed)
    except RemoteProtocolError:
        return b""


def _scope(request: bhttp.Request, path: str, query: str) -> Scope:
    """The request as an application is given it. Who brings it, and from where, is not in it."""
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
        "headers": [(name.encode("ascii"), value.encode("ascii")) for name, value in request.headers],
        "client": None,
        "server": None,
    }


async def _call(app: ASGIApp, scope: Scope, body: bytes, now: datetime) -> bhttp.Answer:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, headers, parts = 0, [_dated(now)], []

    async def receive() -> Message:
        return pending.pop() if pending else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            named = ((name.decode("ascii").lower(), value.decode("ascii")) for name, value in message["headers"])
            headers.extend((name, value) for name, value in named if name not in _OWN)
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return bhttp.Answer(status, tuple(headers), b"".join(parts))


def _dated(now: datetime) -> tuple[str, str]:
    return "date", format_datetime(now, usegmt=True)
