"""Bounds on probabilities and on epsilon, compared with the exact binomial distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from shoal.audit.bound import (
    bound_epsilon,
    bound_rho,
    choose_set,
    compute_divergence,
    lower_bound_chance,
    lower_bound_epsilon,
    upper_bound_chance,
)
from shoal.privacy.accountant import rho_to_epsilon


@pytest.mark.untraced
@pytest.mark.parametrize("chance", [1e-4, 0.05, 0.5, 0.97])
@pytest.mark.parametrize("n", [1, 30, 400])
@pytest.mark.parametrize("alpha", [0.2, 1e-3, 1e-9])
def test_bounds_fail_with_probability_at_most_alpha(chance, n, alpha):
    """Summed over all outcomes, with their exact probabilities."""
    law = stats.binom.pmf(np.arange(n + 1), n, chance)
    too_high = sum(
        law[hits] for hits in range(n + 1) if lower_bound_chance(hits, n, alpha) > chance
    )
    too_low = sum(law[hits] for hits in range(n + 1) if upper_bound_chance(hits, n, alpha) < chance)
    assert too_high <= alpha
    assert too_low <= alpha


@pytest.mark.parametrize(
    ("hits", "n"), [(1, 10), (50, 1000), (400, 1000), (999, 1000), (1000, 1000)]
)
def test_lower_bound_solves_chernoffs_equation(hits, n):
    low = lower_bound_chance(hits, n, 1e-3)
    assert 0 < low < hits / n
    assert math.isclose(n * compute_divergence(hits / n, low), math.log(1e3), rel_tol=1e-6)


def test_upper_bound_mirrors_the_lower_bound():
    assert upper_bound_chance(3, 50, 0.01) == 1 - lower_bound_chance(47, 50, 0.01)


def test_no_hits_give_lower_bound_0_and_n_hits_give_upper_bound_1():
    assert lower_bound_chance(0, 100, 0.01) == 0
    assert upper_bound_chance(100, 100, 0.01) == 1
    assert math.isclose(lower_bound_chance(100, 100, 0.01), 0.01 ** (1 / 100))


def test_bounds_are_not_much_wider_than_exact_ones():
    exact = stats.beta.ppf(1e-3, 400, 601)
    assert exact * 0.97 < lower_bound_chance(400, 1000, 1e-3) <= exact


def test_epsilon_bound_grows_with_evidence_below_the_plain_ratio():
    few, many = (
        lower_bound_epsilon(300, 100, 1000, 0.001),
        lower_bound_epsilon(300_000, 100_000, 1_000_000, 0.001),
    )
    assert 0 < few < many < math.log(3)
    assert math.isclose(many, math.log(3), abs_tol=0.03)


def test_alpha_is_divided_between_the_two_sides():
    expected = math.log(lower_bound_chance(300, 1000, 0.005) / upper_bound_chance(100, 1000, 0.005))
    assert lower_bound_epsilon(300, 100, 1000, 0.01) == expected


def test_delta_is_subtracted_from_the_likelier_side():
    assert lower_bound_epsilon(300_000, 100_000, 1_000_000, 0.001, delta=0.1) < math.log(2)
    assert lower_bound_epsilon(1000, 0, 1_000_000, 0.001, delta=0.01) == 0


def test_equal_counts_give_bound_0():
    assert lower_bound_epsilon(500, 500, 1000, 0.001) == 0
    assert lower_bound_epsilon(0, 500, 1000, 0.001) == 0


def test_chosen_set_has_the_outputs_likelier_under_the_first_input():
    ones = np.repeat([7, 8, 9], [600, 300, 100])
    zeros = np.repeat([7, 8, 9], [200, 300, 500])
    promise, chosen = choose_set(ones, zeros, 0.001, 0.0)
    assert chosen.tolist() == [7]
    assert 0 < promise < math.log(3)


def test_choose_set_returns_a_set_without_evidence():
    promise, chosen = choose_set(np.array([1]), np.array([2]), 0.001, 0.0)
    assert promise == -math.inf
    assert chosen.size >= 1


def test_chosen_set_is_counted_on_other_samples():
    """The first halves differ the most, the second halves are equal: the bound must be 0."""
    first = np.concatenate([np.zeros(1000, np.int64), np.arange(1000) % 2])
    second = np.concatenate([np.ones(1000, np.int64), np.arange(1000) % 2])
    bound = bound_epsilon(first, second, 0.001)
    assert bound.epsilon == 0
    assert (bound.hits_1, bound.hits_0, bound.n) == (500, 500, 1000)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_bound_epsilon_tries_both_directions(is_swapped):
    """An output of one input alone gives the larger bound if that input is the likelier one."""
    rare = (np.arange(4000) % 10 == 0).astype(np.int64)
    never = np.zeros(4000, np.int64)
    pair = (never, rare) if is_swapped else (rare, never)
    bound = bound_epsilon(*pair, 0.001)
    assert bound.epsilon > 2
    assert (bound.hits_1, bound.hits_0) == (200, 0)


def test_bound_rho_of_half_of_the_outputs_is_near_rho():
    """A Gaussian moved by mu has rho mu^2 / 2; the half shows at most 2 / pi of it."""
    rng, n, mu, delta = np.random.default_rng(1), 400_000, 0.3, 1e-6
    first, second = (np.rint(1000 * rng.normal(mean, 1, n)).astype(np.int64) for mean in (0, mu))
    found = bound_rho(first, second, 1e-3, delta)
    assert (
        rho_to_epsilon(0.8 * mu**2 / math.pi, delta)
        < found.epsilon
        < rho_to_epsilon(mu**2 / math.pi, delta)
    )
    assert (found.alpha, found.n) == (1e-3, n // 2)
    assert found.hits_1 > found.hits_0
    assert bound_epsilon(first, second, 1e-3, delta).epsilon < 0.6 * found.epsilon


def test_bound_rho_uses_one_direction():
    first, second = np.repeat([0, 1], [900, 100]), np.repeat([0, 1], [100, 900])
    mixed = np.random.default_rng(1).permutation(1000)
    assert bound_rho(first[mixed], second[mixed], 0.01, 1e-6).epsilon > 3
    assert bound_rho(second[mixed], first[mixed], 0.01, 1e-6).epsilon == 0
    assert bound_rho(first[mixed], first[mixed], 0.01, 1e-6).epsilon == 0


def test_bound_rho_chooses_the_half_on_other_samples():
    first, second = np.arange(1000) % 10, np.arange(1000) % 10 + 3
    changed = np.concatenate([first[:500], first[500:] + 1000])
    assert (
        bound_rho(changed, second, 0.01, 1e-6).hits_1 == bound_rho(first, second, 0.01, 1e-6).hits_1
    )
    assert bound_rho(changed, second, 0.01, 1e-6).hits_0 == 500


def test_bound_rho_is_the_divergence_of_two_coins():
    """Too high with probability at most alpha: over all outcomes, with exact probabilities."""
    n, low, high, alpha = 40, 0.4, 0.7, 0.05
    laws = [stats.binom.pmf(np.arange(n + 1), n, chance) for chance in (low, high)]
    true = rho_to_epsilon(compute_divergence(high, low), 1e-6)
    too_high = 0.0
    for hits_0, hits_1 in np.ndindex(n + 1, n + 1):
        first, second = (
            np.concatenate([np.arange(n) % 2, np.arange(n) < hits]).astype(np.int64)
            for hits in (hits_0, hits_1)
        )
        if bound_rho(first, second, alpha, 1e-6).epsilon > true:
            too_high += laws[0][hits_0] * laws[1][hits_1]
    assert too_high <= alpha
