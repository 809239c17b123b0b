"""A request that shows who sends it: signed with an Ed25519 key, for one route, one study and one body, at one time, once.

One header carries it::

    Authorization: Shoal <key> <time> <nonce> <signature>

in hexadecimal digits, the time as milliseconds since 1970. The route names the study, and so the signature is bound to both.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shoal.crypto.roster import Identity, is_usable
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages import codec

SCHEME = "Shoal"
NONCE_BYTES = 16
FRESH_SECONDS = 120
"""How far a request's time may lie from the coordinator's, before or after."""

_REQUEST, _PUBLISHED = b"shoal request 1\x00", b"shoal published 1\x00"
_HEADER = re.compile(rf"{SCHEME} ([0-9a-f]{{64}}) ([0-9]{{1,15}}) ([0-9a-f]{{{2 * NONCE_BYTES}}}) ([0-9a-f]{{128}})")


@dataclass(frozen=True, slots=True)
class Signed:
    """Who signed a request, when (milliseconds since 1970), and the nonce that makes it the only one of its kind."""

    key: bytes
    time: int
    nonce: bytes


def sign(identity: Identity, method: str, target: str, body: bytes, time: int, entropy: Entropy) -> str:
    """The value of the Authorization header.

    Parameters
    ----------
    identity
        Whose request it is.
    method, target
        ``POST``, and the path with its query as it is sent.
    body, time, entropy
        All bytes of the body; milliseconds since 1970; where the nonce comes from.
    """
    signed = Signed(identity.public, time, entropy.bytes(NONCE_BYTES))
    signature = identity.sign(_signed_bytes(signed, method, target, body))
    return f"{SCHEME} {signed.key.hex()} {time} {signed.nonce.hex()} {signature.hex()}"


def verify(header: str | None, method: str, target: str, body: bytes, now: int) -> Signed:
    """Who sent a request; that its nonce is new is for the caller to see to.

    Raises
    ------
    RemoteProtocolError
        ``AUTH-001``: there is no signature. ``AUTH-002``: it does not verify for this route and body. ``AUTH-003``: its time is not now.
    """
    if not header or not header.startswith(f"{SCHEME} "):
        raise RemoteProtocolError("AUTH-001", "The request is not signed.", fix="Enrol, and sign the request with the enrolled key.")
    found = _HEADER.fullmatch(header)
    if found is None:
        raise RemoteProtocolError("AUTH-002", "The request's signature is not of the form Shoal KEY TIME NONCE SIGNATURE.")
    signed = Signed(bytes.fromhex(found[1]), int(found[2]), bytes.fromhex(found[3]))
    try:
        if not is_usable(signed.key):
            raise InvalidSignature
        Ed25519PublicKey.from_public_bytes(signed.key).verify(bytes.fromhex(found[4]), _signed_bytes(signed, method, target, body))
    except (InvalidSignature, ValueError):
        why = "It was made with another key, or for another route, study or body."
        raise RemoteProtocolError("AUTH-002", "The request's signature does not verify.", why=why) from None
    if abs(now - signed.time) > FRESH_SECONDS * 1000:
        why = f"Its time lies {abs(now - signed.time) // 1000} s from the coordinator's; {FRESH_SECONDS} s are allowed."
        raise RemoteProtocolError("AUTH-003", "The request was not signed just now.", why=why, fix="Set the clock, and send it again.")
    return signed


def sign_published(identity: Identity, digest: bytes) -> bytes:
    """A coordinator's signature under a manifest that it publishes."""
    return identity.sign(_PUBLISHED + digest)


def verify_published(key: bytes, digest: bytes, signature: bytes) -> None:
    """Refuse a manifest that the coordinator with this key has not signed: ``AUTH-004``."""
    try:
        if not is_usable(key):
            raise InvalidSignature
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _PUBLISHED + digest)
    except (InvalidSignature, ValueError):
        raise RemoteProtocolError("AUTH-004", "The coordinator's signature under the manifest does not verify.") from None


def _signed_bytes(signed: Signed, method: str, target: str, body: bytes) -> bytes:
    content = {
        "method": method,
        "target": target,
        "body": hashlib.sha256(body).digest(),
        "key": signed.key,
        "time": signed.time,
        "nonce": signed.nonce,
    }
    return _REQUEST + codec.dumps(content)
