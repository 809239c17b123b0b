"""HTTP as a participant speaks it: outbound only, signed where a name is due, and nothing that tells two participants apart where not.

Every request has the same few headers. There are no cookies, no redirects, nothing is read from the environment, and no answer is
read beyond the size that it may have. A coordinator is not trusted: what it says in an error is shown as a stranger's words.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx2

from shoal.clock import Clock
from shoal.crypto.roster import Identity
from shoal.entropy import Entropy
from shoal.errors import CODES, ConsentError, RemoteProtocolError, TransportError, UsageError
from shoal.messages import codec
from shoal.messages.base import Record
from shoal.names import shown
from shoal.transport.forms import (
    MAX_CONTROL_BYTES,
    Enrolled,
    Enrolment,
    Letters,
    Poll,
    Problem,
    Published,
    from_cbor,
    from_json,
    to_json,
)
from shoal.transport.routes import CBOR, JSON, RAW, STUDIES, study_route
from shoal.transport.signing import sign

T = TypeVar("T")
F = TypeVar("F", bound=Record)

FIRST_WAIT, LONGEST_WAIT = 0.2, 30.0
"""Seconds between two tries: doubled each time, less up to a half by chance, so that participants do not come back all at once."""

_SECONDS = {"connect": 10.0, "write": 30.0, "read": 60.0, "pool": None}
_HEADERS = {"User-Agent": "shoal", "Accept": "*/*", "Accept-Encoding": "identity"}
_MAX_LIST_BYTES = 1 << 20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FINE = 1 << 20
_AGAIN = "See whether the address is right (https or http, host and port) and it is up; nothing is lost, and the same command goes on."
_MOST_DOUBLED = 20


class RefusedError(RemoteProtocolError):
    """The coordinator does not take a request, for a reason that will not go away: its status, and its time as it says."""

    def __init__(self, code: str, what: str, *, why: str | None = None, fix: str | None = None, status: int = 400) -> None:
        super().__init__(code, what, why=why, fix=fix)
        self.status = status
        self.date: datetime | None = None


class NotAdmittedError(RefusedError):
    """The coordinator does not let a participant in: there is nobody who has misbehaved, and no agreement."""

    exit_code = ConsentError.exit_code


@cache
def tls_context(ca: Path | None = None) -> ssl.SSLContext:
    """How a coordinator's certificate is checked: against those that the system trusts, or those of a file.

    Raises
    ------
    UsageError
        ``USAGE-001``: the file has no certificates.
    """
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError:
        what = f"{shown(str(ca))} is not a file of certificates."
        raise UsageError("USAGE-001", what, fix="Give the coordinator's certificate, or that of its issuer, in PEM form.") from None


def checked_url(url: str) -> str:
    """The address of a coordinator without a slash at its end; an error for one that cannot be used or is open to all on the way."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        is_form = parts.scheme in ("http", "https") and host and not (parts.query or parts.fragment or parts.username)
        if not is_form or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError
    except ValueError:
        raise UsageError("USAGE-001", f"{url!a:.90} is not the address of a coordinator.", fix="Give https://host:port") from None
    if host.rstrip(".").endswith(".onion"):
        why = "Its name would be looked up in the open, and would say to whom you speak."
        raise UsageError("USAGE-001", f"{shown(url)} is an onion service, and this version of shoal does not speak Tor.", why=why)
    if parts.scheme == "http" and host not in _LOOPBACK:
        why = "Who is on the way could read and change what a coordinator says, and see who answers."
        raise UsageError("USAGE-001", f"{shown(url)} is not protected by TLS.", why=why, fix="Give an address that begins with https://")
    return url.rstrip("/")


