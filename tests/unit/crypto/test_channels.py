"""A channel gives what was sent, in its order, once, or nothing."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from shoal.crypto.channels import OVERHEAD, Channel, channel_keys
from shoal.crypto.context import Context
from shoal.crypto.masks import public_of
from shoal.errors import RemoteProtocolError
from sum_cases import context, flips

SEEDS = [bytes([i]) * 32 for i in range(1, 4)]
PUBLICS = [public_of(seed) for seed in SEEDS]


def channel(me: int, other: int, about: Context | None = None) -> Channel:
    return Channel(*channel_keys(SEEDS[me], PUBLICS[other], about or context(), me, other))


def refused(end: Channel, sealed: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        end.open(sealed)
    assert caught.value.code == "CRYPTO-001"


def test_both_ends_have_the_keys_of_one_channel_and_nobody_else() -> None:
    here, there = channel(0, 1), channel(1, 0)
    assert (here.key_out, here.key_in) == (there.key_in, there.key_out)
    keys = {
        key for me in range(3) for other in range(3) if me != other for key in channel_keys(SEEDS[me], PUBLICS[other], context(), me, other)
    }
    assert len(keys) == 6
    assert keys.isdisjoint(channel_keys(SEEDS[0], PUBLICS[1], context(2), 0, 1))


def test_payloads_go_both_ways_in_their_order() -> None:
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


def test_what_is_repeated_reordered_or_sent_back_is_refused() -> None:
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


def test_what_was_changed_cut_or_is_for_another_is_refused() -> None:
    here, there = channel(0, 1), channel(1, 0)
    _, sealed = here.seal(b"payload")
    for changed in (*flips(sealed), sealed[:-1], sealed + b"\0", b""):
        refused(there, changed)
    refused(channel(2, 0), sealed)
    refused(channel(1, 0, context(2)), sealed)
    assert there.open(sealed)[1] == b"payload"


def test_a_channel_is_a_value_that_can_be_saved() -> None:
    here, there = channel(0, 1), channel(1, 0)
    later, first = here.seal(b"first")
    assert here == channel(0, 1)
    restored = Channel(**asdict(later))
    assert restored == later == replace(here, sent=1)
    _, second = restored.seal(b"second")
    there, _ = there.open(first)
    assert there.open(second)[1] == b"second"


def test_a_channel_does_not_show_its_keys() -> None:
    assert repr(channel(0, 1)) == "Channel(sent=0, received=0)"
