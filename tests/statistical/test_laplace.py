"""Discrete Laplace and geometric noise at every scale, and independent coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import (
    _BLOCK,
    DiscreteLaplace,
    GeometricSampler,
    LaplaceSampler,
    get_geometric_sampler,
    get_laplace_sampler,
)
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import fits_pmf, geometric, laplace
from tests.statistical.harness import catches, fits, is_chance, is_mean, statistical

ALPHA = 1e-9
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
SCALES = [Fraction(1, 3), Fraction(1), Fraction(16), Fraction(1600)]


def fits_laplace(drawn: np.ndarray, rate: float, alpha: float) -> bool:
    """Return whether a sample fits, out to where about ten draws are expected beyond."""
    n = math.ceil(math.log(drawn.size / 10) / rate)
    return fits_pmf(drawn, -n, laplace(rate, n), alpha)


def fits_geometric(drawn: np.ndarray, rate: float, alpha: float) -> bool:
    n = math.ceil(math.log(drawn.size / 10) / rate)
    return fits_pmf(drawn, 0, geometric(rate, n), alpha)


@statistical(alpha=ALPHA)
def test_laplace_noise_fits_at_every_scale(entropy: SeededEntropy) -> None:
    for scale in SCALES:
        rate = float(1 / scale)
        assert fits_laplace(
            get_laplace_sampler(1 / scale).draw_many(300_000, entropy), rate, ALPHA / 8
        )
        sampler = get_laplace_sampler(1 / scale)
        assert fits_laplace(
            np.array([sampler.draw(entropy) for _ in range(10_000)]), rate, ALPHA / 8
        )
        # Half the noise, and a tenth less: ten standard deviations off even in the thousands of
        # cells of the widest scale.
        assert catches(
            lambda: fits_laplace(
                get_laplace_sampler(2 / scale).draw_many(300_000, entropy), rate, ALPHA / 8
            )
        )
        assert catches(
            lambda: fits_laplace(
                get_laplace_sampler(Fraction(11, 10) / scale).draw_many(300_000, entropy),
                rate,
                ALPHA / 8,
            )
        )


@statistical(alpha=ALPHA)
def test_geometric_noise_fits_at_every_scale(entropy: SeededEntropy) -> None:
    for scale in SCALES:
        rate = float(1 / scale)
        assert fits_geometric(
            get_geometric_sampler(1 / scale).draw_many(300_000, entropy), rate, ALPHA / 8
        )
        sampler = get_geometric_sampler(1 / scale)
        assert fits_geometric(
            np.array([sampler.draw(entropy) for _ in range(10_000)]), rate, ALPHA / 8
        )

    def draw_without_digit() -> np.ndarray:
        sampler = GeometricSampler(Fraction(1, 16))
        sampler._digits[0] = sampler._digits[1]
        return sampler.draw_many(300_000, entropy)

    assert catches(lambda: fits_geometric(draw_without_digit(), 1 / 16, ALPHA / 8))


@statistical(alpha=ALPHA)
def test_laplace_check_catches_swapped_sampler_and_cut_tail(entropy: SeededEntropy) -> None:
    rate, n = 0.25, 300_000
    sampler = LaplaceSampler(Fraction(1, 4))
    assert fits_laplace(sampler.draw_many(n, entropy), rate, ALPHA)

    def draw_swapped() -> np.ndarray:
        drawn = sampler.draw_many(n, entropy)
        return np.where(sampler._nonzero_sampler.sample_many(n, entropy), 0, drawn)

    def draw_truncated() -> np.ndarray:
        return np.clip(sampler.draw_many(n, entropy), -28, 28)

    def draw_one_sided() -> np.ndarray:
        return np.abs(sampler.draw_many(n, entropy))

    for mutant in (draw_swapped, draw_truncated, draw_one_sided):
        assert catches(lambda: fits_laplace(mutant(), rate, ALPHA))


def are_coordinates_independent(
    randomise: Callable[[np.ndarray], np.ndarray], rate: float, alpha: float
) -> bool:
    """Return whether two coordinates of one release have independent noise.

    Each pair of small values must occur with the product of the chances.
    """
    noise = randomise(np.zeros((100_000, 2), np.int64))
    reach = 3
    inside = np.all(np.abs(noise) <= reach, axis=1)
    width = 2 * reach + 1
    pairs = np.bincount(
        (noise[inside, 0] + reach) * width + noise[inside, 1] + reach, minlength=width**2
    )
    pmf = laplace(rate, reach)
    return fits(np.append(pairs, (~inside).sum()), np.outer(pmf, pmf).ravel(), alpha)


@statistical(alpha=ALPHA)
def test_laplace_coordinates_are_independent(entropy: SeededEntropy) -> None:
    mechanism = DiscreteLaplace(1.0, CellCounts(), SCOPE)
    assert are_coordinates_independent(
        lambda counts: mechanism.randomise_many(counts, entropy), 1.0, ALPHA
    )

    def randomise_shared(counts: np.ndarray) -> np.ndarray:
        return counts + mechanism.randomise_many(counts[:, :1], entropy)

    def randomise_one(counts: np.ndarray) -> np.ndarray:
        noisy = mechanism.randomise_many(counts, entropy)
        noisy[:, 1] = counts[:, 1]
        return noisy

    def randomise_sometimes_shared(counts: np.ndarray) -> np.ndarray:
        noisy = mechanism.randomise_many(counts, entropy)
        again = entropy.below_many(20, len(counts)) == 0
        noisy[again, 1] = noisy[again, 0]
        return noisy

    for mutant in (randomise_shared, randomise_one, randomise_sometimes_shared):
        assert catches(lambda: are_coordinates_independent(mutant, 1.0, ALPHA))


@statistical(alpha=ALPHA)
def test_laplace_noise_is_unbiased_with_stated_variance(entropy: SeededEntropy) -> None:
    mechanism = DiscreteLaplace(0.3, CellCounts(2), SCOPE)
    n = 400_000

    def check(noise: np.ndarray) -> bool:
        sd = math.sqrt(mechanism.variance())
        fourth = float((np.arange(-2000, 2001) ** 4 * laplace(0.15, 2000)).sum())
        centred = is_mean(noise, 0.0, sd, ALPHA / 6)
        spread = is_mean(noise**2, sd**2, math.sqrt(fourth - sd**4), ALPHA / 6)
        return (
            centred
            and spread
            and is_chance((noise > 0).sum(), np.count_nonzero(noise), 0.5, ALPHA / 3)
        )

    assert check(mechanism.randomise_many(np.full(n, 7), entropy) - 7)
    assert catches(lambda: check(mechanism.randomise_many(np.full(n, 7), entropy) - 6))
    assert catches(
        lambda: check(
            DiscreteLaplace(0.3, CellCounts(1), SCOPE).randomise_many(
                np.zeros(n, np.int64), entropy
            )
        )
    )


@statistical(alpha=ALPHA)
def test_laplace_blocks_share_no_draw(entropy: SeededEntropy) -> None:
    """Compare draws at the same position of two blocks.

    The sampler draws in blocks. Sign and size must agree no more often than by chance.
    """
    rate = Fraction(1, 100)
    pmf = laplace(float(rate), 4000)

    def is_independent(draw: Callable[[int], np.ndarray]) -> bool:
        first, second = np.split(draw(2 * _BLOCK), 2)
        both = (first != 0) & (second != 0)
        same_sign = int((np.sign(first) == np.sign(second))[both].sum())
        same_size = int((np.abs(first) == np.abs(second)).sum())
        sizes = np.concatenate([[pmf[4000]], 2 * pmf[4001:]])
        return is_chance(same_sign, int(both.sum()), 0.5, ALPHA / 2) and is_chance(
            same_size, _BLOCK, float((sizes**2).sum()), ALPHA / 2
        )

    sampler = get_laplace_sampler(rate)
    assert is_independent(lambda n: sampler.draw_many(n, entropy))

    def draw_with_signs_of_first_block(n: int) -> np.ndarray:
        drawn = sampler.draw_many(n, entropy)
        return np.abs(drawn) * np.tile(np.sign(drawn[:_BLOCK]), n // _BLOCK)

    assert catches(lambda: is_independent(draw_with_signs_of_first_block))
    assert catches(
        lambda: is_independent(lambda n: np.tile(sampler.draw_many(_BLOCK, entropy), n // _BLOCK))
    )
