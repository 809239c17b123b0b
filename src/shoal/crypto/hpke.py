"""HPKE (RFC 9180) sealed boxes.

Base mode with X25519, HKDF-SHA256 and AES-128-GCM. Key shares of secure sums and scores of SDQ
committees are sealed with it. A change must keep:

- Only the owner of the X25519 key can open a box, and only with the ``info`` it was sealed with.
- A box does not identify its sender; a signature does.
- The library draws the ephemeral key of each box from the operating system, in simulations too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from shoal.errors import RemoteProtocolError

OVERHEAD = 48
"""Bytes that sealing adds to the content: an ephemeral key and a tag."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


def seal(public: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Return a box for the owner of a public key.

    Parameters
    ----------
    info
        The purpose of the box; it is authenticated but not part of the box.

    Examples
    --------
    >>> from shoal.crypto.secagg.key_agreement import derive_public_key
    >>> private = bytes(range(32))
    >>> open_box(private, seal(derive_public_key(private), b"shares", b"round 1"), b"round 1")
    b'shares'
    """
    try:
        return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(public), info)
    except ValueError:
        raise RemoteProtocolError(
            "CRYPTO-001",
            "A public key is not a valid X25519 key.",
            why="Anyone could open a box that is sealed to it.",
        ) from None


def open_box(private: bytes, box: bytes, info: bytes) -> bytes:
    """Return the content of a box.

    Raise ``CRYPTO-001`` if it was altered, or sealed for another key or purpose.
    """
    (plaintext,) = open_boxes(private, [(box, info)])
    return plaintext


def open_boxes(private: bytes, boxes: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Yield the content of boxes for the same key, each given with its ``info``.

    Boxes are opened one at a time, when the next content is requested.
    """
    own = X25519PrivateKey.from_private_bytes(private)
    for box, info in boxes:
        try:
            yield _SUITE.decrypt(box, own, info)
        except (InvalidTag, ValueError):
            raise RemoteProtocolError(
                "CRYPTO-001",
                "A sealed box cannot be decrypted.",
                why="It was altered, or sealed for another key or another purpose.",
            ) from None
