"""Sealed boxes: what only the owner of an X25519 key can open, and only as what it was sealed for.

HPKE in its base mode (RFC 9180): X25519, HKDF-SHA256 and AES-128-GCM. A box does not say who sealed it; a signature does. The ephemeral key
of each box is drawn by the library itself from the operating system, in simulations too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from shoal.errors import RemoteProtocolError

OVERHEAD = 48
"""Bytes by which a box is longer than what is in it: an ephemeral key and a tag."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


def seal(public: bytes, plaintext: bytes, info: bytes) -> bytes:
    """A box for the owner of a public key; ``info`` says what for, and is not in the box.

    Examples
    --------
    >>> from shoal.crypto.masks import public_of
    >>> private = bytes(range(32))
    >>> open_box(private, seal(public_of(private), b"shares", b"round 1"), b"round 1")
    b'shares'
    """
    try:
        return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(public), info)
    except ValueError:
        raise RemoteProtocolError(
            "CRYPTO-001",
            "A public key is not one that an X25519 key pair has.",
            why="A box that is sealed to it would be open to everyone.",
        ) from None


def open_box(private: bytes, box: bytes, info: bytes) -> bytes:
    """What is in a box; an error where it was altered, or sealed for another key or purpose."""
    (plaintext,) = open_boxes(private, [(box, info)])
    return plaintext


def open_boxes(private: bytes, boxes: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """What is in many boxes for the same key, each given with its ``info``; one after the other, as they are asked for."""
    own = X25519PrivateKey.from_private_bytes(private)
    for box, info in boxes:
        try:
            yield _SUITE.decrypt(box, own, info)
        except (InvalidTag, ValueError):
            raise RemoteProtocolError(
                "CRYPTO-001", "A sealed box does not open.", why="It was altered, or sealed for another key or another purpose."
            ) from None
