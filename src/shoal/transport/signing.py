"""Signed requests and signed manifests.

Participants sign requests, and the coordinator verifies them; the coordinator signs manifests, and
participants and relays verify those. An Ed25519 signature of a request is valid for one path, one
body and one time, and once, because it contains a nonce. The path contains the study's digest, so
the signature is also bound to the study. It is in one header::

    Authorization: Shoal <key> <time> <nonce> <signature>

in hexadecimal digits; the time is in milliseconds since 1970.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shoal.crypto.identity import Identity, is_usable_key
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages import codec

SCHEME = "Shoal"
NONCE_BYTES = 16
FRESH_SECONDS = 120
"""Most seconds between a request's time and the coordinator's, before or after."""

_REQUEST_TAG, _MANIFEST_TAG = b"shoal request 1\x00", b"shoal published 1\x00"
_BROADCAST_TAG = b"shoal broadcast 1\x00"
_HEADER = re.compile(
    rf"{SCHEME} ([0-9a-f]{{64}}) ([0-9]{{1,15}}) ([0-9a-f]{{{2 * NONCE_BYTES}}}) ([0-9a-f]{{128}})"
)


@dataclass(frozen=True, slots=True)
class RequestSignature:
    """Key, time (milliseconds since 1970) and nonce of a signed request."""

    key: bytes
    time: int
    nonce: bytes


def sign_request(
    identity: Identity, method: str, target: str, body: bytes, time: int, entropy: Entropy
) -> str:
    """Sign a request; return the value of the Authorization header.

    Parameters
    ----------
    target
        The path with its query, as it is sent.
    time
        Milliseconds since 1970.
    entropy
        Source of the nonce.
    """
    signed = RequestSignature(identity.public_key, time, entropy.bytes(NONCE_BYTES))
    signature = identity.sign(_encode_signed_content(signed, method, target, body))
    return f"{SCHEME} {signed.key.hex()} {time} {signed.nonce.hex()} {signature.hex()}"


def verify_request(
    header: str | None, method: str, target: str, body: bytes, now: int
) -> RequestSignature:
    """Verify the signature of a request; the caller must check that the nonce is new.

    Raises
    ------
    RemoteProtocolError
        ``AUTH-001``: there is no signature. ``AUTH-002``: it does not verify for this route and
        body. ``AUTH-003``: its time is not close to ``now``.
    """
    if not header or not header.startswith(f"{SCHEME} "):
        raise RemoteProtocolError(
            "AUTH-001",
            "The request is not signed.",
            fix="Enrol, and sign the request with the enrolled key.",
        )
    found = _HEADER.fullmatch(header)
    if found is None:
        raise RemoteProtocolError(
            "AUTH-002",
            "The Authorization header does not have the form Shoal KEY TIME NONCE SIGNATURE.",
        )
    signed = RequestSignature(bytes.fromhex(found[1]), int(found[2]), bytes.fromhex(found[3]))
    try:
        if not is_usable_key(signed.key):
            raise InvalidSignature
        Ed25519PublicKey.from_public_bytes(signed.key).verify(
            bytes.fromhex(found[4]), _encode_signed_content(signed, method, target, body)
        )
    except (InvalidSignature, ValueError):
        why = "It was made with another key, or for another route, study or body."
        raise RemoteProtocolError(
            "AUTH-002", "The request's signature does not verify.", why=why
        ) from None
    if abs(now - signed.time) > FRESH_SECONDS * 1000:
        why = (
            f"Its time differs from the coordinator's by {abs(now - signed.time) // 1000} s; "
            f"{FRESH_SECONDS} s are allowed."
        )
        raise RemoteProtocolError(
            "AUTH-003",
            "The time of the request's signature is too far from the present time.",
            why=why,
            fix="Set the clock, and send the request again.",
        )
    return signed


def sign_manifest(identity: Identity, digest: bytes) -> bytes:
    """Return a coordinator's signature of a manifest that it publishes."""
    return identity.sign(_MANIFEST_TAG + digest)


def verify_manifest(key: bytes, digest: bytes, signature: bytes) -> None:
    """Raise ``AUTH-004`` if the coordinator with this key has not signed the manifest."""
    if not _is_signed(key, signature, _MANIFEST_TAG + digest):
        raise RemoteProtocolError(
            "AUTH-004", "The coordinator's signature of the manifest does not verify."
        )


def sign_broadcast(identity: Identity, study: bytes, number: int, payload: bytes) -> bytes:
    """Return a coordinator's signature of a message to everyone.

    Parameters
    ----------
    study
        Digest of the manifest.
    number
        Number of the message on the board.
    """
    return identity.sign(_encode_broadcast(study, number, payload))


def verify_broadcast(
    key: bytes, study: bytes, number: int, payload: bytes, signature: bytes | None
) -> None:
    """Raise ``AUTH-004`` if the coordinator with this key has not signed the message."""
    content = _encode_broadcast(study, number, payload)
    if signature is None or not _is_signed(key, signature, content):
        raise RemoteProtocolError(
            "AUTH-004",
            f"The coordinator's signature of message {number} to everyone "
            f"{'is missing' if signature is None else 'does not verify'}.",
            why="A message without it could be made for one reader.",
        )


def _encode_broadcast(study: bytes, number: int, payload: bytes) -> bytes:
    return _BROADCAST_TAG + study + number.to_bytes(8, "big") + hashlib.sha256(payload).digest()


def _is_signed(key: bytes, signature: bytes, content: bytes) -> bool:
    try:
        if not is_usable_key(key):
            return False
        Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _encode_signed_content(
    signed: RequestSignature, method: str, target: str, body: bytes
) -> bytes:
    content = {
        "method": method,
        "target": target,
        "body": hashlib.sha256(body).digest(),
        "key": signed.key,
        "time": signed.time,
        "nonce": signed.nonce,
    }
    return _REQUEST_TAG + codec.dumps(content)
