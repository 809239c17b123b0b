"""Cryptography of secure sums for any members, values and dropouts, and changed bytes.

Encodings of different values are never equal.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.crypto.channel import Channel
from shoal.crypto.hpke import open_box, seal
from shoal.crypto.identity import Identity, MemberError, Roster
from shoal.crypto.secagg.context import RoundContext
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.crypto.secagg.key_shares import check_revealed_share, open_key_shares, reveal_share
from shoal.crypto.secagg.masking import compute_value_limit
from shoal.crypto.shamir import recombine_secrets
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, ShoalError
from tests.support.crypto import recombine_secret, split_secret
from tests.support.secagg import Round, begin

parts = st.lists(st.integers(0, 2**64 - 1) | st.binary(max_size=12), max_size=4).map(tuple)
contexts = st.builds(
    RoundContext,
    st.binary(max_size=4),
    st.binary(max_size=4),
    st.integers(0, 300),
    st.binary(max_size=4),
)
bound = st.tuples(contexts, st.text(max_size=4), parts)


@given(bound, bound)
def test_different_values_have_different_encodings(
    one: tuple[RoundContext, str, tuple[int | bytes, ...]],
    other: tuple[RoundContext, str, tuple[int | bytes, ...]],
) -> None:
    assert (one[0].bind(one[1], *one[2]) == other[0].bind(other[1], *other[2])) == (one == other)


@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_of_holders_recombines_secret(secret: bytes, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 30))
    threshold = data.draw(st.integers(1, n))
    shares = split_secret(secret, threshold, n, SeededEntropy(data.draw(st.integers(0, 9))))
    holders = data.draw(st.permutations(range(n)))[: data.draw(st.integers(threshold, n))]
    assert recombine_secret({holder: shares[holder] for holder in holders}, threshold) == secret
    assert recombine_secrets(
        holders[:threshold], [[shares[holder] for holder in holders[:threshold]]]
    ) == [secret]


@given(st.data())
def test_recombination_detects_changed_share_above_threshold(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 12))
    threshold = data.draw(st.integers(1, n - 1))
    shares = dict(enumerate(split_secret(bytes(range(32)), threshold, n, SeededEntropy(1))))
    holder, bit = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, 8 * 36 - 1))
    shares[holder] = flip_bit(shares[holder], bit)
    with pytest.raises(RemoteProtocolError) as caught:
        recombine_secret(shares, threshold)
    assert caught.value.code == "CRYPTO-001"


@given(st.data())
@settings(max_examples=40)
def test_sum_is_correct_for_any_dropouts(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 7))
    threshold = data.draw(st.integers(1, n))

    def draw_remaining(members: list[int]) -> list[int]:
        return sorted(
            data.draw(st.permutations(members))[: data.draw(st.integers(threshold, len(members)))]
        )

    keyed = draw_remaining(list(range(n)))
    dealt = draw_remaining(keyed)
    survivors = draw_remaining(dealt)
    holders = draw_remaining(survivors)
    size = data.draw(st.integers(0, 3))
    most = compute_value_limit(len(dealt))
    values = {
        member: data.draw(st.lists(st.integers(-most, most), min_size=size, max_size=size))
        for member in survivors
    }
    found = begin(
        n, threshold, keyed=keyed, dealing=dealt, seed=data.draw(st.integers(0, 99))
    ).summed(values, holders)
    assert found.tolist() == [sum(values[member][i] for member in survivors) for i in range(size)]


@cache
def five() -> Round:
    return begin(5, 3)


def flip_bit(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(st.integers(0, 4), st.integers(0, 4), st.data())
def test_changed_bit_of_box_commitment_or_share_is_rejected(
    dealer: int, member: int, data: st.DataObject
) -> None:
    assume(dealer != member)
    one = five()
    which = data.draw(st.sampled_from(["own", "mask"]))
    box, commitment = one.dealings[dealer].boxes[member], one.dealings[dealer].commitments[member]
    revealed = reveal_share(one.shares[member][dealer], which)
    changed_box, changed_commitment, changed = (
        flip_bit(whole, data.draw(st.integers(0, 8 * len(whole) - 1)))
        for whole in (box, commitment, revealed)
    )
    for dealt in ((changed_box, commitment), (box, changed_commitment)):
        with pytest.raises(MemberError) as caught:
            open_key_shares(one.secrets[member], one.context, member, {dealer: dealt})
        assert caught.value.member == dealer
    with pytest.raises(MemberError) as caught:
        check_revealed_share(one.context, dealer, member, which, changed, commitment)
    assert caught.value.member == member


@given(st.integers(0, 511), st.binary(max_size=40), st.data())
def test_changed_bit_of_signature_or_message_is_rejected(
    bit: int, text: bytes, data: st.DataObject
) -> None:
    identity = Identity.from_seed(bytes(32))
    roster = Roster(("north",), (identity.public_key,))
    signature = identity.sign(text)
    roster.check_signature(0, signature, text)
    other = data.draw(st.binary(max_size=40).filter(lambda one: one != text))
    for wrong in ((flip_bit(signature, bit), text), (signature, other)):
        with pytest.raises(MemberError):
            roster.check_signature(0, *wrong)


@given(st.integers(0, 4), st.integers(0, 4), st.binary(max_size=140))
def test_holder_that_reveals_rubbish_is_named_or_has_no_effect(
    owner: int, holder: int, rubbish: bytes
) -> None:
    """Reveal rubbish from one holder.

    The holder is named, or, if enough other shares count before it, nothing changes.
    """
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
def test_open_rejects_rubbish_box(private: bytes, rubbish: bytes, info: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_box(private, rubbish, info)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.binary(max_size=30))
def test_sealed_box_returns_any_plaintext(private: bytes, plain: bytes, info: bytes) -> None:
    assert open_box(private, seal(derive_public_key(private), plain, info), info) == plain


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=5), st.data())
def test_channel_accepts_only_next_payload(payloads: list[bytes], data: st.DataObject) -> None:
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
