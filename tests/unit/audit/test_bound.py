"""Confidence bounds on chances and on epsilon: checked against the exact binomial law, over every outcome."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from shoal.audit.bound import bound_epsilon, bound_rho, chance_at_least, chance_at_most, choose_set, divergence, epsilon_at_least
from shoal.privacy.zcdp import rho_to_epsilon


@pytest.mark.untraced
@pytest.mark.parametrize("chance", [1e-4, 0.05, 0.5, 0.97])
@pytest.mark.parametrize("n", [1, 30, 400])
@pytest.mark.parametrize("alpha", [0.2, 1e-3, 1e-9])
def test_bounds_fail_no_more_often_than_alpha(chance, n, alpha):
    """Summed over all outcomes, with their exact chances."""
    law = stats.binom.pmf(np.arange(n + 1), n, chance)
    too_high = sum(law[hits] for hits in range(n + 1) if chance_at_least(hits, n, alpha) > chance)
    too_low = sum(law[hits] for hits in range(n + 1) if chance_at_most(hits, n, alpha) < chance)
    assert too_high <= alpha
    assert too_low <= alpha


@pytest.mark.parametrize(("hits", "n"), [(1, 10), (50, 1000), (400, 1000), (999, 1000), (1000, 1000)])
def test_the_lower_bound_solves_chernoffs_equation(hits, n):
    low = chance_at_least(hits, n, 1e-3)
    assert 0 < low < hits / n
    assert math.isclose(n * divergence(hits / n, low), math.log(1e3), rel_tol=1e-6)


def test_the_bounds_are_mirror_images():
    assert chance_at_most(3, 50, 0.01) == 1 - chance_at_least(47, 50, 0.01)


def test_no_hit_says_nothing_below_and_n_hits_nothing_above():
    assert chance_at_least(0, 100, 0.01) == 0
    assert chance_at_most(100, 100, 0.01) == 1
    assert math.isclose(chance_at_least(100, 100, 0.01), 0.01 ** (1 / 100))


def test_bounds_are_not_much_wider_than_the_exact_ones():
    exact = stats.beta.ppf(1e-3, 400, 601)
    assert exact * 0.97 < chance_at_least(400, 1000, 1e-3) <= exact


def test_epsilon_grows_with_the_evidence_and_never_reaches_the_plain_ratio():
    few, many = epsilon_at_least(300, 100, 1000, 0.001), epsilon_at_least(300_000, 100_000, 1_000_000, 0.001)
    assert 0 < few < many < math.log(3)
    assert math.isclose(many, math.log(3), abs_tol=0.03)


def test_alpha_is_shared_by_the_two_sides():
    expected = math.log(chance_at_least(300, 1000, 0.005) / chance_at_most(100, 1000, 0.005))
    assert epsilon_at_least(300, 100, 1000, 0.01) == expected


def test_delta_is_taken_off_the_likelier_side():
    assert epsilon_at_least(300_000, 100_000, 1_000_000, 0.001, delta=0.1) < math.log(2)
    assert epsilon_at_least(1000, 0, 1_000_000, 0.001, delta=0.01) == 0


def test_nothing_is_learnt_from_equal_counts():
    assert epsilon_at_least(500, 500, 1000, 0.001) == 0
    assert epsilon_at_least(0, 500, 1000, 0.001) == 0


def test_the_set_holds_the_outputs_that_are_likelier_under_the_first_input():
    ones = np.repeat([7, 8, 9], [600, 300, 100])
    zeros = np.repeat([7, 8, 9], [200, 300, 500])
    promise, chosen = choose_set(ones, zeros, 0.001, 0.0)
    assert chosen.tolist() == [7]
    assert 0 < promise < math.log(3)


def test_a_set_that_promises_nothing_is_still_a_set():
    promise, chosen = choose_set(np.array([1]), np.array([2]), 0.001, 0.0)
    assert promise == -math.inf
    assert chosen.size >= 1


def test_the_set_is_counted_on_samples_that_did_not_choose_it():
    """The first half differs as much as can be, the second not at all: nothing may be found."""
    first = np.concatenate([np.zeros(1000, np.int64), np.arange(1000) % 2])
    second = np.concatenate([np.ones(1000, np.int64), np.arange(1000) % 2])
    bound = bound_epsilon(first, second, 0.001)
    assert bound.epsilon == 0
    assert (bound.hits_1, bound.hits_0, bound.n) == (500, 500, 1000)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_both_directions_are_tried(is_swapped):
    """An output that only one input gives is worth most when that input is taken as the likelier one."""
    rare = (np.arange(4000) % 10 == 0).astype(np.int64)
    never = np.zeros(4000, np.int64)
    pair = (never, rare) if is_swapped else (rare, never)
    bound = bound_epsilon(*pair, 0.001)
    assert bound.epsilon > 2
    assert (bound.hits_1, bound.hits_0) == (200, 0)


def test_half_of_all_outputs_show_most_of_a_rho():
    """Of a Gaussian that is moved by mu the rho is mu^2 / 2, of which the half shows at most 2 / pi."""
    rng, n, mu, delta = np.random.default_rng(1), 400_000, 0.3, 1e-6
    first, second = (np.rint(1000 * rng.normal(mean, 1, n)).astype(np.int64) for mean in (0, mu))
    found = bound_rho(first, second, 1e-3, delta)
    assert rho_to_epsilon(0.8 * mu**2 / math.pi, delta) < found.epsilon < rho_to_epsilon(mu**2 / math.pi, delta)
    assert (found.alpha, found.n) == (1e-3, n // 2)
    assert found.hits_1 > found.hits_0
    assert bound_epsilon(first, second, 1e-3, delta).epsilon < 0.6 * found.epsilon


def test_a_rho_is_found_in_one_direction_only():
    first, second = np.repeat([0, 1], [900, 100]), np.repeat([0, 1], [100, 900])
    mixed = np.random.default_rng(1).permutation(1000)
    assert bound_rho(first[mixed], second[mixed], 0.01, 1e-6).epsilon > 3
    assert bound_rho(second[mixed], first[mixed], 0.01, 1e-6).epsilon == 0
    assert bound_rho(first[mixed], first[mixed], 0.01, 1e-6).epsilon == 0


def test_the_half_is_chosen_without_the_samples_that_are_counted():
    first, second = np.arange(1000) % 10, np.arange(1000) % 10 + 3
    changed = np.concatenate([first[:500], first[500:] + 1000])
    assert bound_rho(changed, second, 0.01, 1e-6).hits_1 == bound_rho(first, second, 0.01, 1e-6).hits_1
    assert bound_rho(changed, second, 0.01, 1e-6).hits_0 == 500


def test_a_rho_is_bounded_by_the_divergence_of_two_coins():
    """Too high with a chance of at most alpha: over all outcomes, with their exact chances."""
    n, low, high, alpha = 40, 0.4, 0.7, 0.05
    laws = [stats.binom.pmf(np.arange(n + 1), n, chance) for chance in (low, high)]
    true = rho_to_epsilon(divergence(high, low), 1e-6)
    too_high = 0.0
    for hits_0, hits_1 in np.ndindex(n + 1, n + 1):
        first, second = (np.concatenate([np.arange(n) % 2, np.arange(n) < hits]).astype(np.int64) for hits in (hits_0, hits_1))
        if bound_rho(first, second, alpha, 1e-6).epsilon > true:
            too_high += laws[0][hits_0] * laws[1][hits_1]
    assert too_high <= alpha
