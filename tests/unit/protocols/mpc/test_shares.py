"""Shares add up to sums; too few reveal nothing, and malformed ones are rejected."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocols.mpc import shares as dealing
from shoal.protocols.mpc.shares import (
    PRIME,
    SUM_BITS,
    add,
    compute_degree,
    pack,
    recombine,
    split,
    unpack,
)

ENTROPY = SeededEntropy("dealing")
LARGEST = 1 << SUM_BITS


@pytest.mark.parametrize("n_parties", [1, 2, 3, 4, 5, 7, 10])
def test_recombine_by_any_majority_returns_sums_of_dealers(n_parties: int) -> None:
    third = LARGEST // 3
    dealt = [[3, -5, 0, third], [1, -1, 0, third], [-7, 2, 0, -third]]
    shares = [split(values, n_parties, ENTROPY, n_dealers=3) for values in dealt]
    held = {party: add([share[party] for share in shares]) for party in range(n_parties)}
    for parties in combinations(range(n_parties), compute_degree(n_parties) + 1):
        assert recombine({party: held[party] for party in parties}, n_parties) == (-3, -4, 0, third)


def test_recombine_returns_negative_and_largest_numbers() -> None:
    values = (LARGEST, -LARGEST, -1, 1, 0)
    assert recombine(dict(enumerate(split(values, 5, ENTROPY))), 5) == values


def test_recombine_rejects_too_few_parties() -> None:
    shares = split([5], 5, ENTROPY)
    with pytest.raises(LocalProtocolError) as caught:
        recombine({party: shares[party] for party in (0, 4)}, 5)
    assert caught.value.code == "JOINT-003"


def test_shares_of_colluders_are_independent_of_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair of five parties sees every pair of shares equally often, for every value.

    In a field of 7, over all coefficients.
    """
    monkeypatch.setattr(dealing, "PRIME", 7)

    class Scripted(SeededEntropy):
        def __init__(self, *draws: int) -> None:
            super().__init__(0)
            self.draws = iter(draws)

        def below(self, bound: int) -> int:
            assert bound == 7
            return next(self.draws)

    for value in (0, 3):
        dealt = [split([value], 5, Scripted(*draws)) for draws in product(range(7), repeat=2)]
        for pair in combinations(range(5), 2):
            seen = Counter(tuple(shares[party][0] for party in pair) for shares in dealt)
            assert (len(seen), set(seen.values())) == (49, {1})


def test_split_rejects_values_that_could_overflow_sum() -> None:
    split([LARGEST], 3, ENTROPY)
    split([-LARGEST // 4], 3, ENTROPY, n_dealers=4)
    for value, n_dealers in ((LARGEST + 1, 1), (-LARGEST - 1, 1), (LARGEST // 4 + 1, 4)):
        with pytest.raises(LocalProtocolError) as caught:
            split([value], 3, ENTROPY, n_dealers)
        assert caught.value.code == "JOINT-003"
        assert str(abs(value)) not in str(caught.value)


def test_pack_and_unpack_shares_round_trip() -> None:
    shares = split([5, -6], 3, ENTROPY)[1]
    packed = pack(shares)
    assert unpack(packed, 2) == shares
    for wrong, n in (
        (packed, 1),
        (packed, 3),
        (packed[:-1], 2),
        (b"", 1),
        (packed[:16] + PRIME.to_bytes(16, "little"), 2),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            unpack(wrong, n)
        assert caught.value.code == "JOINT-003"


def test_add_rejects_shares_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="zip"):
        add([(1, 2), (1,)])