class Client:
    """A coordinator as a participant sees it. Use it in an ``async with`` statement.

    Parameters
    ----------
    url
        The coordinator's address: https, or http to this machine.
    clock, entropy
        Date and make unique what is signed; tell when to try again.
    ca
        A file of certificates to trust in place of the system's.
    transport
        Makes what carries requests; None for HTTP.
    sleep
        How to wait between two tries.

    Raises
    ------
    UsageError
        ``USAGE-001``: the address or the file of certificates cannot be used.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        entropy: Entropy,
        *,
        ca: Path | None = None,
        transport: Callable[[], httpx2.AsyncBaseTransport] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        is_apart: bool = False,
    ) -> None:
        self.url = checked_url(url)
        self._clock, self._entropy, self._ca = clock, entropy, ca
        self._make, self._sleep = transport, sleep
        # What is sent anonymously has a connection of its own each time.
        limits = httpx2.Limits(max_keepalive_connections=0 if is_apart else 2)
        context = tls_context(ca) if self.url.startswith("https:") else False
        self._transport = transport() if transport else httpx2.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)
        self._skew = 0

    def apart(self) -> Client:
        """The same coordinator over connections that are not shared with anything, for what must not be linked."""
        return Client(self.url, self._clock, self._entropy, ca=self._ca, transport=self._make, sleep=self._sleep, is_apart=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._transport.aclose()

    async def insist(self, ask: Callable[[], Awaitable[T]], on_wait: Callable[[TransportError], None]) -> T:
        """Ask until there is an answer, however long that takes; `RefusedError` is one."""
        n = 0
        while True:
            try:
                return await ask()
            except TransportError as error:
                on_wait(error)
            await self.pause(n)
            n += 1

    async def pause(self, n: int) -> None:
        """Wait before asking again, after so many pauses before this one."""
        wait = min(FIRST_WAIT * 2 ** min(n, _MOST_DOUBLED), LONGEST_WAIT)
        await self._sleep(wait * (1 - self._entropy.below(_FINE) / (2 * _FINE)))

    async def studies(self) -> list[dict[str, Any]]:
        """What the coordinator serves: objects with at least digest, title and status, all of them text."""
        data = await self._ask("GET", STUDIES, _MAX_LIST_BYTES)
        try:
            listed = json.loads(data)
            if not isinstance(listed, list) or not all(
                isinstance(one[key], str) for one in listed for key in ("digest", "title", "status")
            ):
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _no_answer("something that is no list of studies") from None
        return listed

    async def published(self, study: str) -> Published:
        """A manifest with its signature; neither is checked here."""
        return _form(from_cbor, await self._ask("GET", study_route(study, "manifest"), codec.MAX_BYTES), Published)

    async def model(self, study: str) -> bytes:
        """The model of a study that is done, as JSON; `RefusedError` ``HOST-002`` before."""
        return await self._ask("GET", study_route(study, "model"), codec.MAX_BYTES)

    async def enrol(self, study: str, identity: Identity, form: Enrolment) -> Enrolled:
        """Enrol the key of an identity, or learn under which name it is enrolled."""
        return _form(from_json, await self._signed(study_route(study, "enrolments"), identity, to_json(form), JSON), Enrolled)

    async def leave(self, study: str, identity: Identity) -> None:
        """Tell the coordinator to forget an enrolment."""
        await self._signed(study_route(study, "leave"), identity, b"")

    async def message(self, study: str, identity: Identity, payload: bytes) -> None:
        """Send a message under a name."""
        await self._signed(study_route(study, "messages"), identity, payload, CBOR)

    async def mailbox(self, study: str, identity: Identity, poll: Poll) -> Letters:
        """Letters for everyone and for this participant; those up to ``poll.after`` are acknowledged."""
        data = await self._signed(study_route(study, "mailbox"), identity, to_json(poll), JSON, codec.MAX_BYTES)
        return _form(from_cbor, data, Letters)

    async def board(self, study: str, after: int, wait: int = 0) -> Letters:
        """Letters for everyone."""
        target = f"{study_route(study, 'board')}?after={after}&wait={wait}"
        return _form(from_cbor, await self._ask("GET", target, codec.MAX_BYTES), Letters)

    async def close(self, study: str, key: str) -> None:
        """End a study by the analyst's key."""
        await self._ask("POST", study_route(study, "close"), headers={"Authorization": f"Bearer {key}"})

    async def submit(self, study: str, payload: bytes) -> None:
        """Send a message under no name. That it was accepted is all that the answer says."""
        await self._ask("POST", study_route(study, "submissions"), body=payload, kind=CBOR)

    async def draw(self, study: str) -> bytes:
        """An instance of DDML: 8 bytes of its epoch, then its weights, little-endian."""
        return await self._ask("POST", study_route(study, "draw"), codec.MAX_BYTES)

    async def update(self, study: str, body: bytes, number: int, *, identity: Identity | None = None, ticket: bytes | None = None) -> None:
        """Send an update of DDML, which of this participant's it is: signed, with a ticket, or neither, as the study admits it."""
        route = study_route(study, "update")
        if identity is not None:
            await self._signed(f"{route}?number={number}", identity, body, RAW)
        else:
            headers = {} if ticket is None else {"Shoal-Ticket": f"{ticket.hex()} {number}"}
            await self._ask("POST", route, body=body, kind=RAW, headers=headers)

    async def _signed(
        self, target: str, identity: Identity, body: bytes, kind: str | None = None, max_bytes: int = MAX_CONTROL_BYTES
    ) -> bytes:
        """Send a signed request; once more where the coordinator's clock goes otherwise, by its time, which is used for nothing else."""
        try:
            return await self._ask("POST", target, max_bytes, body, kind, self._signature(target, identity, body))
        except RefusedError as error:
            if error.code != "AUTH-003" or error.date is None:
                raise
            self._skew = _milliseconds(error.date) - _milliseconds(self._clock.now())
        return await self._ask("POST", target, max_bytes, body, kind, self._signature(target, identity, body))

    def _signature(self, target: str, identity: Identity, body: bytes) -> dict[str, str]:
        # The path is signed as the coordinator sees it, whatever the address has in front of it.
        return {"Authorization": sign(identity, "POST", target, body, _milliseconds(self._clock.now()) + self._skew, self._entropy)}

    async def _ask(
        self,
        method: str,
        target: str,
        max_bytes: int = MAX_CONTROL_BYTES,
        body: bytes = b"",
        kind: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """The body of the answer to a request; `TransportError` where there is none, `RefusedError` where the coordinator refuses."""
        given = {**_HEADERS, **({} if kind is None else {"Content-Type": kind}), **(headers or {})}
        request = httpx2.Request(method, self.url + target, headers=given, content=body, extensions={"timeout": _SECONDS})
        try:
            response = await self._transport.handle_async_request(request)
            try:
                data = await _read(response, max_bytes)
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            if (fault := _certificate_fault(error)) is not None:
                raise _untrusted(self.url, fault) from None
            why = f"{type(error).__name__}: {shown(str(error))[:200]}" if str(error) else type(error).__name__
            what = f"The coordinator at {shown(self.url)} cannot be reached, or breaks off."
            raise TransportError("NET-001", what, why=why, fix=_AGAIN) from None
        if 200 <= response.status_code < 300:
            return data
        raise _refusal(response, data)


def _certificate_fault(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Why a certificate was not trusted, if that is what an error came of."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def _untrusted(url: str, fault: ssl.SSLCertVerificationError) -> RemoteProtocolError:
    reason = shown(fault.verify_message or "it does not verify")[:200].rstrip(".")
    return RemoteProtocolError(
        "NET-003",
        f"The certificate of the coordinator at {shown(url)} is not trusted: {reason}.",
        why="It is not issued for this address, not by anyone whom this system trusts, or somebody answers in the coordinator's place.",
        fix="Where it has a certificate of its own, get that from its analyst by another way, and give it: --ca FILE",
    )


async def _read(response: httpx2.Response, max_bytes: int) -> bytes:
    """All of an answer, if it is not larger than it may be."""
    parts, size = [], 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise _no_answer(f"more than {max_bytes:,} bytes")
    return b"".join(parts)


def _refusal(response: httpx2.Response, data: bytes) -> RefusedError | TransportError:
    """What an answer says that is no good one: that the coordinator refuses, or that something on the way is out of order."""
    status = response.status_code
    try:
        told = from_json(data, Problem)
    except RemoteProtocolError:
        return _no_answer(f"status {status} and no reason that shoal knows")
    if status == 503 or status in (408, 429) or told.code not in CODES or not 400 <= status < 500:
        code = told.code if told.code in ("HOST-004",) else "NET-002"
        return TransportError(code, f"The coordinator says, with status {status}: {_words(told.title)}", fix=_AGAIN)
    kind = NotAdmittedError if told.code.startswith("ENROL-") else RefusedError
    error = kind(
        told.code,
        f"The coordinator says: {_words(told.title)}",
        why=None if told.detail is None else _words(told.detail),
        fix=None if told.fix is None else _words(told.fix),
        status=status,
    )
    try:
        error.date = parsedate_to_datetime(response.headers.get("Date", "")).astimezone(UTC)
    except (ValueError, OverflowError):
        error.date = None
    return error


def _form(read: Callable[[bytes, type[F]], F], data: bytes, kind: type[F]) -> F:
    try:
        return read(data, kind)
    except RemoteProtocolError as error:
        raise _no_answer(f"something that is not {kind.__name__}: {error.what}") from None


def _no_answer(what: str) -> TransportError:
    why = "It may be another service, or something on the way answers in its place."
    fix = "See whether the address is the one that shoal serve has printed; nothing is lost, and the same command goes on."
    return TransportError("NET-002", f"The coordinator answers with {what.removesuffix('.')}.", why=why, fix=fix)


def _words(text: str) -> str:
    return shown(text[:300])


def _milliseconds(when: datetime) -> int:
    return int((when - _EPOCH).total_seconds() * 1000)
