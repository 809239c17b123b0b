"""The curve BLS12-381 as credentials need it: scalars, points in their one encoding, hashing (RFC 9380) and one equation of pairings.

Two libraries compute on it. What has a secret in it goes through blst, whose multiplications take the same time for every scalar; what
anyone may check goes through arkworks, which has multiplications of many points at once (`shoal.crypto.tokens`). Neither is needed before
it is used.

Every point that comes from outside is refused unless it is in its one compressed form, on the curve, of the subgroup of prime order, and
not the identity. Every scalar from outside is refused unless it is 32 bytes for a number from 1 to `ORDER` - 1.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module
from typing import Any

from shoal.entropy import Entropy
from shoal.errors import UsageError

ORDER = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
"""Of the subgroup, a prime: scalars count modulo it."""
SCALAR_BYTES, POINT_BYTES, KEY_BYTES = 32, 48, 96

_IDENTITIES = frozenset(b"\xc0" + bytes(n - 1) for n in (POINT_BYTES, KEY_BYTES))
_GENERATOR_2 = bytes.fromhex(
    "93e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e"
    "024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8"
)
_HASHED_BYTES = 48
_BLOCK = hashlib.sha256(bytes(64))
"""SHA-256 after the block of zeros that every expansion begins with."""

Point = Any
"""A point of one of the libraries, neither of which has types."""


class MalformedError(ValueError):
    """Bytes are not a point or a scalar in the one form that it has. It never leaves this package."""


def blst() -> Any:
    """The library for secrets; ``USAGE-002`` where it is not installed."""
    return _library("pyblst")


def arkworks() -> Any:
    """The library for what is public; ``USAGE-002`` where it is not installed."""
    return _library("py_arkworks_bls12381")


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError("USAGE-002", f"Tokens need {name}, which is not installed.", fix="pip install 'shoal[anonymous]'") from None


def expand_message(message: bytes, tag: bytes, n: int) -> bytes:
    """``n`` bytes that look random, of a message under a tag of at most 255 bytes (RFC 9380, section 5.3.1, SHA-256).

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
    """A scalar that looks uniform, of a message under a tag."""
    return int.from_bytes(expand_message(message, tag, _HASHED_BYTES), "big") % ORDER


def hash_to_scalars(message: bytes, tag: bytes, n: int) -> list[int]:
    """``n`` scalars that look independent and uniform; none is 0 but with a probability that nobody meets."""
    stream = expand_message(message, tag, n * _HASHED_BYTES)
    return [int.from_bytes(stream[i : i + _HASHED_BYTES], "big") % ORDER for i in range(0, len(stream), _HASHED_BYTES)]


def draw_scalar(entropy: Entropy) -> int:
    """A uniform scalar other than 0."""
    return 1 + entropy.below(ORDER - 1)


def scalar_bytes(scalar: int) -> bytes:
    """The one form of a scalar."""
    return (scalar % ORDER).to_bytes(SCALAR_BYTES, "big")


def scalars_of(data: bytes, n: int) -> list[int]:
    """The ``n`` scalars that some bytes are, none of them 0; `MalformedError` for anything else."""
    scalars = [int.from_bytes(data[i : i + SCALAR_BYTES], "big") for i in range(0, len(data), SCALAR_BYTES)]
    if len(data) != n * SCALAR_BYTES or not all(0 < scalar < ORDER for scalar in scalars):
        raise MalformedError(f"not {n} scalars")
    return scalars


def point_of(data: bytes) -> Point:
    """The point of the first group that 48 bytes are, for blst; `MalformedError` for anything else, the identity included."""
    return _uncompressed(blst().BlstP1Element, data)


def key_point_of(data: bytes) -> Point:
    """The point of the second group that 96 bytes are, for blst; `MalformedError` for anything else, the identity included."""
    return _uncompressed(blst().BlstP2Element, data)


def _uncompressed(group: Any, data: bytes) -> Point:
    if data in _IDENTITIES:
        raise MalformedError("the identity")
    try:
        return group.uncompress(data)
    except ValueError:
        raise MalformedError("not a point") from None


def hash_to_point(message: bytes, tag: bytes) -> Point:
    """A point of the first group whose logarithm nobody knows, for blst."""
    return blst().BlstP1Element.hash_to_group(message, tag)


@cache
def key_generator() -> Point:
    """The generator of the second group, for blst."""
    return key_point_of(_GENERATOR_2)


def weighted(*terms: tuple[Point, int]) -> Point:
    """The sum of points times scalars, one after another in constant time each, on blst."""
    point, scalar = terms[0]
    total = point.scalar_mul(scalar % ORDER)
    for point, scalar in terms[1:]:
        total += point.scalar_mul(scalar % ORDER)
    return total


def is_paired(a: Point, key: Point, b: Point) -> bool:
    """Whether e(a, key) = e(b, generator), on blst."""
    loop = blst().miller_loop
    return bool(blst().final_verify(loop(a, key), loop(b, key_generator())))
