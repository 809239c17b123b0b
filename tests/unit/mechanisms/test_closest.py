"""k-closest: every output of a fixed set of directions with its exact chance, the best k, and how near it comes to PrivUnit."""

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
from shoal.mechanisms.closest import KClosest, n_directions
from shoal.mechanisms.directions import cosines, directions, normals
from shoal.mechanisms.exact import exp_bounds, log_up
from shoal.mechanisms.reports import WORD
from shoal.privacy.accountant import MECHANISMS, sequential
from shoal.privacy.events import LOCAL_PERSON
from unit.mechanisms.scripted import Scripted

NEAR, FAR = 0, WORD - 1


def law(mechanism: KClosest, products: np.ndarray) -> dict[int, Fraction]:
    """The chance of every output, from the coin's chance and every integer that may be drawn after it."""
    M, k, q = mechanism.n_directions, mechanism.n_near, mechanism.near_chance
    chances: Counter[int] = Counter()
    for coin, n, chance in ((NEAR, k, q), (FAR, M - k, 1 - q)):
        for number in range(n):
            chances[mechanism.choose(products, Scripted(coin, number))] += chance / n  # type: ignore[assignment]
    return dict(chances)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 2.5, 4.0, 7.0])
@pytest.mark.parametrize("p", [2, 5])
def test_the_price_is_the_worst_ratio_of_all_outputs(epsilon, p, entropy):
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    public = directions(mechanism.n_directions, p, entropy)
    laws = [law(mechanism, mechanism.products(public, direction)) for direction in (np.eye(p)[0], -np.eye(p)[0], np.ones(p) / math.sqrt(p))]
    assert all(sum(one.values()) == 1 and len(one) == mechanism.n_directions for one in laws)
    worst = max(one[output] / other[output] for one in laws for other in laws for output in one)
    assert mechanism.event().epsilon == log_up(worst)
    assert worst <= exp_bounds(Fraction(epsilon), 200)[0]
    assert math.isclose(math.log(worst), epsilon, abs_tol=1e-9)


@pytest.mark.parametrize(
    "products",
    [np.zeros(256), np.full(256, np.nan), np.repeat([1.0, np.inf, -np.inf, np.nan], 64), np.arange(256.0)],
    ids=["ties", "nothing", "infinities", "apart"],
)
def test_whatever_the_floats_are_the_law_has_the_same_two_levels(products):
    mechanism = KClosest(1.0, 16, LOCAL_PERSON)
    M, k, q = mechanism.n_directions, mechanism.n_near, mechanism.near_chance
    assert Counter(law(mechanism, products.astype(np.float32)).values()) == {q / k: k, (1 - q) / (M - k): M - k}


def test_the_near_ones_are_the_nearest(entropy):
    mechanism = KClosest(4.0, 16, LOCAL_PERSON)
    public = directions(256, 16, entropy)
    products = mechanism.products(public, np.eye(16)[3])
    exact = public[:, 3] / np.linalg.norm(public.astype(float), axis=1)
    assert np.allclose(products, exact, atol=1e-6)
    near = {mechanism.choose(products, Scripted(NEAR, number)) for number in range(mechanism.n_near)}
    assert near == set(np.argsort(-exact)[: mechanism.n_near].tolist())


@settings(max_examples=30)
@given(epsilon=st.floats(1e-9, 64), p=st.one_of(st.integers(2, 80), st.integers(2, 1 << 20)))
def test_never_more_than_asked_and_hardly_less(epsilon, p):
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    priced = mechanism.event().epsilon
    assert priced <= epsilon
    assert priced > epsilon - 1e-9 or epsilon > 30
    assert 1 <= mechanism.n_near <= mechanism.n_directions / 2
    assert 0 < mechanism.alignment <= 1
    assert mechanism.near_chance > Fraction(mechanism.n_near, mechanism.n_directions)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0, 12.0])
