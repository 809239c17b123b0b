"""Masks of a secure sum: keys that two members agree on, and the streams of numbers that they stand for.

A stream is AES-256 in counter mode from zero: every key is used for one stream only. At 2 us per 1,000 numbers it costs next to nothing
beside the agreement, so there is no reason for a shorter key.
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
# The u of Curve25519's points of order 1, 2, 4 and 8, and of its twist's: with such a key everyone agrees on zero.
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


def public_of(private: bytes) -> bytes:
    """The X25519 public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_public(key: bytes) -> bool:
    """Whether something secret can be agreed on with a public key: it is not of small order, in whichever form it is written."""
    return int.from_bytes(key, "little") % 2**255 % _PRIME not in _SMALL_ORDER


def derive(secret: bytes, info: bytes) -> bytes:
    """A key of 32 bytes from a uniform secret, by HKDF with SHA-256; another purpose in ``info`` gives an unrelated key."""
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def agree(private: bytes, public: bytes, info: bytes) -> bytes:
    """The key that the owner of ``private`` and the owner of ``public`` have in common.

    Examples
    --------
    >>> mine, yours = bytes(range(32)), bytes(range(1, 33))
    >>> agree(mine, public_of(yours), b"why") == agree(yours, public_of(mine), b"why")
    True
    """
    (key,) = agree_all(private, [(public, info)])
    return key


def agree_all(private: bytes, others: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The keys with many others, each given by its public key and an ``info``; one after the other, as they are asked for.

    Notes
    -----
    A public key of small order would give a key that everyone can compute, and is refused (RFC 7748, section 6.1).
    """
    own = X25519PrivateKey.from_private_bytes(private)
    for public, info in others:
        try:
            shared = own.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise RemoteProtocolError(
                "CRYPTO-001",
                "A public key is not one that an X25519 key pair has.",
                why="What is agreed on with it would be known to everyone.",
            ) from None
        yield derive(shared, info)


def expand(key: bytes, n: int) -> Words:
    """The first ``n`` numbers of a key's stream.

    Examples
    --------
    >>> expand(bytes(32), 2).tolist()
    [9910523521560253916, 9736928157321283757]
    """
    stream = np.zeros(n, np.uint64)
    add_masks(stream, [(key, True)])
    return stream


def add_masks(total: Words, masks: Iterable[tuple[bytes, bool]]) -> None:
    """Add the streams of some keys to ``total``, in place and modulo 2^64; one whose flag is False is taken away."""
    buffer = bytearray(8 * min(_CHUNK, len(total)))
    stream = np.frombuffer(buffer, "<u8")
    for key, is_added in masks:
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        apply = np.add if is_added else np.subtract
        for start in range(0, len(total), _CHUNK):
            part = total[start : start + _CHUNK]
            cipher.update_into(memoryview(_ZEROS)[: 8 * len(part)], buffer)
            apply(part, stream[: len(part)], out=part)
