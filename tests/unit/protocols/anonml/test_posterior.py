"""Shrinkage: the posterior mean of a Gaussian model, with a scale that all features share a belief about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.anonml import posterior
from shoal.protocols.anonml.evidence import Shape
from shoal.protocols.anonml.posterior import Observed, kernel, leanings

ORDERED = Shape(4, is_ordered=True, has_missing=False)
CATEGORY = Shape(4, is_ordered=False, has_missing=False)
SHARES = np.array([0.1, 0.2, 0.3, 0.4])


def table(shape, shares, delta, noise):
    """Answers that show M delta in every bin, with the same noise."""
    return Observed(shape, shares, np.diag(shares / noise), shares * delta / noise)


def centred(values, shares=SHARES):
    values = np.asarray(values, float)
    return values - shares @ values


@given(
    st.lists(st.floats(1e-4, 1), min_size=2, max_size=8),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.3, 1.0]),
)
def test_the_kernel_is_a_covariance_of_leanings_with_mean_zero(weights, is_ordered, has_missing, length):
    shares = np.array(weights) / sum(weights)
    K = kernel(Shape(shares.size, is_ordered, has_missing), shares, length)
    assert np.allclose(K, K.T)
    assert np.allclose(K @ shares, 0, atol=1e-9)
    assert np.linalg.eigvalsh(K).min() > -1e-9


def correlation(K, i, j):
    return K[i, j] / np.sqrt(K[i, i] * K[j, j])


def test_neighbouring_bins_are_alike_and_categories_are_not():
    shares = np.full(6, 1 / 6)
    ordered = kernel(Shape(6, is_ordered=True, has_missing=False), shares, 0.3)
    assert correlation(ordered, 0, 1) > 0.2 > 0 > correlation(ordered, 0, 5)
    category = kernel(Shape(6, is_ordered=False, has_missing=False), shares, 0.3)
    assert category == pytest.approx(np.eye(6) - 1 / 6)


def test_the_kernel_of_ordered_bins_follows_rank_and_share():
    shares = np.array([0.5, 0.3, 0.2])
    u = (np.array([0.25, 0.65, 0.9]) + np.array([1, 3, 5]) / 6) / 2
    K = 0.9 * np.exp(-np.abs(u[:, None] - u) / 0.3) + 0.1 * np.eye(3)
    P = np.eye(3) - np.outer(np.ones(3), shares)
    assert kernel(Shape(3, is_ordered=True, has_missing=False), shares, 0.3) == pytest.approx(P @ K @ P.T)


def test_the_missing_bin_is_unlike_its_neighbour():
    shares = np.full(4, 0.25)
    with_missing = kernel(Shape(4, is_ordered=True, has_missing=True), shares, 1.0)
    without = kernel(ORDERED, shares, 1.0)
    assert correlation(with_missing, 2, 3) < correlation(without, 2, 3)


@pytest.mark.parametrize("shape", [ORDERED, CATEGORY])
def test_the_posterior_mean_is_the_direct_one(monkeypatch, shape):
    """With one scale and one length there is nothing to average: the textbook formula, by inversion."""
    monkeypatch.setattr(posterior, "_TAU2", np.array([0.3]))
    monkeypatch.setattr(posterior, "_LENGTHS", (0.3,))
    rng = np.random.default_rng(2)
    A, z = rng.normal(size=(6, 4)), rng.normal(size=6)
    K = 0.3 * kernel(shape, SHARES, 0.3)
    direct = K @ A.T @ np.linalg.solve(A @ K @ A.T + np.eye(6), z)
    assert leanings([Observed(shape, SHARES, A, z)])[0] == pytest.approx(direct)


def test_scales_are_weighted_by_their_marginal_likelihood(monkeypatch):
    monkeypatch.setattr(posterior, "_TAU2", np.array([0.1, 1.0]))
    monkeypatch.setattr(posterior, "_EM_STEPS", 0)
    A, z = np.diag([3.0, 2.0, 2.0, 1.0]), np.array([2.0, -1.0, 0.5, 0.0])
    densities, means = [], []
    for tau2 in (0.1, 1.0):
        K = tau2 * kernel(CATEGORY, SHARES, 1.0)
        covariance = A @ K @ A.T + np.eye(4)
        densities.append(np.exp(-0.5 * z @ np.linalg.solve(covariance, z)) / np.sqrt(np.linalg.det(covariance)))
        means.append(K @ A.T @ np.linalg.solve(covariance, z))
    expected = (densities[0] * means[0] + densities[1] * means[1]) / sum(densities)
    assert leanings([Observed(CATEGORY, SHARES, A, z)])[0] == pytest.approx(expected)


@pytest.mark.parametrize("shape", [ORDERED, CATEGORY])
def test_precise_answers_are_believed(shape):
    delta = centred([-1.0, 0.5, 0.2, 0.1])
    assert leanings([table(shape, SHARES, delta, 1e-4)])[0] == pytest.approx(delta, abs=0.02)


def test_vague_answers_are_not():
    delta = centred([-1.0, 0.5, 0.2, 0.1])
    assert np.abs(leanings([table(CATEGORY, SHARES, delta, 10.0)])[0]).max() < 0.05


def test_no_answers_lean_nowhere():
    nothing = Observed(CATEGORY, SHARES, np.zeros((0, 4)), np.zeros(0))
    other = table(CATEGORY, SHARES, centred([1, 0, 0, 0]), 0.01)
    assert leanings([nothing, other])[0].tolist() == [0, 0, 0, 0]


def test_features_learn_from_each_other_how_much_to_shrink():
    """Among features that show nothing a weak signal is noise; among strong ones it is likely to be real."""
    weak = table(CATEGORY, SHARES, centred([-1.0, 0.5, 0.2, 0.1]), 0.1)
    silent = [table(CATEGORY, SHARES, np.zeros(4), 0.003)] * 20
    strong = [table(CATEGORY, SHARES, centred([-2.0, 2.0, 1.0, -1.0]), 0.003)] * 20
    among_silent, among_strong = leanings([weak, *silent])[0], leanings([weak, *strong])[0]
    assert np.abs(among_silent).max() < 0.75 * np.abs(among_strong).max()


@pytest.mark.parametrize(("is_ordered", "least", "most"), [(True, 0.5, 1.2), (False, -0.2, 0.2)])
def test_ordered_bins_lend_each_other_strength(is_ordered, least, most):
    """A bin that nobody saw leans like the bins around it; a category that nobody saw leans nowhere of its own."""
    shares, seen = np.full(6, 1 / 6), [0, 2, 3, 5]
    design = 50 * np.eye(6)[seen]
    delta = np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
    found = leanings([Observed(Shape(6, is_ordered, has_missing=False), shares, design, design @ delta)])[0]
    assert found[seen] == pytest.approx(delta[seen], abs=0.05)
    assert least < found[4] < most
    assert least < -found[1] < most


@pytest.mark.parametrize("n_bins", [1, 2, 3, 40])
def test_categories_without_a_large_matrix_are_the_same(n_bins):
    """Each answer shows its own bin: as a row of a matrix, or by itself."""
    rng = np.random.default_rng(n_bins)
    features = []
    for scale in (0.1, 3.0, 50.0):
        shares, shown, values = rng.dirichlet(np.ones(n_bins)), scale * rng.random(n_bins), 2 * rng.normal(size=n_bins)
        features.append((Shape(n_bins, is_ordered=False, has_missing=False), shares, shown, values))
    by_matrix = leanings([Observed(shape, shares, np.diag(shown), values) for shape, shares, shown, values in features])
    by_bin = leanings([Observed(*feature) for feature in features])
    for one, other in zip(by_matrix, by_bin, strict=True):
        assert one == pytest.approx(other, abs=1e-12)


def test_many_categories_need_no_matrix():
    """A matrix of their kernel would have 10^10 elements."""
    shape = Shape(100_000, is_ordered=False, has_missing=False)
    shares = np.full(shape.n_bins, 1 / shape.n_bins)
    seen = np.zeros(shape.n_bins)
    seen[:2] = 3.0, -3.0
    [found] = leanings([Observed(shape, shares, np.ones(shape.n_bins), seen)])
    assert found[0] > 0 > found[1]
    assert found[0] == pytest.approx(-found[1], rel=1e-6)
