"""k-closest: exact probabilities for fixed directions, the best k, and its error."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import Mechanism
from shoal.mechanisms.exact import bound_exp, log_up
from shoal.mechanisms.frequency_oracle import WORD
from shoal.mechanisms.k_closest import (
    KClosest,
    choose_n_directions,
    draw_directions,
    draw_normals,
    make_cosine_distribution,
)
from shoal.privacy.accountant import MECHANISMS, compose_sequential
from shoal.privacy.events import LOCAL_PERSON
from tests.unit.mechanisms.scripted import Scripted

NEAR, FAR = 0, WORD - 1


def law(mechanism: KClosest, products: np.ndarray) -> dict[int, Fraction]:
    """Return the probability of each output, from the sampler and all drawn integers."""
    M, k, q = mechanism.n_directions, mechanism.n_near, mechanism.near_chance
    chances: Counter[int] = Counter()
    for coin, n, chance in ((NEAR, k, q), (FAR, M - k, 1 - q)):
        for number in range(n):
            chances[mechanism.choose(products, Scripted(coin, number))] += chance / n  # type: ignore[assignment]
    return dict(chances)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 2.5, 4.0, 7.0])
@pytest.mark.parametrize("p", [2, 5])
def test_price_is_worst_ratio_of_all_outputs(epsilon, p, entropy):
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    public = draw_directions(mechanism.n_directions, p, entropy)
    laws = [
        law(mechanism, mechanism.compute_products(public, direction))
        for direction in (np.eye(p)[0], -np.eye(p)[0], np.ones(p) / math.sqrt(p))
    ]
    assert all(sum(one.values()) == 1 and len(one) == mechanism.n_directions for one in laws)
    worst = max(one[output] / other[output] for one in laws for other in laws for output in one)
    assert mechanism.event().epsilon == log_up(worst)
    assert worst <= bound_exp(Fraction(epsilon), 200)[0]
    assert math.isclose(math.log(worst), epsilon, abs_tol=1e-9)


@pytest.mark.parametrize(
    "products",
    [
        np.zeros(256),
        np.full(256, np.nan),
        np.repeat([1.0, np.inf, -np.inf, np.nan], 64),
        np.arange(256.0),
    ],
    ids=["ties", "nothing", "infinities", "apart"],
)
def test_distribution_has_two_levels_for_any_products(products):
    mechanism = KClosest(1.0, 16, LOCAL_PERSON)
    M, k, q = mechanism.n_directions, mechanism.n_near, mechanism.near_chance
    assert Counter(law(mechanism, products.astype(np.float32)).values()) == {
        q / k: k,
        (1 - q) / (M - k): M - k,
    }


def test_near_directions_have_largest_products(entropy):
    mechanism = KClosest(4.0, 16, LOCAL_PERSON)
    public = draw_directions(256, 16, entropy)
    products = mechanism.compute_products(public, np.eye(16)[3])
    exact = public[:, 3] / np.linalg.norm(public.astype(float), axis=1)
    assert np.allclose(products, exact, atol=1e-6)
    near = {
        mechanism.choose(products, Scripted(NEAR, number)) for number in range(mechanism.n_near)
    }
    assert near == set(np.argsort(-exact)[: mechanism.n_near].tolist())


@settings(max_examples=30)
@given(epsilon=st.floats(1e-9, 64), p=st.one_of(st.integers(2, 80), st.integers(2, 1 << 20)))
def test_price_is_at_most_requested_and_close(epsilon, p):
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    priced = mechanism.event().epsilon
    assert priced <= epsilon
    assert priced > epsilon - 1e-9 or epsilon > 30
    assert 1 <= mechanism.n_near <= mechanism.n_directions / 2
    assert 0 < mechanism.alignment <= 1
    assert mechanism.near_chance > Fraction(mechanism.n_near, mechanism.n_directions)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0, 12.0])
@pytest.mark.parametrize("p", [2, 33, 7_840])
def test_chosen_k_has_largest_alignment(epsilon, p):
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    M, gain = mechanism.n_directions, math.expm1(epsilon)
    sizes = sorted(
        {1, 2, *range(max(1, mechanism.n_near - 3), mechanism.n_near + 4), M // 4, M // 2, M - 1}
    )
    alignments = {
        k: make_cosine_distribution(p).compute_top_sum(M, k) * gain / (k * gain + M) for k in sizes
    }
    assert max(alignments, key=alignments.__getitem__) == mechanism.n_near
    assert math.isclose(alignments[mechanism.n_near], mechanism.alignment, rel_tol=1e-9)


def priv_unit(epsilon: float, p: int) -> float:
    """Return the second moment of PrivUnit with Gaussian noise.

    The threshold is the best one (Asi, Feldman, Talwar 2022).
    """
    tau = np.linspace(0, 5, 5001)
    low, high, density = norm.cdf(tau), norm.sf(tau), norm.pdf(tau)
    odds = math.exp(epsilon) * high / low
    q = odds / (1 + odds)
    aligned = density * (q / high - (1 - q) / low) / math.sqrt(p)
    square = (q * (1 + tau * density / high) + (1 - q) * (1 - tau * density / low)) / p
    return float((((p - 1) / p + square) / aligned**2).min())


@pytest.mark.parametrize("p", [51, 97])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_variance_is_close_to_priv_unit(epsilon, p):
    assert 0.98 < KClosest(epsilon, p, LOCAL_PERSON).alignment ** -2 / priv_unit(epsilon, p) < 1.01


@pytest.mark.parametrize(
    ("epsilon", "excess"),
    [(0.1, 1.01), (1.0, 1.01), (2.0, 1.01), (4.0, 1.02), (6.0, 1.02), (8.0, 1.02), (10.0, 1.04)],
)
def test_variance_is_close_to_infinitely_many_directions(epsilon, excess):
    law = make_cosine_distribution(97)
    gain = math.expm1(epsilon)
    best = float((law.partial_mean * gain / (1 + law.cdf[::-1] * gain)).max())
    assert 1 < (best / KClosest(epsilon, 97, LOCAL_PERSON).alignment) ** 2 < excess


@pytest.mark.parametrize(
    ("epsilon", "p", "M"),
    [
        (0.1, 33, 256),
        (4.0, 33, 256),
        (4.1, 33, 512),
        (8.0, 33, 2048),
        (64.0, 2, 4096),
        (4.0, 50_000, 256),
        (8.0, 50_000, 256),
        (1.0, 1 << 20, 16),
    ],
)
def test_n_directions_grows_with_epsilon_and_falls_with_dimension(epsilon, p, M):
    assert choose_n_directions(epsilon, p) == M


@pytest.mark.parametrize("p", [2, 33])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_report_is_one_of_drawn_directions(epsilon, p, entropy):
    """With one stream, the private direction chooses among the directions and changes none."""
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    some = draw_normals(20 * p, entropy).reshape(20, p)
    for seed in range(20):
        public = draw_directions(mechanism.n_directions, p, SeededEntropy(seed)).astype(np.float64)
        drawn = {(row / np.linalg.norm(row)).tobytes() for row in public}
        for private in (np.eye(p)[0], -np.eye(p)[0], some[seed] / np.linalg.norm(some[seed])):
            report = mechanism.randomise(private, SeededEntropy(seed))
            assert report.tobytes() in drawn


def test_reports_are_unit_vectors_with_new_directions(entropy):
    mechanism = KClosest(8.0, 33, LOCAL_PERSON)
    reports = np.array([mechanism.randomise(np.eye(33)[0], entropy) for _ in range(100)])
    assert reports.dtype == np.float64
    assert np.allclose(np.linalg.norm(reports, axis=1), 1)
    between = reports @ reports.T - np.eye(100)
    assert np.abs(between).max() < 0.99


def test_report_with_large_dimension(entropy):
    mechanism = KClosest(4.0, 50_000, LOCAL_PERSON)
    assert math.isclose(np.linalg.norm(mechanism.randomise(np.eye(1, 50_000)[0], entropy)), 1)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 64.0])
@pytest.mark.parametrize("p", [2, 33, 50_000])
def test_draw_alignments_has_mean_alignment(epsilon, p):
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    drawn = mechanism.draw_alignments(20_000, SeededEntropy(1))
    assert np.abs(drawn).max() <= 1
    assert abs(drawn.mean() - mechanism.alignment) < 6 * drawn.std() / math.sqrt(drawn.size) + 1e-6


def test_implements_mechanism_protocol():
    mechanism = KClosest(1.0, 33, LOCAL_PERSON)
    event = mechanism.event()
    assert isinstance(mechanism, Mechanism)
    assert event.mechanism in MECHANISMS
    assert compose_sequential([event, event]).epsilon <= 2
    assert event.parameters == {
        "dimension": 33,
        "directions": 256,
        "near": mechanism.n_near,
        "near_numerator": int(mechanism.near_chance * WORD),
    }
    assert math.isclose(mechanism.variance(), (mechanism.alignment**-2 - 1) / 33)
    assert math.isclose(mechanism.expected_error(100) * 10, mechanism.expected_error(1))


@pytest.mark.parametrize(("epsilon", "p"), [(1.0, 1), (1.0, 0), (0.0, 5), (math.inf, 5)])
def test_rejects_invalid_dimension_and_epsilon(epsilon, p):
    with pytest.raises(MechanismError, match="MECH-001"):
        KClosest(epsilon, p, LOCAL_PERSON)
