"""Our accounting against dp_accounting and scipy.

Our figures are never below theirs where theirs are exact, and close where theirs are tight.
"""

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
from shoal.privacy.accountant import MECHANISMS, compose_zcdp
from shoal.privacy.amplification import _make_clone_distribution, binomial_pmf
from shoal.privacy.events import LOCAL_PERSON, Event
from tests.support.privacy_loss import compose_pld


def respond(epsilon: float) -> Event:
    return Event("random-response", {"cardinality": 2}, LOCAL_PERSON, epsilon)


def compute_composed_delta(epsilon_release: float, count: int, epsilon: float) -> float:
    """Return the exact delta of ``count`` binary randomised responses.

    The number of true answers is binomial.
    """
    kept = np.arange(count + 1)
    chances = binom.pmf(kept, count, 1 / (1 + math.exp(-epsilon_release)))
    return float(
        (chances * np.maximum(0, -np.expm1(epsilon - (2 * kept - count) * epsilon_release))).sum()
    )


@pytest.mark.parametrize(
    ("epsilon", "count"), [(0.01, 2_000), (0.1, 100), (0.1, 7), (0.5, 20), (1.0, 5)]
)
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-3])
def test_compositions_cover_exactly_composed_randomized_response(epsilon, count, delta):
    events = [respond(epsilon)] * count
    tight = compose_pld(events, delta)
    for found in (compose_zcdp(events, delta).epsilon, tight):
        assert compute_composed_delta(epsilon, count, found) <= delta
    assert compute_composed_delta(epsilon, count, tight - 0.03 * tight - 0.01) > delta


def test_unequal_releases_agree_with_library_on_fine_grid():
    events = (
        [respond(0.3)] * 6 + [respond(0.71)] * 3 + [Event("shuffled", {}, LOCAL_PERSON, 0.2, 1e-7)]
    )
    found = compose_pld(events, 1e-5)
    fine = pld.identity()
    for event in events:
        parameters = pld.common.DifferentialPrivacyParameters(event.epsilon, event.delta)
        fine = fine.compose(pld.from_privacy_parameters(parameters, 1e-4))
    assert found == pytest.approx(fine.get_epsilon_for_delta(1e-5), rel=0.02)
    assert found <= compose_zcdp(events, 1e-5).epsilon


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 3.0])
def test_worst_release_dominates_laplace_and_randomized_response(epsilon):
    worst = pld.from_privacy_parameters(
        pld.common.DifferentialPrivacyParameters(epsilon, 0.0), 1e-4
    ).self_compose(10)
    laplace = pld.from_discrete_laplace_mechanism(
        epsilon, value_discretization_interval=1e-4, pessimistic_estimate=False
    )
    flips = pld.from_randomized_response(
        2 / (1 + math.exp(epsilon)),
        2,
        value_discretization_interval=1e-4,
        pessimistic_estimate=False,
    )
    for other in (laplace.self_compose(10), flips.self_compose(10)):
        for share in (0.1, 0.4, 0.8):
            assert (
                worst.get_delta_for_epsilon(share * 10 * epsilon)
                >= other.get_delta_for_epsilon(share * 10 * epsilon) - 1e-9
            )


@pytest.mark.parametrize("sigma", [2.0, 5.0, 20.0])
def test_zcdp_composition_covers_gaussian_noise(sigma):
    rho = 1 / (2 * sigma**2)
    noise = Event("discrete-gaussian", {}, LOCAL_PERSON, 64.0, 1e-9, rho)
    library = RdpAccountant().compose(dp_event.GaussianDpEvent(sigma), 10)
    found = compose_zcdp([noise] * 10, 1e-6).epsilon
    exact = (
        pld.from_gaussian_mechanism(sigma, pessimistic_estimate=False)
        .self_compose(10)
        .get_epsilon_for_delta(1e-6)
    )
    assert exact <= found
    # The library searches a list of orders; we search all of them.
    assert found <= library.get_epsilon(1e-6) * (1 + 1e-9)


@pytest.mark.parametrize(("n", "p"), [(50, 0.37), (5_000, 0.018), (1_000_000, 0.37)])
def test_binomial_tail_agrees_with_scipy(n, p):
    sd = math.sqrt(n * p * (1 - p))
    k = np.unique(
        np.clip(np.linspace(n * p - 12 * sd, n * p + 12 * sd, 200).astype(np.int64), 0, n)
    )
    assert binomial_pmf(k, np.int64(n), p, 1 - p) == pytest.approx(binom.pmf(k, n, p), rel=1e-8)


@pytest.mark.parametrize("epsilon_local", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("n", [10, 1_000, 48_842])
def test_shuffle_amplification_agrees_with_direct_sum(epsilon_local, n):
    e0, gamma = math.exp(epsilon_local), math.exp(-epsilon_local)
    a = e0 / (e0 + 1)
    c = np.arange(n)[binom.pmf(np.arange(n), n - 1, gamma) > 1e-25]
    for share in (0.001, 0.01, 0.1):
        ratio = math.exp(share * epsilon_local)
        x = np.ceil((c + 1) * (ratio * e0 - 1) / ((e0 - 1) * (1 + ratio)) - 1e-12)
        given = (a - ratio * (1 - a)) * binom.sf(x - 2, c, 0.5) + (1 - a - ratio * a) * binom.sf(
            x - 1, c, 0.5
        )
        direct = float((binom.pmf(c, n - 1, gamma) * np.maximum(given, 0)).sum())
        assert (
            direct * (1 - 1e-9) - 1e-15
            <= _make_clone_distribution(epsilon_local, n).delta_at(share * epsilon_local)
            <= direct * (1 + 1e-4) + 1e-9
        )


def test_every_mechanism_has_a_price():
    names = set()
    for module in pkgutil.iter_modules(shoal.mechanisms.__path__):
        for _, thing in inspect.getmembers(
            importlib.import_module(f"shoal.mechanisms.{module.name}"), inspect.isclass
        ):
            name = vars(thing).get("name")
            names |= {name} if isinstance(name, str) else set()
    assert len(names) >= 5
    assert names <= MECHANISMS
