"""Secure sums: only the sum is opened, despite dropouts and cheating members."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from shoal.crypto.identity import MemberError
from shoal.crypto.secagg.context import MemberPublicKeys, RoundContext
from shoal.crypto.secagg.key_shares import REVEALED_BYTES, MemberSecrets, draw_secrets
from shoal.crypto.secagg.masking import MAX_SUM, compute_value_limit, mask_vector
from shoal.crypto.shamir import SHARE_BYTES
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from tests.support.crypto import recombine_secret
from tests.support.secagg import Round, begin, context, deal_all, flips

VALUES = {member: np.array([member, -(10**member), 7, 0]) for member in range(6)}


def total_of(members: object) -> list[int]:
    return np.sum([VALUES[member] for member in members], axis=0).tolist()  # type: ignore[attr-defined]


def some(members: object) -> dict[int, npt.NDArray[np.int64]]:
    return {member: VALUES[member] for member in members}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("n", "threshold"), [(2, 2), (3, 2), (5, 3), (6, 6), (6, 1)])
def test_sum_of_all_members(n: int, threshold: int) -> None:
    assert begin(n, threshold).summed(some(range(n))).tolist() == total_of(range(n))


@pytest.mark.parametrize("gone", [who for size in range(3) for who in combinations(range(5), size)])
def test_sum_without_members_that_publish_no_keys(gone: tuple[int, ...]) -> None:
    left = set(range(5)) - set(gone)
    assert begin(5, 3, keyed=left).summed(some(left)).tolist() == total_of(left)


@pytest.mark.parametrize("gone", [who for size in range(3) for who in combinations(range(5), size)])
def test_sum_without_members_that_share_no_keys(gone: tuple[int, ...]) -> None:
    left = set(range(5)) - set(gone)
    assert begin(5, 3, dealing=left).summed(some(left)).tolist() == total_of(left)


@pytest.mark.parametrize("gone", [who for size in range(3) for who in combinations(range(5), size)])
def test_sum_without_members_that_send_no_vector(gone: tuple[int, ...]) -> None:
    left = set(range(5)) - set(gone)
    assert begin(5, 3).summed(some(left)).tolist() == total_of(left)


@pytest.mark.parametrize("gone", [who for size in range(3) for who in combinations(range(5), size)])
def test_sum_includes_members_that_reveal_no_shares(gone: tuple[int, ...]) -> None:
    assert begin(5, 3).summed(
        some(range(5)), holders=set(range(5)) - set(gone)
    ).tolist() == total_of(range(5))


def test_sum_with_dropouts_in_every_phase() -> None:
    """Of six, one publishes no keys, one shares none, one sends no vector, one reveals none."""
    one = begin(6, 2, keyed=(0, 1, 2, 3, 5), dealing=(0, 1, 3, 5))
    assert one.summed(some((0, 1, 5)), holders=(0, 5)).tolist() == total_of((0, 1, 5))


def test_unmask_rejects_too_few_members_or_shares() -> None:
    one = begin(5, 4)
    with pytest.raises(RemoteProtocolError, match="at least 4") as caught:
        one.summed(some(range(3)), holders=range(5))
    assert caught.value.code == "SUM-003"
    with pytest.raises(RemoteProtocolError) as caught:
        one.summed(some(range(5)), holders=(0, 2, 4))
    assert caught.value.code == "SUM-003"
    with pytest.raises(RemoteProtocolError) as caught:
        one.opened(np.zeros(1, np.uint64), range(5), {})
    assert caught.value.code == "SUM-003"


def test_unmask_does_not_change_masked_sum() -> None:
    one = begin(3, 2)
    total = np.sum(
        [one.masked(member, VALUES[member]) for member in range(3)], axis=0, dtype=np.uint64
    )
    before = total.copy()
    for _ in range(2):
        assert one.opened(total, range(3), one.revealed(range(3), range(3))).tolist() == total_of(
            range(3)
        )
    assert np.array_equal(total, before)


def test_masked_vectors_are_uniform() -> None:
    """Masked vectors differ from the numbers, each other, and other rounds."""
    values = np.zeros(1000, np.int64)
    vectors = [
        begin(3, 2, number=number).masked(member, values)
        for number in (1, 2)
        for member in range(3)
    ]
    assert len(np.unique(vectors)) == 6000
    ones = np.unpackbits(np.concatenate(vectors).view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.005  # five standard deviations of 384,000 bits are 0.004


def test_each_mask_alone_hides_vector() -> None:
    """If the seed is known, pairwise masks hide the vector; if the mask key is, the self mask."""
    one = begin(3, 2)
    zeros, other = np.zeros(50, np.int64), draw_secrets(SeededEntropy(5))
    masked = one.masked(0, zeros)
    known = one.secrets[0]
    for guess in (
        MemberSecrets(other.mask, known.own, b""),
        MemberSecrets(known.mask, other.own, b""),
    ):
        assert np.all(masked != mask_vector(zeros, guess, one.context, 0, one.keys))
    assert np.array_equal(
        masked,
        mask_vector(zeros, MemberSecrets(known.mask, known.own, b""), one.context, 0, one.keys),
    )


def test_masks_depend_on_whole_context() -> None:
    one = begin(3, 2)
    zeros = np.zeros(20, np.int64)
    contexts = [
        one.context,
        context(2),
        *(replace(one.context, **{part: bytes(32)}) for part in ("study", "roster", "query")),
    ]
    vectors = [mask_vector(zeros, one.secrets[0], about, 0, one.keys) for about in contexts]
    assert len(np.unique(vectors)) == 20 * len(contexts)


class TestOverflow:
    """Sums never wrap around."""

    @pytest.mark.parametrize("sign", [1, -1])
    def test_largest_values_are_summed_exactly(self, sign: int) -> None:
        most = sign * compute_value_limit(3)
        assert begin(3, 2).summed({member: [most, 0] for member in range(3)}).tolist() == [
            3 * most,
            0,
        ]

    @pytest.mark.parametrize(
        "value", [compute_value_limit(3) + 1, -compute_value_limit(3) - 1, 2**63 - 1, -(2**63)]
    )
    def test_mask_rejects_value_beyond_limit(self, value: int) -> None:
        with pytest.raises(LocalProtocolError) as caught:
            begin(3, 2).masked(0, [0, value])
        assert caught.value.code == "SUM-002"
        assert f"{value:,}" not in str(caught.value)
        assert str(value) not in str(caught.value)

    @pytest.mark.parametrize("excess", [MAX_SUM + 1, 2**63, 2**64 - MAX_SUM - 1])
    def test_unmask_rejects_impossible_sum(self, excess: int) -> None:
        one = begin(3, 2)
        total = np.sum([one.masked(member, [0]) for member in range(3)], axis=0, dtype=np.uint64)
        with pytest.raises(RemoteProtocolError) as caught:
            one.opened(total + np.uint64(excess), range(3), one.revealed(range(3), range(3)))
        assert caught.value.code == "SUM-004"

    def test_value_limit_follows_from_number_of_members(self) -> None:
        assert [
            compute_value_limit(n) * n <= MAX_SUM < (compute_value_limit(n) + 1) * n
            for n in (1, 2, 3, 10, 1000)
        ] == [True] * 5

    def test_empty_vector_is_summed(self) -> None:
        assert begin(3, 2).summed({member: [] for member in range(3)}).tolist() == []


class TestCheating:
    """The error names exactly the party at fault."""

    def open_with(
        self, one: Round, survivors: tuple[int, ...], revealed: dict[int, dict[int, bytes]]
    ) -> MemberError:
        total = np.sum([one.masked(member, [1]) for member in survivors], axis=0, dtype=np.uint64)
        with pytest.raises(MemberError) as caught:
            one.opened(total, survivors, revealed)
        assert caught.value.code == "CRYPTO-001"
        return caught.value

    @pytest.mark.parametrize("owner", [0, 4])
    def test_unmask_names_holder_of_changed_share(self, owner: int) -> None:
        """The share is of a survivor's seed, or of the mask key of a member that dropped out."""
        one, survivors = begin(5, 3), (0, 1, 2, 3)
        honest = one.revealed(survivors, survivors)
        for changed in list(flips(honest[owner][2][:36]))[::7]:
            revealed = {**honest, owner: {**honest[owner], 2: changed + honest[owner][2][36:]}}
            assert self.open_with(one, survivors, revealed).member == 2

    @pytest.mark.parametrize(
        "share",
        [b"", bytes(REVEALED_BYTES - 1), bytes(REVEALED_BYTES + 1), b"\xff" * REVEALED_BYTES],
    )
    def test_unmask_names_holder_of_malformed_share(self, share: bytes) -> None:
        one = begin(5, 3)
        honest = one.revealed(range(5), range(5))
        assert (
            self.open_with(one, tuple(range(5)), {**honest, 3: {**honest[3], 1: share}}).member == 1
        )

    def test_unmask_names_holder_that_reveals_other_share(self) -> None:
        one = begin(5, 3)
        honest, other = one.revealed(range(5), range(5)), one.revealed((), range(5))
        assert (
            self.open_with(
                one, tuple(range(5)), {**honest, 3: {**honest[3], 0: other[3][0]}}
            ).member
            == 0
        )

    def test_sum_is_opened_without_cheating_holder(self) -> None:
        one = begin(5, 3)
        honest = one.revealed(range(5), range(5))
        cheated = {**honest, 3: {**honest[3], 0: honest[4][0]}}
        cheat = self.open_with(one, tuple(range(5)), cheated).member
        left = {
            owner: {holder: share for holder, share in by.items() if holder != cheat}
            for owner, by in cheated.items()
        }
        total = np.sum([one.masked(member, [1]) for member in range(5)], axis=0, dtype=np.uint64)
        assert one.opened(total, range(5), left).tolist() == [5]

    @pytest.mark.parametrize("secret", ["own", "mask"])
    def test_unmask_names_dealer_of_uncommitted_secret(
        self, secret: str, entropy: SeededEntropy
    ) -> None:
        """Its boxes open and its shares match their commitments; only the secret differs."""
        secrets = {member: draw_secrets(entropy) for member in range(5)}
        one = deal_all(context(), secrets, 3, range(5), entropy)
        false = {**secrets, 1: secrets[1]._replace(**{secret: entropy.bytes(32)})}
        dealt = deal_all(context(), false, 3, range(5), entropy)
        one.dealings[1] = dealt.dealings[1]
        # The list has the keys of the true secrets; what was dealt belongs to the false ones.
        for holder in range(5):
            one.shares[holder][1] = dealt.shares[holder][1]
        survivors = tuple(range(5)) if secret == "own" else (0, 2, 3, 4)
        assert self.open_with(one, survivors, one.revealed(survivors, survivors)).member == 1

    def test_unmask_names_dealer_of_inconsistent_shares(self, entropy: SeededEntropy) -> None:
        secrets = {member: draw_secrets(entropy) for member in range(5)}
        one = deal_all(context(), secrets, 3, range(5), entropy)
        again = deal_all(context(), secrets, 3, range(5), entropy)
        one.dealings[1].commitments[0] = again.dealings[1].commitments[0]
        one.shares[0][1] = again.shares[0][1]
        assert self.open_with(one, tuple(range(5)), one.revealed(range(5), range(5))).member == 1

    def test_mask_names_member_with_invalid_key(self) -> None:
        one = begin(3, 2)
        one.keys[2] = MemberPublicKeys(bytes(32), one.keys[2].box, one.keys[2].commitment)
        with pytest.raises(MemberError) as caught:
            one.masked(0, [1])
        assert caught.value.member == 2


