"""Any threshold shares give the secret, fewer say nothing, and what is not a share is refused."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from shoal.crypto.shamir import PRIME, SHARE_BYTES, are_shares, recombine, recombine_many, split, split_many
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError

SECRET = bytes(range(7, 39))


class Coefficients(SeededEntropy):
    """An entropy whose numbers are given."""

    def __init__(self, numbers: npt.ArrayLike) -> None:
        super().__init__(0)
        self.numbers = np.asarray(numbers, np.int64)

    def below_many(self, bound: int, n: int) -> npt.NDArray[np.int64]:
        assert (bound, n) == (PRIME, self.numbers.size)
        return self.numbers


def limbs(secret: bytes) -> list[int]:
    """By whole numbers: 18 groups of 15 bits, the lowest first."""
    number = int.from_bytes(secret, "little")
    return [number >> 15 * i & 0x7FFF for i in range(18)]


def as_numbers(share: bytes) -> list[int]:
    return [int.from_bytes(share[i : i + 2], "little") for i in range(0, SHARE_BYTES, 2)]


@pytest.mark.parametrize(("threshold", "n"), [(1, 1), (1, 4), (2, 2), (3, 5), (5, 5)])
def test_every_choice_of_enough_shares_gives_the_secret(threshold: int, n: int, entropy: SeededEntropy) -> None:
    shares = split(SECRET, threshold, n, entropy)
    assert [len(share) for share in shares] == [SHARE_BYTES] * n
    for size in range(threshold, n + 1):
        for holders in combinations(range(n), size):
            assert recombine({holder: shares[holder] for holder in holders}, threshold) == SECRET


def test_shares_are_values_of_the_polynomials_of_the_limbs() -> None:
    drawn = np.arange(3 * 18).reshape(3, 18) * 1009 % PRIME
    shares = split(SECRET, 4, 6, Coefficients(drawn.ravel()))
    for i, share in enumerate(shares):
        expected = [
            sum(int(c) * (i + 1) ** power for power, c in enumerate([limb, *drawn[:, at]])) % PRIME for at, limb in enumerate(limbs(SECRET))
        ]
        assert as_numbers(share) == expected


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, b"\x01" + bytes(31), bytes(31) + b"\x80"])
def test_extreme_secrets(secret: bytes, entropy: SeededEntropy) -> None:
    assert recombine(dict(enumerate(split(secret, 2, 3, entropy))), 2) == secret


@pytest.mark.parametrize("secret", [bytes(32), SECRET], ids=["zero", "some"])
def test_one_share_of_two_takes_every_value_once_whatever_the_secret(secret: bytes) -> None:
    """Perfect secrecy, exhaustively: over all coefficients, every limb of every holder's share runs through the whole field."""
    rows = split_many([secret] * PRIME, 2, 3, Coefficients(np.repeat(np.arange(PRIME), 18)))
    for shares in rows:
        values = np.frombuffer(b"".join(shares), "<u2").reshape(PRIME, 18)
        assert (np.sort(values, axis=0) == np.arange(PRIME)[:, None]).all()


def test_shares_below_the_threshold_fit_every_secret(entropy: SeededEntropy) -> None:
    """Two of three shares, and any secret whatever: there is a third share with which they give it."""
    known = split(SECRET, 3, 5, entropy)[:2]
    for secret in (bytes(32), b"\xff" * 32, entropy.bytes(32)):
        third = bytearray()
        for limb, first, second in zip(limbs(secret), *map(as_numbers, known), strict=True):
            # Through (0, limb), (1, first) and (2, second), at 3.
            third += ((limb - 3 * first + 3 * second) % PRIME).to_bytes(2, "little")
        assert recombine({0: known[0], 1: known[1], 2: bytes(third)}, 3) == secret


def test_one_share_short_gives_nothing(entropy: SeededEntropy) -> None:
    shares = split(SECRET, 4, 6, entropy)
    with pytest.raises(RemoteProtocolError) as caught:
        recombine(dict(enumerate(shares[:3])), 4)
    assert caught.value.code == "SUM-003"
    (guess,) = recombine_many((0, 1, 2), [shares[:3]])
    assert guess != SECRET


def test_many_secrets_of_the_same_holders(entropy: SeededEntropy) -> None:
    secrets = [entropy.bytes(32) for _ in range(7)]
    rows = split_many(secrets, 5, 9, entropy)
    holders = (8, 0, 3, 5, 1)
    assert recombine_many(holders, [[rows[holder][i] for holder in holders] for i in range(7)]) == secrets


@pytest.mark.parametrize("holder", [0, 2, 4])
def test_a_wrong_share_is_noticed_whether_it_is_used_or_extra(holder: int, entropy: SeededEntropy) -> None:
    shares = dict(enumerate(split(SECRET, 3, 5, entropy)))
    first = (as_numbers(shares[holder])[0] + 1) % PRIME
    shares[holder] = first.to_bytes(2, "little") + shares[holder][2:]
    with pytest.raises(RemoteProtocolError) as caught:
        recombine(shares, 3)
    assert caught.value.code == "CRYPTO-001"


def test_shares_that_give_no_secret_are_noticed(entropy: SeededEntropy) -> None:
    """A limb of 16 bits, or bits beyond the 256th: no secret has them."""
    for value, at in ((0x8000, 0), (0x8000, 17), (2, 17), (0x4000, 17)):
        share = bytearray(SHARE_BYTES)
        share[2 * at : 2 * at + 2] = value.to_bytes(2, "little")
        assert recombine_many((3,), [[bytes(share)], [bytes(SHARE_BYTES)]]) == [None, bytes(32)]
        with pytest.raises(RemoteProtocolError):
            recombine({3: bytes(share)}, 1)


@pytest.mark.parametrize("share", [b"", bytes(35), bytes(37), b"\xf1\xff" + bytes(34), b"\xff" * 36])
def test_other_forms_of_a_share_are_refused(share: bytes, entropy: SeededEntropy) -> None:
    assert not are_shares(share, 1)
    shares = split(SECRET, 2, 3, entropy)
    with pytest.raises(RemoteProtocolError) as caught:
        recombine({0: shares[0], 1: share}, 2)
    assert caught.value.code == "CRYPTO-001"
    with pytest.raises(RemoteProtocolError):
        recombine({0: shares[0], 1: shares[1], 2: share}, 2)


def test_a_limb_that_is_not_reduced_is_no_second_form_of_a_share() -> None:
    """Zero may not be written as the prime, although it would give the same secret."""
    assert recombine_many((0,), [[bytes(36)]]) == [bytes(32)]
    assert recombine_many((0,), [[PRIME.to_bytes(2, "little") + bytes(34)]]) == [None]


def test_a_holder_that_is_named_twice_is_an_error(entropy: SeededEntropy) -> None:
    share = split(SECRET, 2, 2, entropy)[0]
    with pytest.raises(ValueError, match="twice"):
        recombine_many((0, 0), [[share, share]])


@pytest.mark.parametrize(("threshold", "n"), [(0, 3), (4, 3), (1, 0), (2, PRIME)])
def test_thresholds_that_cannot_be(threshold: int, n: int, entropy: SeededEntropy) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        split(SECRET, threshold, n, entropy)
    assert caught.value.code == "SUM-001"


@pytest.mark.parametrize(("threshold", "n"), [(667, 1000), (6667, 10_000)])
def test_many_holders(threshold: int, n: int, entropy: SeededEntropy) -> None:
    shares = split(SECRET, threshold, n, entropy)
    last = {holder: shares[holder] for holder in range(n - threshold, n)}
    assert recombine(last, threshold) == SECRET
    assert len(set(shares)) == n