@pytest.mark.parametrize("p", [2, 33, 7_840])
def test_no_other_k_aligns_better(epsilon, p):
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    M, gain = mechanism.n_directions, math.expm1(epsilon)
    sizes = sorted({1, 2, *range(max(1, mechanism.n_near - 3), mechanism.n_near + 4), M // 4, M // 2, M - 1})
    alignments = {k: cosines(p).top_sum(M, k) * gain / (k * gain + M) for k in sizes}
    assert max(alignments, key=alignments.__getitem__) == mechanism.n_near
    assert math.isclose(alignments[mechanism.n_near], mechanism.alignment, rel_tol=1e-9)


def priv_unit(epsilon: float, p: int) -> float:
    """Second moment of PrivUnit with Gaussian noise, at the best threshold (Asi, Feldman, Talwar 2022)."""
    tau = np.linspace(0, 5, 5001)
    low, high, density = norm.cdf(tau), norm.sf(tau), norm.pdf(tau)
    odds = math.exp(epsilon) * high / low
    q = odds / (1 + odds)
    aligned = density * (q / high - (1 - q) / low) / math.sqrt(p)
    square = (q * (1 + tau * density / high) + (1 - q) * (1 - tau * density / low)) / p
    return float((((p - 1) / p + square) / aligned**2).min())


@pytest.mark.parametrize("p", [51, 97])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_as_good_as_priv_unit(epsilon, p):
    assert 0.98 < KClosest(epsilon, p, LOCAL_PERSON).alignment ** -2 / priv_unit(epsilon, p) < 1.01


@pytest.mark.parametrize(
    ("epsilon", "excess"), [(0.1, 1.01), (1.0, 1.01), (2.0, 1.01), (4.0, 1.02), (6.0, 1.02), (8.0, 1.02), (10.0, 1.04)]
)
def test_hardly_worse_than_with_infinitely_many_directions(epsilon, excess):
    law = cosines(97)
    gain = math.expm1(epsilon)
    best = float((law.beyond * gain / (1 + law.below[::-1] * gain)).max())
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
def test_more_directions_where_they_help_and_fewer_where_they_cost(epsilon, p, M):
    assert n_directions(epsilon, p) == M


@pytest.mark.parametrize("p", [2, 33])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_a_report_is_one_of_the_directions_that_were_drawn_whatever_the_private_one(epsilon, p, entropy):
    """By the same stream: the private direction chooses among them and changes nothing of them."""
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    some = normals(20 * p, entropy).reshape(20, p)
    for seed in range(20):
        public = directions(mechanism.n_directions, p, SeededEntropy(seed)).astype(np.float64)
        drawn = {(row / np.linalg.norm(row)).tobytes() for row in public}
        for private in (np.eye(p)[0], -np.eye(p)[0], some[seed] / np.linalg.norm(some[seed])):
            report = mechanism.randomise(private, SeededEntropy(seed))
            assert report.tobytes() in drawn


def test_a_report_is_a_unit_vector_and_no_two_share_a_direction(entropy):
    mechanism = KClosest(8.0, 33, LOCAL_PERSON)
    reports = np.array([mechanism.randomise(np.eye(33)[0], entropy) for _ in range(100)])
    assert reports.dtype == np.float64
    assert np.allclose(np.linalg.norm(reports, axis=1), 1)
    between = reports @ reports.T - np.eye(100)
    assert np.abs(between).max() < 0.99


def test_a_large_report(entropy):
    mechanism = KClosest(4.0, 50_000, LOCAL_PERSON)
    assert math.isclose(np.linalg.norm(mechanism.randomise(np.eye(1, 50_000)[0], entropy)), 1)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 64.0])
@pytest.mark.parametrize("p", [2, 33, 50_000])
def test_alignments_lie_on_the_sphere_and_average_to_the_alignment(epsilon, p):
    mechanism = KClosest(epsilon, p, LOCAL_PERSON)
    drawn = mechanism.alignments(20_000, SeededEntropy(1))
    assert np.abs(drawn).max() <= 1
    assert abs(drawn.mean() - mechanism.alignment) < 6 * drawn.std() / math.sqrt(drawn.size) + 1e-6


def test_it_keeps_the_contract_of_mechanisms():
    mechanism = KClosest(1.0, 33, LOCAL_PERSON)
    event = mechanism.event()
    assert isinstance(mechanism, Mechanism)
    assert event.mechanism in MECHANISMS
    assert sequential([event, event]).epsilon <= 2
    assert event.parameters == {
        "dimension": 33,
        "directions": 256,
        "near": mechanism.n_near,
        "near_numerator": int(mechanism.near_chance * WORD),
    }
    assert math.isclose(mechanism.variance(), (mechanism.alignment**-2 - 1) / 33)
    assert math.isclose(mechanism.expected_error(100) * 10, mechanism.expected_error(1))


@pytest.mark.parametrize(("epsilon", "p"), [(1.0, 1), (1.0, 0), (0.0, 5), (math.inf, 5)])
def test_what_has_no_direction_or_no_budget_is_refused(epsilon, p):
    with pytest.raises(MechanismError, match="MECH-001"):
        KClosest(epsilon, p, LOCAL_PERSON)
