"""The coordinator as a relay sees it. All requests have the same few headers, and nothing of whoever a request came from is passed on."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, get_args
from urllib.parse import urlsplit

import httpx2

from shoal.errors import CODES, RemoteProtocolError, TransportError, UsageError
from shoal.messages import codec
from shoal.messages.base import Record
from shoal.names import shown
from shoal.transport import bhttp, ohttp
from shoal.transport.forms import Batch, Letters, Problem, Published, Status, Taken, from_cbor, from_json, to_cbor
from shoal.transport.listening import is_loopback
from shoal.transport.routes import CBOR, GATEWAY, KEYS, OPENED, SEALED, STUDIES, study_route

F = TypeVar("F", bound=Record)

MAX_OPENED_BYTES = bhttp.MAX_MESSAGE_BYTES + bhttp.GRAIN + ohttp.ANSWER_OVERHEAD

_SECONDS = {"connect": 10.0, "write": 60.0, "read": 60.0, "pool": 10.0}
_HEADERS = {"User-Agent": "shoal", "Accept": "*/*", "Accept-Encoding": "identity"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_LIST_BYTES = 1 << 20
_MAX_PROBLEM_BYTES = 1 << 14
_MAX_TAKEN_BYTES = 1 << 16
_MOST_CONNECTIONS, _MOST_OWN = 4_096, 16
"""Each participant that waits for letters through the relay has one. What the relay itself asks and hands over has others."""


class RefusedError(RemoteProtocolError):
    """The coordinator does not take what it was sent, and will not take the same again."""

    def __init__(self, code: str, what: str, status: int) -> None:
        super().__init__(code, what)
        self.status = status


def checked_url(url: str) -> str:
    """The address of a coordinator without a slash at its end: ``USAGE-001`` for one that cannot be used, or is open to all on the way."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        is_form = parts.scheme in ("http", "https") and host and not (parts.query or parts.fragment or parts.username)
        if not is_form or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError
    except ValueError:
        raise UsageError("USAGE-001", f"{url!a:.90} is not the address of a coordinator.", fix="--to https://host:port") from None
    if parts.scheme == "http" and not is_loopback(host):
        why = "Who is on the way could change which studies the coordinator says that it has."
        raise UsageError("USAGE-001", f"{shown(url)} is not protected by TLS.", why=why, fix="Give an address that begins with https://")
    return url.rstrip("/")


