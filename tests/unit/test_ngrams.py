"""N-grams: which runs of words count, and that every machine numbers them alike."""

from __future__ import annotations

import pytest

from shoal.ngrams import MAX_GRAMS, hashed_ngrams


@pytest.mark.parametrize(("longest", "n"), [(1, 4), (2, 7), (3, 9)])
def test_runs_of_up_to_so_many_words_count(longest: int, n: int) -> None:
    assert hashed_ngrams("one two three four", longest, 10**6).size == n


def test_a_run_is_told_from_its_words_and_from_their_order() -> None:
    forth, back = (set(hashed_ngrams(text, 2, 10**6).tolist()) for text in ("red fish", "fish red"))
    words = set(hashed_ngrams("red", 2, 10**6).tolist()) | set(hashed_ngrams("fish", 2, 10**6).tolist())
    assert forth & back == words and len(forth) == len(back) == 3


def test_case_marks_and_repetition_do_not_count() -> None:
    plain = hashed_ngrams("red fish", 3, 10**6).tolist()
    assert hashed_ngrams("  RED, fish!", 3, 10**6).tolist() == plain
    assert hashed_ngrams("fish fish", 1, 10**6).tolist() == hashed_ngrams("fish", 1, 10**6).tolist()
    assert hashed_ngrams("STRASSE", 1, 10**6).tolist() == hashed_ngrams("straße", 1, 10**6).tolist()
    assert hashed_ngrams("?!", 3, 10**6).size == 0


def test_numbers_are_the_same_on_every_machine() -> None:
    assert hashed_ngrams("red fish", 2, 1000).tolist() == [153, 406, 771]


def test_buckets_lie_in_range_once_and_in_order() -> None:
    found = hashed_ngrams(" ".join(f"w{i}" for i in range(200)), 1, 64).tolist()
    assert found == sorted(set(found)) and found[0] >= 0 and found[-1] < 64


def test_a_long_text_has_a_bounded_number() -> None:
    long = " ".join(f"w{i}" for i in range(10 * MAX_GRAMS))
    assert 0.9 * MAX_GRAMS < hashed_ngrams(long, 3, 1 << 20).size <= MAX_GRAMS
    assert hashed_ngrams(long, 3, 1 << 20).tolist() == hashed_ngrams(long + " more", 3, 1 << 20).tolist()
