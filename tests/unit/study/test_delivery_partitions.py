"""Tickets of the partitions of a study: all partitions share one counter."""

from __future__ import annotations

import hashlib

import pytest

from shoal.study import delivery
from shoal.study.delivery import TokenSlots
from tests.support.credentials import make_study

PAPER = make_study("anonml paper")


def test_tickets_of_all_partitions_share_one_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet names its partition before its token is verified.

    A sender that names all partitions must not cause more than one count.
    """
    n_words = 0
    compute_words = delivery.ticket_words

    def count_words(*given: bytes) -> object:
        nonlocal n_words
        n_words += 1
        return compute_words(*given)

    monkeypatch.setattr(delivery, "ticket_words", count_words)
    monkeypatch.setattr(delivery, "_TICKETS_PER_DRAW", 1)
    slots = TokenSlots(PAPER)
    tickets = [
        slots.compute_ticket(b"", partition) for partition in range(slots.n_credential_partitions)
    ]
    counted = [
        hashlib.sha256(b"shoal place's ticket 1\x00" + PAPER.digest + i.to_bytes(4, "big")).digest()
        for i in range(n_words)
    ]
    assert set(tickets) <= set(counted) and counted[-1] in tickets
    for partition in range(slots.n_credential_partitions):
        assert slots.compute_ticket(b"", partition) == tickets[partition]
    assert n_words == len(counted)
