"""The attack by times of serving finds careless senders, and is right by chance otherwise."""

from __future__ import annotations

import pytest

from shoal.attacks.timing import ServedKey, bound_chance_hits, guess_keys
from shoal.entropy import Entropy
from tests.statistical.harness import is_chance, statistical

N = 20
SERVED = [ServedKey(f"key {i}", 6.0 * i) for i in range(N)]
ALPHA = 1e-9


def count_right(times: list[float], served: list[ServedKey]) -> int:
    return sum(a == b.key for a, b in zip(guess_keys(served, times), served, strict=True))


@pytest.mark.parametrize("delay", [0.0, 3.0, 5.9])
def test_packets_within_their_turn_are_all_linked(delay: float) -> None:
    assert count_right([one.time + delay for one in SERVED], SERVED) == N > bound_chance_hits(1)


@statistical(alpha=ALPHA)
def test_packets_at_independent_times_are_linked_by_chance(entropy: Entropy) -> None:
    n_studies = 2_000
    right = sum(
        count_right([1_000.0 + entropy.below(1 << 40) / 1e9 for _ in SERVED], SERVED)
        for _ in range(n_studies)
    )
    # Guesses of one study are not independent; their number has a mean and a variance of 1, as a
    # Poisson number has.
    assert is_chance(right, n_studies * N, 1 / N, ALPHA)
    hasty = sum(
        count_right([one.time + entropy.below(12_000) / 1e3 for one in SERVED], SERVED)
        for _ in range(n_studies)
    )
    assert not is_chance(hasty, n_studies * N, 1 / N, ALPHA)


def test_packet_before_any_serving_gets_the_first_key() -> None:
    assert guess_keys(SERVED[:2], [-1.0, 20.0]) == ["key 0", "key 1"]
