"""Shamir shares of numbers that a committee computes with: dealt by every database, added by each party without a word to the others.

Party ``i`` holds the values at point ``i + 1`` of random polynomials over a fixed prime field. Their degree is the most parties that
may collude and learn nothing: (n - 1) // 2 of n, as the computation on the shares asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:  # a child process needs the field alone, and starts sooner without what entropy is made of
    from shoal.entropy import Entropy

PRIME = (1 << 127) - 1
"""The field: room for the difference of two sums and for what hides it; and 3 modulo 4, which saves MPyC work."""
SUM_BITS = 40
"""A sum of all that was dealt lies between -2^40 and 2^40."""
HIDING_BITS = 72
"""Bits that hide a difference when it is opened inside a comparison. Parties draw them together; those of one honest party among 21 are
enough for a chance below 2^-64 that the comparison tells anything more than its outcome."""
SHARE_BYTES = 16


def degree(n_parties: int) -> int:
    """Most parties that together know nothing of what was dealt."""
    return (n_parties - 1) // 2


def split(values: Sequence[int], n_parties: int, entropy: Entropy, n_dealers: int = 1) -> list[tuple[int, ...]]:
    """Each party's shares of some numbers, of which the sum over all dealers is to stay within bounds.

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
            "JOINT-003", "A number is too large to be dealt.", why=f"The sums of {n_dealers} dealers must stay within 2^{SUM_BITS}."
        )
    dealt = []
    for value in values:
        coefficients = [entropy.below(PRIME) for _ in range(degree(n_parties))]
        dealt.append([_at(point, value, coefficients) for point in range(1, n_parties + 1)])
    return [tuple(shares) for shares in zip(*dealt, strict=True)]


def _at(point: int, value: int, coefficients: Sequence[int]) -> int:
    """A polynomial's value, by Horner's rule."""
    total = 0
    for coefficient in coefficients:
        total = (total + coefficient) * point
    return (total + value) % PRIME


def add(shares: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """A party's shares of the sums of what several dealers have dealt."""
    return tuple(sum(column) % PRIME for column in zip(*shares, strict=True))


def recombine(shares: Mapping[int, tuple[int, ...]], n_parties: int) -> tuple[int, ...]:
    """The numbers behind the shares of some parties, negative ones included; only a computer that sees everything may call it."""
    parties = sorted(shares)[: degree(n_parties) + 1]
    if len(parties) <= degree(n_parties):
        raise LocalProtocolError("JOINT-003", f"{len(parties)} of {n_parties} parties cannot tell what was dealt.")
    totals = [0] * len(shares[parties[0]])
    for me in parties:
        weight = 1
        for other in parties:
            if other != me:
                weight = weight * (other + 1) * pow(other - me, -1, PRIME) % PRIME
        totals = [total + weight * share for total, share in zip(totals, shares[me], strict=True)]
    return tuple((total + PRIME // 2) % PRIME - PRIME // 2 for total in totals)


def pack(shares: Sequence[int]) -> bytes:
    """Shares as they travel, inside a sealed box."""
    return b"".join(share.to_bytes(SHARE_BYTES, "little") for share in shares)


def unpack(packed: bytes, n: int) -> tuple[int, ...]:
    """The shares that somebody dealt, if they are as many as are due and each is in its one form; otherwise the dealer's error."""
    shares = tuple(int.from_bytes(packed[start : start + SHARE_BYTES], "little") for start in range(0, len(packed), SHARE_BYTES))
    if len(packed) != n * SHARE_BYTES or any(share >= PRIME for share in shares):
        raise RemoteProtocolError("JOINT-003", f"{len(packed)} bytes are not {n} shares of {SHARE_BYTES} bytes below the prime.")
    return shares
