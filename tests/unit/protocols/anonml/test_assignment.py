"""From a ticket to words, and from words to parts and combinations."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import (
    compute_thresholds,
    draw_words,
    find_parts,
    scale_words,
    ticket_words,
    unrank_combinations,
)

WORD = 1 << 64


def test_ticket_words_are_first_bytes_of_hash() -> None:
    study, ticket = bytes(range(32)), b"t" * 32
    digest = hashlib.sha256(b"shoal anonml assignment" + study + ticket).digest()
    words = ticket_words(study, ticket)
    assert words.tolist() == [
        [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
    ]
    assert words.tolist() != ticket_words(bytes(32), ticket).tolist()
    assert words.tolist() != ticket_words(study, b"u" * 32).tolist()


def test_draw_words_has_shape_of_ticket_words() -> None:
    words = draw_words(5, SeededEntropy(1))
    assert (words.shape, words.dtype) == ((5, 2), ticket_words(bytes(32), bytes(32)).dtype)
    assert draw_words(0, SeededEntropy(1)).shape == (0, 2)


def test_compute_thresholds_accumulates_weights() -> None:
    edges = compute_thresholds([Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)])
    assert edges.tolist() == [WORD // 4, WORD // 4 * 3]
    words = np.array(
        [0, WORD // 4 - 1, WORD // 4, WORD // 4 * 3 - 1, WORD // 4 * 3, WORD - 1], np.uint64
    )
    assert find_parts(words, edges).tolist() == [0, 0, 1, 1, 2, 2]


def test_find_parts_with_single_and_empty_parts() -> None:
    words = np.array([0, WORD - 1], np.uint64)
    assert find_parts(words, compute_thresholds([Fraction(1)])).tolist() == [0, 0]
    assert find_parts(words, compute_thresholds([Fraction(0), Fraction(1)])).tolist() == [1, 1]
    assert find_parts(words[:1], compute_thresholds([Fraction(1), Fraction(0)])).tolist() == [0]


@pytest.mark.parametrize("bound", [1, 2, 3, 15, 1000, 1 << 31, (1 << 32) - 1, 1 << 32])
def test_scale_words_covers_any_bound(bound: int) -> None:
    chosen = [0, 1, WORD // 3, WORD // 2 - 1, WORD // 2, WORD - 2, WORD - 1]
    assert scale_words(np.array(chosen, np.uint64), bound).tolist() == [
        word * bound // WORD for word in chosen
    ]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (4, 4), (6, 3), (9, 2), (12, 4)])
def test_unrank_combinations_lists_all_in_order(n: int, k: int) -> None:
    expected = list(combinations(range(n), k))
    words = np.array(
        [(2 * rank + 1) * WORD // (2 * len(expected)) for rank in range(len(expected))], np.uint64
    )
    assert [tuple(chosen) for chosen in unrank_combinations(words, n, k).tolist()] == expected


def test_unrank_combinations_finds_last_of_billions() -> None:
    """60 choose 6 is 50 million; 2,000 choose 3 is 1.3 thousand million, near the most that a rule
    may ask for.
    """
    ends = np.array([0, WORD - 1], np.uint64)
    assert unrank_combinations(ends, 60, 6).tolist() == [
        [0, 1, 2, 3, 4, 5],
        [54, 55, 56, 57, 58, 59],
    ]
    assert unrank_combinations(ends, 2000, 3).tolist() == [[0, 1, 2], [1997, 1998, 1999]]
    assert unrank_combinations(ends[:0], 6, 3).shape == (0, 3)
