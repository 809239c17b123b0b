"""Key shares: for their member only, as committed, each revealed separately."""

from __future__ import annotations

import hashlib

import pytest

from shoal.crypto.hpke import seal
from shoal.crypto.identity import MemberError
from shoal.crypto.secagg.context import MemberPublicKeys
from shoal.crypto.secagg.key_shares import (
    BOX_BYTES,
    PLAIN_BYTES,
    REVEALED_BYTES,
    SecretKind,
    check_public_keys,
    check_revealed_share,
    derive_public_keys,
    draw_secrets,
    is_committed,
    open_key_shares,
    reveal_share,
    share_keys,
)
from shoal.crypto.shamir import SHARE_BYTES
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from tests.support.crypto import recombine_secret
from tests.support.secagg import begin, context, flips

ROUND = begin(5, 3)
LOW_ORDER = b"\x01" + bytes(31)


def refused(member: int, call: object, *args: object, match: str | None = None) -> None:
    with pytest.raises(MemberError, match=match) as caught:
        call(*args)  # type: ignore[operator]
    assert (caught.value.code, caught.value.member) == ("CRYPTO-001", member)


def open_one(
    me: int,
    dealer: int,
    box: bytes | None = None,
    commitment: bytes | None = None,
    about: object = None,
) -> bytes:
    dealing = ROUND.dealings[dealer]
    one = (
        dealing.boxes[me] if box is None else box,
        dealing.commitments[me] if commitment is None else commitment,
    )
    return open_key_shares(ROUND.secrets[me], about or ROUND.context, me, {dealer: one})[dealer]  # type: ignore[arg-type]


def test_secrets_and_keys_are_new_each_time(entropy: SeededEntropy) -> None:
    first, second = draw_secrets(entropy), draw_secrets(entropy)
    assert len({*first, *second}) == 6
    assert (
        len({*derive_public_keys(first, context(), 0), *derive_public_keys(second, context(), 0)})
        == 6
    )


def test_seed_commitment_binds_member_and_round(entropy: SeededEntropy) -> None:
    secrets = draw_secrets(entropy)
    commitments = {
        derive_public_keys(secrets, context(number), me).commitment
        for number in (1, 2)
        for me in (0, 1)
    }
    assert len(commitments) == 4
    keys = derive_public_keys(secrets, context(), 0)
    assert is_committed(secrets.own, context(), 0, keys, "own")
    assert is_committed(secrets.mask, context(), 0, keys, "mask")
    assert not is_committed(secrets.own, context(), 1, keys, "own")
    assert not is_committed(secrets.own, context(), 0, keys, "mask")
    assert not is_committed(secrets.mask, context(), 0, keys, "own")


@pytest.mark.parametrize("part", ["mask", "box"])
def test_check_public_keys_rejects_small_order(part: str) -> None:
    check_public_keys(ROUND.keys[2], 2)
    refused(2, check_public_keys, ROUND.keys[2]._replace(**{part: LOW_ORDER}), 2)


def test_key_shares_give_both_secrets() -> None:
    for dealer, dealing in ROUND.dealings.items():
        assert dealing.boxes.keys() == ROUND.keys.keys() - {dealer}
        assert dealing.commitments.keys() == ROUND.keys.keys()
        assert {len(box) for box in dealing.boxes.values()} == {BOX_BYTES}
        plain = {holder: ROUND.shares[holder][dealer] for holder in ROUND.keys}
        assert {len(shares) for shares in plain.values()} == {PLAIN_BYTES}
        assert (
            recombine_secret({holder: shares[:SHARE_BYTES] for holder, shares in plain.items()}, 3)
            == ROUND.secrets[dealer].own
        )
        assert (
            recombine_secret({holder: shares[SHARE_BYTES:] for holder, shares in plain.items()}, 3)
            == ROUND.secrets[dealer].mask
        )


