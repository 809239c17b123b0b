"""Our accounting beside that of dp_accounting and scipy: never below them where they are exact, and close where they are tight."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from scipy.stats import binom

import shoal.mechanisms
from shoal.privacy.accountant import MECHANISMS, by_pld, by_zcdp
from shoal.privacy.events import LOCAL_PERSON, Event
from shoal.privacy.shuffle import binomial_pmf, delta_of


def response(epsilon: float) -> Event:
    return Event("random-response", {"cardinality": 2}, LOCAL_PERSON, epsilon)


def composed_delta(epsilon_release: float, count: int, epsilon: float) -> float:
    """Exact delta of so many binary random responses: the number of true answers is binomial."""
    kept = np.arange(count + 1)
    chances = binom.pmf(kept, count, 1 / (1 + math.exp(-epsilon_release)))
    return float((chances * np.maximum(0, -np.expm1(epsilon - (2 * kept - count) * epsilon_release))).sum())


@pytest.mark.parametrize(("epsilon", "count"), [(0.01, 2_000), (0.1, 100), (0.1, 7), (0.5, 20), (1.0, 5)])
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-3])
def test_compositions_hold_for_exactly_composed_random_response(epsilon, count, delta):
    for function in (by_zcdp, by_pld):
        found = function([response(epsilon)] * count, delta).epsilon
        assert composed_delta(epsilon, count, found) <= delta
    tight = by_pld([response(epsilon)] * count, delta).epsilon
    assert composed_delta(epsilon, count, tight - 0.03 * tight - 0.01) > delta


def test_unequal_releases_hold_against_the_library_on_a_fine_grid():
    events = [response(0.3)] * 6 + [response(0.71)] * 3 + [Event("shuffled", {}, LOCAL_PERSON, 0.2, 1e-7)]
    found = by_pld(events, 1e-5)
    fine = pld.identity()
    for event in events:
        parameters = pld.common.DifferentialPrivacyParameters(event.epsilon, event.delta)
        fine = fine.compose(pld.from_privacy_parameters(parameters, 1e-4))
    assert found.epsilon == pytest.approx(fine.get_epsilon_for_delta(1e-5), rel=0.02)
    assert found.epsilon <= by_zcdp(events, 1e-5).epsilon


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 3.0])
def test_the_worst_release_of_an_epsilon_dominates_laplace_and_random_response(epsilon):
    worst = pld.from_privacy_parameters(pld.common.DifferentialPrivacyParameters(epsilon, 0.0), 1e-4).self_compose(10)
    laplace = pld.from_discrete_laplace_mechanism(epsilon, value_discretization_interval=1e-4, pessimistic_estimate=False)
    flips = pld.from_randomized_response(2 / (1 + math.exp(epsilon)), 2, value_discretization_interval=1e-4, pessimistic_estimate=False)
    for other in (laplace.self_compose(10), flips.self_compose(10)):
        for share in (0.1, 0.4, 0.8):
            assert worst.get_delta_for_epsilon(share * 10 * epsilon) >= other.get_delta_for_epsilon(share * 10 * epsilon) - 1e-9


@pytest.mark.parametrize("sigma", [2.0, 5.0, 20.0])
def test_zero_concentrated_sums_cover_gaussian_noise(sigma):
    rho = 1 / (2 * sigma**2)
    noise = Event("discrete-gaussian", {}, LOCAL_PERSON, 64.0, 1e-9, rho)
    library = RdpAccountant().compose(dp_event.GaussianDpEvent(sigma), 10)
    found = by_zcdp([noise] * 10, 1e-6).epsilon
    exact = pld.from_gaussian_mechanism(sigma, pessimistic_estimate=False).self_compose(10).get_epsilon_for_delta(1e-6)
    assert exact <= found
    # The library searches a list of orders, we search all of them.
    assert found <= library.get_epsilon(1e-6) * (1 + 1e-9)


@pytest.mark.parametrize(("n", "p"), [(50, 0.37), (5_000, 0.018), (1_000_000, 0.37)])
def test_binomial_chances_agree_with_scipy(n, p):
    sd = math.sqrt(n * p * (1 - p))
    k = np.unique(np.clip(np.linspace(n * p - 12 * sd, n * p + 12 * sd, 200).astype(np.int64), 0, n))
    assert binomial_pmf(k, np.int64(n), p, 1 - p) == pytest.approx(binom.pmf(k, n, p), rel=1e-8)


@pytest.mark.parametrize("epsilon_local", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("n", [10, 1_000, 48_842])
def test_shuffling_agrees_with_a_direct_sum(epsilon_local, n):
    e0, gamma = math.exp(epsilon_local), math.exp(-epsilon_local)
    a = e0 / (e0 + 1)
    c = np.arange(n)[binom.pmf(np.arange(n), n - 1, gamma) > 1e-25]
    for share in (0.001, 0.01, 0.1):
        ratio = math.exp(share * epsilon_local)
        x = np.ceil((c + 1) * (ratio * e0 - 1) / ((e0 - 1) * (1 + ratio)) - 1e-12)
        given = (a - ratio * (1 - a)) * binom.sf(x - 2, c, 0.5) + (1 - a - ratio * a) * binom.sf(x - 1, c, 0.5)
        direct = float((binom.pmf(c, n - 1, gamma) * np.maximum(given, 0)).sum())
        assert direct * (1 - 1e-9) - 1e-15 <= delta_of(share * epsilon_local, epsilon_local, n) <= direct * (1 + 1e-4) + 1e-9


def test_every_mechanism_of_the_package_can_be_priced():
    names = set()
    for module in pkgutil.iter_modules(shoal.mechanisms.__path__):
        for _, thing in inspect.getmembers(importlib.import_module(f"shoal.mechanisms.{module.name}"), inspect.isclass):
            name = vars(thing).get("name")
            names |= {name} if isinstance(name, str) else set()
    assert len(names) >= 5
    assert names <= MECHANISMS
