"""Discrete Laplace and geometric noise: the realised distribution, and its cost."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import Mechanism
from shoal.mechanisms.laplace import (
    DiscreteLaplace,
    GeometricSampler,
    LaplaceSampler,
    get_geometric_sampler,
    get_laplace_sampler,
)
from shoal.mechanisms.sensitivity import BoundedSum, CellCounts
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import geometric, laplace, realised_geometric, realised_laplace
from tests.unit.mechanisms.scripted import Scripted

ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "all who read the release")
RATES = [Fraction(1, 100), Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(4), Fraction(20)]
HEADS, TAILS = 0, 2**64 - 1


@pytest.mark.parametrize("rate", RATES)
def test_samplers_realise_distribution(rate: Fraction) -> None:
    # A probability is known to 2^-64: that is a part of 1e-10 of it while it is above 2e-9.
    known = math.floor(20 / rate) + 1
    assert realised_geometric(GeometricSampler(rate), known) == pytest.approx(
        geometric(float(rate), known), rel=1e-9, abs=1e-18
    )
    assert realised_laplace(LaplaceSampler(rate), known) == pytest.approx(
        laplace(float(rate), known), rel=1e-9, abs=1e-18
    )


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize(
    ("query", "scope"),
    [
        (CellCounts(), ADD_REMOVE),
        (CellCounts(), REPLACE),
        (CellCounts(2), ADD_REMOVE),
        (BoundedSum(0, 3), ADD_REMOVE),
    ],
)
def test_worst_log_ratio_over_neighbours_is_epsilon(
    epsilon: float, query: CellCounts | BoundedSum, scope: Scope
) -> None:
    mechanism = DiscreteLaplace(epsilon, query, scope)
    sensitivity = int(mechanism.sensitivity)
    n = math.ceil(8 / float(mechanism.rate)) + sensitivity
    log = np.log(realised_laplace(mechanism._sampler, n))
    worst = {
        shift: float(np.abs(log[shift:] - log[: log.size - shift]).max())
        for shift in range(1, sensitivity + 1)
    }
    # Coordinates are independent, so a neighbour that moves several of them by shifts that add up
    # to D costs the sum.
    splits = [
        s
        for k in (1, 2, 3)
        for s in itertools.product(range(1, sensitivity + 1), repeat=k)
        if sum(s) <= sensitivity
    ]
    costs = [sum(worst[shift] for shift in split) for split in splits]
    assert max(costs) == pytest.approx(epsilon, abs=1e-9)
    assert mechanism.event().epsilon == epsilon


def test_draw_uses_samples_in_order() -> None:
    sampler = GeometricSampler(Fraction(1))
    assert len(sampler._digits) == 2
    # Top: True, True, False; then the digits 1 and 0: 2 * 4 + 2.
    assert sampler.draw(Scripted(HEADS, HEADS, TAILS, HEADS, TAILS)) == 10
    assert sampler.draw(Scripted(TAILS, TAILS, HEADS)) == 1


def test_draw_many_uses_same_samples() -> None:
    low, high = 0, 255
    # Two variates. Top: (True, False), then False for the first; digit 1: (False, True); digit 0:
    # (True, True).
    assert GeometricSampler(Fraction(1)).draw_many(
        2, Scripted(low, high, high, high, low, low, low)
    ).tolist() == [5, 3]


def test_laplace_draw_has_size_and_sign() -> None:
    sampler = LaplaceSampler(Fraction(4))
    assert sampler.draw(Scripted(TAILS)) == 0
    assert sampler.draw(Scripted(HEADS, HEADS, TAILS, 0)) == 2
    assert sampler.draw(Scripted(HEADS, HEADS, TAILS, 1)) == -2


def test_large_rate_uses_top_sampler_only() -> None:
    sampler = GeometricSampler(Fraction(20))
    assert sampler._digits == []
    assert sampler.draw(Scripted(HEADS, TAILS)) == 1
    assert sampler.draw_many(3, SeededEntropy(1)).tolist() == [0, 0, 0]


def test_draw_many_with_more_than_eight_digits() -> None:
    sampler = GeometricSampler(Fraction(1, 1000))
    assert len(sampler._digits) == 12
    drawn = sampler.draw_many(20_000, SeededEntropy(4))
    assert drawn.mean() == pytest.approx(1000, rel=0.1)
    assert np.unique(drawn).size > 2000


@pytest.mark.parametrize("n", [0, 1, (1 << 15) + 1])
def test_draw_many_returns_n_numbers(n: int) -> None:
    assert get_laplace_sampler(Fraction(1, 5)).draw_many(n, SeededEntropy(2)).size == n


def test_samplers_are_cached() -> None:
    assert get_laplace_sampler(Fraction(1, 7)) is get_laplace_sampler(Fraction(2, 14))
    assert get_geometric_sampler(Fraction(1, 7)) is get_geometric_sampler(Fraction(2, 14))


def test_rejects_noise_beyond_64_bits() -> None:
    with pytest.raises(MechanismError, match="MECH-001"):
        GeometricSampler(Fraction(1, 1 << 41))


def test_widest_noise_fits_64_bits() -> None:
    drawn = get_laplace_sampler(Fraction(1, 1 << 40)).draw_many(2000, SeededEntropy(3))
    assert np.abs(drawn).max() < 2**46
    assert np.abs(drawn).mean() == pytest.approx(2**40, rel=0.2)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_variance_and_error_match_distribution(epsilon: float) -> None:
    mechanism: Mechanism = DiscreteLaplace(epsilon, CellCounts(), ADD_REMOVE)
    k = np.arange(-2000, 2001)
    law = laplace(epsilon, 2000)
    assert mechanism.variance() == pytest.approx((k**2 * law).sum(), rel=1e-9)
    assert mechanism.expected_error(1) == pytest.approx((np.abs(k) * law).sum(), rel=1e-9)
    assert mechanism.expected_error(100) == pytest.approx(
        math.sqrt(200 * mechanism.variance() / math.pi)
    )


def test_event_has_parameters() -> None:
    event = DiscreteLaplace(0.5, CellCounts(n_tables=3, max_rows=2), REPLACE).event()
    assert event.mechanism == "discrete-laplace"
    assert (event.epsilon, event.delta, event.scope) == (0.5, 0.0, REPLACE)
    assert event.parameters == {"sensitivity": 12.0, "scale": 24.0}


def test_randomise_adds_independent_noise_to_each_count() -> None:
    mechanism = DiscreteLaplace(0.1, CellCounts(), ADD_REMOVE)
    counts = np.full((40, 50), 1000)
    noisy = mechanism.randomise_many(counts, SeededEntropy(8))
    assert noisy.shape == counts.shape
    assert np.unique(noisy).size > 40
    assert mechanism.randomise(5, SeededEntropy(8)) == 5 + get_laplace_sampler(mechanism.rate).draw(
        SeededEntropy(8)
    )
    assert (
        mechanism.randomise_many(np.array([5, 6]), SeededEntropy(8)).tolist()
        == (
            np.array([5, 6]) + get_laplace_sampler(mechanism.rate).draw_many(2, SeededEntropy(8))
        ).tolist()
    )


def test_randomise_rejects_values_that_are_not_integers() -> None:
    with pytest.raises(MechanismError, match="MECH-002"):
        DiscreteLaplace(1.0, CellCounts(), ADD_REMOVE).randomise_many(
            np.array([0.5, 1.5]), SeededEntropy(1)
        )  # type: ignore[arg-type]