def test_open_key_shares_rejects_changed_bit_and_names_dealer() -> None:
    for changed in flips(ROUND.dealings[1].boxes[0]):
        refused(1, open_one, 0, 1, changed)


def test_box_opens_only_for_its_member_dealer_and_round() -> None:
    box, commitment = ROUND.dealings[1].boxes[0], ROUND.dealings[1].commitments[0]
    refused(1, open_one, 2, 1, box, commitment, match="cannot be decrypted")
    refused(3, open_one, 0, 3, box, commitment, match="cannot be decrypted")
    refused(1, open_one, 0, 1, box, commitment, context(2), match="cannot be decrypted")


def test_box_info_names_dealer_and_recipient() -> None:
    """The key alone does not: another member may have published the same key."""
    for dealer, member in ((1, 2), (2, 0)):
        box = seal(ROUND.keys[0].box, ROUND.shares[0][1], ROUND.context.bind("box", dealer, member))
        refused(1, open_one, 0, 1, box, match="cannot be decrypted")


def test_open_key_shares_rejects_shares_without_matching_commitment() -> None:
    for changed in flips(ROUND.dealings[1].commitments[0]):
        refused(1, open_one, 0, 1, None, changed)
    refused(1, open_one, 0, 1, None, ROUND.dealings[1].commitments[2])


@pytest.mark.parametrize(
    "plain", [b"", bytes(PLAIN_BYTES - 1), bytes(PLAIN_BYTES + 1), b"\xff" * PLAIN_BYTES]
)
def test_open_key_shares_rejects_malformed_shares_with_matching_commitment(plain: bytes) -> None:
    leaves = (
        hashlib.sha256(share).digest() for share in (plain[:SHARE_BYTES], plain[SHARE_BYTES:])
    )
    commitment = hashlib.sha256(ROUND.context.bind("shares", 1, 0, *leaves)).digest()
    box = seal(ROUND.keys[0].box, plain, ROUND.context.bind("box", 1, 0))
    refused(1, open_one, 0, 1, box, commitment, match="does not contain shares")


def test_share_keys_rejects_too_few_members_and_invalid_keys(entropy: SeededEntropy) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        share_keys(ROUND.secrets[0], ROUND.context, 0, ROUND.keys, 6, entropy)
    assert caught.value.code == "SUM-001"
    bad = {
        **ROUND.keys,
        4: MemberPublicKeys(ROUND.keys[4].mask, LOW_ORDER, ROUND.keys[4].commitment),
    }
    refused(4, share_keys, ROUND.secrets[0], ROUND.context, 0, bad, 3, entropy)


@pytest.mark.parametrize("which", ["own", "mask"])
def test_reveal_share_does_not_reveal_other_share(which: SecretKind) -> None:
    plain, commitment = ROUND.shares[2][1], ROUND.dealings[1].commitments[2]
    revealed = reveal_share(plain, which)
    shown, hidden = (plain[:SHARE_BYTES], plain[SHARE_BYTES:])[:: 1 if which == "own" else -1]
    assert len(revealed) == REVEALED_BYTES
    assert shown in revealed
    assert hidden not in revealed
    check_revealed_share(ROUND.context, 1, 2, which, revealed, commitment)
    for changed in (*flips(revealed), revealed[:-1], revealed + b"\0", b""):
        refused(2, check_revealed_share, ROUND.context, 1, 2, which, changed, commitment)
    refused(
        2,
        check_revealed_share,
        ROUND.context,
        1,
        2,
        "mask" if which == "own" else "own",
        revealed,
        commitment,
    )
    refused(2, check_revealed_share, ROUND.context, 3, 2, which, revealed, commitment)
    refused(4, check_revealed_share, ROUND.context, 1, 4, which, revealed, commitment)
    refused(2, check_revealed_share, context(2), 1, 2, which, revealed, commitment)


def test_repr_does_not_show_own_shares() -> None:
    assert "kept" not in repr(ROUND.dealings[0])
