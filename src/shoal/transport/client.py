"""HTTP requests to an untrusted server: limits, TLS, error mapping.

The participant and the relay use it. All requests have the same few headers. There are no cookies
and no redirects, nothing is read from the environment, and no response is read beyond its limits
on bytes and on time. Text in an error response is escaped and shown as a quotation.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2

from shoal.errors import CODES, ConsentError, RemoteProtocolError, TransportError, UsageError
from shoal.messages.base import Record
from shoal.text import escape_text
from shoal.transport.api import MAX_CONTROL_BYTES, Problem, from_json, is_loopback

F = TypeVar("F", bound=Record)

_TIMEOUTS: Mapping[str, float | None] = {"connect": 10.0, "write": 30.0, "read": 60.0, "pool": None}
RESPONSE_SECONDS = 120.0
"""Most seconds for a request and its response, without the time for long bodies and long polls."""
_MIN_BYTES_PER_SECOND = 1 << 15
"""A body may take as long as it takes at this rate; a slower one is not read to its end."""
_HEADERS = {"User-Agent": "shoal", "Accept": "*/*", "Accept-Encoding": "identity"}
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_RETRY_FIX = (
    "Check the address (https or http, host and port) and that the service is running, then run "
    "the same command again; nothing is lost."
)


class RefusedError(RemoteProtocolError):
    """A request is rejected for a permanent reason; ``date`` is the time in the response."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        why: str | None = None,
        fix: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(code, what, why=why, fix=fix)
        self.status = status
        self.date: datetime | None = None


class NotAdmittedError(RefusedError):
    """The coordinator does not admit a participant; no party has broken the protocol."""

    exit_code = ConsentError.exit_code


