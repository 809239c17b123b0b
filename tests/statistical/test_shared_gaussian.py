"""Summed Gaussian shares have the convolved law, whoever survives, drawn one by one or at once.

Sample sizes: the chi-square statistic of a mutant exceeds its degrees of freedom by n times the sum over groups of (p - p')^2 / p; for the
mutant nearest to the law, one share of five missing, that is more than eight standard deviations beyond what alpha allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.sensitivity import Histogram
from shoal.mechanisms.shared_gaussian import SharedGaussian
from shoal.privacy.events import Relation, Scope, Unit
from statistical.harness import catches, is_mean, statistical
from statistical.laws import gaussian, looks_like

ALPHA = 1e-9
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
HONEST = 5
N = 60_000

Drawn = np.ndarray


def looks_shared(drawn: Drawn, sigma_squared: float, n_shares: int, alpha: float) -> bool:
    reach = math.ceil(8 * math.sqrt(sigma_squared)) + 3
    share = law = gaussian(sigma_squared, reach)
    for _ in range(n_shares - 1):
        law = np.convolve(law, share)
    return looks_like(drawn, -n_shares * reach, law, alpha)


def summed_one_by_one(noise: SharedGaussian, n_shares: int, entropy: Entropy, n: int = N) -> Drawn:
    return np.sum([noise.share(n, entropy) for _ in range(n_shares)], axis=0)


@statistical(alpha=ALPHA)
def test_shares_fit_whoever_survives(entropy: SeededEntropy) -> None:
    rhos = (1.0, 0.02, 0.0005)
    counts = (1, HONEST - 1, HONEST, HONEST + 3)
    checks = 2 * len(rhos) * len(counts)
    for rho in rhos:
        noise = SharedGaussian(rho, 1e-6, Histogram(), SCOPE, HONEST, dimension=1)
        scale = float(noise.sigma_squared)
        for n_shares in counts:
            assert looks_shared(summed_one_by_one(noise, n_shares, entropy), scale, n_shares, ALPHA / checks)
            assert looks_shared(noise.summed(N, n_shares, entropy), scale, n_shares, ALPHA / checks)
        half = SharedGaussian(4 * rho, 1e-6, Histogram(), SCOPE, HONEST, dimension=1)
        mutants: list[Callable[[], Drawn]] = [
            lambda: summed_one_by_one(half, HONEST, entropy),  # noqa: B023
            lambda: half.summed(N, HONEST, entropy),  # noqa: B023
            lambda: summed_one_by_one(noise, HONEST - 1, entropy),  # noqa: B023
            lambda: noise.summed(N, HONEST - 1, entropy),  # noqa: B023
            lambda: summed_one_by_one(noise, HONEST - 2, entropy) + 2 * noise.share(N, entropy),  # noqa: B023
        ]
        for mutant in mutants:
            assert catches(lambda: looks_shared(mutant(), scale, HONEST, ALPHA / checks))  # noqa: B023


@statistical(alpha=ALPHA)
def test_numbers_and_parties_have_noise_of_their_own(entropy: SeededEntropy) -> None:
    noise = SharedGaussian(0.02, 1e-6, Histogram(), SCOPE, HONEST, dimension=2)
    sd = noise.variance(1)

    def are_apart(first: Drawn, second: Drawn) -> bool:
        return is_mean(first * second, 0.0, sd, ALPHA / 2)

    assert are_apart(*noise.share(2 * N, entropy).reshape(2, N))
    assert are_apart(noise.share(N, entropy), noise.share(N, entropy))
    assert catches(lambda: are_apart(*np.tile(noise.share(N, entropy), (2, 1))))
    copied = entropy.spawn("copied")
    assert catches(lambda: are_apart(noise.share(N, copied.spawn("share")), noise.share(N, copied.spawn("share"))), tries=1)
