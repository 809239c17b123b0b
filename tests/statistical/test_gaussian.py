"""Discrete Gaussian noise fits its law at every scale, by the filter and by the exact path."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms import coins
from shoal.mechanisms.gaussian import DiscreteGaussian, GaussianSampler, gaussian_sampler
from shoal.mechanisms.sensitivity import Histogram
from shoal.privacy.events import Relation, Scope, Unit
from statistical.harness import catches, is_mean, statistical
from statistical.laws import gaussian, looks_like

ALPHA = 1e-9
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


def looks_gaussian(drawn: np.ndarray, sigma_squared: float, alpha: float) -> bool:
    """Whether a sample fits, out to four standard deviations and one cell beyond."""
    n = math.ceil(4 * math.sqrt(sigma_squared))
    return looks_like(drawn, -n, gaussian(sigma_squared, n), alpha)


@statistical(alpha=ALPHA)
def test_fits_at_every_scale(entropy: SeededEntropy) -> None:
    for sigma_squared in (Fraction(1, 4), Fraction(5, 3), Fraction(20), Fraction(10_001, 4)):
        sampler = gaussian_sampler(sigma_squared)
        assert looks_gaussian(sampler.draw_many(200_000, entropy), float(sigma_squared), ALPHA / 8)
        assert looks_gaussian(np.array([sampler.draw(entropy) for _ in range(3000)]), float(sigma_squared), ALPHA / 8)
        half, less = gaussian_sampler(sigma_squared / 4), gaussian_sampler(sigma_squared * Fraction(9, 10))
        assert catches(lambda: looks_gaussian(half.draw_many(200_000, entropy), float(sigma_squared), ALPHA / 8))  # noqa: B023
        assert catches(lambda: looks_gaussian(less.draw_many(200_000, entropy), float(sigma_squared), ALPHA / 8))  # noqa: B023


@statistical(alpha=ALPHA)
def test_fits_when_every_coin_is_settled_exactly(entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coins, "_MARGIN", 2.0**70)
    monkeypatch.setattr(coins, "_MARGIN_WORDS", 2.0**70)
    sampler = GaussianSampler(Fraction(5))
    assert looks_gaussian(sampler.draw_many(6000, entropy), 5.0, ALPHA)
    assert catches(lambda: looks_gaussian(GaussianSampler(Fraction(3)).draw_many(6000, entropy), 5.0, ALPHA), tries=1)


@statistical(alpha=ALPHA)
def test_wrong_acceptance_or_a_cut_tail_is_seen(entropy: SeededEntropy) -> None:
    sampler = GaussianSampler(Fraction(20))
    assert looks_gaussian(sampler.draw_many(200_000, entropy), 20.0, ALPHA)

    def all_kept() -> np.ndarray:
        return sampler._candidates.draw_many(200_000, entropy)

    def off_centre() -> np.ndarray:
        mutant = GaussianSampler(Fraction(20))
        mutant._middle = 0.0
        return mutant.draw_many(200_000, entropy)

    def truncated() -> np.ndarray:
        drawn = sampler.draw_many(200_000, entropy)
        return np.where(np.abs(drawn) > 13, 0, drawn)

    for mutant in (all_kept, off_centre, truncated):
        assert catches(lambda: looks_gaussian(mutant(), 20.0, ALPHA))  # noqa: B023


@statistical(alpha=ALPHA)
def test_coordinates_are_independent_and_unbiased(entropy: SeededEntropy) -> None:
    mechanism = DiscreteGaussian(1.0, 1e-6, Histogram(4), SCOPE)
    n, variance = 200_000, mechanism.variance()

    def check(noise: np.ndarray) -> bool:
        means = all(is_mean(noise[:, j], 0.0, mechanism.sigma, ALPHA / 5) for j in range(2))
        spreads = all(is_mean(noise[:, j] ** 2, variance, variance * math.sqrt(2), ALPHA / 5) for j in range(2))
        return means and spreads and is_mean(noise[:, 0] * noise[:, 1], 0.0, variance, ALPHA / 5)

    counts = np.full((n, 2), 50)
    assert check(mechanism.randomise_many(counts, entropy) - counts)

    def shared() -> np.ndarray:
        return np.repeat(mechanism.randomise_many(counts[:, :1], entropy) - 50, 2, axis=1)

    def missing() -> np.ndarray:
        noise = mechanism.randomise_many(counts, entropy) - counts
        noise[:, 1] = 0
        return noise

    for mutant in (shared, missing):
        assert catches(lambda: check(mutant()))  # noqa: B023
