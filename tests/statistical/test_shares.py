"""Summed shares have the law of the negative binomial difference, whoever survives, and their choices are those of the noisy maximum.

The law is convolved from closed forms. Sample sizes: the chi-square statistic of a mutant exceeds its degrees of freedom by n times the
sum over groups of (p - p')^2 / p; for each mutant below that is eight standard deviations or more beyond what alpha allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms import polya
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.poisson import poisson
from shoal.mechanisms.polya import PolyaSampler, polya_sampler
from shoal.mechanisms.sensitivity import Histogram
from shoal.mechanisms.shares import SharedLaplace, SharedMax
from shoal.privacy.events import Relation, Scope, Unit
from statistical.harness import catches, fits, statistical
from statistical.laws import geometric, looks_like, noisy_max

ALPHA = 1e-9
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "the miner and up to 3 colluding databases")
HONEST = 5
N = 60_000

Drawn = np.ndarray


def side_law(rate: float, shares: float) -> np.ndarray:
    """One-sided noise of so many shares, out to where nothing is left that a sample could show."""
    return np.asarray(stats.nbinom.pmf(np.arange(math.ceil((40 + 10 * shares) / rate)), shares, -math.expm1(-rate)))


def looks_shared(drawn: Drawn, rate: float, shares: float, alpha: float) -> bool:
    side = side_law(rate, shares)
    law = np.convolve(side, side[::-1])
    return looks_like(drawn, 1 - side.size, law, alpha)


def summed_one_by_one(noise: SharedLaplace | SharedMax, n_shares: int, entropy: Entropy, n: int = N) -> Drawn:
    return np.sum([noise.share(n, entropy) for _ in range(n_shares)], axis=0)


@statistical(alpha=ALPHA)
def test_shares_fit_whoever_survives(entropy: SeededEntropy) -> None:
    checks = 2 * 2 * (HONEST + 3)
    for epsilon in (0.5, 0.02):
        noise = SharedLaplace(epsilon, Histogram(), SCOPE, HONEST)
        for n_shares in range(1, HONEST + 4):
            shares = n_shares / HONEST
            assert looks_shared(summed_one_by_one(noise, n_shares, entropy), epsilon, shares, ALPHA / checks)
            assert looks_shared(noise.summed(N, n_shares, entropy), epsilon, shares, ALPHA / checks)

    rate = Fraction(1, 2)
    noise = SharedLaplace(0.5, Histogram(), SCOPE, HONEST)

    def two_sided(sampler: PolyaSampler) -> Drawn:
        return sampler.draw_many(N, entropy) - sampler.draw_many(N, entropy)

    def reused() -> Drawn:
        return summed_one_by_one(noise, HONEST - 2, entropy) + 2 * noise.share(N, entropy)

    def one_side_missing_in_a_share() -> Drawn:
        return summed_one_by_one(noise, HONEST - 1, entropy) + polya_sampler(rate, Fraction(1, HONEST)).draw_many(N, entropy)

    mutants: list[Callable[[], Drawn]] = [
        lambda: summed_one_by_one(SharedLaplace(1.0, Histogram(), SCOPE, HONEST), HONEST, entropy),
        lambda: summed_one_by_one(noise, HONEST - 1, entropy),
        lambda: polya_sampler(rate, Fraction(1)).draw_many(N, entropy),
        reused,
        one_side_missing_in_a_share,
    ]
    for mutant in mutants:
        assert catches(lambda: looks_shared(mutant(), 0.5, 1.0, ALPHA / checks))  # noqa: B023
    assert catches(lambda: looks_shared(two_sided(polya_sampler(rate, Fraction(HONEST))), 0.5, 1 / HONEST, ALPHA / checks))


@statistical(alpha=ALPHA)
def test_polya_draws_fit_at_every_scale(entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [
        (Fraction(3), Fraction(1, 2)),
        (Fraction(1), Fraction(1, 7)),
        (Fraction(1, 30), Fraction(3, 4)),
        (Fraction(1, 700), Fraction(1, 3)),
    ]

    def looks_polya(drawn: Drawn, rate: Fraction, shares: Fraction) -> bool:
        return looks_like(drawn, 0, side_law(float(rate), float(shares)), ALPHA / len(settings))

    for rate, shares in settings:
        assert looks_polya(PolyaSampler(rate, shares).draw_many(4 * N, entropy), rate, shares)
        # A share too many in four, and noise that is a fifth too small.
        assert catches(lambda: looks_polya(PolyaSampler(rate, shares * 5 / 4).draw_many(4 * N, entropy), rate, shares))  # noqa: B023
        assert catches(lambda: looks_polya(PolyaSampler(rate * 5 / 4, shares).draw_many(4 * N, entropy), rate, shares))  # noqa: B023

    rate, shares = settings[2]
    honest = PolyaSampler._near

    def without_the_size(sampler: PolyaSampler, k: Drawn, width: Drawn, q: Drawn) -> Drawn:
        return np.minimum(honest(sampler, k, width, q) * k / width, 1.0)

    def without_the_block(sampler: PolyaSampler, k: Drawn, width: Drawn, q: Drawn) -> Drawn:
        return honest(sampler, k, width, np.zeros_like(q))

    def without_the_tail(sampler: PolyaSampler, k: Drawn, width: Drawn, q: Drawn) -> Drawn:
        return honest(sampler, k, width, q) * (q <= 1)

    for mutant in (without_the_size, without_the_block, without_the_tail):
        with monkeypatch.context() as patch:
            patch.setattr(PolyaSampler, "_near", mutant)
            assert catches(lambda: looks_polya(PolyaSampler(rate, shares).draw_many(4 * N, entropy), rate, shares))


@statistical(alpha=ALPHA)
def test_coordinates_and_counts_of_points_are_independent(entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are dealt to the variates of a vector: pairs of neighbours, and the number of points, must not show it."""
    rate, shares = Fraction(1), Fraction(1, 2)
    reach = 4

    def are_independent(drawn: Drawn) -> bool:
        first, second = np.minimum(drawn.reshape(2, -1), reach)
        law = side_law(float(rate), float(shares))
        law = np.append(law[:reach], law[reach:].sum())
        return fits(np.bincount(first * (reach + 1) + second, minlength=(reach + 1) ** 2), np.outer(law, law).ravel(), ALPHA / 2)

    sampler = PolyaSampler(rate, shares)

    def vectors_of_two() -> Drawn:
        return np.stack([sampler.draw_many(2, entropy) for _ in range(5000)], axis=1)

    assert are_independent(vectors_of_two())
    assert catches(lambda: are_independent(np.tile(sampler.draw_many(5000, entropy), 2)))
    with monkeypatch.context() as patch:
        patch.setattr(polya, "poisson", lambda mean, _: round(mean))
        assert catches(lambda: are_independent(vectors_of_two()))

    means = Fraction(12, 5), Fraction(1, 3)

    def looks_poisson(mean: Fraction, law_mean: Fraction) -> bool:
        drawn = np.array([poisson(mean, entropy) for _ in range(5000)])
        return looks_like(drawn, 0, stats.poisson.pmf(np.arange(60), float(law_mean)), ALPHA / 4)

    for mean in means:
        assert looks_poisson(mean, mean)
        assert catches(lambda: looks_poisson(mean + Fraction(1, 2), mean))  # noqa: B023


