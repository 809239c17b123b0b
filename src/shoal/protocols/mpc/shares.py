"""Shamir shares of integers over a prime field.

Every database splits its scores into shares for the committee; each party adds up the shares that
it receives, without communication. Party ``i`` holds the values at point ``i + 1`` of random
polynomials over a fixed prime field. Their degree is the largest number of parties that may collude
and learn nothing: (n - 1) // 2 of n, as the computation on the shares requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:  # worker processes start faster without the imports of `shoal.entropy`
    from shoal.entropy import Entropy

PRIME = (1 << 127) - 1
"""The field.

It is large enough for the difference of two sums and the bits that hide it; and 3 modulo 4, which
saves MPyC work.
"""
SUM_BITS = 40
"""A sum over all dealers lies between -2^40 and 2^40."""
HIDING_BITS = 72
"""Bits that hide a difference when it is opened inside a comparison.

The parties draw them together; those of one honest party among 21 suffice for a probability below
2^-64 that the comparison reveals more than its outcome.
"""
SHARE_BYTES = 16
MAX_PAIR_BYTES = 1 << 24
"""Most bytes that a party accepts from another one in a computation.

An argmax of 300 candidates takes 0.8 MB, and one of 2,000, the largest, about 5 MB.
"""
MAX_WAITING_BYTES = 1 << 26
"""Most bytes of all parties that wait at one place, for earlier frames or for their step."""


def compute_degree(n_parties: int) -> int:
    """Return the largest number of parties that together learn nothing."""
    return (n_parties - 1) // 2


def split(
    values: Sequence[int], n_parties: int, entropy: Entropy, n_dealers: int = 1
) -> list[tuple[int, ...]]:
    """Return each party's shares of some integers.

    The sum over all dealers must stay within bounds.

    Notes
    -----
    Ref: Shamir (1979); Ben-Or, Goldwasser, Wigderson (1988).

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> mine, yours = (split(values, 3, SeededEntropy(str(values))) for values in ([5, -7], [1, 2]))
    >>> recombine({i: add([mine[i], yours[i]]) for i in (0, 2)}, 3)
    (6, -5)
    """
    if any(abs(value) * n_dealers > 1 << SUM_BITS for value in values):
        raise LocalProtocolError(
            "JOINT-003",
            "An integer is too large to be shared.",
            why=f"The sums of {n_dealers} dealers must stay within 2^{SUM_BITS}.",
        )
    dealt = []
    for value in values:
        coefficients = [entropy.below(PRIME) for _ in range(compute_degree(n_parties))]
        dealt.append([_evaluate(point, value, coefficients) for point in range(1, n_parties + 1)])
    return [tuple(shares) for shares in zip(*dealt, strict=True)]


def _evaluate(point: int, value: int, coefficients: Sequence[int]) -> int:
    """Return a polynomial's value, by Horner's rule."""
    total = 0
    for coefficient in coefficients:
        total = (total + coefficient) * point
    return (total + value) % PRIME


def add(shares: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Add up a party's shares from several dealers: its shares of the sums."""
    return tuple(sum(column) % PRIME for column in zip(*shares, strict=True))


def recombine(shares: Mapping[int, tuple[int, ...]], n_parties: int) -> tuple[int, ...]:
    """Return the integers behind the shares of some parties, negative ones included.

    Only a computation that may see everything calls it.
    """
    parties = sorted(shares)[: compute_degree(n_parties) + 1]
    if len(parties) <= compute_degree(n_parties):
        raise LocalProtocolError(
            "JOINT-003", f"{len(parties)} of {n_parties} parties are too few to recombine shares."
        )
    totals = [0] * len(shares[parties[0]])
    for me in parties:
        weight = 1
        for other in parties:
            if other != me:
                weight = weight * (other + 1) * pow(other - me, -1, PRIME) % PRIME
        totals = [total + weight * share for total, share in zip(totals, shares[me], strict=True)]
    return tuple((total + PRIME // 2) % PRIME - PRIME // 2 for total in totals)


def pack(shares: Sequence[int]) -> bytes:
    """Return the bytes of shares, for a sealed box."""
    return b"".join(share.to_bytes(SHARE_BYTES, "little") for share in shares)


def unpack(packed: bytes, n: int) -> tuple[int, ...]:
    """Return the shares in some bytes.

    Raise `RemoteProtocolError` unless they are ``n`` valid shares.
    """
    shares = tuple(
        int.from_bytes(packed[start : start + SHARE_BYTES], "little")
        for start in range(0, len(packed), SHARE_BYTES)
    )
    if len(packed) != n * SHARE_BYTES or any(share >= PRIME for share in shares):
        raise RemoteProtocolError(
            "JOINT-003",
            f"{len(packed)} bytes are not {n} shares of {SHARE_BYTES} bytes below the prime.",
        )
    return shares
