"""Authenticate participants and the analyst.

The routes call it. A participant signs each request with its key; the analyst sends a key.

A key that is not enrolled in the study gets one answer, ``ENROL-001``, whatever it asks for. The
store checks that a signature's nonce is new, in the same transaction that acts on the request: a
replayed request is rejected exactly where it would have an effect, and requests of unknown keys
leave nothing in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from shoal.clock import Clock, to_milliseconds
from shoal.errors import RemoteProtocolError
from shoal.transport.signing import FRESH_SECONDS, RequestSignature, verify_request

if TYPE_CHECKING:
    from shoal.coordinator.service import CoordinatorService
    from shoal.coordinator.studies import StudyView


@dataclass(frozen=True, slots=True)
class Caller:
    """An enrolled participant: its name in the study, its key, and the nonce of this request."""

    name: str
    key: bytes
    nonce: bytes


def verify_signer(request: Request, body: bytes, clock: Clock) -> RequestSignature:
    """Verify the signature of a request and return it with its key.

    Raises
    ------
    RemoteProtocolError
        ``AUTH-001``, ``AUTH-002`` or ``AUTH-003``: see `shoal.transport.signing.verify_request`.
    """
    now = int(clock.now().timestamp() * 1000)
    return verify_request(
        _read_authorization(request), request.method, read_target(request), body, now
    )


async def authenticate(
    service: CoordinatorService, request: Request, digest: str, body: bytes
) -> Caller:
    """Return the participant that signed a request; raise ``ENROL-001`` if it is not enrolled."""
    signed = verify_signer(request, body, service.clock)
    name = await service.registrar.get_name(digest, signed.key)
    return Caller(name, signed.key, signed.nonce)


def check_analyst(service: CoordinatorService, request: Request) -> None:
    """Raise ``AUTH-001`` without an analyst's key, and ``AUTH-002`` with a wrong one."""
    scheme, _, key = (_read_authorization(request) or "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise RemoteProtocolError(
            "AUTH-001",
            "Only the analyst may do this.",
            fix="Authorization: Bearer <the analyst's key>",
        )
    if not service.is_analyst(key):
        raise RemoteProtocolError("AUTH-002", "This is not the analyst's key.")


def check_relay(view: StudyView, request: Request) -> None:
    """Raise an error if a batch is not from the relay that the manifest names.

    It is called before the body is read. A batch has no signature yet, so every sender is accepted;
    its costs are limited as those of a stranger.
    """


def read_target(request: Request) -> str:
    """Return the path and the query as they were sent, which the signature covers."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


def compute_nonce_expiry(clock: Clock) -> int:
    """Return until when the nonce of a request of now is stored, in milliseconds.

    A request may be dated `FRESH_SECONDS` in the future, and is fresh for `FRESH_SECONDS` after.
    """
    return to_milliseconds(clock.now()) + 2 * 1000 * FRESH_SECONDS


def replayed_request_error() -> RemoteProtocolError:
    """Make the error for a signed request with a nonce that was used before."""
    return RemoteProtocolError(
        "AUTH-005", "This request was received before.", fix="Sign it again, with a new nonce."
    )


def _read_authorization(request: Request) -> str | None:
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise RemoteProtocolError("AUTH-002", "The request has more than one Authorization header.")
    return given[0] if given else None
