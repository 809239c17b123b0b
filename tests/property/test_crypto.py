"""Secure sums for any members, thresholds, values and drop-outs; encodings that are never alike; bytes that were changed anywhere."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.crypto.boxes import open_box, seal
from shoal.crypto.channels import Channel
from shoal.crypto.context import Context
from shoal.crypto.dealing import check_revealed, open_all, shares_to_reveal
from shoal.crypto.masks import public_of
from shoal.crypto.roster import Identity, MemberError, Roster
from shoal.crypto.secure_sum import limit
from shoal.crypto.shamir import recombine, recombine_many, split
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, ShoalError
from sum_cases import Round, begin

parts = st.lists(st.integers(0, 2**64 - 1) | st.binary(max_size=12), max_size=4).map(tuple)
contexts = st.builds(Context, st.binary(max_size=4), st.binary(max_size=4), st.integers(0, 300), st.binary(max_size=4))
bound = st.tuples(contexts, st.text(max_size=4), parts)


@given(bound, bound)
def test_no_two_things_are_bound_alike(
    one: tuple[Context, str, tuple[int | bytes, ...]], other: tuple[Context, str, tuple[int | bytes, ...]]
) -> None:
    assert (one[0].bind(one[1], *one[2]) == other[0].bind(other[1], *other[2])) == (one == other)


@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_of_holders_recombine_a_secret(secret: bytes, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 30))
    threshold = data.draw(st.integers(1, n))
    shares = split(secret, threshold, n, SeededEntropy(data.draw(st.integers(0, 9))))
    holders = data.draw(st.permutations(range(n)))[: data.draw(st.integers(threshold, n))]
    assert recombine({holder: shares[holder] for holder in holders}, threshold) == secret
    assert recombine_many(holders[:threshold], [[shares[holder] for holder in holders[:threshold]]]) == [secret]


@given(st.data())
def test_a_changed_share_among_more_than_enough_is_always_noticed(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 12))
    threshold = data.draw(st.integers(1, n - 1))
    shares = dict(enumerate(split(bytes(range(32)), threshold, n, SeededEntropy(1))))
    holder, bit = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, 8 * 36 - 1))
    shares[holder] = flipped(shares[holder], bit)
    with pytest.raises(RemoteProtocolError) as caught:
        recombine(shares, threshold)
    assert caught.value.code == "CRYPTO-001"


@given(st.data())
@settings(max_examples=40)
def test_a_sum_is_right_whoever_leaves_whenever(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 7))
    threshold = data.draw(st.integers(1, n))

    def left(members: list[int]) -> list[int]:
        return sorted(data.draw(st.permutations(members))[: data.draw(st.integers(threshold, len(members)))])

    keyed = left(list(range(n)))
    dealt = left(keyed)
    survivors = left(dealt)
    holders = left(survivors)
    size = data.draw(st.integers(0, 3))
    most = limit(len(dealt))
    values = {member: data.draw(st.lists(st.integers(-most, most), min_size=size, max_size=size)) for member in survivors}
    found = begin(n, threshold, keyed=keyed, dealing=dealt, seed=data.draw(st.integers(0, 99))).summed(values, holders)
    assert found.tolist() == [sum(values[member][i] for member in survivors) for i in range(size)]


@cache
def five() -> Round:
    return begin(5, 3)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(st.integers(0, 4), st.integers(0, 4), st.data())
def test_any_bit_of_a_box_a_commitment_or_a_revealed_share_counts(dealer: int, member: int, data: st.DataObject) -> None:
    assume(dealer != member)
    one = five()
    which = data.draw(st.sampled_from(["own", "mask"]))
    box, commitment = one.dealings[dealer].boxes[member], one.dealings[dealer].commitments[member]
    revealed = shares_to_reveal(one.shares[member][dealer], which)
    changed_box, changed_commitment, changed = (
        flipped(whole, data.draw(st.integers(0, 8 * len(whole) - 1))) for whole in (box, commitment, revealed)
    )
    for dealt in ((changed_box, commitment), (box, changed_commitment)):
        with pytest.raises(MemberError) as caught:
            open_all(one.secrets[member], one.context, member, {dealer: dealt})
        assert caught.value.member == dealer
    with pytest.raises(MemberError) as caught:
        check_revealed(one.context, dealer, member, which, changed, commitment)
    assert caught.value.member == member


@given(st.integers(0, 511), st.binary(max_size=40), st.data())
def test_any_bit_of_a_signature_or_of_what_it_is_for_counts(bit: int, text: bytes, data: st.DataObject) -> None:
    identity = Identity.from_seed(bytes(32))
    roster = Roster(("north",), (identity.public,))
    signature = identity.sign(text)
    roster.check(0, signature, text)
    other = data.draw(st.binary(max_size=40).filter(lambda one: one != text))
    for wrong in ((flipped(signature, bit), text), (signature, other)):
        with pytest.raises(MemberError):
            roster.check(0, *wrong)


@given(st.integers(0, 4), st.integers(0, 4), st.binary(max_size=140))
def test_a_holder_that_reveals_anything_else_is_named_or_without_effect(owner: int, holder: int, rubbish: bytes) -> None:
    """Rubbish from one holder either has it named, or, where enough others count before it, changes nothing."""
    one = five()
    total = np.sum([one.masked(member, [member]) for member in range(5)], axis=0, dtype=np.uint64)
    revealed = one.revealed(range(5), range(5))
    revealed[owner][holder] = rubbish
    try:
        assert one.opened(total, range(5), revealed).tolist() == [10]
        assert holder >= one.threshold
    except MemberError as error:
        assert error.member == holder


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.binary(max_size=30))
def test_rubbish_is_never_a_box(private: bytes, rubbish: bytes, info: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_box(private, rubbish, info)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.binary(max_size=30))
def test_a_box_holds_anything(private: bytes, plain: bytes, info: bytes) -> None:
    assert open_box(private, seal(public_of(private), plain, info), info) == plain


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=5), st.data())
def test_a_channel_takes_the_next_payload_and_nothing_else(payloads: list[bytes], data: st.DataObject) -> None:
    here, there = Channel(bytes(32), bytes([1]) * 32), Channel(bytes([1]) * 32, bytes(32))
    sealed = []
    for payload in payloads:
        here, one = here.seal(payload)
        sealed.append(one)
    taken = 0
    for at in data.draw(st.lists(st.integers(0, len(payloads) - 1), max_size=12)):
        try:
            there, payload = there.open(sealed[at])
        except ShoalError:
            assert at != taken
        else:
            assert (at, payload) == (taken, payloads[at])
            taken += 1
    assert there.received == taken
