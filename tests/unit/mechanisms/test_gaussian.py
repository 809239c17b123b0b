"""Discrete Gaussian noise: cost, rounding, and the realised distribution."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms import bernoulli
from shoal.mechanisms.base import Mechanism
from shoal.mechanisms.gaussian import (
    DiscreteGaussian,
    GaussianSampler,
    compute_count_delta,
    compute_gaussian_moment,
    compute_sigma_squared,
    get_gaussian_sampler,
)
from shoal.mechanisms.sensitivity import BoundedSum, CellCounts, ClippedVector
from shoal.privacy.accountant import epsilon_to_rho, rho_to_delta
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import gaussian, realised_laplace

ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "all who read the release")


def direct_delta(sigma_squared: float, shift: int, epsilon: float, n: int) -> float:
    """Sum the hockey-stick divergence between the distribution and itself shifted."""
    law = gaussian(sigma_squared, n)
    assert n >= 40 * math.sqrt(sigma_squared)
    here, there = np.concatenate([law, np.zeros(shift)]), np.concatenate([np.zeros(shift), law])
    return float(np.maximum(0.0, there - math.exp(epsilon) * here).sum())


@pytest.mark.parametrize(
    "sigma_squared", [Fraction(1, 50), Fraction(1, 2), Fraction(1), Fraction(20), Fraction(901, 2)]
)
def test_accepted_candidates_have_gaussian_distribution(sigma_squared: Fraction) -> None:
    sampler = GaussianSampler(sigma_squared)
    n = max(5, math.ceil(8 * math.sqrt(sigma_squared)))
    kept = realised_laplace(sampler._candidates, n) * [
        math.exp(-sampler.exponent(y)) for y in range(-n, n + 1)
    ]
    want = gaussian(float(sigma_squared), n)
    known = want > 1e-12
    assert (kept / kept.sum())[known] == pytest.approx(want[known], rel=1e-6)
    assert kept.sum() > 0.4


def test_float_exponent_is_within_margin() -> None:
    for sigma_squared in (
        Fraction(1, 50),
        Fraction(3),
        Fraction(10**6 + 1, 7),
        Fraction(2**70 + 1, 3),
    ):
        sampler = GaussianSampler(sigma_squared)
        sigma = math.sqrt(sigma_squared)
        y = np.unique(np.linspace(0, 13 * sigma + 2, 400).astype(np.int64))
        x = (np.abs(y) - sampler._middle) ** 2 * sampler._half
        for value, near in zip(y.tolist(), x.tolist(), strict=True):
            exact = sampler.exponent(value)
            assert abs(Fraction(near) - exact) <= Fraction(1, 2**38) if exact <= 64 else near >= 60


def test_exact_and_vectorised_paths_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = GaussianSampler(Fraction(20))
    filtered = sampler.draw_many(300, SeededEntropy(6)).tolist()
    single = [sampler.draw(SeededEntropy(seed)) for seed in range(40)]
    monkeypatch.setattr(bernoulli, "_MARGIN", 2.0**70)
    monkeypatch.setattr(bernoulli, "_MARGIN_WORDS", 2.0**70)
    assert sampler.draw_many(300, SeededEntropy(6)).tolist() == filtered
    assert [sampler.draw(SeededEntropy(seed)) for seed in range(40)] == single


@pytest.mark.parametrize("n", [0, 1, 100, (1 << 15) + 10])
def test_draw_many_returns_n_numbers(n: int) -> None:
    assert get_gaussian_sampler(Fraction(9)).draw_many(n, SeededEntropy(2)).size == n


@given(epsilon=st.floats(0.01, 20), delta=st.floats(1e-12, 1e-2), n_tables=st.integers(1, 50))
def test_realised_guarantee_is_at_most_requested(
    epsilon: float, delta: float, n_tables: int
) -> None:
    mechanism = DiscreteGaussian(epsilon, delta, CellCounts(n_tables), REPLACE)
    asked = epsilon_to_rho(epsilon, delta)
    assert mechanism.l2_squared == 2 * n_tables
    assert (
        mechanism.l2_squared / (2 * mechanism.sigma_squared)
        <= Fraction(mechanism.rho)
        <= Fraction(asked)
    )
    assert mechanism.rho >= asked * (1 - 2.0**-19)
    assert rho_to_delta(mechanism.rho, epsilon) <= delta


@given(rho=st.floats(1e-6, 50), l2_squared=st.integers(1, 10**6))
def test_sigma_is_rounded_up_to_21_bits(rho: float, l2_squared: int) -> None:
    found = compute_sigma_squared(rho, Fraction(l2_squared))
    least = Fraction(l2_squared) / (2 * Fraction(rho))
    assert least <= found <= least * (1 + Fraction(1, 2**20))
    assert found.denominator & (found.denominator - 1) == 0
    assert (found.numerator // (found.numerator & -found.numerator)).bit_length() <= 22


class TestDelta:
    """The tight curve of one count."""

    @pytest.mark.parametrize("sigma_squared", [0.25, 2.0, 20.5, 1557.4])
    @pytest.mark.parametrize("sensitivity", [1, 2, 7])
    @pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
    def test_agrees_with_direct_sum(
        self, sigma_squared: float, sensitivity: int, epsilon: float
    ) -> None:
        found = compute_count_delta(Fraction(sigma_squared), sensitivity, epsilon)
        want = direct_delta(
            sigma_squared, sensitivity, epsilon, math.ceil(40 * math.sqrt(sigma_squared)) + 10
        )
        if want > 1e-13:
            assert found == pytest.approx(want, rel=1e-4)
        assert found >= min(want, 1 - 1e-15) * (1 - 1e-15)

    def test_rises_with_sensitivity(self) -> None:
        curve = [
            compute_count_delta(Fraction(30), sensitivity, 0.7) for sensitivity in range(1, 20)
        ]
        assert curve == sorted(curve)

    def test_is_at_most_bound_by_zcdp(self) -> None:
        for epsilon in (0.1, 0.5, 1.0, 2.0):
            assert compute_count_delta(Fraction(20), 1, epsilon) <= rho_to_delta(1 / 40, epsilon)

    def test_is_rounded_up(self) -> None:
        with localcontext() as context:
            context.prec = 50
            weight = {y: (-Decimal(y * y) / 41).exp() for y in range(-200, 201)}
            exact = sum(
                max(Decimal(0), weight[y] - Decimal(1).exp() * weight[y + 1])
                for y in range(-200, 200)
            ) / sum(weight.values())
        found = Decimal(compute_count_delta(Fraction(41, 2), 1, 1.0))
        assert exact <= found <= exact * Decimal("1.0000001")

    def test_is_never_zero(self) -> None:
        assert compute_count_delta(Fraction(20), 1, 60.0) > 0

    def test_is_at_most_one(self) -> None:
        assert compute_count_delta(Fraction(1, 50), 100, 0.1) == pytest.approx(1.0)
        assert compute_count_delta(Fraction(1, 50), 100, 0.1) <= 1.0

    def test_wide_noise_uses_bound_by_zcdp(self) -> None:
        wide = Fraction(2**34)
        rho = 2.0**-35
        assert compute_count_delta(wide, 1, 1e-4) == rho_to_delta(rho, 1e-4)

    def test_single_number_has_tight_curve_and_vector_has_bound(self) -> None:
        count = DiscreteGaussian(1.0, 1e-6, CellCounts(), ADD_REMOVE)
        total = DiscreteGaussian(1.0, 1e-6, BoundedSum(-3, 5), ADD_REMOVE)
        assert count.delta_at(1.0) == compute_count_delta(count.sigma_squared, 1, 1.0) < 3e-7
        assert total.delta_at(1.0) == compute_count_delta(total.sigma_squared, 5, 1.0) < 3e-7
        for query in (CellCounts(2), ClippedVector(5, 1, 9), CellCounts(1, 3)):
            vector = DiscreteGaussian(1.0, 1e-6, query, ADD_REMOVE)
            assert 0.99e-6 < vector.delta_at(1.0) == rho_to_delta(vector.rho, 1.0) <= 1e-6


@pytest.mark.parametrize(
    ("epsilon", "sigma_squared"), [(0.1, 1500.0), (1.0, 20.0), (8.0, 0.5), (64.0, 0.02)]
)
def test_variance_and_error_match_distribution(epsilon: float, sigma_squared: float) -> None:
    mechanism: Mechanism = DiscreteGaussian(epsilon, 1e-6, CellCounts(), ADD_REMOVE)
    assert isinstance(mechanism, DiscreteGaussian)
    assert mechanism.sigma**2 == pytest.approx(sigma_squared, rel=0.1)
    n = math.ceil(40 * mechanism.sigma)
    y, law = np.arange(-n, n + 1), gaussian(float(mechanism.sigma_squared), n)
    assert mechanism.variance() == pytest.approx((y**2 * law).sum(), rel=1e-9)
    assert mechanism.expected_error(1) == pytest.approx((np.abs(y) * law).sum(), rel=1e-9)
    assert mechanism.expected_error(9) == pytest.approx(
        math.sqrt(18 * mechanism.variance() / math.pi)
    )


def test_error_of_wide_noise_matches_sum() -> None:
    mechanism = DiscreteGaussian(0.01, 1e-6, CellCounts(), ADD_REMOVE)
    assert mechanism.sigma > 256
    assert mechanism.expected_error() == pytest.approx(
        compute_gaussian_moment(mechanism.sigma_squared, 1), rel=1e-9
    )


def test_event_has_parameters() -> None:
    mechanism = DiscreteGaussian(1.0, 1e-6, CellCounts(n_tables=2), REPLACE)
    event = mechanism.event()
    assert event.mechanism == "discrete-gaussian"
    assert (event.epsilon, event.delta, event.rho, event.scope) == (
        1.0,
        1e-6,
        mechanism.rho,
        REPLACE,
    )
    assert event.parameters == {"sensitivity": 2.0, "sigma": mechanism.sigma}


def test_randomise_adds_independent_noise_to_each_count() -> None:
    mechanism = DiscreteGaussian(0.1, 1e-6, CellCounts(), ADD_REMOVE)
    counts = np.full((40, 50), 1000)
    noisy = mechanism.randomise_many(counts, SeededEntropy(8))
    assert noisy.shape == counts.shape
    assert np.unique(noisy).size > 40
    assert mechanism.randomise(5, SeededEntropy(8)) == 5 + get_gaussian_sampler(
        mechanism.sigma_squared
    ).draw(SeededEntropy(8))


def test_rejects_parameters_without_guarantee() -> None:
    for epsilon, delta in ((0.0, 1e-6), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(MechanismError, match="MECH-001"):
            DiscreteGaussian(epsilon, delta, CellCounts(), ADD_REMOVE)
    with pytest.raises(MechanismError, match="MECH-002"):
        DiscreteGaussian(1.0, 1e-6, CellCounts(), ADD_REMOVE).randomise_many(
            np.array([0.5]), SeededEntropy(1)
        )  # type: ignore[arg-type]
    with pytest.raises(MechanismError, match="MECH-001"):
        DiscreteGaussian(1e-9, 1e-9, ClippedVector(10**9, 2, 3), ADD_REMOVE)
