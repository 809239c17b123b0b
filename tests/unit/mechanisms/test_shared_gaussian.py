"""Gaussian noise in shares: what a sum of shares costs, by enumeration in logarithms, and the noise that follows from it."""

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
from shoal.mechanisms.gaussian import DiscreteGaussian, gaussian_sampler, sigma_squared_for
from shoal.mechanisms.sensitivity import Histogram, SignedCells
from shoal.mechanisms.shared_gaussian import SharedGaussian, log_range, rho_of_shares, share_sigma_squared
from shoal.privacy.accountant import by_zcdp, sequential
from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.zcdp import epsilon_to_rho, rho_to_epsilon
from statistical.laws import gaussian

ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release and up to 3 colluding holders")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "all who read the release and up to 3 colluding holders")
ORDERS = (1.001, 1.5, 2.0, 5.0, 20.0)
REACH = 100


def log_gaussian(sigma_squared: float, reach: int) -> np.ndarray:
    """log P(-reach), ..., log P(reach): logarithms, since high orders see chances that no float can hold."""
    logs = -(np.arange(-reach, reach + 1.0) ** 2) / (2 * sigma_squared)
    return np.asarray(logs - logsumexp(logs))


def log_law(sigma_squared: float, n_shares: int, reach: int = REACH) -> np.ndarray:
    """The same of a sum of shares."""
    share = log_gaussian(sigma_squared, 2 * reach)
    x = np.arange(2 * reach + 1)
    steps = share[x[:, np.newaxis] - x + 2 * reach]
    law = share[reach : 3 * reach + 1]
    for _ in range(n_shares - 1):
        law = logsumexp(steps + law, axis=1)
    return law


def divergence(law: np.ndarray, shift: int, order: float) -> float:
    """The Rényi divergence between a law and itself moved by a shift, out to where nothing is left."""
    here, there = law[shift:], law[: law.size - shift]
    return float(logsumexp(order * here + (1 - order) * there)) / (order - 1)


