"""Who makes a request: an enrolled participant by a signature, the analyst by a key.

A key that is not enrolled is told only that it is not enrolled in this study. That a signature is new is for the store to say, in the
same transaction that acts on the request; so a request that comes twice is refused where it matters, and nothing is remembered for the
requests of strangers.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from shoal.clock import Clock
from shoal.coordinator.office import Office
from shoal.errors import RemoteProtocolError
from shoal.transport.signing import Signed, verify


@dataclass(frozen=True, slots=True)
class Caller:
    """An enrolled participant: its name in the study, its key, and the nonce of this request."""

    name: str
    key: bytes
    nonce: bytes


def signer(request: Request, body: bytes, clock: Clock) -> Signed:
    """Whose signature a request carries.

    Raises
    ------
    RemoteProtocolError
        ``AUTH-001``, ``AUTH-002`` or ``AUTH-003``, as `shoal.transport.signing.verify` has them.
    """
    now = int(clock.now().timestamp() * 1000)
    return verify(_authorization(request), request.method, target_of(request), body, now)


async def caller(office: Office, request: Request, digest: str, body: bytes) -> Caller:
    """The participant that makes a request; ``ENROL-001`` for a key that is not enrolled in this study."""
    signed = signer(request, body, office.clock)
    return Caller(await office.name_of(digest, signed.key), signed.key, signed.nonce)


def check_analyst(office: Office, request: Request) -> None:
    """Refuse whoever does not give the analyst's key: ``AUTH-001`` without any, ``AUTH-002`` with another one."""
    scheme, _, key = (_authorization(request) or "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise RemoteProtocolError("AUTH-001", "Only the analyst may do this.", fix="Authorization: Bearer <the analyst's key>")
    if not office.is_analyst(key):
        raise RemoteProtocolError("AUTH-002", "This is not the analyst's key.")


def target_of(request: Request) -> str:
    """The path and the query as they were sent: what a signature is bound to."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


def _authorization(request: Request) -> str | None:
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise RemoteProtocolError("AUTH-002", "The request carries more than one Authorization header.")
    return given[0] if given else None
