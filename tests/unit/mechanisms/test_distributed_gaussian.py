"""Gaussian noise in shares: cost of a sum by enumeration, and the noise itself."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms.distributed_gaussian import (
    DistributedGaussian,
    bound_log_range,
    compute_share_sigma_squared,
    compute_shares_rho,
)
from shoal.mechanisms.gaussian import DiscreteGaussian, compute_sigma_squared, get_gaussian_sampler
from shoal.mechanisms.sensitivity import CellCounts, SignedCells
from shoal.privacy.accountant import (
    compose_sequential,
    compose_zcdp,
    epsilon_to_rho,
    rho_to_epsilon,
)
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import gaussian

ADD_REMOVE = Scope(
    Unit.RECORD, Relation.ADD_REMOVE, "all who read the release and up to 3 colluding holders"
)
REPLACE = Scope(
    Unit.RECORD, Relation.REPLACE, "all who read the release and up to 3 colluding holders"
)
ORDERS = (1.001, 1.5, 2.0, 5.0, 20.0)
REACH = 100


def log_gaussian(sigma_squared: float, reach: int) -> np.ndarray:
    """Return log P(-reach), ..., log P(reach).

    High orders depend on probabilities that underflow.
    """
    logs = -(np.arange(-reach, reach + 1.0) ** 2) / (2 * sigma_squared)
    return np.asarray(logs - logsumexp(logs))


def log_law(sigma_squared: float, n_shares: int, reach: int = REACH) -> np.ndarray:
    """Return the same for a sum of shares."""
    share = log_gaussian(sigma_squared, 2 * reach)
    x = np.arange(2 * reach + 1)
    steps = share[x[:, np.newaxis] - x + 2 * reach]
    law = share[reach : 3 * reach + 1]
    for _ in range(n_shares - 1):
        law = logsumexp(steps + law, axis=1)
    return law


def divergence(law: np.ndarray, shift: int, order: float) -> float:
    """Return the Rényi divergence between a distribution and itself shifted."""
    here, there = law[shift:], law[: law.size - shift]
    return float(logsumexp(order * here + (1 - order) * there)) / (order - 1)


class TestBound:
    """Cost of shares, against enumeration."""

    @pytest.mark.parametrize("n_shares", [2, 3, 10])
    @pytest.mark.parametrize("sigma", [0.3, 0.45, 0.6, 1.0, 2.0])
    def test_divergence_of_every_order_is_within_bound(self, sigma: float, n_shares: int) -> None:
        law = log_law(sigma**2, n_shares)
        for shift in (1, 2, 4):
            rho = compute_shares_rho(Fraction(sigma**2), n_shares, Fraction(shift**2), 1)
            for order in ORDERS:
                assert divergence(law, shift, order) <= order * rho * (1 + 1e-9)

    @pytest.mark.parametrize("n_shares", [2, 3, 10])
    def test_narrow_shares_cost_more_than_one_gaussian(self, n_shares: int) -> None:
        law = log_law(0.3**2, n_shares)
        plain = 1 / (2 * n_shares * 0.3**2)
        assert max(divergence(law, 1, order) / order for order in ORDERS) > 1.2 * plain

    @pytest.mark.parametrize("n_shares", [2, 3, 10])
    def test_wide_shares_cost_same_as_one_gaussian(self, n_shares: int) -> None:
        law = log_law(4.0, n_shares)
        rho = compute_shares_rho(Fraction(4), n_shares, Fraction(4), 3000)
        assert rho == pytest.approx(4 / (8 * n_shares), rel=1e-9)
        assert divergence(law, 2, 1.5) == pytest.approx(1.5 * rho, rel=1e-9)

    @pytest.mark.parametrize("n_shares", [2, 3, 10])
    @pytest.mark.parametrize("sigma", [0.3, 0.45, 0.6, 1.0])
    def test_log_range_bounds_distribution(self, sigma: float, n_shares: int) -> None:
        ratio = (log_law(sigma**2, n_shares) - log_gaussian(n_shares * sigma**2, REACH))[
            REACH // 2 : -REACH // 2
        ]
        found = bound_log_range(Fraction(sigma**2), n_shares)
        assert np.ptp(ratio) <= found
        if n_shares == 2 and sigma >= 0.45:
            assert np.ptp(ratio) == pytest.approx(found, rel=0.03)

    @given(st.fractions(Fraction(1, 4), 60), st.integers(2, 300))
    def test_log_range_is_below_published_bound(
        self, sigma_squared: Fraction, n_shares: int
    ) -> None:
        published = 10 * math.fsum(
            math.exp(-2 * math.pi**2 * float(sigma_squared) * k / (k + 1))
            for k in range(1, n_shares)
        )
        assert 0 < bound_log_range(sigma_squared, n_shares) <= published + 1e-290

    @pytest.mark.parametrize("sigma_squared", [Fraction(1, 10**6), Fraction(10**9)])
    def test_log_range_is_finite_and_positive(self, sigma_squared: Fraction) -> None:
        assert 0 < bound_log_range(sigma_squared, 50) < math.inf
        assert bound_log_range(sigma_squared, 1) == 0

    def test_rho_grows_with_dimension(self) -> None:
        one, many = (
            compute_shares_rho(Fraction(1, 2), 3, Fraction(1), dimension) for dimension in (1, 100)
        )
        ragged = bound_log_range(Fraction(1, 2), 3)
        assert one == pytest.approx((math.sqrt(2 / 3) + ragged) ** 2 / 2)
        assert many == pytest.approx((math.sqrt(2 / 3) + 10 * ragged) ** 2 / 2)


class TestScale:
    """The least noise within a bound."""

    @given(
        rho=st.floats(1e-4, 20),
        n_shares=st.integers(1, 200),
        tables=st.integers(1, 20),
        dimension=st.integers(1, 10**5),
    )
    def test_sigma_is_least_with_21_bits(
        self, rho: float, n_shares: int, tables: int, dimension: int
    ) -> None:
        found = compute_share_sigma_squared(rho, n_shares, Fraction(tables), dimension)
        assert compute_shares_rho(found, n_shares, Fraction(tables), dimension) <= rho
        assert (
            compute_shares_rho(
                found * (1 - Fraction(1, 2**20)), n_shares, Fraction(tables), dimension
            )
            > rho
        )
        assert found.denominator & (found.denominator - 1) == 0
        assert (found.numerator // (found.numerator & -found.numerator)).bit_length() <= 21

    @pytest.mark.parametrize("rho", [0.001, 0.25, 5.0])
    def test_one_share_is_plain_gaussian_noise(self, rho: float) -> None:
        found = compute_share_sigma_squared(rho, 1, Fraction(14), 400)
        assert found == pytest.approx(compute_sigma_squared(rho, Fraction(14)), rel=2.0**-19)

    def test_narrow_shares_are_widened_and_wide_ones_are_not(self) -> None:
        wide = compute_share_sigma_squared(0.001, 10, Fraction(1), 1000)
        assert wide * 10 == pytest.approx(500, rel=2.0**-19)
        narrow = compute_share_sigma_squared(2.0, 10, Fraction(1), 1000)
        assert 10 * narrow > 0.5

    def test_power_of_two_is_not_assumed_exact(self) -> None:
        """A sum of several shares is never exactly Gaussian.

        So the stated bound is above that of one Gaussian at every width.
        """
        assert compute_shares_rho(Fraction(2**20), 2, Fraction(1), 1) == math.nextafter(2.0**-22, 1)
        assert compute_shares_rho(Fraction(2**20), 1, Fraction(1), 1) == 2.0**-21


class TestSharedGaussian:
    @given(
        rho=st.floats(1e-4, 5),
        delta=st.floats(1e-12, 1e-2),
        n_honest=st.integers(1, 100),
        dimension=st.integers(1, 10**4),
    )
    def test_claimed_rho_is_at_most_requested(
        self, rho: float, delta: float, n_honest: int, dimension: int
    ) -> None:
        event = DistributedGaussian(
            rho, delta, SignedCells(5, 256), REPLACE, n_honest, dimension
        ).event()
        assert event.rho is not None
        assert rho * (1 - 2.0**-19) <= event.rho <= rho
        assert (
            event.epsilon
            == max(1e-9, rho_to_epsilon(event.rho, delta))
            <= max(1e-9, rho_to_epsilon(rho, delta))
        )

    def test_event_has_parameters(self) -> None:
        rho = epsilon_to_rho(1.0, 1e-6)
        noise = DistributedGaussian(rho, 1e-6, SignedCells(14, 256), ADD_REMOVE, 7, 500)
        event = noise.event()
        assert event.mechanism == "gaussian-shares"
        assert (event.delta, event.rho, event.scope) == (1e-6, noise.rho, ADD_REMOVE)
        assert event.epsilon == pytest.approx(1, rel=1e-5)
        assert event.parameters == {
            "sensitivity": math.sqrt(14) * 256,
            "sigma": noise.sigma,
            "n_honest": 7,
            "dimension": 500,
        }
        assert noise.sigma == pytest.approx(
            DiscreteGaussian(1.0, 1e-6, SignedCells(14, 256), ADD_REMOVE).sigma, rel=1e-5
        )
        assert compose_sequential([event, event]).epsilon == pytest.approx(2 * event.epsilon)
        halves = [
            DistributedGaussian(rho / 2, 1e-6, SignedCells(14, 256), ADD_REMOVE, 7, 500).event()
        ] * 2
        assert compose_zcdp(halves, 1e-6).epsilon <= 1

    def test_event_has_positive_epsilon_if_delta_alone_suffices(self) -> None:
        assert rho_to_epsilon(1e-4, 0.01) == 0
        assert (
            DistributedGaussian(1e-4, 0.01, CellCounts(), ADD_REMOVE, 3, 1).event().epsilon == 1e-9
        )

    def test_relation_sets_sensitivity(self) -> None:
        one, other = (
            DistributedGaussian(0.1, 1e-6, SignedCells(2, 8), scope, 3, 9)
            for scope in (ADD_REMOVE, REPLACE)
        )
        assert other.sigma_squared == 4 * one.sigma_squared

    def test_share_is_gaussian_draw_for_each_number(self) -> None:
        noise = DistributedGaussian(0.001, 1e-6, CellCounts(), ADD_REMOVE, 4, 50)
        assert noise.sigma == pytest.approx(2 * math.sqrt(noise.sigma_squared))
        want = get_gaussian_sampler(noise.sigma_squared).draw_many(50, SeededEntropy(1)).tolist()
        assert noise.draw_share(50, SeededEntropy(1)).tolist() == want
        assert len(set(want)) > 15

    def test_sum_of_wide_shares_is_one_draw(self) -> None:
        noise = DistributedGaussian(0.001, 1e-6, CellCounts(), ADD_REMOVE, 4, 50)
        assert noise.sigma_squared >= 16
        want = (
            get_gaussian_sampler(9 * noise.sigma_squared).draw_many(50, SeededEntropy(1)).tolist()
        )
        assert noise.draw_sum(50, 9, SeededEntropy(1)).tolist() == want
        assert bound_log_range(Fraction(16), 10**6) < 1e-60

    def test_sum_of_narrow_shares_draws_each_share(self) -> None:
        noise = DistributedGaussian(0.1, 1e-6, CellCounts(), ADD_REMOVE, 4, 50)
        assert noise.sigma_squared < 16
        entropy = SeededEntropy(1)
        want = np.sum([noise.draw_share(50, entropy) for _ in range(9)], axis=0)
        assert noise.draw_sum(50, 9, SeededEntropy(1)).tolist() == want.tolist()

    @pytest.mark.parametrize("rho", [0.001, 0.01, 0.1, 2.0])
    def test_variance_matches_shares(self, rho: float) -> None:
        noise = DistributedGaussian(rho, 1e-6, CellCounts(), ADD_REMOVE, 5, 1)
        reach = math.ceil(40 * math.sqrt(noise.sigma_squared))
        one = float(
            (np.arange(-reach, reach + 1) ** 2 * gaussian(float(noise.sigma_squared), reach)).sum()
        )
        assert noise.variance() == noise.variance(5) == pytest.approx(5 * one, rel=1e-9)
        assert noise.variance(1) == pytest.approx(one, rel=1e-9)

    @pytest.mark.parametrize("n", [0, 1, 5])
    @pytest.mark.parametrize("rho", [0.001, 0.1])
    def test_draw_share_returns_n_numbers(self, rho: float, n: int) -> None:
        noise = DistributedGaussian(rho, 1e-6, CellCounts(), ADD_REMOVE, 3, 5)
        for drawn in (
            noise.draw_share(n, SeededEntropy(1)),
            noise.draw_sum(n, 4, SeededEntropy(1)),
        ):
            assert (drawn.shape, drawn.dtype) == ((n,), np.int64)

    @pytest.mark.parametrize(
        ("rho", "delta", "n_honest", "dimension"),
        [
            (0.0, 1e-6, 3, 5),
            (math.inf, 1e-6, 3, 5),
            (math.nan, 1e-6, 3, 5),
            (1e-300, 1e-6, 3, 5),
            (1e4, 1e-6, 3, 5),
            (0.1, 0.0, 3, 5),
            (0.1, 1.0, 3, 5),
            (0.1, 1e-6, 0, 5),
            (0.1, 1e-6, 3, 0),
        ],
    )
    def test_rejects_parameters_without_guarantee(
        self, rho: float, delta: float, n_honest: int, dimension: int
    ) -> None:
        with pytest.raises(MechanismError, match="MECH-001"):
            DistributedGaussian(rho, delta, CellCounts(), ADD_REMOVE, n_honest, dimension)

    def test_rejects_noise_beyond_64_bits_and_empty_sums(self) -> None:
        with pytest.raises(MechanismError, match="MECH-001"):
            DistributedGaussian(1e-12, 1e-6, SignedCells(1, 10**9), ADD_REMOVE, 3, 5)
        with pytest.raises(MechanismError, match=r"MECH-001.*n_shares = 0"):
            DistributedGaussian(0.1, 1e-6, CellCounts(), ADD_REMOVE, 3, 5).draw_sum(
                4, 0, SeededEntropy(1)
            )
