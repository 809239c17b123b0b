"""Epsilons of other frameworks, compared with other accountants and the definition."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dpa
import numpy as np
import opendp.prelude as dp
import pytest
from dp_accounting import pld, rdp
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from shoal.audit.external import (
    NoiseConfiguration,
    compute_classic_sigma,
    compute_gaussian_delta,
    compute_gaussian_epsilon,
    compute_laplace_epsilon,
    compute_sampled_epsilon,
)
from shoal.errors import MechanismError
from shoal.privacy.events import Relation

mus = st.floats(1e-3, 1e3)
deltas = st.floats(-14, -1).map(lambda exponent: 10**exponent)
FLOWER = NoiseConfiguration(clip=1.0, noise=compute_classic_sigma(1.0, 1.0, 1e-5), delta=1e-5)


def test_flower_example_costs_more_than_it_claims() -> None:
    assert FLOWER.noise == pytest.approx(4.845, abs=5e-4)
    assert FLOWER.epsilon == pytest.approx(1.61, abs=5e-3)
    assert NoiseConfiguration(1.0, FLOWER.noise, 1e-5, rounds=25).epsilon == pytest.approx(
        10.4, abs=0.05
    )
    # With the sensitivity of its own claim, one message keeps to it.
    assert NoiseConfiguration(1.0, FLOWER.noise, 1e-5, relation=Relation.ADD_REMOVE).epsilon < 1


def test_hospital_example_has_no_privacy() -> None:
    noise = compute_classic_sigma(1e-4, 10.0, 1e-5)
    found = NoiseConfiguration(1.0, noise, 1e-5, relation=Relation.ADD_REMOVE)
    assert noise == pytest.approx(4.845e-5, rel=1e-4) and found.mu == pytest.approx(
        20_640, rel=1e-4
    )
    assert found.epsilon == pytest.approx(2.13e8, rel=1e-3)
    # Even with the right sensitivity the classic formula, proved below 1 alone, says too little at
    # 10.
    assert NoiseConfiguration(
        1.0, compute_classic_sigma(1.0, 10.0, 1e-5), 1e-5, relation=Relation.ADD_REMOVE
    ).epsilon == pytest.approx(10.4, abs=0.05)


@given(mus, deltas)
def test_gaussian_epsilon_equals_that_of_dp_accounting_and_is_never_below(
    mu: float, delta: float
) -> None:
    other = get_epsilon_gaussian(1 / mu, delta, tol=1e-12)
    found = compute_gaussian_epsilon(mu, delta)
    assert found >= other * (1 - 1e-9) - 1e-12
    assert found == pytest.approx(other, rel=1e-7, abs=1e-9)


@given(mus, deltas)
def test_gaussian_delta_at_epsilon_is_the_given_delta(mu: float, delta: float) -> None:
    epsilon = compute_gaussian_epsilon(mu, delta)
    if epsilon:
        assert compute_gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-4)
    else:
        assert compute_gaussian_delta(mu, 0.0) <= delta
        assert 2 * norm.cdf(mu / 2) - 1 <= delta * (1 + 1e-9)


@given(st.floats(0.05, 8.0), st.floats(0.0, 20.0))
def test_gaussian_delta_satisfies_its_definition(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(0.0, float(norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x)))

    edge = epsilon / mu + mu / 2
    integral, _ = quad(excess, edge, max(edge, mu) + 12, epsabs=1e-13, limit=200)
    assert compute_gaussian_delta(mu, epsilon) == pytest.approx(integral, rel=1e-5, abs=1e-11)


def test_gaussian_rounds_compose_as_loss_distributions_do() -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        sigma, rounds, delta = (
            10 ** rng.uniform(0.5, 1.5),
            int(rng.integers(1, 100)),
            10 ** rng.uniform(-7, -3),
        )
        accountant = pld.PLDAccountant(dpa.NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(dpa.GaussianDpEvent(sigma), rounds)
        other = accountant.get_epsilon(delta)
        found = NoiseConfiguration(1.0, sigma, delta, rounds, Relation.ADD_REMOVE).epsilon
        assert found <= other * (1 + 1e-9) + 1e-9, (
            "losses that are rounded to a grid are rounded up"
        )
        assert found == pytest.approx(other, rel=0.01, abs=0.01)
        assert NoiseConfiguration(0.5, sigma, delta, rounds).epsilon == found, (
            "half the clip under replace moves as far"
        )


def test_gaussian_epsilon_is_below_that_of_opendps_zcdp() -> None:
    dp.enable_features("contrib", "honest-but-curious")
    rng = np.random.default_rng(6)
    for _ in range(12):
        sigma, delta = 10 ** rng.uniform(-0.5, 1.5), 10 ** rng.uniform(-9, -3)
        space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
        curve = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=sigma)).map(1.0)
        other = curve.epsilon(delta)
        found = compute_gaussian_epsilon(1 / sigma, delta)
        assert 0.6 * other < found < other


def test_laplace_epsilon_equals_that_of_opendp() -> None:
    dp.enable_features("contrib")
    rng = np.random.default_rng(7)
    for _ in range(12):
        scale, clip = 10 ** rng.uniform(-1, 2, 2)
        laplace = dp.m.make_laplace(
            dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), scale=scale
        )
        found = NoiseConfiguration(clip, scale, 0.0, mechanism="laplace")
        assert found.epsilon == pytest.approx(laplace.map(found.sensitivity), rel=1e-6)


def test_laplace_rounds_cost_at_least_their_loss_distributions() -> None:
    rng = np.random.default_rng(8)
    for _ in range(8):
        ratio, rounds, delta = (
            10 ** rng.uniform(-2, 0),
            int(rng.integers(1, 300)),
            10 ** rng.uniform(-7, -3),
        )
        accountant = pld.PLDAccountant(dpa.NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(dpa.LaplaceDpEvent(1 / ratio), rounds)
        found = compute_laplace_epsilon(ratio, 1.0, rounds, delta)
        assert found >= accountant.get_epsilon(delta) * (1 - 1e-3) and found <= rounds * ratio * (
            1 + 1e-12
        )
    assert compute_laplace_epsilon(0.1, 1.0, 10, 0.0) == pytest.approx(1.0)
    assert (
        compute_laplace_epsilon(0.01, 1.0, 10_000, 1e-6)
        < 6
        < compute_laplace_epsilon(0.01, 1.0, 10_000, 0.0)
    )


@pytest.mark.parametrize(
    ("mu", "q", "rounds", "delta"),
    [(1.0, 0.01, 1000, 1e-5), (0.5, 0.1, 100, 1e-6), (2.0, 0.001, 500, 1e-5)],
)
def test_sampled_rounds_are_between_two_other_accountants(
    mu: float, q: float, rounds: int, delta: float
) -> None:
    event = dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(1 / mu))
    by_orders, by_losses = rdp.RdpAccountant(), pld.PLDAccountant()
    for accountant in (by_orders, by_losses):
        accountant.compose(event, rounds)
    found = compute_sampled_epsilon(mu, q, rounds, delta)
    assert by_losses.get_epsilon(delta) < found < 1.25 * by_orders.get_epsilon(delta)
    assert found < compute_gaussian_epsilon(math.sqrt(rounds) * mu, delta)


def test_upper_bound_is_not_called_exact() -> None:
    add_remove = Relation.ADD_REMOVE
    assert FLOWER.is_exact and NoiseConfiguration(1.0, 1.0, 0.0, 9, mechanism="laplace").is_exact
    assert not NoiseConfiguration(1.0, 1.0, 1e-5, relation=add_remove, sampling=0.1).is_exact
    assert not NoiseConfiguration(1.0, 1.0, 1e-5, mechanism="laplace").is_exact
    assert not NoiseConfiguration(
        1.0, 1.0, 0.0, mechanism="laplace", relation=add_remove, sampling=0.1
    ).is_exact


def test_sampling_never_raises_epsilon() -> None:
    # So much is sampled that the bound by orders would be above what holds without it.
    assert compute_sampled_epsilon(5.0, 0.99, 1, 1e-5) == compute_gaussian_epsilon(5.0, 1e-5)
    assert compute_sampled_epsilon(1.0, 1.0, 4, 1e-5) == compute_gaussian_epsilon(2.0, 1e-5)
    assert compute_laplace_epsilon(2.0, 0.1, 1, 0.0) == pytest.approx(
        math.log(1 + 0.1 * math.expm1(2.0))
    )
    assert compute_laplace_epsilon(800.0, 0.5, 1, 0.0) == pytest.approx(800 - math.log(2))


def test_more_noise_or_less_clip_never_raises_epsilon() -> None:
    for options in (
        {},
        {"mechanism": "laplace"},
        {"relation": Relation.ADD_REMOVE, "sampling": 0.05},
    ):
        epsilons = [
            NoiseConfiguration(1.0, noise, 1e-6, 10, **options).epsilon
            for noise in (0.5, 1.0, 2.0, 8.0, 64.0)
        ]  # type: ignore[arg-type]
        assert epsilons == sorted(epsilons, reverse=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rounds": 25},
        {"relation": Relation.ADD_REMOVE, "sampling": 0.1, "rounds": 5},
        {"mechanism": "laplace", "rounds": 3},
        {"noise": 0.0},
    ],
)
def test_find_least_noise_is_enough_and_no_more(options: dict[str, Any]) -> None:
    found = NoiseConfiguration(**{"clip": 0.7, "noise": 0.01, "delta": 1e-5} | options)
    noise = found.find_least_noise(2.0)
    assert NoiseConfiguration(**vars(found) | {"noise": noise}).epsilon <= 2.0
    assert NoiseConfiguration(**vars(found) | {"noise": noise * (1 - 1e-4)}).epsilon > 2.0


def test_find_least_noise_lowers_excessive_noise() -> None:
    assert FLOWER.find_least_noise(5.0) < FLOWER.noise


def test_no_noise_has_infinite_epsilon_and_no_sensitivity_has_epsilon_0() -> None:
    assert NoiseConfiguration(1.0, 0.0, 1e-5).epsilon == math.inf
    assert NoiseConfiguration(1e300, 1e-300, 1e-5).epsilon == math.inf
    assert (
        NoiseConfiguration(1e308, 1e8, 1e-5, mechanism="laplace", rounds=10**9).epsilon == math.inf
    )
    assert NoiseConfiguration(1e-300, 1e300, 1e-5).epsilon == 0
    assert (
        NoiseConfiguration(1.0, 3.0, 1e-5, rounds=9).one_round.epsilon
        < NoiseConfiguration(1.0, 3.0, 1e-5, rounds=9).epsilon
    )


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_invalid_values_are_rejected(value: float) -> None:
    for refused in (
        lambda: compute_gaussian_epsilon(value, 1e-5),
        lambda: compute_laplace_epsilon(value, 1.0, 1, 0.0),
        lambda: FLOWER.find_least_noise(value),
    ):
        with pytest.raises(MechanismError):
            refused()
    for delta in (0.0, 1.0, math.nan, -1e-5):
        with pytest.raises(MechanismError):
            compute_gaussian_epsilon(1.0, delta)
    with pytest.raises(MechanismError, match="negative"):
        compute_gaussian_delta(1.0, -1.0)
    with pytest.raises(MechanismError):
        compute_laplace_epsilon(1.0, 1.0, 2, 2.0)
