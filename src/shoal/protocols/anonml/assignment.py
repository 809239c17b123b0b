"""Assignment of people to questions, from the ticket.

The assignment is a public function of a person's ticket, so the person cannot choose the question
by looking at the row. A ticket is 32 bytes that belong to one person in one study. Its hash with
the digest of the study gives two 64-bit words: the first selects the person's question, the second
the features of a block question. Anyone who sees the ticket can recompute both, so no person can
answer the question of another.
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


def ticket_words(study: bytes, ticket: bytes) -> Words:
    """Return the words of one ticket, ``(1, 2)``."""
    digest = hashlib.sha256(b"shoal anonml assignment" + study + ticket).digest()
    return np.frombuffer(digest[:16], "<u8").astype(np.uint64).reshape(1, 2)


def draw_words(n: int, entropy: Entropy) -> Words:
    """Draw the words of n people with random tickets.

    The distribution is that of `ticket_words`, without the hashing.
    """
    return entropy.words(2 * n, np.uint64).reshape(n, 2)


def compute_thresholds(weights: Sequence[Fraction]) -> npt.NDArray[np.uint64]:
    """Return the words at which one part ends and the next begins.

    The parts have these weights, which sum to 1.
    """
    total, edges = Fraction(0), []
    for weight in weights[:-1]:
        total += weight
        edges.append(min(_WORD - 1, math.floor(total * _WORD)))
    return np.array(edges, np.uint64)


def find_parts(
    words: npt.NDArray[np.uint64], edges: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Return the part that each word falls into."""
    return np.searchsorted(edges, words, side="right").astype(np.int64)


def scale_words(words: npt.NDArray[np.uint64], bound: int) -> npt.NDArray[np.int64]:
    """Scale each word to an integer in ``[0, bound)``, for a bound of at most 2^32.

    Probabilities differ by a part of 2^32 at most.
    """
    # floor(word * bound / 2^64) by halves, since 128-bit products do not exist here.
    high, low = words >> _HALF, words & _LOW
    product = high * np.uint64(bound) + ((low * np.uint64(bound)) >> _HALF)
    return (product >> _HALF).astype(np.int64)


def unrank_combinations(words: npt.NDArray[np.uint64], n: int, k: int) -> npt.NDArray[np.int64]:
    """Return k of n items for each word, ``(len(words), k)``, rising and uniform.

    Notes
    -----
    The word selects a rank among all combinations in lexicographic order. The rank is decoded one
    position at a time: an item is the next one if fewer combinations than the rank begin before it.
    """
    rank = scale_words(words, math.comb(n, k))
    chosen = np.empty((len(rank), k), np.int64)
    first = np.zeros(len(rank), np.int64)
    for place in range(k):
        left = k - place - 1
        # starts[i]: combinations of the remaining positions that begin with an item before i.
        begin = np.array([math.comb(n - 1 - i, left) for i in range(n)], np.int64)
        starts = np.concatenate([[0], np.cumsum(begin)])
        rank = rank + starts[first]
        item = np.searchsorted(starts, rank, side="right") - 1
        rank = rank - starts[item]
        chosen[:, place] = item
        first = item + 1
    return chosen
