"""OpenDP as an oracle: the same distributions, and the same prices for the same noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.mechanisms.gaussian import DiscreteGaussian, get_gaussian_sampler
from shoal.mechanisms.laplace import DiscreteLaplace, get_laplace_sampler
from shoal.mechanisms.noisy_max import NoisyMax
from shoal.mechanisms.sensitivity import BoundedSum, CellCounts
from shoal.privacy.accountant import rho_to_epsilon
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import fits_pmf, gaussian, laplace
from tests.statistical.harness import catches, fits, statistical

ALPHA = 1e-9
ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "all who read the release")


@pytest.fixture(autouse=True, scope="module")
def _enable_features() -> None:
    dp.enable_features("contrib")


def make_count_domain() -> dp.Domain:
    return dp.vector_domain(dp.atom_domain(T=int))


@statistical(alpha=ALPHA)
def test_laplace_noise_of_shoal_and_opendp_fits(entropy: SeededEntropy) -> None:
    scale, n = 5, 30_000
    theirs = dp.m.make_laplace(make_count_domain(), dp.l1_distance(T=int), scale=float(scale))
    reach = math.ceil(scale * math.log(n / 10))

    def check(drawn: np.ndarray) -> bool:
        return fits_pmf(drawn, -reach, laplace(1 / scale, reach), ALPHA / 2)

    assert check(get_laplace_sampler(Fraction(1, scale)).draw_many(n, entropy))
    assert check(np.array(theirs([0] * n)))
    narrow = dp.m.make_laplace(make_count_domain(), dp.l1_distance(T=int), scale=scale / 2)
    assert catches(lambda: check(np.array(narrow([0] * n))), tries=1)


@statistical(alpha=ALPHA)
def test_gaussian_noise_of_shoal_and_opendp_fits(entropy: SeededEntropy) -> None:
    sigma, n = 4, 20_000
    theirs = dp.m.make_gaussian(make_count_domain(), dp.l2_distance(T=float), scale=float(sigma))

    def check(drawn: np.ndarray) -> bool:
        return fits_pmf(drawn, -4 * sigma, gaussian(sigma**2, 4 * sigma), ALPHA / 2)

    assert check(get_gaussian_sampler(Fraction(sigma**2)).draw_many(n, entropy))
    assert check(np.array(theirs([0] * n)))
    narrow = dp.m.make_gaussian(make_count_domain(), dp.l2_distance(T=float), scale=sigma / 2)
    assert catches(lambda: check(np.array(narrow([0] * n))), tries=1)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("query", [CellCounts(), CellCounts(3, 2), BoundedSum(-2, 9)])
@pytest.mark.parametrize("scope", [ADD_REMOVE, REPLACE])
def test_laplace_noise_has_price_of_opendp(
    epsilon: float, query: CellCounts | BoundedSum, scope: Scope
) -> None:
    ours = DiscreteLaplace(epsilon, query, scope)
    theirs = dp.m.make_laplace(make_count_domain(), dp.l1_distance(T=int), scale=ours.scale)
    assert theirs.map(int(ours.sensitivity)) == pytest.approx(ours.event().epsilon, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("query", [CellCounts(), CellCounts(3, 2)])
@pytest.mark.parametrize("scope", [ADD_REMOVE, REPLACE])
def test_gaussian_noise_has_price_of_opendp(
    epsilon: float, query: CellCounts, scope: Scope
) -> None:
    ours = DiscreteGaussian(epsilon, 1e-6, query, scope)
    theirs = dp.m.make_gaussian(make_count_domain(), dp.l2_distance(T=float), scale=ours.sigma)
    change = math.sqrt(ours.l2_squared)
    assert theirs.map(change) == pytest.approx(ours.rho, rel=1e-9)
    found = dp.c.make_zCDP_to_approxDP(theirs).map(change).epsilon(1e-6)
    assert rho_to_epsilon(ours.rho, 1e-6) == pytest.approx(found, rel=1e-3)
    assert found == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("scope", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("max_rows", [1, 3])
def test_exponential_choice_has_price_of_opendp(scope: Scope, max_rows: int) -> None:
    metric = dp.linf_distance(T=int, monotonic=scope is ADD_REMOVE)
    one_sided = NoisyMax(0.7, CountScore(max_rows), scope)
    theirs = dp.m.make_noisy_max(
        make_count_domain(), metric, dp.max_divergence(), scale=float(1 / one_sided.rate)
    )
    assert theirs.map(max_rows) == pytest.approx(0.7, rel=1e-9)
    # With Gumbel noise, report noisy max is the exponential mechanism; OpenDP prices it by rho.
    gumbel = ExponentialMechanism(0.7, CountScore(max_rows), scope)
    theirs = dp.m.make_noisy_max(
        make_count_domain(), metric, dp.zero_concentrated_divergence(), scale=float(1 / gumbel.rate)
    )
    assert theirs.map(max_rows) == pytest.approx(gumbel.event().rho, rel=1e-9)


@statistical(alpha=ALPHA)
def test_exponential_choices_of_shoal_and_opendp_fit(entropy: SeededEntropy) -> None:
    scores, n = [3, 5, 4, 0], 3000
    ours = ExponentialMechanism(1.0, CountScore(), ADD_REMOVE)
    metric = dp.linf_distance(T=int, monotonic=True)

    def theirs(scale: float) -> np.ndarray:
        measurement = dp.m.make_noisy_max(
            make_count_domain(), metric, dp.zero_concentrated_divergence(), scale=scale
        )
        return np.array([measurement(scores) for _ in range(n)])

    def check(chosen: np.ndarray) -> bool:
        return fits(np.bincount(chosen, minlength=len(scores)), ours.chances(scores), ALPHA / 2)

    assert check(ours.choose_many(np.tile(scores, (n, 1)), entropy))
    assert check(theirs(1.0))
    assert catches(lambda: check(theirs(2.0)), tries=1)
