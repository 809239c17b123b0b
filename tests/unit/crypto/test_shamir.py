"""Shamir shares: enough recover the secret, fewer are independent of it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from shoal.crypto.shamir import (
    PRIME,
    SHARE_BYTES,
    are_shares,
    recombine_secrets,
    split_secrets,
)
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from tests.support.crypto import recombine_secret, split_secret

SECRET = bytes(range(7, 39))


class Coefficients(SeededEntropy):
    """Entropy that returns given numbers."""

    def __init__(self, numbers: npt.ArrayLike) -> None:
        super().__init__(0)
        self.numbers = np.asarray(numbers, np.int64)

    def below_many(self, bound: int, n: int) -> npt.NDArray[np.int64]:
        assert (bound, n) == (PRIME, self.numbers.size)
        return self.numbers


def limbs(secret: bytes) -> list[int]:
    """Return 18 groups of 15 bits, the lowest first, computed with integers."""
    number = int.from_bytes(secret, "little")
    return [number >> 15 * i & 0x7FFF for i in range(18)]


def as_numbers(share: bytes) -> list[int]:
    return [int.from_bytes(share[i : i + 2], "little") for i in range(0, SHARE_BYTES, 2)]


@pytest.mark.parametrize(("threshold", "n"), [(1, 1), (1, 4), (2, 2), (3, 5), (5, 5)])
def test_any_threshold_shares_give_secret(threshold: int, n: int, entropy: SeededEntropy) -> None:
    shares = split_secret(SECRET, threshold, n, entropy)
    assert [len(share) for share in shares] == [SHARE_BYTES] * n
    for size in range(threshold, n + 1):
        for holders in combinations(range(n), size):
            assert (
                recombine_secret({holder: shares[holder] for holder in holders}, threshold)
                == SECRET
            )


def test_shares_are_values_of_limb_polynomials() -> None:
    drawn = np.arange(3 * 18).reshape(3, 18) * 1009 % PRIME
    shares = split_secret(SECRET, 4, 6, Coefficients(drawn.ravel()))
    for i, share in enumerate(shares):
        expected = [
            sum(int(c) * (i + 1) ** power for power, c in enumerate([limb, *drawn[:, at]])) % PRIME
            for at, limb in enumerate(limbs(SECRET))
        ]
        assert as_numbers(share) == expected


@pytest.mark.parametrize(
    "secret", [bytes(32), b"\xff" * 32, b"\x01" + bytes(31), bytes(31) + b"\x80"]
)
def test_extreme_secrets_round_trip(secret: bytes, entropy: SeededEntropy) -> None:
    assert recombine_secret(dict(enumerate(split_secret(secret, 2, 3, entropy))), 2) == secret


@pytest.mark.parametrize("secret", [bytes(32), SECRET], ids=["zero", "some"])
def test_one_share_of_two_is_uniform_for_any_secret(secret: bytes) -> None:
    """Show perfect secrecy by enumeration.

    Over all coefficients, each limb of each holder's share takes every value of the field.
    """
    rows = split_secrets([secret] * PRIME, 2, 3, Coefficients(np.repeat(np.arange(PRIME), 18)))
    for shares in rows:
        values = np.frombuffer(b"".join(shares), "<u2").reshape(PRIME, 18)
        assert (np.sort(values, axis=0) == np.arange(PRIME)[:, None]).all()


def test_shares_below_threshold_fit_every_secret(entropy: SeededEntropy) -> None:
    """For two of three shares and any secret there is a third share that gives the secret."""
    known = split_secret(SECRET, 3, 5, entropy)[:2]
    for secret in (bytes(32), b"\xff" * 32, entropy.bytes(32)):
        third = bytearray()
        for limb, first, second in zip(limbs(secret), *map(as_numbers, known), strict=True):
            # Through (0, limb), (1, first) and (2, second), at 3.
            third += ((limb - 3 * first + 3 * second) % PRIME).to_bytes(2, "little")
        assert recombine_secret({0: known[0], 1: known[1], 2: bytes(third)}, 3) == secret


def test_one_share_too_few_does_not_give_secret(entropy: SeededEntropy) -> None:
    shares = split_secret(SECRET, 4, 6, entropy)
    with pytest.raises(RemoteProtocolError) as caught:
        recombine_secret(dict(enumerate(shares[:3])), 4)
    assert caught.value.code == "SUM-003"
    (guess,) = recombine_secrets((0, 1, 2), [shares[:3]])
    assert guess != SECRET


def test_recombine_secrets_of_same_holders(entropy: SeededEntropy) -> None:
    secrets = [entropy.bytes(32) for _ in range(7)]
    rows = split_secrets(secrets, 5, 9, entropy)
    holders = (8, 0, 3, 5, 1)
    assert (
        recombine_secrets(holders, [[rows[holder][i] for holder in holders] for i in range(7)])
        == secrets
    )


@pytest.mark.parametrize("holder", [0, 2, 4])
def test_wrong_share_is_detected_if_used_or_extra(holder: int, entropy: SeededEntropy) -> None:
    shares = dict(enumerate(split_secret(SECRET, 3, 5, entropy)))
    first = (as_numbers(shares[holder])[0] + 1) % PRIME
    shares[holder] = first.to_bytes(2, "little") + shares[holder][2:]
    with pytest.raises(RemoteProtocolError) as caught:
        recombine_secret(shares, 3)
    assert caught.value.code == "CRYPTO-001"


def test_inconsistent_shares_give_none(entropy: SeededEntropy) -> None:
    """No secret has a limb of 16 bits, or bits beyond the 256th."""
    for value, at in ((0x8000, 0), (0x8000, 17), (2, 17), (0x4000, 17)):
        share = bytearray(SHARE_BYTES)
        share[2 * at : 2 * at + 2] = value.to_bytes(2, "little")
        assert recombine_secrets((3,), [[bytes(share)], [bytes(SHARE_BYTES)]]) == [None, bytes(32)]
        with pytest.raises(RemoteProtocolError):
            recombine_secret({3: bytes(share)}, 1)


@pytest.mark.parametrize(
    "share", [b"", bytes(35), bytes(37), b"\xf1\xff" + bytes(34), b"\xff" * 36]
)
def test_malformed_share_is_rejected(share: bytes, entropy: SeededEntropy) -> None:
    assert not are_shares(share, 1)
    shares = split_secret(SECRET, 2, 3, entropy)
    with pytest.raises(RemoteProtocolError) as caught:
        recombine_secret({0: shares[0], 1: share}, 2)
    assert caught.value.code == "CRYPTO-001"
    with pytest.raises(RemoteProtocolError):
        recombine_secret({0: shares[0], 1: shares[1], 2: share}, 2)


def test_unreduced_limb_is_rejected() -> None:
    """Zero must not be encoded as the prime, although it would give the same secret."""
    assert recombine_secrets((0,), [[bytes(36)]]) == [bytes(32)]
    assert recombine_secrets((0,), [[PRIME.to_bytes(2, "little") + bytes(34)]]) == [None]


def test_repeated_holder_is_rejected(entropy: SeededEntropy) -> None:
    share = split_secret(SECRET, 2, 2, entropy)[0]
    with pytest.raises(ValueError, match="twice"):
        recombine_secrets((0, 0), [[share, share]])


@pytest.mark.parametrize(("threshold", "n"), [(0, 3), (4, 3), (1, 0), (2, PRIME)])
def test_split_rejects_invalid_threshold(threshold: int, n: int, entropy: SeededEntropy) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        split_secret(SECRET, threshold, n, entropy)
    assert caught.value.code == "SUM-001"


@pytest.mark.parametrize(("threshold", "n"), [(667, 1000), (6667, 10_000)])
def test_many_holders_round_trip(threshold: int, n: int, entropy: SeededEntropy) -> None:
    shares = split_secret(SECRET, threshold, n, entropy)
    last = {holder: shares[holder] for holder in range(n - threshold, n)}
    assert recombine_secret(last, threshold) == SECRET
    assert len(set(shares)) == n
