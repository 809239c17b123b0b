"""Samples as bins, bounds by the kind of claim, and evidence of noise."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.bound import bound_epsilon, bound_rho
from shoal.audit.observations import Observation, compute_evidence, rank_samples
from shoal.mechanisms.distributed_gaussian import DistributedGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.accountant import compose_sequential
from shoal.privacy.events import Relation, Scope, Unit

RNG = np.random.default_rng(3)
SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


def test_rank_samples_keeps_the_order_in_few_bins():
    first, second = RNG.normal(0, 1, 4000), RNG.normal(1, 1, 4000)
    keys = rank_samples(first, second)
    assert len(np.unique(np.concatenate(keys))) <= 66
    both, places = np.concatenate([first, second]), np.concatenate(keys)
    assert np.all(np.diff(places[np.argsort(both)]) >= 0)
    assert np.bincount(places).max() < 8000 / 32


def test_rank_samples_gives_equal_numbers_one_bin():
    first = np.array([0.0, 5.0, 5.0, 5.0] * 50)
    second = np.array([0.0, 4.9, 0.0, 5.1] * 50)
    one, other = rank_samples(first, second)
    assert len({*one[first == 5], *other[second == 4.9]}) == 2
    assert {*one[first == 5]}.isdisjoint({*other[second == 5.1]})


def test_rank_samples_cuts_at_quantiles_of_the_first_halves():
    first, second = RNG.normal(size=200), RNG.normal(size=200)
    changed = np.concatenate([first[:100], first[100:] * 1000])
    assert np.array_equal(rank_samples(first, second)[1], rank_samples(changed, second)[1])


def test_observation_is_bounded_by_the_kind_of_its_claim():
    claim = compose_sequential([DistributedGaussian(0.5, 1e-6, CellCounts(), SCOPE, 1, 1).event()])
    first, second = RNG.integers(0, 50, 2000), RNG.integers(20, 70, 2000)
    plain, by_rho = (
        Observation("a number", ("a", "b"), first, second, claim, is_zcdp=is_rho)
        for is_rho in (False, True)
    )
    assert plain.compute_bound(0.01) == bound_epsilon(first, second, 0.01, 1e-6)
    assert by_rho.compute_bound(0.01) == bound_rho(first, second, 0.01, 1e-6)


def test_evidence_is_the_log_ratio_of_the_noise():
    sums = np.array([[10, 20], [13, 20]])
    seen = np.array([[10, 5], [13, 99], [11, 20], [40, 0]])
    laplace = DiscreteLaplace(1.5, CellCounts(1, 3), SCOPE).event()
    assert compute_evidence(laplace, seen, sums) == pytest.approx([-1.5, 1.5, -0.5, 1.5])
    gaussian = DistributedGaussian(0.5, 1e-6, CellCounts(1, 3), SCOPE, 2, 2)
    expected = [(-9) / 2, 9 / 2, (1 - 4) / 2, (30**2 - 27**2) / 2]
    assert compute_evidence(gaussian.event(), seen, sums) * gaussian.sigma**2 == pytest.approx(
        expected
    )
