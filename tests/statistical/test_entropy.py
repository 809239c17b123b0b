"""Uniform integers: no bias for any bound, and independent neighbours."""

from __future__ import annotations

import numpy as np

from shoal.entropy import SeededEntropy
from tests.statistical.harness import catches, fits, statistical

ALPHA = 1e-9


@statistical(alpha=ALPHA)
def test_below_is_uniform(entropy: SeededEntropy) -> None:
    # The bound is three quarters of the words: plain remainders would give a third of the outcomes
    # twice their chance.
    bound = 3 << 62
    thirds = np.full(3, 1 / 3)

    def check(draw: object) -> bool:
        return fits(
            np.bincount([draw() * 3 // bound for _ in range(6000)], minlength=3), thirds, ALPHA / 2
        )  # type: ignore[operator]

    assert check(lambda: entropy.below(bound))
    assert fits(
        np.bincount([entropy.below(6) for _ in range(20_000)], minlength=6),
        np.full(6, 1 / 6),
        ALPHA / 2,
    )
    assert catches(lambda: check(lambda: entropy.word() % bound))


@statistical(alpha=ALPHA)
def test_below_many_is_uniform(entropy: SeededEntropy) -> None:
    bound = 3 << 30
    thirds = np.full(3, 1 / 3)

    def check(drawn: np.ndarray) -> bool:
        return fits(np.bincount(drawn.astype(np.int64) * 3 // bound, minlength=3), thirds, ALPHA)

    assert check(entropy.below_many(bound, 50_000))
    assert catches(lambda: check(entropy.words(50_000, np.uint32) % bound))
    # Without rejection, multiply-and-shift is biased too.
    assert catches(
        lambda: fits(
            np.bincount(
                (entropy.words(100_000, np.uint8) * np.uint64(96) >> np.uint64(8)).astype(int),
                minlength=96,
            ),
            np.full(96, 1 / 96),
            ALPHA,
        )
    )


@statistical(alpha=ALPHA)
def test_neighbouring_bytes_are_independent(entropy: SeededEntropy) -> None:
    pairs = np.full(1 << 12, 2.0**-12)

    def check(stream: np.ndarray) -> bool:
        high = (stream >> np.uint8(2)).astype(int)
        return fits(np.bincount(high[::2] << 6 | high[1::2], minlength=1 << 12), pairs, ALPHA)

    n = 400_000
    assert check(entropy.words(n, np.uint8))
    assert catches(lambda: check(np.repeat(entropy.words(n // 2, np.uint8), 2)))

    # A reused draw: one word in ten repeats the previous one.
    def draw_with_repeats() -> np.ndarray:
        stream = entropy.words(n, np.uint8).copy()
        again = np.flatnonzero(entropy.below_many(10, n - 1) == 0) + 1
        stream[again] = stream[again - 1]
        return stream

    assert catches(lambda: check(draw_with_repeats()))
