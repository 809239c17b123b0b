"""Shares reach their member and nobody else, are those that were committed to, and one of two can be shown without the other."""

from __future__ import annotations

import hashlib

import pytest

from shoal.crypto.boxes import seal
from shoal.crypto.context import Keys
from shoal.crypto.dealing import (
    BOX_BYTES,
    PLAIN_BYTES,
    REVEALED_BYTES,
    Which,
    check_keys,
    check_revealed,
    deal,
    fresh_secrets,
    is_committed,
    keys_of,
    open_all,
    shares_to_reveal,
)
from shoal.crypto.roster import MemberError
from shoal.crypto.shamir import SHARE_BYTES, recombine
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from sum_cases import begin, context, flips

ROUND = begin(5, 3)
LOW_ORDER = b"\x01" + bytes(31)


def refused(member: int, call: object, *args: object, match: str | None = None) -> None:
    with pytest.raises(MemberError, match=match) as caught:
        call(*args)  # type: ignore[operator]
    assert (caught.value.code, caught.value.member) == ("CRYPTO-001", member)


def open_one(me: int, dealer: int, box: bytes | None = None, commitment: bytes | None = None, about: object = None) -> bytes:
    dealing = ROUND.dealings[dealer]
    one = (dealing.boxes[me] if box is None else box, dealing.commitments[me] if commitment is None else commitment)
    return open_all(ROUND.secrets[me], about or ROUND.context, me, {dealer: one})[dealer]  # type: ignore[arg-type]


def test_secrets_and_keys_are_fresh(entropy: SeededEntropy) -> None:
    first, second = fresh_secrets(entropy), fresh_secrets(entropy)
    assert len({*first, *second}) == 6
    assert len({*keys_of(first, context(), 0), *keys_of(second, context(), 0)}) == 6


def test_a_commitment_to_a_seed_is_of_one_member_and_one_round(entropy: SeededEntropy) -> None:
    secrets = fresh_secrets(entropy)
    commitments = {keys_of(secrets, context(number), me).commitment for number in (1, 2) for me in (0, 1)}
    assert len(commitments) == 4
    keys = keys_of(secrets, context(), 0)
    assert is_committed(secrets.own, context(), 0, keys, "own")
    assert is_committed(secrets.mask, context(), 0, keys, "mask")
    assert not is_committed(secrets.own, context(), 1, keys, "own")
    assert not is_committed(secrets.own, context(), 0, keys, "mask")
    assert not is_committed(secrets.mask, context(), 0, keys, "own")


@pytest.mark.parametrize("part", ["mask", "box"])
def test_keys_that_hide_nothing_are_refused(part: str) -> None:
    check_keys(ROUND.keys[2], 2)
    refused(2, check_keys, ROUND.keys[2]._replace(**{part: LOW_ORDER}), 2)


def test_the_shares_of_a_dealing_give_both_secrets() -> None:
    for dealer, dealing in ROUND.dealings.items():
        assert dealing.boxes.keys() == ROUND.keys.keys() - {dealer}
        assert dealing.commitments.keys() == ROUND.keys.keys()
        assert {len(box) for box in dealing.boxes.values()} == {BOX_BYTES}
        plain = {holder: ROUND.shares[holder][dealer] for holder in ROUND.keys}
        assert {len(shares) for shares in plain.values()} == {PLAIN_BYTES}
        assert recombine({holder: shares[:SHARE_BYTES] for holder, shares in plain.items()}, 3) == ROUND.secrets[dealer].own
        assert recombine({holder: shares[SHARE_BYTES:] for holder, shares in plain.items()}, 3) == ROUND.secrets[dealer].mask


def test_a_box_is_refused_with_any_bit_changed_and_its_dealer_named() -> None:
    for changed in flips(ROUND.dealings[1].boxes[0]):
        refused(1, open_one, 0, 1, changed)


def test_a_box_is_for_one_member_from_one_dealer_in_one_round() -> None:
    box, commitment = ROUND.dealings[1].boxes[0], ROUND.dealings[1].commitments[0]
    refused(1, open_one, 2, 1, box, commitment, match="does not open")
    refused(3, open_one, 0, 3, box, commitment, match="does not open")
    refused(1, open_one, 0, 1, box, commitment, context(2), match="does not open")


def test_the_purpose_of_a_box_names_both_sides() -> None:
    """The key alone would not: a member is told apart from another that has published the same key."""
    for dealer, member in ((1, 2), (2, 0)):
        box = seal(ROUND.keys[0].box, ROUND.shares[0][1], ROUND.context.bind("box", dealer, member))
        refused(1, open_one, 0, 1, box, match="does not open")


def test_shares_are_those_that_were_committed_to() -> None:
    for changed in flips(ROUND.dealings[1].commitments[0]):
        refused(1, open_one, 0, 1, None, changed)
    refused(1, open_one, 0, 1, None, ROUND.dealings[1].commitments[2])


@pytest.mark.parametrize("plain", [b"", bytes(PLAIN_BYTES - 1), bytes(PLAIN_BYTES + 1), b"\xff" * PLAIN_BYTES])
def test_what_is_dealt_must_be_shares_even_if_it_is_what_was_committed_to(plain: bytes) -> None:
    leaves = (hashlib.sha256(share).digest() for share in (plain[:SHARE_BYTES], plain[SHARE_BYTES:]))
    commitment = hashlib.sha256(ROUND.context.bind("shares", 1, 0, *leaves)).digest()
    box = seal(ROUND.keys[0].box, plain, ROUND.context.bind("box", 1, 0))
    refused(1, open_one, 0, 1, box, commitment, match="are no shares")


def test_dealing_to_too_few_or_to_bad_keys(entropy: SeededEntropy) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        deal(ROUND.secrets[0], ROUND.context, 0, ROUND.keys, 6, entropy)
    assert caught.value.code == "SUM-001"
    bad = {**ROUND.keys, 4: Keys(ROUND.keys[4].mask, LOW_ORDER, ROUND.keys[4].commitment)}
    refused(4, deal, ROUND.secrets[0], ROUND.context, 0, bad, 3, entropy)


@pytest.mark.parametrize("which", ["own", "mask"])
def test_one_share_is_shown_without_the_other(which: Which) -> None:
    plain, commitment = ROUND.shares[2][1], ROUND.dealings[1].commitments[2]
    revealed = shares_to_reveal(plain, which)
    shown, hidden = (plain[:SHARE_BYTES], plain[SHARE_BYTES:])[:: 1 if which == "own" else -1]
    assert len(revealed) == REVEALED_BYTES
    assert shown in revealed
    assert hidden not in revealed
    check_revealed(ROUND.context, 1, 2, which, revealed, commitment)
    for changed in (*flips(revealed), revealed[:-1], revealed + b"\0", b""):
        refused(2, check_revealed, ROUND.context, 1, 2, which, changed, commitment)
    refused(2, check_revealed, ROUND.context, 1, 2, "mask" if which == "own" else "own", revealed, commitment)
    refused(2, check_revealed, ROUND.context, 3, 2, which, revealed, commitment)
    refused(4, check_revealed, ROUND.context, 1, 4, which, revealed, commitment)
    refused(2, check_revealed, context(2), 1, 2, which, revealed, commitment)


def test_a_dealing_does_not_show_what_it_keeps() -> None:
    assert "kept" not in repr(ROUND.dealings[0])
