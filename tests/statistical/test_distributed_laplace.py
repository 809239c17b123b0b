"""Sums of Laplace noise shares, for any number of survivors.

The sums have the distribution of a difference of negative binomials, and choices by shares are
those of report noisy max. The distribution is convolved from closed forms. Sample sizes: the
chi-square statistic of a mutant exceeds its degrees of freedom by n times the sum over groups of (p
- p')^2 / p; for each mutant below that is eight standard deviations or more beyond what alpha
allows.
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
from shoal.mechanisms.distributed_laplace import DistributedLaplace, DistributedNoisyMax
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.polya import PolyaSampler, draw_poisson, get_polya_sampler
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import fits_pmf, geometric, noisy_max
from tests.statistical.harness import catches, fits, statistical

ALPHA = 1e-9
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "the miner and up to 3 colluding databases")
HONEST = 5
N = 60_000

Ints = np.ndarray


def one_sided_pmf(rate: float, shares: float) -> np.ndarray:
    """Return the distribution of one-sided noise of some shares.

    It ends where a sample could show no more.
    """
    return np.asarray(
        stats.nbinom.pmf(
            np.arange(math.ceil((40 + 10 * shares) / rate)), shares, -math.expm1(-rate)
        )
    )


def fits_shares(drawn: Ints, rate: float, shares: float, alpha: float) -> bool:
    side = one_sided_pmf(rate, shares)
    pmf = np.convolve(side, side[::-1])
    return fits_pmf(drawn, 1 - side.size, pmf, alpha)


def sum_shares(
    noise: DistributedLaplace | DistributedNoisyMax, n_shares: int, entropy: Entropy, n: int = N
) -> Ints:
    return np.sum([noise.draw_share(n, entropy) for _ in range(n_shares)], axis=0)


@statistical(alpha=ALPHA)
def test_laplace_share_sums_fit_for_any_survivors(entropy: SeededEntropy) -> None:
    checks = 2 * 2 * (HONEST + 3)
    for epsilon in (0.5, 0.02):
        noise = DistributedLaplace(epsilon, CellCounts(), SCOPE, HONEST)
        for n_shares in range(1, HONEST + 4):
            shares = n_shares / HONEST
            assert fits_shares(
                sum_shares(noise, n_shares, entropy), epsilon, shares, ALPHA / checks
            )
            assert fits_shares(
                noise.draw_sum(N, n_shares, entropy), epsilon, shares, ALPHA / checks
            )

    rate = Fraction(1, 2)
    noise = DistributedLaplace(0.5, CellCounts(), SCOPE, HONEST)

    def draw_two_sided(sampler: PolyaSampler) -> Ints:
        return sampler.draw_many(N, entropy) - sampler.draw_many(N, entropy)

    def sum_with_reused_share() -> Ints:
        return sum_shares(noise, HONEST - 2, entropy) + 2 * noise.draw_share(N, entropy)

    def sum_with_one_sided_share() -> Ints:
        return sum_shares(noise, HONEST - 1, entropy) + get_polya_sampler(
            rate, Fraction(1, HONEST)
        ).draw_many(N, entropy)

    mutants: list[Callable[[], Ints]] = [
        lambda: sum_shares(DistributedLaplace(1.0, CellCounts(), SCOPE, HONEST), HONEST, entropy),
        lambda: sum_shares(noise, HONEST - 1, entropy),
        lambda: get_polya_sampler(rate, Fraction(1)).draw_many(N, entropy),
        sum_with_reused_share,
        sum_with_one_sided_share,
    ]
    for mutant in mutants:
        assert catches(lambda: fits_shares(mutant(), 0.5, 1.0, ALPHA / checks))
    assert catches(
        lambda: fits_shares(
            draw_two_sided(get_polya_sampler(rate, Fraction(HONEST))),
            0.5,
            1 / HONEST,
            ALPHA / checks,
        )
    )


@statistical(alpha=ALPHA)
def test_polya_draws_fit_at_every_scale(
    entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        (Fraction(3), Fraction(1, 2)),
        (Fraction(1), Fraction(1, 7)),
        (Fraction(1, 30), Fraction(3, 4)),
        (Fraction(1, 700), Fraction(1, 3)),
    ]

    def fits_polya(drawn: Ints, rate: Fraction, shares: Fraction) -> bool:
        return fits_pmf(drawn, 0, one_sided_pmf(float(rate), float(shares)), ALPHA / len(settings))

    for rate, shares in settings:
        assert fits_polya(PolyaSampler(rate, shares).draw_many(4 * N, entropy), rate, shares)
        # The mutants have a quarter more shares, and noise that is a fifth too small.
        assert catches(
            lambda: fits_polya(
                PolyaSampler(rate, shares * 5 / 4).draw_many(4 * N, entropy), rate, shares
            )
        )
        assert catches(
            lambda: fits_polya(
                PolyaSampler(rate * 5 / 4, shares).draw_many(4 * N, entropy), rate, shares
            )
        )

    rate, shares = settings[2]
    honest = PolyaSampler._approximate_chances

    def omit_size(sampler: PolyaSampler, k: Ints, width: Ints, q: Ints) -> Ints:
        return np.minimum(honest(sampler, k, width, q) * k / width, 1.0)

    def omit_block(sampler: PolyaSampler, k: Ints, width: Ints, q: Ints) -> Ints:
        return honest(sampler, k, width, np.zeros_like(q))

    def omit_tail(sampler: PolyaSampler, k: Ints, width: Ints, q: Ints) -> Ints:
        return honest(sampler, k, width, q) * (q <= 1)

    for mutant in (omit_size, omit_block, omit_tail):
        with monkeypatch.context() as patch:
            patch.setattr(PolyaSampler, "_approximate_chances", mutant)
            assert catches(
                lambda: fits_polya(
                    PolyaSampler(rate, shares).draw_many(4 * N, entropy), rate, shares
                )
            )


@statistical(alpha=ALPHA)
def test_polya_coordinates_and_point_counts_are_independent(
    entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check pairs of neighbours and the number of points.

    The sampler assigns candidates to the variates of a vector; neither may show it.
    """
    rate, shares = Fraction(1), Fraction(1, 2)
    reach = 4

    def are_independent(drawn: Ints) -> bool:
        first, second = np.minimum(drawn.reshape(2, -1), reach)
        pmf = one_sided_pmf(float(rate), float(shares))
        pmf = np.append(pmf[:reach], pmf[reach:].sum())
        return fits(
            np.bincount(first * (reach + 1) + second, minlength=(reach + 1) ** 2),
            np.outer(pmf, pmf).ravel(),
            ALPHA / 2,
        )

    sampler = PolyaSampler(rate, shares)

    def draw_pairs() -> Ints:
        return np.stack([sampler.draw_many(2, entropy) for _ in range(5000)], axis=1)

    assert are_independent(draw_pairs())
    assert catches(lambda: are_independent(np.tile(sampler.draw_many(5000, entropy), 2)))
    with monkeypatch.context() as patch:
        patch.setattr(polya, "draw_poisson", lambda mean, _: round(mean))
        assert catches(lambda: are_independent(draw_pairs()))

    means = Fraction(12, 5), Fraction(1, 3)

    def fits_poisson(mean: Fraction, pmf_mean: Fraction) -> bool:
        drawn = np.array([draw_poisson(mean, entropy) for _ in range(5000)])
        return fits_pmf(drawn, 0, stats.poisson.pmf(np.arange(60), float(pmf_mean)), ALPHA / 4)

    for mean in means:
        assert fits_poisson(mean, mean)
        assert catches(lambda: fits_poisson(mean + Fraction(1, 2), mean))