class TestBound:
    """What shares cost, against enumeration."""

    @pytest.mark.parametrize("n_shares", [2, 3, 10])
    @pytest.mark.parametrize("sigma", [0.3, 0.45, 0.6, 1.0, 2.0])
    def test_no_order_sees_more_than_the_bound(self, sigma: float, n_shares: int) -> None:
        law = log_law(sigma**2, n_shares)
        for shift in (1, 2, 4):
            rho = rho_of_shares(Fraction(sigma**2), n_shares, Fraction(shift**2), 1)
            for order in ORDERS:
                assert divergence(law, shift, order) <= order * rho * (1 + 1e-9)

    @pytest.mark.parametrize("n_shares", [2, 3, 10])
    def test_narrow_shares_cost_more_than_one_gaussian_of_their_variance(self, n_shares: int) -> None:
        law = log_law(0.3**2, n_shares)
        plain = 1 / (2 * n_shares * 0.3**2)
        assert max(divergence(law, 1, order) / order for order in ORDERS) > 1.2 * plain

    @pytest.mark.parametrize("n_shares", [2, 3, 10])
    def test_wide_ones_cost_the_same(self, n_shares: int) -> None:
        law = log_law(4.0, n_shares)
        rho = rho_of_shares(Fraction(4), n_shares, Fraction(4), 3000)
        assert rho == pytest.approx(4 / (8 * n_shares), rel=1e-9)
        assert divergence(law, 2, 1.5) == pytest.approx(1.5 * rho, rel=1e-9)

    @pytest.mark.parametrize("n_shares", [2, 3, 10])
    @pytest.mark.parametrize("sigma", [0.3, 0.45, 0.6, 1.0])
    def test_the_range_is_that_of_the_law(self, sigma: float, n_shares: int) -> None:
        ratio = (log_law(sigma**2, n_shares) - log_gaussian(n_shares * sigma**2, REACH))[REACH // 2 : -REACH // 2]
        found = log_range(Fraction(sigma**2), n_shares)
        assert np.ptp(ratio) <= found
        if n_shares == 2 and sigma >= 0.45:
            assert np.ptp(ratio) == pytest.approx(found, rel=0.03)

    @given(st.fractions(Fraction(1, 4), 60), st.integers(2, 300))
    def test_the_range_is_below_the_published_one(self, sigma_squared: Fraction, n_shares: int) -> None:
        published = 10 * math.fsum(math.exp(-2 * math.pi**2 * float(sigma_squared) * k / (k + 1)) for k in range(1, n_shares))
        assert 0 < log_range(sigma_squared, n_shares) <= published + 1e-290

    @pytest.mark.parametrize("sigma_squared", [Fraction(1, 10**6), Fraction(10**9)])
    def test_the_range_is_finite_and_never_nothing(self, sigma_squared: Fraction) -> None:
        assert 0 < log_range(sigma_squared, 50) < math.inf
        assert log_range(sigma_squared, 1) == 0

    def test_every_number_of_a_vector_counts(self) -> None:
        one, many = (rho_of_shares(Fraction(1, 2), 3, Fraction(1), dimension) for dimension in (1, 100))
        ragged = log_range(Fraction(1, 2), 3)
        assert one == pytest.approx((math.sqrt(2 / 3) + ragged) ** 2 / 2)
        assert many == pytest.approx((math.sqrt(2 / 3) + 10 * ragged) ** 2 / 2)


class TestScale:
    """The least noise that keeps to a bound."""

    @given(rho=st.floats(1e-4, 20), n_shares=st.integers(1, 200), tables=st.integers(1, 20), dimension=st.integers(1, 10**5))
    def test_is_the_least_of_21_bits(self, rho: float, n_shares: int, tables: int, dimension: int) -> None:
        found = share_sigma_squared(rho, n_shares, Fraction(tables), dimension)
        assert rho_of_shares(found, n_shares, Fraction(tables), dimension) <= rho
        assert rho_of_shares(found * (1 - Fraction(1, 2**20)), n_shares, Fraction(tables), dimension) > rho
        assert found.denominator & (found.denominator - 1) == 0
        assert (found.numerator // (found.numerator & -found.numerator)).bit_length() <= 21

    @pytest.mark.parametrize("rho", [0.001, 0.25, 5.0])
    def test_one_share_is_plain_gaussian_noise(self, rho: float) -> None:
        found = share_sigma_squared(rho, 1, Fraction(14), 400)
        assert found == pytest.approx(sigma_squared_for(rho, Fraction(14)), rel=2.0**-19)

    def test_narrow_shares_are_widened_and_wide_ones_are_not(self) -> None:
        wide = share_sigma_squared(0.001, 10, Fraction(1), 1000)
        assert wide * 10 == pytest.approx(500, rel=2.0**-19)
        narrow = share_sigma_squared(2.0, 10, Fraction(1), 1000)
        assert 10 * narrow > 0.5

    def test_a_power_of_two_is_not_claimed_to_be_exact(self) -> None:
        """Of several shares the sum is never quite a Gaussian, however wide: the bound that is stated is above the plain one."""
        assert rho_of_shares(Fraction(2**20), 2, Fraction(1), 1) == math.nextafter(2.0**-22, 1)
        assert rho_of_shares(Fraction(2**20), 1, Fraction(1), 1) == 2.0**-21


class TestSharedGaussian:
    @given(rho=st.floats(1e-4, 5), delta=st.floats(1e-12, 1e-2), n_honest=st.integers(1, 100), dimension=st.integers(1, 10**4))
    def test_the_claim_is_never_more_than_was_asked(self, rho: float, delta: float, n_honest: int, dimension: int) -> None:
        event = SharedGaussian(rho, delta, SignedCells(5, 256), REPLACE, n_honest, dimension).event()
        assert event.rho is not None
        assert rho * (1 - 2.0**-19) <= event.rho <= rho
        assert event.epsilon == max(1e-9, rho_to_epsilon(event.rho, delta)) <= max(1e-9, rho_to_epsilon(rho, delta))

    def test_the_event_says_what_was_done(self) -> None:
        rho = epsilon_to_rho(1.0, 1e-6)
        noise = SharedGaussian(rho, 1e-6, SignedCells(14, 256), ADD_REMOVE, 7, 500)
        event = noise.event()
        assert event.mechanism == "gaussian-shares"
        assert (event.delta, event.rho, event.scope) == (1e-6, noise.rho, ADD_REMOVE)
        assert event.epsilon == pytest.approx(1, rel=1e-5)
        assert event.parameters == {"sensitivity": math.sqrt(14) * 256, "sigma": noise.sigma, "n_honest": 7, "dimension": 500}
        assert noise.sigma == pytest.approx(DiscreteGaussian(1.0, 1e-6, SignedCells(14, 256), ADD_REMOVE).sigma, rel=1e-5)
        assert sequential([event, event]).epsilon == pytest.approx(2 * event.epsilon)
        halves = [SharedGaussian(rho / 2, 1e-6, SignedCells(14, 256), ADD_REMOVE, 7, 500).event()] * 2
        assert by_zcdp(halves, 1e-6).epsilon <= 1

    def test_where_the_delta_alone_would_do_an_epsilon_is_claimed_all_the_same(self) -> None:
        assert rho_to_epsilon(1e-4, 0.01) == 0
        assert SharedGaussian(1e-4, 0.01, Histogram(), ADD_REMOVE, 3, 1).event().epsilon == 1e-9

    def test_the_relation_sets_the_sensitivity(self) -> None:
        one, other = (SharedGaussian(0.1, 1e-6, SignedCells(2, 8), scope, 3, 9) for scope in (ADD_REMOVE, REPLACE))
        assert other.sigma_squared == 4 * one.sigma_squared

    def test_a_share_is_a_gaussian_draw_for_each_number(self) -> None:
        noise = SharedGaussian(0.001, 1e-6, Histogram(), ADD_REMOVE, 4, 50)
        assert noise.sigma == pytest.approx(2 * math.sqrt(noise.sigma_squared))
        want = gaussian_sampler(noise.sigma_squared).draw_many(50, SeededEntropy(1)).tolist()
        assert noise.share(50, SeededEntropy(1)).tolist() == want
        assert len(set(want)) > 15

    def test_a_sum_of_wide_shares_is_drawn_at_once(self) -> None:
        noise = SharedGaussian(0.001, 1e-6, Histogram(), ADD_REMOVE, 4, 50)
        assert noise.sigma_squared >= 16
        want = gaussian_sampler(9 * noise.sigma_squared).draw_many(50, SeededEntropy(1)).tolist()
        assert noise.summed(50, 9, SeededEntropy(1)).tolist() == want
        assert log_range(Fraction(16), 10**6) < 1e-60

    def test_a_sum_of_narrow_shares_is_drawn_share_by_share(self) -> None:
        noise = SharedGaussian(0.1, 1e-6, Histogram(), ADD_REMOVE, 4, 50)
        assert noise.sigma_squared < 16
        entropy = SeededEntropy(1)
        want = np.sum([noise.share(50, entropy) for _ in range(9)], axis=0)
        assert noise.summed(50, 9, SeededEntropy(1)).tolist() == want.tolist()

    @pytest.mark.parametrize("rho", [0.001, 0.01, 0.1, 2.0])
    def test_variance_is_that_of_the_shares(self, rho: float) -> None:
        noise = SharedGaussian(rho, 1e-6, Histogram(), ADD_REMOVE, 5, 1)
        reach = math.ceil(40 * math.sqrt(noise.sigma_squared))
        one = float((np.arange(-reach, reach + 1) ** 2 * gaussian(float(noise.sigma_squared), reach)).sum())
        assert noise.variance() == noise.variance(5) == pytest.approx(5 * one, rel=1e-9)
        assert noise.variance(1) == pytest.approx(one, rel=1e-9)

    @pytest.mark.parametrize("n", [0, 1, 5])
    @pytest.mark.parametrize("rho", [0.001, 0.1])
    def test_as_many_as_asked_for(self, rho: float, n: int) -> None:
        noise = SharedGaussian(rho, 1e-6, Histogram(), ADD_REMOVE, 3, 5)
        for drawn in (noise.share(n, SeededEntropy(1)), noise.summed(n, 4, SeededEntropy(1))):
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
    def test_refuses_what_has_no_guarantee(self, rho: float, delta: float, n_honest: int, dimension: int) -> None:
        with pytest.raises(MechanismError, match="MECH-001"):
            SharedGaussian(rho, delta, Histogram(), ADD_REMOVE, n_honest, dimension)

    def test_refuses_noise_that_leaves_64_bits_and_sums_of_nothing(self) -> None:
        with pytest.raises(MechanismError, match="MECH-001"):
            SharedGaussian(1e-12, 1e-6, SignedCells(1, 10**9), ADD_REMOVE, 3, 5)
        with pytest.raises(MechanismError, match=r"MECH-001.*n_shares = 0"):
            SharedGaussian(0.1, 1e-6, Histogram(), ADD_REMOVE, 3, 5).summed(4, 0, SeededEntropy(1))
