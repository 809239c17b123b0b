"""Who is asked what: a public function of a person's ticket, which the person cannot choose by looking at the row.

A ticket is 32 bytes that belong to one person in one study. Its hash with the digest of the study gives two 64-bit words: the first says
to which question the person belongs, the second which features where a question has a choice of them. Anyone who sees the ticket can
recompute both, so nobody can answer a question that is not theirs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy

Words = npt.NDArray[np.uint64]
"""``(n, 2)``: two uniform 64-bit words for each person."""

TICKET_BYTES = 32
_WORD = 1 << 64
_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)


def words_of(study: bytes, ticket: bytes) -> Words:
    """The words of one ticket, ``(1, 2)``."""
    digest = hashlib.sha256(b"shoal anonml assignment" + study + ticket).digest()
    return np.frombuffer(digest[:16], "<u8").astype(np.uint64).reshape(1, 2)


def draw_words(n: int, entropy: Entropy) -> Words:
    """The words of n people whose tickets are drawn at random, without the hashing: the same law."""
    return entropy.words(2 * n, np.uint64).reshape(n, 2)


def thresholds(weights: Sequence[Fraction]) -> npt.NDArray[np.uint64]:
    """Where a 64-bit word passes from one part to the next, for parts of these weights, which sum to 1."""
    total, edges = Fraction(0), []
    for weight in weights[:-1]:
        total += weight
        edges.append(min(_WORD - 1, math.floor(total * _WORD)))
    return np.array(edges, np.uint64)


def part_of(words: npt.NDArray[np.uint64], edges: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The part that each word falls into."""
    return np.searchsorted(edges, words, side="right").astype(np.int64)


def below(words: npt.NDArray[np.uint64], bound: int) -> npt.NDArray[np.int64]:
    """Each word scaled to an integer in ``[0, bound)``, for a bound of at most 2^32; uneven by no more than a part of 2^32."""
    # floor(word * bound / 2^64) by halves, since 128-bit products do not exist here.
    high, low = words >> _HALF, words & _LOW
    product = high * np.uint64(bound) + ((low * np.uint64(bound)) >> _HALF)
    return (product >> _HALF).astype(np.int64)


def combination_of(words: npt.NDArray[np.uint64], n: int, k: int) -> npt.NDArray[np.int64]:
    """K of n things for each word, ``(len(words), k)``, rising: every combination alike.

    Notes
    -----
    The word picks a rank among all combinations in lexicographic order, and the rank is undone one place at a time: a thing is the next
    one where fewer combinations begin before it than the rank says.
    """
    rank = below(words, math.comb(n, k))
    chosen = np.empty((len(rank), k), np.int64)
    first = np.zeros(len(rank), np.int64)
    for place in range(k):
        left = k - place - 1
        # starts[i]: combinations of the places still open that begin with a thing before i.
        begin = np.array([math.comb(n - 1 - i, left) for i in range(n)], np.int64)
        starts = np.concatenate([[0], np.cumsum(begin)])
        rank = rank + starts[first]
        thing = np.searchsorted(starts, rank, side="right") - 1
        rank = rank - starts[thing]
        chosen[:, place] = thing
        first = thing + 1
    return chosen