@statistical(alpha=ALPHA)
def test_distributed_noisy_max_chooses_like_report_noisy_max(entropy: SeededEntropy) -> None:
    scores = np.array([4, 7, 5, 7, 0, 6])
    n = 40_000

    def check(noise: Ints, shares: float = 1.0) -> bool:
        chosen = np.argmax(scores + noise.reshape(n, scores.size), axis=1)
        pmf = noisy_max(tuple(scores.tolist()), one_sided_pmf(0.8, shares))
        return fits(np.bincount(chosen, minlength=scores.size), pmf, ALPHA / 3)

    assert one_sided_pmf(0.8, 1.0) == pytest.approx(geometric(0.8, one_sided_pmf(0.8, 1.0).size))
    shared = DistributedNoisyMax(0.8, CountScore(), SCOPE, HONEST)
    assert check(sum_shares(shared, HONEST, entropy, n * scores.size))
    assert check(shared.draw_sum(n * scores.size, HONEST, entropy))
    assert check(sum_shares(shared, HONEST + 2, entropy, n * scores.size), 1 + 2 / HONEST)

    general = DistributedNoisyMax(0.8, CountScore(), REPLACE, HONEST)
    assert catches(lambda: check(sum_shares(general, HONEST, entropy, n * scores.size)))
    assert catches(lambda: check(sum_shares(shared, HONEST - 1, entropy, n * scores.size)))
    assert catches(lambda: check(np.repeat(sum_shares(shared, HONEST, entropy, n), scores.size)))
