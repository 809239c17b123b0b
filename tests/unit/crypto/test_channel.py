"""Channels return payloads in order and once, or raise."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from shoal.crypto.channel import OVERHEAD, Channel, derive_channel_keys
from shoal.crypto.secagg.context import RoundContext
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.errors import RemoteProtocolError
from tests.support.secagg import context, flips

SEEDS = [bytes([i]) * 32 for i in range(1, 4)]
PUBLICS = [derive_public_key(seed) for seed in SEEDS]


def channel(me: int, other: int, about: RoundContext | None = None) -> Channel:
    return Channel(*derive_channel_keys(SEEDS[me], PUBLICS[other], about or context(), me, other))


def refused(end: Channel, sealed: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        end.open(sealed)
    assert caught.value.code == "CRYPTO-001"


def test_only_both_ends_derive_channel_keys() -> None:
    here, there = channel(0, 1), channel(1, 0)
    assert (here.key_out, here.key_in) == (there.key_in, there.key_out)
    keys = {
        key
        for me in range(3)
        for other in range(3)
        if me != other
        for key in derive_channel_keys(SEEDS[me], PUBLICS[other], context(), me, other)
    }
    assert len(keys) == 6
    assert keys.isdisjoint(derive_channel_keys(SEEDS[0], PUBLICS[1], context(2), 0, 1))


def test_payloads_travel_both_ways_in_order() -> None:
    here, there = channel(0, 1), channel(1, 0)
    for i in range(3):
        here, sealed = here.seal(b"out %d" % i)
        assert len(sealed) == 5 + OVERHEAD
        there, payload = there.open(sealed)
        assert payload == b"out %d" % i
        there, sealed = there.seal(b"back %d" % i)
        here, payload = here.open(sealed)
        assert payload == b"back %d" % i
    assert (here.sent, here.received) == (there.sent, there.received) == (3, 3)


def test_open_rejects_repeated_reordered_and_reflected_payloads() -> None:
    here, there = channel(0, 1), channel(1, 0)
    here, first = here.seal(b"same")
    here, second = here.seal(b"same")
    assert first != second
    refused(there, second)
    there, _ = there.open(first)
    refused(there, first)
    refused(here, first)
    there, payload = there.open(second)
    assert payload == b"same"


def test_open_rejects_changed_truncated_and_foreign_payloads() -> None:
    here, there = channel(0, 1), channel(1, 0)
    _, sealed = here.seal(b"payload")
    for changed in (*flips(sealed), sealed[:-1], sealed + b"\0", b""):
        refused(there, changed)
    refused(channel(2, 0), sealed)
    refused(channel(1, 0, context(2)), sealed)
    assert there.open(sealed)[1] == b"payload"


def test_channel_can_be_saved_and_restored() -> None:
    here, there = channel(0, 1), channel(1, 0)
    later, first = here.seal(b"first")
    assert here == channel(0, 1)
    restored = Channel(**asdict(later))
    assert restored == later == replace(here, sent=1)
    _, second = restored.seal(b"second")
    there, _ = there.open(first)
    assert there.open(second)[1] == b"second"


def test_repr_does_not_show_keys() -> None:
    assert repr(channel(0, 1)) == "Channel(sent=0, received=0)"
