"""N-grams: the runs of words that count, and the same buckets on every machine."""

from __future__ import annotations

import pytest

from shoal.data.features import MAX_GRAMS, hash_ngrams


@pytest.mark.parametrize(("longest", "n"), [(1, 4), (2, 7), (3, 9)])
def test_hash_ngrams_counts_runs_up_to_max_length(longest: int, n: int) -> None:
    assert hash_ngrams("one two three four", longest, 10**6).size == n


def test_run_of_words_differs_from_its_words_and_their_order() -> None:
    forth, back = (set(hash_ngrams(text, 2, 10**6).tolist()) for text in ("red fish", "fish red"))
    words = set(hash_ngrams("red", 2, 10**6).tolist()) | set(hash_ngrams("fish", 2, 10**6).tolist())
    assert forth & back == words and len(forth) == len(back) == 3


def test_case_punctuation_and_repetition_are_ignored() -> None:
    plain = hash_ngrams("red fish", 3, 10**6).tolist()
    assert hash_ngrams("  RED, fish!", 3, 10**6).tolist() == plain
    assert hash_ngrams("fish fish", 1, 10**6).tolist() == hash_ngrams("fish", 1, 10**6).tolist()
    assert hash_ngrams("STRASSE", 1, 10**6).tolist() == hash_ngrams("straße", 1, 10**6).tolist()
    assert hash_ngrams("?!", 3, 10**6).size == 0


def test_buckets_are_equal_on_every_machine() -> None:
    assert hash_ngrams("red fish", 2, 1000).tolist() == [153, 406, 771]


def test_buckets_are_in_range_unique_and_sorted() -> None:
    found = hash_ngrams(" ".join(f"w{i}" for i in range(200)), 1, 64).tolist()
    assert found == sorted(set(found)) and found[0] >= 0 and found[-1] < 64


def test_long_text_has_bounded_number_of_ngrams() -> None:
    long = " ".join(f"w{i}" for i in range(10 * MAX_GRAMS))
    assert 0.9 * MAX_GRAMS < hash_ngrams(long, 3, 1 << 20).size <= MAX_GRAMS
    assert (
        hash_ngrams(long, 3, 1 << 20).tolist() == hash_ngrams(long + " more", 3, 1 << 20).tolist()
    )
