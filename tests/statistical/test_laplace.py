"""Discrete Laplace and geometric noise fit their laws at every scale, coordinate by coordinate."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import _BLOCK, DiscreteLaplace, GeometricSampler, LaplaceSampler, geometric_sampler, laplace_sampler
from shoal.mechanisms.sensitivity import Histogram
from shoal.privacy.events import Relation, Scope, Unit
from statistical.harness import catches, fits, is_chance, is_mean, statistical
from statistical.laws import geometric, laplace, looks_like

ALPHA = 1e-9
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
SCALES = [Fraction(1, 3), Fraction(1), Fraction(16), Fraction(1600)]


def looks_laplace(drawn: np.ndarray, rate: float, alpha: float) -> bool:
    """Whether a sample fits, out to where about ten are expected beyond."""
    n = math.ceil(math.log(drawn.size / 10) / rate)
    return looks_like(drawn, -n, laplace(rate, n), alpha)


def looks_geometric(drawn: np.ndarray, rate: float, alpha: float) -> bool:
    n = math.ceil(math.log(drawn.size / 10) / rate)
    return looks_like(drawn, 0, geometric(rate, n), alpha)


@statistical(alpha=ALPHA)
def test_laplace_fits_at_every_scale(entropy: SeededEntropy) -> None:
    for scale in SCALES:
        rate = float(1 / scale)
        assert looks_laplace(laplace_sampler(1 / scale).draw_many(300_000, entropy), rate, ALPHA / 8)
        sampler = laplace_sampler(1 / scale)
        assert looks_laplace(np.array([sampler.draw(entropy) for _ in range(10_000)]), rate, ALPHA / 8)
        # Half the noise, and a tenth less: ten standard deviations off even in the thousands of cells of the widest scale.
        assert catches(lambda: looks_laplace(laplace_sampler(2 / scale).draw_many(300_000, entropy), rate, ALPHA / 8))  # noqa: B023
        assert catches(lambda: looks_laplace(laplace_sampler(Fraction(11, 10) / scale).draw_many(300_000, entropy), rate, ALPHA / 8))  # noqa: B023


@statistical(alpha=ALPHA)
def test_geometric_fits_at_every_scale(entropy: SeededEntropy) -> None:
    for scale in SCALES:
        rate = float(1 / scale)
        assert looks_geometric(geometric_sampler(1 / scale).draw_many(300_000, entropy), rate, ALPHA / 8)
        sampler = geometric_sampler(1 / scale)
        assert looks_geometric(np.array([sampler.draw(entropy) for _ in range(10_000)]), rate, ALPHA / 8)

    def without_a_digit() -> np.ndarray:
        sampler = GeometricSampler(Fraction(1, 16))
        sampler._digits[0] = sampler._digits[1]
        return sampler.draw_many(300_000, entropy)

    assert catches(lambda: looks_geometric(without_a_digit(), 1 / 16, ALPHA / 8))


@statistical(alpha=ALPHA)
def test_a_swapped_coin_or_a_cut_tail_is_seen(entropy: SeededEntropy) -> None:
    rate, n = 0.25, 300_000
    sampler = LaplaceSampler(Fraction(1, 4))
    assert looks_laplace(sampler.draw_many(n, entropy), rate, ALPHA)

    def swapped() -> np.ndarray:
        drawn = sampler.draw_many(n, entropy)
        return np.where(sampler._is_nonzero.flip_many(n, entropy), 0, drawn)

    def truncated() -> np.ndarray:
        return np.clip(sampler.draw_many(n, entropy), -28, 28)

    def one_sided() -> np.ndarray:
        return np.abs(sampler.draw_many(n, entropy))

    for mutant in (swapped, truncated, one_sided):
        assert catches(lambda: looks_laplace(mutant(), rate, ALPHA))  # noqa: B023


def independent(randomise: Callable[[np.ndarray], np.ndarray], rate: float, alpha: float) -> bool:
    """Whether two coordinates of one release have noise of their own: each pair of small values as often as the product says."""
    noise = randomise(np.zeros((100_000, 2), np.int64))
    reach = 3
    inside = np.all(np.abs(noise) <= reach, axis=1)
    width = 2 * reach + 1
    pairs = np.bincount((noise[inside, 0] + reach) * width + noise[inside, 1] + reach, minlength=width**2)
    law = laplace(rate, reach)
    return fits(np.append(pairs, (~inside).sum()), np.outer(law, law).ravel(), alpha)


@statistical(alpha=ALPHA)
def test_coordinates_are_independent(entropy: SeededEntropy) -> None:
    mechanism = DiscreteLaplace(1.0, Histogram(), SCOPE)
    assert independent(lambda counts: mechanism.randomise_many(counts, entropy), 1.0, ALPHA)

    def shared(counts: np.ndarray) -> np.ndarray:
        return counts + mechanism.randomise_many(counts[:, :1], entropy)

    def missing(counts: np.ndarray) -> np.ndarray:
        noisy = mechanism.randomise_many(counts, entropy)
        noisy[:, 1] = counts[:, 1]
        return noisy

    def sometimes_shared(counts: np.ndarray) -> np.ndarray:
        noisy = mechanism.randomise_many(counts, entropy)
        again = entropy.below_many(20, len(counts)) == 0
        noisy[again, 1] = noisy[again, 0]
        return noisy

    for mutant in (shared, missing, sometimes_shared):
        assert catches(lambda: independent(mutant, 1.0, ALPHA))  # noqa: B023


@statistical(alpha=ALPHA)
def test_noise_has_no_bias_and_its_variance(entropy: SeededEntropy) -> None:
    mechanism = DiscreteLaplace(0.3, Histogram(2), SCOPE)
    n = 400_000

    def check(noise: np.ndarray) -> bool:
        sd = math.sqrt(mechanism.variance())
        fourth = float((np.arange(-2000, 2001) ** 4 * laplace(0.15, 2000)).sum())
        centred = is_mean(noise, 0.0, sd, ALPHA / 6)
        spread = is_mean(noise**2, sd**2, math.sqrt(fourth - sd**4), ALPHA / 6)
        return centred and spread and is_chance((noise > 0).sum(), np.count_nonzero(noise), 0.5, ALPHA / 3)

    assert check(mechanism.randomise_many(np.full(n, 7), entropy) - 7)
    assert catches(lambda: check(mechanism.randomise_many(np.full(n, 7), entropy) - 6))
    assert catches(lambda: check(DiscreteLaplace(0.3, Histogram(1), SCOPE).randomise_many(np.zeros(n, np.int64), entropy)))


@statistical(alpha=ALPHA)
def test_blocks_share_no_draw(entropy: SeededEntropy) -> None:
    """Draws are made in blocks: the same place of two blocks must agree in sign and size no more often than chance has it."""
    rate = Fraction(1, 100)
    law = laplace(float(rate), 4000)

    def is_independent(draw: Callable[[int], np.ndarray]) -> bool:
        first, second = np.split(draw(2 * _BLOCK), 2)
        both = (first != 0) & (second != 0)
        same_sign = int((np.sign(first) == np.sign(second))[both].sum())
        same_size = int((np.abs(first) == np.abs(second)).sum())
        sizes = np.concatenate([[law[4000]], 2 * law[4001:]])
        return is_chance(same_sign, int(both.sum()), 0.5, ALPHA / 2) and is_chance(same_size, _BLOCK, float((sizes**2).sum()), ALPHA / 2)

    sampler = laplace_sampler(rate)
    assert is_independent(lambda n: sampler.draw_many(n, entropy))

    def with_the_signs_of_the_first_block(n: int) -> np.ndarray:
        drawn = sampler.draw_many(n, entropy)
        return np.abs(drawn) * np.tile(np.sign(drawn[:_BLOCK]), n // _BLOCK)

    assert catches(lambda: is_independent(with_the_signs_of_the_first_block))
    assert catches(lambda: is_independent(lambda n: np.tile(sampler.draw_many(_BLOCK, entropy), n // _BLOCK)))
