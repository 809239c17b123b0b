"""From a ticket to words, and from words to parts and combinations."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import below, combination_of, draw_words, part_of, thresholds, words_of

WORD = 1 << 64


def test_words_are_the_first_bytes_of_a_hash_of_study_and_ticket() -> None:
    study, ticket = bytes(range(32)), b"t" * 32
    digest = hashlib.sha256(b"shoal anonml assignment" + study + ticket).digest()
    words = words_of(study, ticket)
    assert words.tolist() == [[int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]]
    assert words.tolist() != words_of(bytes(32), ticket).tolist()
    assert words.tolist() != words_of(study, b"u" * 32).tolist()


def test_drawn_words_have_the_same_form() -> None:
    words = draw_words(5, SeededEntropy(1))
    assert (words.shape, words.dtype) == ((5, 2), words_of(bytes(32), bytes(32)).dtype)
    assert draw_words(0, SeededEntropy(1)).shape == (0, 2)


def test_parts_begin_where_the_weights_before_them_add_up() -> None:
    edges = thresholds([Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)])
    assert edges.tolist() == [WORD // 4, WORD // 4 * 3]
    words = np.array([0, WORD // 4 - 1, WORD // 4, WORD // 4 * 3 - 1, WORD // 4 * 3, WORD - 1], np.uint64)
    assert part_of(words, edges).tolist() == [0, 0, 1, 1, 2, 2]


def test_one_part_takes_everything_and_an_empty_one_nothing() -> None:
    words = np.array([0, WORD - 1], np.uint64)
    assert part_of(words, thresholds([Fraction(1)])).tolist() == [0, 0]
    assert part_of(words, thresholds([Fraction(0), Fraction(1)])).tolist() == [1, 1]
    assert part_of(words[:1], thresholds([Fraction(1), Fraction(0)])).tolist() == [0]


@pytest.mark.parametrize("bound", [1, 2, 3, 15, 1000, 1 << 31, (1 << 32) - 1, 1 << 32])
def test_a_word_is_scaled_to_any_bound(bound: int) -> None:
    chosen = [0, 1, WORD // 3, WORD // 2 - 1, WORD // 2, WORD - 2, WORD - 1]
    assert below(np.array(chosen, np.uint64), bound).tolist() == [word * bound // WORD for word in chosen]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (4, 4), (6, 3), (9, 2), (12, 4)])
def test_ranks_are_all_combinations_in_order(n: int, k: int) -> None:
    expected = list(combinations(range(n), k))
    words = np.array([(2 * rank + 1) * WORD // (2 * len(expected)) for rank in range(len(expected))], np.uint64)
    assert [tuple(chosen) for chosen in combination_of(words, n, k).tolist()] == expected


def test_the_last_of_billions_of_combinations_is_found() -> None:
    """60 choose 6 is 50 million; 2,000 choose 3 is 1.3 thousand million, near the most that a rule may ask for."""
    ends = np.array([0, WORD - 1], np.uint64)
    assert combination_of(ends, 60, 6).tolist() == [[0, 1, 2, 3, 4, 5], [54, 55, 56, 57, 58, 59]]
    assert combination_of(ends, 2000, 3).tolist() == [[0, 1, 2], [1997, 1998, 1999]]
    assert combination_of(ends[:0], 6, 3).shape == (0, 3)
