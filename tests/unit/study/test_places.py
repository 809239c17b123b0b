"""The tickets of a study's places: all of them take one count, however many there are."""

from __future__ import annotations

import hashlib

import pytest

from shoal.study import anonymity
from shoal.study.anonymity import Slots
from token_cases import study_of

PAPER = study_of("anonml paper")


def test_all_places_together_take_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet names its place before its token was looked at: who names all of them has nothing counted twice."""
    n_words = 0
    words_of = anonymity.words_of

    def counting(*given: bytes) -> object:
        nonlocal n_words
        n_words += 1
        return words_of(*given)

    monkeypatch.setattr(anonymity, "words_of", counting)
    monkeypatch.setattr(anonymity, "_COUNTED_AT_ONCE", 1)
    slots = Slots(PAPER)
    tickets = [slots.ticket(b"", place) for place in range(slots.n_places)]
    counted = [hashlib.sha256(b"shoal place's ticket 1\x00" + PAPER.digest + i.to_bytes(4, "big")).digest() for i in range(n_words)]
    assert set(tickets) <= set(counted) and counted[-1] in tickets
    for place in range(slots.n_places):
        assert slots.ticket(b"", place) == tickets[place]
    assert n_words == len(counted)
