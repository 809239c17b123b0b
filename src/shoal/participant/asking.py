"""One request and its answer over HTTP, with a coordinator or a relay: what is sent of oneself, and what is made of errors.

Every request has the same few headers. There are no cookies, no redirects, nothing is read from the environment, and no answer is
read beyond the size that it may have. Nobody out there is trusted: what an answer says in an error is shown as a stranger's words.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2

from shoal.errors import CODES, ConsentError, RemoteProtocolError, TransportError, UsageError
from shoal.messages.base import Record
from shoal.names import shown
from shoal.transport.forms import MAX_CONTROL_BYTES, Problem, from_json

F = TypeVar("F", bound=Record)

_SECONDS = {"connect": 10.0, "write": 30.0, "read": 60.0, "pool": None}
_HEADERS = {"User-Agent": "shoal", "Accept": "*/*", "Accept-Encoding": "identity"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_AGAIN = "See whether the address is right (https or http, host and port) and it is up; nothing is lost, and the same command goes on."


class RefusedError(RemoteProtocolError):
    """A request is not taken, for a reason that will not go away: the answer's status, and the time as it says."""

    def __init__(self, code: str, what: str, *, why: str | None = None, fix: str | None = None, status: int = 400) -> None:
        super().__init__(code, what, why=why, fix=fix)
        self.status = status
        self.date: datetime | None = None


class NotAdmittedError(RefusedError):
    """The coordinator does not let a participant in: there is nobody who has misbehaved, and no agreement."""

    exit_code = ConsentError.exit_code


@cache
def tls_context(ca: Path | None = None) -> ssl.SSLContext:
    """How a certificate is checked: against those that the system trusts, or those of a file.

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


def tls_for(url: str, ca: Path | None) -> ssl.SSLContext | bool:
    """How the certificate behind an address is checked; not at all where it has none."""
    return tls_context(ca) if url.startswith("https:") else False


def checked_url(url: str, kind: str = "coordinator", *, is_tor: bool = False) -> str:
    """The address of a coordinator or relay, without a slash at its end; an error where it cannot be used or is open to all on the way."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        is_form = parts.scheme in ("http", "https") and host and not (parts.query or parts.fragment or parts.username)
        if not is_form or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError
    except ValueError:
        raise UsageError("USAGE-001", f"{url!a:.90} is not the address of a {kind}.", fix="Give https://host:port") from None
    is_onion = host.rstrip(".").endswith(".onion")
    if is_onion and not is_tor:
        why = "Its name would be looked up in the open, and would say to whom you speak."
        raise UsageError("USAGE-001", f"{shown(url)} is an onion service, which is reached over Tor alone.", why=why, fix="--via tor")
    if parts.scheme == "http" and host not in _LOOPBACK and not is_onion:
        why = "Who is on the way could read and change what a coordinator says, and see who answers."
        raise UsageError("USAGE-001", f"{shown(url)} is not protected by TLS.", why=why, fix="Give an address that begins with https://")
    return url.rstrip("/")


@dataclass(frozen=True)
class Party:
    """Who is asked.

    Parameters
    ----------
    kind
        ``coordinator`` or ``relay``.
    url
        The address, as `checked_url` gives it.
    """

    kind: str
    url: str

    async def ask(
        self,
        transport: httpx2.AsyncBaseTransport,
        method: str,
        target: str,
        max_bytes: int = MAX_CONTROL_BYTES,
        body: bytes = b"",
        kind: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """The body of the answer to a request; `TransportError` where there is none, `RefusedError` where it is refused."""
        given = {**_HEADERS, **({} if kind is None else {"Content-Type": kind}), **(headers or {})}
        request = httpx2.Request(method, self.url + target, headers=given, content=body, extensions={"timeout": _SECONDS})
        try:
            response = await transport.handle_async_request(request)
            try:
                data = await self._read(response, max_bytes)
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            if (fault := certificate_fault(error)) is not None:
                raise self._untrusted(fault) from None
            what = f"The {self.kind} at {shown(self.url)} cannot be reached, or breaks off."
            raise TransportError("NET-001", what, why=reason(error), fix=_AGAIN) from None
        if 200 <= response.status_code < 300:
            return data
        raise self._refusal(response, data)

    def form(self, read: Callable[[bytes, type[F]], F], data: bytes, kind: type[F]) -> F:
        """What an answer must be; `TransportError` where it is something else."""
        try:
            return read(data, kind)
        except RemoteProtocolError as error:
            raise self.no_answer(f"something that is not {kind.__name__}: {error.what}") from None

    def no_answer(self, what: str) -> TransportError:
        """The error for an answer that is none."""
        why = "It may be another service, or something on the way answers in its place."
        fix = f"See whether the address is the one that shoal {'relay' if self.kind == 'relay' else 'serve'} has printed; " + (
            "nothing is lost, and the same command goes on."
        )
        return TransportError("NET-002", f"The {self.kind} answers with {what.removesuffix('.')}.", why=why, fix=fix)

    async def _read(self, response: httpx2.Response, max_bytes: int) -> bytes:
        """All of an answer, if it is not larger than it may be."""
        parts, size = [], 0
        async for part in response.aiter_raw():
            parts.append(part)
            size += len(part)
            if size > max_bytes:
                raise self.no_answer(f"more than {max_bytes:,} bytes")
        return b"".join(parts)

    def _refusal(self, response: httpx2.Response, data: bytes) -> RefusedError | TransportError:
        """What an answer says that is no good one: that the request is refused, or that something on the way is out of order."""
        status = response.status_code
        try:
            told = from_json(data, Problem)
        except RemoteProtocolError:
            return self.no_answer(f"status {status} and no reason that shoal knows")
        if status == 503 or status in (408, 429) or told.code not in CODES or not 400 <= status < 500:
            code = told.code if told.code in ("HOST-004",) else "NET-002"
            return TransportError(code, f"The {self.kind} says, with status {status}: {_words(told.title)}", fix=_AGAIN)
        kind = NotAdmittedError if told.code.startswith("ENROL-") else RefusedError
        error = kind(
            told.code,
            f"The {self.kind} says: {_words(told.title)}",
            why=None if told.detail is None else _words(told.detail),
            fix=None if told.fix is None else _words(told.fix),
            status=status,
        )
        try:
            error.date = parsedate_to_datetime(response.headers.get("Date", "")).astimezone(UTC)
        except (ValueError, OverflowError):
            error.date = None
        return error

    def _untrusted(self, fault: ssl.SSLCertVerificationError) -> RemoteProtocolError:
        because = shown(fault.verify_message or "it does not verify")[:200].rstrip(".")
        return RemoteProtocolError(
            "NET-003",
            f"The certificate of the {self.kind} at {shown(self.url)} is not trusted: {because}.",
            why=f"It is not for this address, not by anyone whom this system trusts, or somebody answers in the {self.kind}'s place.",
            fix="Where it has a certificate of its own, get that from its analyst by another way, and give it: --ca FILE",
        )


def certificate_fault(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Why a certificate was not trusted, if that is what an error came of."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def reason(error: BaseException) -> str:
    """What an error of HTTP says, for people."""
    return f"{type(error).__name__}: {shown(str(error))[:200]}" if str(error) else type(error).__name__


def _words(text: str) -> str:
    return shown(text[:300])