@cache
def make_client_tls_context(ca: Path | None = None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of the system, or those of a file.

    Raises
    ------
    UsageError
        ``USAGE-001``: the file has no certificates.
    """
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ValueError):
        what = f"{escape_text(str(ca))} is not a file of certificates."
        raise UsageError(
            "USAGE-001",
            what,
            fix="Give the coordinator's certificate, or that of its issuer, in PEM form: --ca FILE",
        ) from None


def choose_tls_verification(url: str, ca: Path | None) -> ssl.SSLContext | bool:
    """Return the TLS context for an https URL; False for an http URL."""
    return make_client_tls_context(ca) if url.startswith("https:") else False


def validate_url(
    url: str, kind: str = "coordinator", *, is_tor: bool = False, is_for_relay: bool = False
) -> str:
    """Return the URL of a coordinator or relay without a slash at its end.

    Raise ``USAGE-001`` if it is not a URL, not protected by TLS, or an onion service without Tor.

    Parameters
    ----------
    is_for_relay
        Check the address that a relay forwards to. A relay may use http with each loopback
        address, and its operator decides how names of onion services are resolved.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        is_form = (
            parts.scheme in ("http", "https")
            and host
            and not (parts.query or parts.fragment or parts.username)
        )
        if not is_form or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError
    except ValueError:
        raise UsageError(
            "USAGE-001",
            f"{url!a:.90} is not the address of a {kind}.",
            fix="Give https://host:port",
        ) from None
    is_onion = host.rstrip(".").endswith(".onion") and not is_for_relay
    if is_onion and not is_tor:
        why = "A name lookup without Tor would reveal that you connect to it."
        raise UsageError(
            "USAGE-001",
            f"{escape_text(url)} is an onion service, which can be reached only over Tor.",
            why=why,
            fix="--via tor",
        )
    is_local = is_loopback(host) if is_for_relay else host in _LOCAL_HOSTS
    if parts.scheme == "http" and not is_local and not is_onion:
        why = "Anyone on the network path could read and change the data, and see who takes part."
        raise UsageError(
            "USAGE-001",
            f"{escape_text(url)} is not protected by TLS.",
            why=why,
            fix="Give an address that begins with https://",
        )
    return url.rstrip("/")


@dataclass(frozen=True)
class HttpParty:
    """An untrusted server.

    Parameters
    ----------
    kind
        ``coordinator`` or ``relay``.
    url
        From `validate_url`.
    fix
        Advice for a request that fails and may be repeated.
    success
        Status codes of a response with a result.
    seconds
        Most seconds for a request and its response, without the time for long bodies.
    """

    kind: str
    url: str
    fix: str = _RETRY_FIX
    timeouts: Mapping[str, float | None] = field(default_factory=lambda: _TIMEOUTS)
    success: range = range(200, 300)
    seconds: float = RESPONSE_SECONDS

    def allow_wait(self, seconds: float) -> HttpParty:
        """Return the party with more time for a response, for a long poll."""
        return replace(self, seconds=self.seconds + seconds)

    async def request(
        self,
        transport: httpx2.AsyncBaseTransport,
        method: str,
        target: str,
        max_bytes: int = MAX_CONTROL_BYTES,
        body: bytes = b"",
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Send a request and return the body of the response; see `send` for errors."""
        request = self.make_request(method, target, body, content_type, headers)
        return await self.send(transport, request, max_bytes)

    def make_request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx2.Request:
        """Return a request with the same few headers as all requests, and ``headers``."""
        all_headers = {
            **_HEADERS,
            **({} if content_type is None else {"Content-Type": content_type}),
            **(headers or {}),
        }
        return httpx2.Request(
            method,
            self.url + target,
            headers=all_headers,
            content=body,
            extensions={"timeout": dict(self.timeouts)},
        )

    async def send(
        self,
        transport: httpx2.AsyncBaseTransport,
        request: httpx2.Request,
        max_bytes: int = MAX_CONTROL_BYTES,
        response_type: str | None = None,
    ) -> bytes:
        """Send a request and return the body of the response.

        Raises
        ------
        TransportError
            ``NET-001``: there is no response, or it takes too long. ``NET-002``, ``HOST-004``: the
            response is not one of shoal, has another content type than ``response_type``, or may be
            different later.
        RefusedError
            The request is rejected; it must not be repeated.
        RemoteProtocolError
            ``NET-003``: the certificate is not trusted.
        """
        limit = self.seconds + (len(request.content) + max_bytes) / _MIN_BYTES_PER_SECOND
        try:
            # The limits of the transport are for single reads: a byte every few seconds meets them.
            async with asyncio.timeout(limit):
                response = await transport.handle_async_request(request)
                try:
                    data = await self._read_body(response, max_bytes)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise TransportError(
                "NET-001",
                f"The {self.kind} at {escape_text(self.url)} did not send a whole response within "
                f"{limit:.0f} seconds.",
                fix=self.fix,
            ) from None
        except httpx2.TransportError as error:
            if (fault := find_certificate_error(error)) is not None:
                raise self._untrusted_certificate_error(fault) from None
            what = (
                f"The {self.kind} at {escape_text(self.url)} cannot be reached, or the connection "
                "was lost."
            )
            raise TransportError(
                "NET-001", what, why=describe_network_error(error), fix=self.fix
            ) from None
        if response.status_code in self.success:
            if response_type not in (None, response.headers.get("Content-Type")):
                raise self.bad_response_error(f"content that is not {response_type}")
            return data
        raise self._refusal_error(response, data)

    def parse_body(self, read: Callable[[bytes, type[F]], F], data: bytes, kind: type[F]) -> F:
        """Decode a response; raise ``NET-002`` if it is not of this kind."""
        try:
            return read(data, kind)
        except RemoteProtocolError as error:
            raise self.bad_response_error(
                f"something that is not {kind.__name__}: {error.what}"
            ) from None

    def bad_response_error(self, what: str) -> TransportError:
        """Make the error for a response that is not valid; ``what`` follows "sent"."""
        return TransportError(
            "NET-002",
            f"The {self.kind} sent {what.removesuffix('.')}.",
            why="It may be another service, or a proxy in between answered.",
            fix=self.fix,
        )

    async def _read_body(self, response: httpx2.Response, max_bytes: int) -> bytes:
        """Read a response up to its limit; raise ``NET-002`` if it is larger."""
        parts, size = [], 0
        async for part in response.aiter_raw():
            parts.append(part)
            size += len(part)
            if size > max_bytes:
                raise self.bad_response_error(f"more than {max_bytes:,} bytes")
        return b"".join(parts)

    def _refusal_error(
        self, response: httpx2.Response, data: bytes
    ) -> RefusedError | TransportError:
        """Make the error for an unsuccessful response: permanent, or worth a retry."""
        status = response.status_code
        try:
            problem = from_json(data, Problem)
        except RemoteProtocolError:
            return self.bad_response_error(f"status {status} without a reason that shoal knows")
        if (
            status == 503
            or status in (408, 429)
            or problem.code not in CODES
            or not 400 <= status < 500
        ):
            code = problem.code if problem.code == "HOST-004" else "NET-002"
            title = _escape_remote_text(problem.title)
            return TransportError(
                code, f"The {self.kind} says, with status {status}: {title}", fix=self.fix
            )
        kind = NotAdmittedError if problem.code.startswith("ENROL-") else RefusedError
        error = kind(
            problem.code,
            f"The {self.kind} says: {_escape_remote_text(problem.title)}",
            why=None if problem.detail is None else _escape_remote_text(problem.detail),
            fix=None if problem.fix is None else _escape_remote_text(problem.fix),
            status=status,
        )
        try:
            error.date = parsedate_to_datetime(response.headers.get("Date", "")).astimezone(UTC)
        except (ValueError, OverflowError):
            error.date = None
        return error

    def _untrusted_certificate_error(
        self, fault: ssl.SSLCertVerificationError
    ) -> RemoteProtocolError:
        because = escape_text(fault.verify_message or "it does not verify")[:200].rstrip(".")
        return RemoteProtocolError(
            "NET-003",
            f"The certificate of the {self.kind} at {escape_text(self.url)} is not trusted: "
            f"{because}.",
            why="It is for another address, its issuer is not trusted by this system, or somebody "
            f"impersonates the {self.kind}.",
            fix="If it has a self-signed certificate, get it from the analyst on another channel: "
            "--ca FILE",
        )


def find_certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the certificate error that caused an error; None if there is none."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def describe_network_error(error: BaseException) -> str:
    """Return the type and text of a network error, escaped."""
    return (
        f"{type(error).__name__}: {escape_text(str(error))[:200]}"
        if str(error)
        else type(error).__name__
    )


def _escape_remote_text(text: str) -> str:
    return escape_text(text[:300])