@statistical(alpha=ALPHA)
def test_choices_by_shares_are_those_of_the_noisy_maximum(entropy: SeededEntropy) -> None:
    scores = np.array([4, 7, 5, 7, 0, 6])
    n = 40_000

    def check(noise: Drawn, shares: float = 1.0) -> bool:
        chosen = np.argmax(scores + noise.reshape(n, scores.size), axis=1)
        law = noisy_max(tuple(scores.tolist()), side_law(0.8, shares))
        return fits(np.bincount(chosen, minlength=scores.size), law, ALPHA / 3)

    assert side_law(0.8, 1.0) == pytest.approx(geometric(0.8, side_law(0.8, 1.0).size))
    shared = SharedMax(0.8, CountScore(), SCOPE, HONEST)
    assert check(summed_one_by_one(shared, HONEST, entropy, n * scores.size))
    assert check(shared.summed(n * scores.size, HONEST, entropy))
    assert check(summed_one_by_one(shared, HONEST + 2, entropy, n * scores.size), 1 + 2 / HONEST)

    general = SharedMax(0.8, CountScore(), REPLACE, HONEST)
    assert catches(lambda: check(summed_one_by_one(general, HONEST, entropy, n * scores.size)))
    assert catches(lambda: check(summed_one_by_one(shared, HONEST - 1, entropy, n * scores.size)))
    assert catches(lambda: check(np.repeat(summed_one_by_one(shared, HONEST, entropy, n), scores.size)))
