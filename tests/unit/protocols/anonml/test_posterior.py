"""Shrinkage: the posterior mean of a Gaussian model with a shared prior of the scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.anonml import posterior
from shoal.protocols.anonml.evidence import FeatureBins
from shoal.protocols.anonml.posterior import (
    LinearObservations,
    compute_kernel,
    estimate_associations,
)

ORDERED = FeatureBins(4, is_ordered=True, has_missing=False)
CATEGORY = FeatureBins(4, is_ordered=False, has_missing=False)
SHARES = np.array([0.1, 0.2, 0.3, 0.4])


def table(shape, shares, delta, noise):
    """Answers that show M delta in every bin, with the same noise."""
    return LinearObservations(shape, shares, np.diag(shares / noise), shares * delta / noise)


def centred(values, shares=SHARES):
    values = np.asarray(values, float)
    return values - shares @ values


@given(
    st.lists(st.floats(1e-4, 1), min_size=2, max_size=8),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.3, 1.0]),
)
def test_kernel_is_covariance_with_zero_mean(weights, is_ordered, has_missing, length):
    shares = np.array(weights) / sum(weights)
    K = compute_kernel(FeatureBins(shares.size, is_ordered, has_missing), shares, length)
    assert np.allclose(K, K.T)
    assert np.allclose(K @ shares, 0, atol=1e-9)
    assert np.linalg.eigvalsh(K).min() > -1e-9


def correlation(K, i, j):
    return K[i, j] / np.sqrt(K[i, i] * K[j, j])


def test_kernel_relates_neighbouring_bins_but_not_categories():
    shares = np.full(6, 1 / 6)
    ordered = compute_kernel(FeatureBins(6, is_ordered=True, has_missing=False), shares, 0.3)
    assert correlation(ordered, 0, 1) > 0.2 > 0 > correlation(ordered, 0, 5)
    category = compute_kernel(FeatureBins(6, is_ordered=False, has_missing=False), shares, 0.3)
    assert category == pytest.approx(np.eye(6) - 1 / 6)


def test_kernel_of_ordered_bins_follows_rank_and_share():
    shares = np.array([0.5, 0.3, 0.2])
    u = (np.array([0.25, 0.65, 0.9]) + np.array([1, 3, 5]) / 6) / 2
    K = 0.9 * np.exp(-np.abs(u[:, None] - u) / 0.3) + 0.1 * np.eye(3)
    P = np.eye(3) - np.outer(np.ones(3), shares)
    assert compute_kernel(
        FeatureBins(3, is_ordered=True, has_missing=False), shares, 0.3
    ) == pytest.approx(P @ K @ P.T)


def test_kernel_does_not_relate_missing_bin():
    shares = np.full(4, 0.25)
    with_missing = compute_kernel(FeatureBins(4, is_ordered=True, has_missing=True), shares, 1.0)
    without = compute_kernel(ORDERED, shares, 1.0)
    assert correlation(with_missing, 2, 3) < correlation(without, 2, 3)


@pytest.mark.parametrize("shape", [ORDERED, CATEGORY])
def test_posterior_mean_equals_direct_formula(monkeypatch, shape):
    """With one scale and one length there is nothing to average: the textbook formula, by
    inversion.
    """
    monkeypatch.setattr(posterior, "_TAU2", np.array([0.3]))
    monkeypatch.setattr(posterior, "_LENGTHS", (0.3,))
    rng = np.random.default_rng(2)
    A, z = rng.normal(size=(6, 4)), rng.normal(size=6)
    K = 0.3 * compute_kernel(shape, SHARES, 0.3)
    direct = K @ A.T @ np.linalg.solve(A @ K @ A.T + np.eye(6), z)
    assert estimate_associations([LinearObservations(shape, SHARES, A, z)])[0] == pytest.approx(
        direct
    )


def test_scales_are_weighted_by_marginal_likelihood(monkeypatch):
    monkeypatch.setattr(posterior, "_TAU2", np.array([0.1, 1.0]))
    monkeypatch.setattr(posterior, "_EM_STEPS", 0)
    A, z = np.diag([3.0, 2.0, 2.0, 1.0]), np.array([2.0, -1.0, 0.5, 0.0])
    densities, means = [], []
    for tau2 in (0.1, 1.0):
        K = tau2 * compute_kernel(CATEGORY, SHARES, 1.0)
        covariance = A @ K @ A.T + np.eye(4)
        densities.append(
            np.exp(-0.5 * z @ np.linalg.solve(covariance, z)) / np.sqrt(np.linalg.det(covariance))
        )
        means.append(K @ A.T @ np.linalg.solve(covariance, z))
    expected = (densities[0] * means[0] + densities[1] * means[1]) / sum(densities)
    assert estimate_associations([LinearObservations(CATEGORY, SHARES, A, z)])[0] == pytest.approx(
        expected
    )


@pytest.mark.parametrize("shape", [ORDERED, CATEGORY])
def test_precise_answers_are_hardly_shrunk(shape):
    delta = centred([-1.0, 0.5, 0.2, 0.1])
    assert estimate_associations([table(shape, SHARES, delta, 1e-4)])[0] == pytest.approx(
        delta, abs=0.02
    )


def test_vague_answers_are_shrunk():
    delta = centred([-1.0, 0.5, 0.2, 0.1])
    assert np.abs(estimate_associations([table(CATEGORY, SHARES, delta, 10.0)])[0]).max() < 0.05


def test_associations_without_answers_are_zero():
    nothing = LinearObservations(CATEGORY, SHARES, np.zeros((0, 4)), np.zeros(0))
    other = table(CATEGORY, SHARES, centred([1, 0, 0, 0]), 0.01)
    assert estimate_associations([nothing, other])[0].tolist() == [0, 0, 0, 0]


def test_features_share_prior_of_scale():
    """A weak signal is noise among silent features, and probably real among strong ones."""
    weak = table(CATEGORY, SHARES, centred([-1.0, 0.5, 0.2, 0.1]), 0.1)
    silent = [table(CATEGORY, SHARES, np.zeros(4), 0.003)] * 20
    strong = [table(CATEGORY, SHARES, centred([-2.0, 2.0, 1.0, -1.0]), 0.003)] * 20
    among_silent, among_strong = (
        estimate_associations([weak, *silent])[0],
        estimate_associations([weak, *strong])[0],
    )
    assert np.abs(among_silent).max() < 0.75 * np.abs(among_strong).max()


@pytest.mark.parametrize(("is_ordered", "least", "most"), [(True, 0.5, 1.2), (False, -0.2, 0.2)])
def test_ordered_bins_share_information(is_ordered, least, most):
    """A bin without answers is like the bins around it; a category without answers is neutral."""
    shares, seen = np.full(6, 1 / 6), [0, 2, 3, 5]
    design = 50 * np.eye(6)[seen]
    delta = np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
    found = estimate_associations(
        [
            LinearObservations(
                FeatureBins(6, is_ordered, has_missing=False), shares, design, design @ delta
            )
        ]
    )[0]
    assert found[seen] == pytest.approx(delta[seen], abs=0.05)
    assert least < found[4] < most
    assert least < -found[1] < most


@pytest.mark.parametrize("n_bins", [1, 2, 3, 40])
def test_category_candidates_equal_matrix_form(n_bins):
    """Each answer is about one bin: as a row of a matrix, or as a single number."""
    rng = np.random.default_rng(n_bins)
    features = []
    for scale in (0.1, 3.0, 50.0):
        shares, shown, values = (
            rng.dirichlet(np.ones(n_bins)),
            scale * rng.random(n_bins),
            2 * rng.normal(size=n_bins),
        )
        features.append(
            (FeatureBins(n_bins, is_ordered=False, has_missing=False), shares, shown, values)
        )
    by_matrix = estimate_associations(
        [
            LinearObservations(shape, shares, np.diag(shown), values)
            for shape, shares, shown, values in features
        ]
    )
    by_bin = estimate_associations([LinearObservations(*feature) for feature in features])
    for one, other in zip(by_matrix, by_bin, strict=True):
        assert one == pytest.approx(other, abs=1e-12)


def test_category_candidates_handle_many_categories():
    """A matrix of their kernel would have 10^10 elements."""
    shape = FeatureBins(100_000, is_ordered=False, has_missing=False)
    shares = np.full(shape.n_bins, 1 / shape.n_bins)
    seen = np.zeros(shape.n_bins)
    seen[:2] = 3.0, -3.0
    [found] = estimate_associations(
        [LinearObservations(shape, shares, np.ones(shape.n_bins), seen)]
    )
    assert found[0] > 0 > found[1]
    assert found[0] == pytest.approx(-found[1], rel=1e-6)
