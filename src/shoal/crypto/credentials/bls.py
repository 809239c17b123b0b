"""BLS12-381: scalars, points, hashing to the curve (RFC 9380), pairings.

The other modules of this package compute with it, through two libraries, which are imported only
when they are used. Values with a secret go through blst, where multiplication takes the same time
for every scalar. Public values go through arkworks, which multiplies many points together
(`shoal.crypto.credentials.tokens`).

A change must keep: a point from outside is rejected unless it is in its one compressed form, on the
curve, in the subgroup of prime order, and not the identity. A scalar from outside is rejected
unless it is 32 bytes for a number from 1 to `ORDER` - 1.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module
from typing import Any

from shoal.entropy import Entropy
from shoal.errors import require_extra

ORDER = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
"""Prime order of the subgroup; scalars are numbers modulo it."""
SCALAR_BYTES, POINT_BYTES, KEY_BYTES = 32, 48, 96

_IDENTITIES = frozenset(b"\xc0" + bytes(n - 1) for n in (POINT_BYTES, KEY_BYTES))
_GENERATOR_2 = bytes.fromhex(
    "93e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e"
    "024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8"
)
_HASHED_BYTES = 48
_BLOCK = hashlib.sha256(bytes(64))
"""SHA-256 after the block of zeros with which each expansion begins."""

Point = Any
"""A point of one of the two libraries, which have no type hints."""


class MalformedError(ValueError):
    """Bytes that are not the canonical form of a point or scalar; internal to this package."""


def load_blst() -> Any:
    """Import the library for secrets; raise ``USAGE-002`` if it is not installed."""
    return _load_library("pyblst")


def load_arkworks() -> Any:
    """Import the library for public values; raise ``USAGE-002`` if it is not installed."""
    return _load_library("py_arkworks_bls12381")


def _load_library(name: str) -> Any:
    require_extra("anonymous", name, purpose="A token")
    return import_module(name)


def expand_message(message: bytes, tag: bytes, n: int) -> bytes:
    """Return ``n`` pseudorandom bytes of a message under a tag of at most 255 bytes.

    ``expand_message_xmd`` with SHA-256 (RFC 9380, section 5.3.1).

    Examples
    --------
    >>> expand_message(b"", b"QUUX-V01-CS02-with-expander-SHA256-128", 32).hex()
    '68a985b87eb6b46952128911f2a4412bbc302a9d759667f87f7a21d803f07235'
    """
    end = tag + bytes([len(tag)])
    start = _BLOCK.copy()
    start.update(message + n.to_bytes(2, "big") + b"\x00" + end)
    first = int.from_bytes(start.digest(), "big")
    block, blocks = 0, []
    for number in range(1, -(-n // 32) + 1):
        mixed = (first ^ block).to_bytes(32, "big")
        blocks.append(hashlib.sha256(mixed + bytes([number]) + end).digest())
        block = int.from_bytes(blocks[-1], "big")
    return b"".join(blocks)[:n]


def hash_to_scalar(message: bytes, tag: bytes) -> int:
    """Return a pseudorandom uniform scalar of a message under a tag."""
    return int.from_bytes(expand_message(message, tag, _HASHED_BYTES), "big") % ORDER


def hash_to_scalars(message: bytes, tag: bytes, n: int) -> list[int]:
    """Return ``n`` pseudorandom independent uniform scalars of a message under a tag.

    The probability that one of them is 0 is negligible.
    """
    stream = expand_message(message, tag, n * _HASHED_BYTES)
    return [
        int.from_bytes(stream[i : i + _HASHED_BYTES], "big") % ORDER
        for i in range(0, len(stream), _HASHED_BYTES)
    ]


def draw_scalar(entropy: Entropy) -> int:
    """Draw a uniform scalar other than 0."""
    return 1 + entropy.below(ORDER - 1)


def encode_scalar(scalar: int) -> bytes:
    """Return the canonical form of a scalar."""
    return (scalar % ORDER).to_bytes(SCALAR_BYTES, "big")


def decode_scalars(data: bytes, n: int) -> list[int]:
    """Return ``n`` scalars other than 0; raise `MalformedError` for any other bytes."""
    scalars = [
        int.from_bytes(data[i : i + SCALAR_BYTES], "big") for i in range(0, len(data), SCALAR_BYTES)
    ]
    if len(data) != n * SCALAR_BYTES or not all(0 < scalar < ORDER for scalar in scalars):
        raise MalformedError(f"not {n} scalars")
    return scalars


def decode_point(data: bytes) -> Point:
    """Return the point of the first group that 48 bytes encode, for blst.

    Raise `MalformedError` for any other bytes, and for the identity.
    """
    return _decompress(load_blst().BlstP1Element, data)


def decode_key_point(data: bytes) -> Point:
    """Return the point of the second group that 96 bytes encode, for blst.

    Raise `MalformedError` for any other bytes, and for the identity.
    """
    return _decompress(load_blst().BlstP2Element, data)


def _decompress(group: Any, data: bytes) -> Point:
    if data in _IDENTITIES:
        raise MalformedError("the identity")
    try:
        return group.uncompress(data)
    except ValueError:
        raise MalformedError("not a point") from None


def hash_to_point(message: bytes, tag: bytes) -> Point:
    """Return a point of the first group with an unknown logarithm, for blst."""
    return load_blst().BlstP1Element.hash_to_group(message, tag)


@cache
def get_key_generator() -> Point:
    """Return the generator of the second group, for blst."""
    return decode_key_point(_GENERATOR_2)


def multi_scalar_mul(*terms: tuple[Point, int]) -> Point:
    """Return the sum of points times scalars, each in constant time, on blst."""
    point, scalar = terms[0]
    total = point.scalar_mul(scalar % ORDER)
    for point, scalar in terms[1:]:
        total += point.scalar_mul(scalar % ORDER)
    return total


def is_pairing_equal(a: Point, key: Point, b: Point) -> bool:
    """Return whether e(a, key) = e(b, generator), on blst."""
    loop = load_blst().miller_loop
    return bool(load_blst().final_verify(loop(a, key), loop(b, get_key_generator())))
