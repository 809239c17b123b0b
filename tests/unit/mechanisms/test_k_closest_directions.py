"""Random directions: normal numbers, and the distribution of an inner product."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, special, stats

from shoal.entropy import SeededEntropy
from shoal.mechanisms.k_closest import draw_directions, draw_normals, make_cosine_distribution
from tests.unit.mechanisms.scripted import Scripted


@pytest.mark.parametrize("n", [0, 1, 2, 7, 1 << 15, (1 << 15) + 3])
def test_draw_normals_returns_n_numbers(n, entropy):
    drawn = draw_normals(n, entropy)
    assert drawn.shape == (n,)
    assert drawn.dtype == np.float64
    assert np.isfinite(drawn).all()


def test_same_seed_gives_same_numbers():
    assert (draw_normals(1000, SeededEntropy(3)) == draw_normals(1000, SeededEntropy(3))).all()
    assert (
        draw_directions(10, 100, SeededEntropy(3)).ravel() == draw_normals(1000, SeededEntropy(3))
    ).all()


@pytest.mark.parametrize("radius", [0, (1 << 32) - 1, 1 << 31])
@pytest.mark.parametrize("angle", [0, (1 << 32) - 1, 1 << 30])
def test_no_word_gives_zero_or_infinity(radius, angle):
    pair = draw_normals(2, Scripted(radius, angle))
    assert 0 < math.hypot(*pair) < 6


def test_draw_normals_is_normal(entropy):
    drawn = draw_normals(100_000, entropy)
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02
    assert abs(np.mean(drawn[: 1 << 14] * drawn[1 << 14 : 1 << 15])) < 0.05


@pytest.mark.parametrize("p", [2, 3, 4, 10, 33, 40, 68, 69, 387, 50_000])
def test_distribution_is_that_of_coordinate_on_sphere(p):
    law = make_cosine_distribution(p)
    half = (p - 1) / 2
    # At the poles of a circle a cosine has half the digits of the angle.
    assert np.allclose(
        law.cdf, special.betainc(half, half, (1 + law.values) / 2), atol=1e-7 if p == 2 else 1e-9
    )
    assert math.isclose(law.mass.sum(), 1, rel_tol=1e-12)
    assert math.isclose((law.mass * law.values**2).sum(), 1 / p, rel_tol=1e-9)


@pytest.mark.parametrize("n", [16, 256, 4096])
def test_distribution_in_three_dimensions_is_uniform(n):
    """Archimedes: the r-th largest of n is 1 - 2 r / (n + 1) on average."""
    for k in (1, 2, n // 4, n // 2, n - 1):
        assert math.isclose(
            make_cosine_distribution(3).compute_top_sum(n, k),
            k - k * (k + 1) / (n + 1),
            rel_tol=1e-8,
        )


@pytest.mark.parametrize("p", [2, 5, 33, 60, 7_840])
@pytest.mark.parametrize(("n", "k"), [(16, 1), (256, 1), (256, 18), (256, 128), (4096, 7)])
def test_top_sum_agrees_with_scipy(p, n, k):
    half = (p - 1) / 2

    def tail(u: float) -> float:
        z = special.betaincinv(half, half, u)
        return (
            (4 * z * (1 - z)) ** half
            / (p - 1)
            / special.beta(0.5, half)
            * stats.beta.pdf(u, n - k, k)
        )

    middle, sd = 1 - k / n, math.sqrt(k * (n - k) / n**3)
    cuts = [0.0, *(min(1.0, max(0.0, middle + z * sd)) for z in (-12, -4, 0, 4, 12)), 1.0]
    expected = n * sum(
        integrate.quad(tail, *ends, epsabs=0, epsrel=1e-9)[0]
        for ends in pairwise(cuts)
        if ends[0] < ends[1]
    )
    assert math.isclose(make_cosine_distribution(p).compute_top_sum(n, k), expected, rel_tol=1e-6)


@pytest.mark.parametrize("p", [3, 33])
def test_mixture_cdf_agrees_with_ranks(p):
    law, half, n, k = make_cosine_distribution(p), (p - 1) / 2, 20, 6
    u = special.betainc(half, half, (1 + law.values) / 2)
    ranks = np.array([special.betainc(n - r + 1, r, u) for r in range(1, n + 1)])
    expected = 0.7 * ranks[:k].mean(axis=0) + 0.3 * ranks[k:].mean(axis=0)
    chances = law.compute_mixture_cdf(n, k, 0.7)
    assert np.allclose(chances, expected, atol=1e-8)
    assert (np.diff(chances) >= 0).all()
