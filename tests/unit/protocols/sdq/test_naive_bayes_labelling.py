"""Labels from noisy counts: naive Bayes of small tables, and counts of a large table.

A cell of the large table overrides naive Bayes if its counts exceed the noise.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shoal.protocols.sdq.naive_bayes import (
    back_off,
    clamp_deviation,
    compute_naive_bayes,
    estimate_class_shares,
    estimate_likelihoods,
    estimate_marginal_likelihoods,
    marginalise,
)

ARITIES = (2, 3, 4)


def draw_counts(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-5, 60, shape).astype(float)


def test_clamp_deviation_is_at_least_one() -> None:
    assert clamp_deviation(0.0) == clamp_deviation(0.3) == 1.0
    assert clamp_deviation(7.5) == 7.5


@pytest.mark.parametrize("deviation", [0.0, 30.0, 1e9])
def test_shares_and_likelihoods_are_positive_and_add_up(deviation: float) -> None:
    shares, likelihoods = (
        estimate_class_shares(np.array([-40.0, 0.0, 900.0]), deviation),
        estimate_likelihoods(draw_counts(1, 4, 3) - 30, deviation),
    )
    assert shares.min() > 0 and likelihoods.min() > 0
    assert shares.sum() == pytest.approx(1) and likelihoods.sum(axis=0) == pytest.approx(1)
    assert np.argmax(shares) == 2


def test_large_counts_are_almost_unchanged() -> None:
    counts = np.array([[9e6, 2e6], [1e6, 6e6]])
    assert estimate_likelihoods(counts, 5.0) == pytest.approx(counts / counts.sum(axis=0), abs=1e-5)
    assert estimate_class_shares(counts.sum(axis=0), 5.0) == pytest.approx(
        [10 / 18, 8 / 18], abs=1e-5
    )


def test_likelihoods_approach_uniform_with_more_noise() -> None:
    counts = np.array([[90.0, 20.0], [10.0, 60.0]])
    lean = [float(estimate_likelihoods(counts, deviation)[0, 0]) for deviation in (1, 30, 1e6)]
    assert lean == sorted(lean, reverse=True) and lean[2] == pytest.approx(0.5, abs=1e-3)


def test_compute_naive_bayes_is_bayes_rule_in_each_cell() -> None:
    shares = estimate_class_shares(draw_counts(2, 3) + 20, 1.0)
    likelihoods = [
        estimate_likelihoods(draw_counts(3 + j, arity, 3), 1.0) for j, arity in enumerate(ARITIES)
    ]
    chances = compute_naive_bayes(shares, likelihoods)
    for place, cells in enumerate(itertools.product(*map(range, ARITIES))):
        odds = shares * np.prod(
            [one[cell] for one, cell in zip(likelihoods, cells, strict=True)], axis=0
        )
        assert chances[place] == pytest.approx(odds / odds.sum())
    assert compute_naive_bayes(shares, []) == pytest.approx(shares[np.newaxis])


def test_naive_bayes_of_many_sure_attributes_stays_finite() -> None:
    likelihoods = [np.array([[1 - 1e-12, 1e-12], [1e-12, 1 - 1e-12]])] * 10
    chances = compute_naive_bayes(np.array([0.5, 0.5]), likelihoods)
    assert np.isfinite(chances).all() and chances[0, 0] == 1 and chances[-1, 1] == 1


@pytest.mark.parametrize("axis", range(3))
def test_marginals_are_sums_over_the_other_attributes(axis: int) -> None:
    joint = draw_counts(6, *ARITIES, 2)
    others = tuple(j for j in range(3) if j != axis)
    flat = joint.reshape(-1, 2)
    assert (marginalise(flat, ARITIES, axis) == joint.sum(axis=others)).all()
    # A sum of counts has the noise of all of them.
    noise = 3.0 * np.sqrt(24 / ARITIES[axis])
    assert estimate_marginal_likelihoods(flat, ARITIES, 3.0)[axis] == pytest.approx(
        estimate_likelihoods(joint.sum(axis=others), noise)
    )


def test_counts_above_the_noise_override_the_fallback() -> None:
    prior = np.array([[0.1, 0.9]] * 3)
    chances = back_off(np.array([[5000.0, 0.0], [3.0, 0.0], [-80.0, -90.0]]), prior, deviation=10.0)
    assert np.argmax(chances, axis=1).tolist() == [0, 1, 1]
    assert chances[2] == pytest.approx(prior[2])
    assert chances.sum(axis=1) == pytest.approx(1)
