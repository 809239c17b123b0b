"""What a request may hold: bodies up to a limit and of one content type, and queries of whole numbers. Everything else is refused here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from starlette.requests import Request

from shoal.messages.base import Record
from shoal.transport.forms import MAX_CONTROL_BYTES, MAX_WAIT_SECONDS, from_json
from shoal.transport.problems import RequestError, not_here
from shoal.transport.routes import JSON

F = TypeVar("F", bound=Record)

NUMBERS = range(10**15)
"""Numbers of letters that may be named."""
WAITS = range(MAX_WAIT_SECONDS + 1)
PATIENCES = range(1, 366 * 86_400 + 1)
"""Seconds."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_WHOLE = re.compile(r"[0-9]{1,15}")


def digest_of(request: Request) -> str:
    """The study that a route names; one that cannot be a digest is not here."""
    digest: str = request.path_params["digest"]
    if not _DIGEST.fullmatch(digest):
        raise not_here("A study is named by the 64 hexadecimal digits of its digest.")
    return digest


def check_type(request: Request, wanted: str) -> None:
    """Refuse a body of another content type; parameters of the type, such as a character set, make no difference."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        raise RequestError(
            415, "HOST-006", f"The body's content type is not {wanted}.", fix=f"Content-Type: {wanted}", headers={"accept": wanted}
        )


def query_of(request: Request, allowed: Mapping[str, range] | None = None) -> dict[str, int]:
    """The whole numbers of a query, each in its range and given at most once; any other query is refused."""
    found: dict[str, int] = {}
    allowed = allowed or {}
    for name, value in request.query_params.multi_items():
        if name not in allowed:
            names = f"It takes {', '.join(allowed)}." if allowed else "It takes none."
            raise RequestError(400, "HOST-006", "The query has a parameter that this route does not take.", why=names)
        if name in found or not _WHOLE.fullmatch(value) or int(value) not in allowed[name]:
            least, most = allowed[name][0], allowed[name][-1]
            raise RequestError(400, "HOST-006", f"The query's {name} is not one whole number from {least} to {most}.")
        found[name] = int(value)
    return found


async def body_up_to(request: Request, limit: int) -> bytes:
    """As much of a body as there is, but at most one byte more than the limit: who sees that byte knows that it is too large."""
    if _length(request) > limit:
        return bytes(limit + 1)
    chunks, n = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        n += len(chunk)
        if n > limit:
            break
    return b"".join(chunks)[: limit + 1]


async def body_of(request: Request, limit: int) -> bytes:
    """The whole body; ``MSG-001`` for one that is too large, which is not read to its end."""
    body = await body_up_to(request, limit)
    if len(body) > limit:
        # The rest of the body is not wanted, and so the connection cannot be used again.
        raise RequestError(413, "MSG-001", "The body is too large.", why=f"The limit is {limit} bytes.", headers={"connection": "close"})
    return body


async def empty_body(request: Request) -> bytes:
    """The body of a request that needs none."""
    return await body_of(request, 0)


async def form_of(request: Request, kind: type[F]) -> tuple[F, bytes]:
    """A form as JSON, and the bytes that it came as."""
    check_type(request, JSON)
    body = await body_of(request, MAX_CONTROL_BYTES)
    return from_json(body, kind), body


def _length(request: Request) -> int:
    """What a request states; the bytes are counted all the same."""
    stated = request.headers.get("content-length", "")
    return int(stated) if _WHOLE.fullmatch(stated) else 0
