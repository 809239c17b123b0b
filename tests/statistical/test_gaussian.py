"""Discrete Gaussian noise at every scale, by the float filter and the exact path."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms import bernoulli
from shoal.mechanisms.gaussian import DiscreteGaussian, GaussianSampler, get_gaussian_sampler
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import fits_pmf, gaussian
from tests.statistical.harness import catches, is_mean, statistical

ALPHA = 1e-9
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


def fits_gaussian(drawn: np.ndarray, sigma_squared: float, alpha: float) -> bool:
    """Return whether a sample fits, out to four standard deviations and one cell beyond."""
    n = math.ceil(4 * math.sqrt(sigma_squared))
    return fits_pmf(drawn, -n, gaussian(sigma_squared, n), alpha)


@statistical(alpha=ALPHA)
def test_gaussian_noise_fits_at_every_scale(entropy: SeededEntropy) -> None:
    for sigma_squared in (Fraction(1, 4), Fraction(5, 3), Fraction(20), Fraction(10_001, 4)):
        sampler = get_gaussian_sampler(sigma_squared)
        assert fits_gaussian(sampler.draw_many(200_000, entropy), float(sigma_squared), ALPHA / 8)
        assert fits_gaussian(
            np.array([sampler.draw(entropy) for _ in range(3000)]), float(sigma_squared), ALPHA / 8
        )
        half, less = (
            get_gaussian_sampler(sigma_squared / 4),
            get_gaussian_sampler(sigma_squared * Fraction(9, 10)),
        )
        assert catches(
            lambda: fits_gaussian(half.draw_many(200_000, entropy), float(sigma_squared), ALPHA / 8)
        )
        assert catches(
            lambda: fits_gaussian(less.draw_many(200_000, entropy), float(sigma_squared), ALPHA / 8)
        )


@statistical(alpha=ALPHA)
def test_gaussian_noise_fits_on_exact_path(
    entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bernoulli, "_MARGIN", 2.0**70)
    monkeypatch.setattr(bernoulli, "_MARGIN_WORDS", 2.0**70)
    sampler = GaussianSampler(Fraction(5))
    assert fits_gaussian(sampler.draw_many(6000, entropy), 5.0, ALPHA)
    assert catches(
        lambda: fits_gaussian(GaussianSampler(Fraction(3)).draw_many(6000, entropy), 5.0, ALPHA),
        tries=1,
    )


@statistical(alpha=ALPHA)
def test_gaussian_check_catches_wrong_acceptance_and_cut_tail(entropy: SeededEntropy) -> None:
    sampler = GaussianSampler(Fraction(20))
    assert fits_gaussian(sampler.draw_many(200_000, entropy), 20.0, ALPHA)

    def draw_without_rejection() -> np.ndarray:
        return sampler._candidates.draw_many(200_000, entropy)

    def draw_off_centre() -> np.ndarray:
        mutant = GaussianSampler(Fraction(20))
        mutant._middle = 0.0
        return mutant.draw_many(200_000, entropy)

    def draw_truncated() -> np.ndarray:
        drawn = sampler.draw_many(200_000, entropy)
        return np.where(np.abs(drawn) > 13, 0, drawn)

    for mutant in (draw_without_rejection, draw_off_centre, draw_truncated):
        assert catches(lambda: fits_gaussian(mutant(), 20.0, ALPHA))


@statistical(alpha=ALPHA)
def test_gaussian_coordinates_are_independent_and_unbiased(entropy: SeededEntropy) -> None:
    mechanism = DiscreteGaussian(1.0, 1e-6, CellCounts(4), SCOPE)
    n, variance = 200_000, mechanism.variance()

    def check(noise: np.ndarray) -> bool:
        means = all(is_mean(noise[:, j], 0.0, mechanism.sigma, ALPHA / 5) for j in range(2))
        spreads = all(
            is_mean(noise[:, j] ** 2, variance, variance * math.sqrt(2), ALPHA / 5)
            for j in range(2)
        )
        return means and spreads and is_mean(noise[:, 0] * noise[:, 1], 0.0, variance, ALPHA / 5)

    counts = np.full((n, 2), 50)
    assert check(mechanism.randomise_many(counts, entropy) - counts)

    def draw_shared() -> np.ndarray:
        return np.repeat(mechanism.randomise_many(counts[:, :1], entropy) - 50, 2, axis=1)

    def draw_with_missing() -> np.ndarray:
        noise = mechanism.randomise_many(counts, entropy) - counts
        noise[:, 1] = 0
        return noise

    for mutant in (draw_shared, draw_with_missing):
        assert catches(lambda: check(mutant()))