def trusting(ca: Path | None) -> ssl.SSLContext:
    """How the coordinator's certificate is checked: against those that the system trusts, or those of a file (else ``USAGE-001``)."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ValueError):
        what = f"{shown(str(ca))} is not a file of certificates."
        fix = "Give the coordinator's certificate, or that of its issuer, in PEM form: --ca FILE"
        raise UsageError("USAGE-001", what, fix=fix) from None


class Remote:
    """The coordinator behind a relay. Use it in an ``async with`` statement.

    Every method raises `TransportError` where there is no answer and the same may be asked again, `RefusedError` where it may not.

    Parameters
    ----------
    url, ca
        Its address, and a file of certificates to trust in place of the system's.
    transport
        What carries requests; None for HTTP, with connections for what participants ask, and others for what the relay itself does: however
        many wait, batches leave.
    """

    def __init__(self, url: str, ca: Path | None = None, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url = checked_url(url)
        context = trusting(ca) if self.url.startswith("https:") else False
        self._own, self._others = (transport or _http(context, most) for most in (_MOST_OWN, _MOST_CONNECTIONS))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._own.aclose()
        await self._others.aclose()

    async def studies(self) -> dict[str, Status]:
        """How the studies of AnonML stand, by their digests."""
        data = await self._ask("GET", STUDIES, _MAX_LIST_BYTES)
        try:
            listed = json.loads(data)
            found: dict[str, Status] = {one["digest"]: one["status"] for one in listed if one["protocol"] == "anonml"}
            if not isinstance(listed, list) or not all(_DIGEST.fullmatch(digest) for digest in found):
                raise ValueError
            if not all(status in get_args(Status) for status in found.values()):
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _no_answer("something that is no list of studies") from None
        return found

    async def published(self, study: str) -> Published:
        """A manifest with its signature; neither is checked here."""
        return _form(from_cbor, await self._ask("GET", study_route(study, "manifest"), codec.MAX_BYTES), Published)

    async def board(self, study: str, after: int) -> Letters:
        """Letters for everyone."""
        return _form(from_cbor, await self._ask("GET", f"{study_route(study, 'board')}?after={after}", codec.MAX_BYTES), Letters)

    async def keys(self) -> bytes:
        """The gateway's key, as ``application/ohttp-keys``."""
        data = await self._ask("GET", KEYS, _MAX_PROBLEM_BYTES)
        try:
            ohttp.key_of(data)
        except RemoteProtocolError:
            raise _no_answer("something that is no key of a gateway") from None
        return data

    async def forward(self, sealed: bytes) -> bytes:
        """The sealed answer to a sealed request."""
        return await self._ask("POST", GATEWAY, MAX_OPENED_BYTES, sealed, SEALED, OPENED, is_own=False)

    async def deliver(self, study: str, packets: Sequence[bytes]) -> Taken:
        """Hand over sealed packets. Unless they are refused, they are the coordinator's once this returns."""
        body = to_cbor(Batch(packets=tuple(packets)))
        told = _form(from_cbor, await self._ask("POST", study_route(study, "batches"), _MAX_TAKEN_BYTES, body, CBOR), Taken)
        if any(i >= len(packets) for i in told.invalid):
            raise _no_answer("packets that it was not sent")
        return told

    async def _ask(
        self,
        method: str,
        target: str,
        max_bytes: int,
        body: bytes = b"",
        kind: str | None = None,
        wanted: str | None = None,
        *,
        is_own: bool = True,
    ) -> bytes:
        headers = {**_HEADERS, **({} if kind is None else {"Content-Type": kind})}
        request = httpx2.Request(method, self.url + target, headers=headers, content=body, extensions={"timeout": _SECONDS})
        try:
            response = await (self._own if is_own else self._others).handle_async_request(request)
            try:
                data = await _read(response, max_bytes)
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            raise _unreachable(self.url, error) from None
        if response.status_code == 200 and wanted in (None, response.headers.get("Content-Type")):
            return data
        raise _refusal(response.status_code, data)


def _http(context: ssl.SSLContext | bool, most: int) -> httpx2.AsyncHTTPTransport:
    limits = httpx2.Limits(max_connections=most, max_keepalive_connections=_MOST_OWN)
    return httpx2.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)


async def _read(response: httpx2.Response, max_bytes: int) -> bytes:
    parts, size = [], 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise _no_answer(f"more than {max_bytes:,} bytes")
    return b"".join(parts)


def _unreachable(url: str, error: httpx2.TransportError) -> TransportError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        what = f"The coordinator at {shown(url)} cannot be reached, or breaks off."
        return TransportError("NET-001", what, why=type(error).__name__, fix="See whether it is up, and --to is its address.")
    reason = shown(cause.verify_message or "it does not verify")[:200].rstrip(".")
    what = f"The certificate of the coordinator at {shown(url)} is not trusted: {reason}."
    return TransportError("NET-003", what, fix="Where it has a certificate of its own, get that from its analyst by another way: --ca FILE")


def _refusal(status: int, data: bytes) -> RefusedError | TransportError:
    """What an answer says that is no good one: that the coordinator refuses, or that something on the way is out of order."""
    try:
        told = from_json(data, Problem)
    except RemoteProtocolError:
        return _no_answer(f"status {status} and no reason that shoal knows")
    if not 400 <= status < 500 or status in (408, 429) or told.code not in CODES:
        return TransportError("NET-002", f"The coordinator says, with status {status}: {shown(told.title[:300])}")
    return RefusedError(told.code, f"The coordinator says: {shown(told.title[:300])}", status)


def _form(read: Callable[[bytes, type[F]], F], data: bytes, kind: type[F]) -> F:
    try:
        return read(data, kind)
    except RemoteProtocolError:
        raise _no_answer(f"something that is not {kind.__name__}") from None


def _no_answer(what: str) -> TransportError:
    return TransportError("NET-002", f"The coordinator answers with {what}.", fix="See whether --to is the address of a coordinator.")
