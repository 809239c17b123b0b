"""Sums of Gaussian noise shares, for any number of survivors.

The sums have the convolved distribution, drawn one share at a time or as one sum. Sample sizes: the
chi-square statistic of a mutant exceeds its degrees of freedom by n times the sum over groups of (p
- p')^2 / p; for the mutant nearest to the distribution, one share of five missing, that is more
than eight standard deviations beyond what alpha allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.distributed_gaussian import DistributedGaussian
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import fits_pmf, gaussian
from tests.statistical.harness import catches, is_mean, statistical

ALPHA = 1e-9
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
HONEST = 5
N = 60_000

Ints = np.ndarray


def fits_shares(noise: Ints, sigma_squared: float, n_shares: int, alpha: float) -> bool:
    reach = math.ceil(8 * math.sqrt(sigma_squared)) + 3
    share = pmf = gaussian(sigma_squared, reach)
    for _ in range(n_shares - 1):
        pmf = np.convolve(pmf, share)
    return fits_pmf(noise, -n_shares * reach, pmf, alpha)


def sum_shares(noise: DistributedGaussian, n_shares: int, entropy: Entropy, n: int = N) -> Ints:
    return np.sum([noise.draw_share(n, entropy) for _ in range(n_shares)], axis=0)


@statistical(alpha=ALPHA)
def test_gaussian_share_sums_fit_for_any_survivors(entropy: SeededEntropy) -> None:
    rhos = (1.0, 0.02, 0.0005)
    counts = (1, HONEST - 1, HONEST, HONEST + 3)
    checks = 2 * len(rhos) * len(counts)
    for rho in rhos:
        noise = DistributedGaussian(rho, 1e-6, CellCounts(), SCOPE, HONEST, dimension=1)
        scale = float(noise.sigma_squared)
        for n_shares in counts:
            assert fits_shares(
                sum_shares(noise, n_shares, entropy), scale, n_shares, ALPHA / checks
            )
            assert fits_shares(
                noise.draw_sum(N, n_shares, entropy), scale, n_shares, ALPHA / checks
            )
        half = DistributedGaussian(4 * rho, 1e-6, CellCounts(), SCOPE, HONEST, dimension=1)
        mutants: list[Callable[[], Ints]] = [
            lambda: sum_shares(half, HONEST, entropy),
            lambda: half.draw_sum(N, HONEST, entropy),
            lambda: sum_shares(noise, HONEST - 1, entropy),
            lambda: noise.draw_sum(N, HONEST - 1, entropy),
            lambda: sum_shares(noise, HONEST - 2, entropy) + 2 * noise.draw_share(N, entropy),
        ]
        for mutant in mutants:
            assert catches(lambda: fits_shares(mutant(), scale, HONEST, ALPHA / checks))


@statistical(alpha=ALPHA)
def test_gaussian_shares_are_independent_across_coordinates_and_parties(
    entropy: SeededEntropy,
) -> None:
    noise = DistributedGaussian(0.02, 1e-6, CellCounts(), SCOPE, HONEST, dimension=2)
    sd = noise.variance(1)

    def are_uncorrelated(first: Ints, second: Ints) -> bool:
        return is_mean(first * second, 0.0, sd, ALPHA / 2)

    assert are_uncorrelated(*noise.draw_share(2 * N, entropy).reshape(2, N))
    assert are_uncorrelated(noise.draw_share(N, entropy), noise.draw_share(N, entropy))
    assert catches(lambda: are_uncorrelated(*np.tile(noise.draw_share(N, entropy), (2, 1))))
    copied = entropy.spawn("copied")
    assert catches(
        lambda: are_uncorrelated(
            noise.draw_share(N, copied.spawn("share")), noise.draw_share(N, copied.spawn("share"))
        ),
        tries=1,
    )