def opened_by_recovery(
    masked: npt.NDArray[np.uint64],
    seed: bytes,
    key: bytes,
    about: RoundContext,
    keys: dict[int, MemberPublicKeys],
) -> npt.NDArray[np.int64]:
    """Return the vector of member 0 from ``seed``, its seed, and ``key``, its mask key."""
    zeros = np.zeros(masked.size, np.int64)
    return (masked - mask_vector(zeros, MemberSecrets(key, seed, b""), about, 0, keys)).view(
        np.int64
    )


def recovered(one: Round, survivors: Collection[int]) -> bytes:
    """Return the secret of member 0 that survivors reveal."""
    return recombine_secret(
        {
            holder: share[:SHARE_BYTES]
            for holder, share in one.revealed(survivors, survivors)[0].items()
        },
        one.threshold,
    )


@pytest.mark.parametrize("lives", ["a round", "a session"])
def test_secrets_of_one_round_do_not_open_earlier_round(lives: str, entropy: SeededEntropy) -> None:
    """Member 0 survives round 1 and drops out of round 2.

    Its seed is opened in round 1, and its mask key in round 2. With fresh keys in each round this
    reveals nothing. The same attack on mask keys of a session opens its vector.
    """
    values = np.arange(100, 120)
    first_secrets = {member: draw_secrets(entropy) for member in range(4)}
    second_secrets = {member: draw_secrets(entropy) for member in range(4)}
    if lives == "a session":
        second_secrets = {
            member: own._replace(mask=first_secrets[member].mask)
            for member, own in second_secrets.items()
        }
    first = deal_all(context(1), first_secrets, 3, range(4), entropy)
    second = deal_all(context(2), second_secrets, 3, range(4), entropy)
    masked = first.masked(0, values)
    # What the collector recovers of member 0: in round 1 its seed, in round 2 its mask key.
    seed, key = recovered(first, range(4)), recovered(second, (1, 2, 3))
    assert first.summed(dict.fromkeys(range(4), values)).tolist() == (4 * values).tolist()
    assert second.summed(dict.fromkeys((1, 2, 3), values)).tolist() == (3 * values).tolist()
    found = opened_by_recovery(masked, seed, key, first.context, first.keys)
    assert np.array_equal(found, values) == (lives == "a session")
    assert np.any(found == values) == (lives == "a session")
