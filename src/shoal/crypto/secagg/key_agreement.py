"""Pairwise keys (X25519, HKDF) and mask streams (AES-CTR).

`shoal.crypto.secagg.masking` and `shoal.crypto.channel` call it. A mask stream is AES-256 in
counter mode from zero, so a key must serve one stream only. At 2 us per 1,000 numbers the stream
costs far less than the key agreement; a shorter key would save nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.errors import RemoteProtocolError

Words = npt.NDArray[np.uint64]

KEY_BYTES = 32

_PRIME = 2**255 - 19
# The u of points of order 1, 2, 4 and 8 on Curve25519 and its twist: with such a key the agreed
# secret is always zero.
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)

_CHUNK = 1 << 13
_ZEROS = bytes(8 * _CHUNK)


def derive_public_key(private: bytes) -> bytes:
    """Return the X25519 public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_usable_public_key(key: bytes) -> bool:
    """Return whether a public key can agree on a secret: it is not of small order."""
    return int.from_bytes(key, "little") % 2**255 % _PRIME not in _SMALL_ORDER


def derive_key(secret: bytes, info: bytes) -> bytes:
    """Derive a key of 32 bytes from a uniform secret (HKDF with SHA-256).

    Keys with different ``info`` are independent.
    """
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def agree_keys(private: bytes, others: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Yield the keys agreed on with others, each given by its public key and an ``info``.

    Keys are computed one at a time, when the next is requested.

    Notes
    -----
    A public key of small order would give a key that anyone can compute, and is rejected (RFC
    7748, section 6.1).

    Examples
    --------
    >>> mine, yours = bytes(range(32)), bytes(range(1, 33))
    >>> (key,) = agree_keys(mine, [(derive_public_key(yours), b"purpose")])
    >>> [key] == list(agree_keys(yours, [(derive_public_key(mine), b"purpose")]))
    True
    """
    own = X25519PrivateKey.from_private_bytes(private)
    for public, info in others:
        try:
            shared = own.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise RemoteProtocolError(
                "CRYPTO-001",
                "A public key is not a valid X25519 key.",
                why="Anyone could compute the key that is agreed on with it.",
            ) from None
        yield derive_key(shared, info)


def add_masks(total: Words, masks: Iterable[tuple[bytes, bool]]) -> None:
    """Add the mask streams of keys to ``total``, in place and modulo 2^64.

    A stream with the flag False is subtracted.

    Examples
    --------
    >>> total = np.zeros(2, np.uint64)
    >>> add_masks(total, [(bytes(32), True)])
    >>> total.tolist()
    [9910523521560253916, 9736928157321283757]
    """
    buffer = bytearray(8 * min(_CHUNK, len(total)))
    stream = np.frombuffer(buffer, "<u8")
    for key, is_added in masks:
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        apply = np.add if is_added else np.subtract
        for start in range(0, len(total), _CHUNK):
            part = total[start : start + _CHUNK]
            cipher.update_into(memoryview(_ZEROS)[: 8 * len(part)], buffer)
            apply(part, stream[: len(part)], out=part)
