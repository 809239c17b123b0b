"""What honest updates are taken to look like: noise of its own law, the largest legal gradients, and a common descent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml import honest
from shoal.protocols.ddml.honest import AllPushed, Kind, OnePushed, centre_and_spread, deviations, moves_of, scales, sigma_of
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.step import AdditiveStep, ClosestStep, make_step


def params(p: int, **more) -> Params:
    schema = Schema([Numeric(f"x{i}", 0, 1, missing=False) for i in range(p - 1)], label=Categorical("y", ["no", "yes"]))
    return Params(schema, **{"epsilon": 4.0, "size": 10_000, **more})


def drawn(figures: Params, n: int = 4_000) -> np.ndarray:
    return moves_of(figures).draw(n, SeededEntropy(1))


def test_with_a_clip_for_each_weight_none_may_be_pushed_or_all():
    moves = moves_of(params(10, unit="weight"))
    assert isinstance(moves, AllPushed)
    assert moves.mixes == ((Kind(slice(0, 10), 10),), (Kind(slice(10, 20), 10),))
    assert moves.kinds == (Kind(slice(0, 10), 10), Kind(slice(10, 20), 10))


def test_with_one_clip_for_the_update_one_weight_may_have_it_all():
    moves = moves_of(params(10))
    assert isinstance(moves, OnePushed)
    assert moves.mixes == ((Kind(slice(0, 1), 1), Kind(slice(1, 10), 9)),)


def test_few_columns_stand_for_many_weights():
    moves = moves_of(params(1_000, variant="paper"))
    assert [(kind.n_columns, kind.n_weights) for kind in moves.kinds] == [(1, 1), (255, 999)]
    assert moves.draw(3, SeededEntropy(1)).shape == (3, 256)


def test_noise_has_the_deviation_one_and_the_push_is_the_bound():
    figures = params(6, unit="weight", epsilon=3.0)
    step, moves = make_step(figures), drawn(figures)
    assert isinstance(step, AdditiveStep)
    assert np.allclose(moves.std(axis=0), 1, atol=0.15)
    assert np.allclose(moves[:, :6].mean(axis=0), 0, atol=0.1)
    assert np.allclose(moves[:, 6:].mean(axis=0), step.bound / step.deviation, atol=0.1)
    assert math.isclose(step.bound / step.deviation, 3.0 / math.sqrt(8), rel_tol=1e-3)


def test_one_clip_in_l1_pushes_the_first_weight():
    figures = params(6, variant="paper")
    step, moves = make_step(figures), drawn(figures)
    assert isinstance(step, AdditiveStep)
    assert np.allclose(moves.mean(axis=0), [step.bound / step.deviation, 0, 0, 0, 0, 0], atol=0.1)


def test_directions_have_one_length_and_lean_towards_the_gradient():
    figures = params(20)
    step, moves = make_step(figures), drawn(figures)
    assert isinstance(step, ClosestStep)
    assert np.allclose(np.square(moves).mean(axis=1), 1, atol=1e-5)
    assert math.isclose(moves[:, 0].mean(), step.mechanism.alignment * math.sqrt(20), abs_tol=0.05)
    assert np.allclose(moves[:, 1:].mean(axis=0), 0, atol=0.1)


def test_of_a_long_direction_a_part_is_drawn():
    moves = drawn(params(1_000))
    assert moves.shape == (4_000, 256)
    assert math.isclose(np.square(moves[:, 1:]).mean(), 1, abs_tol=0.02)


def test_without_noise_the_largest_step_is_the_unit():
    figures = params(4, epsilon=math.inf)
    step = make_step(figures)
    assert sigma_of(step) == step.scale * figures.rates.clip
    assert drawn(figures, 1).tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


def test_centre_and_spread_are_mean_and_sample_deviation():
    instances = np.array([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]])
    centre, spread = centre_and_spread(instances)
    assert centre.tolist() == [4.0, 5.0]
    assert spread.tolist() == [math.sqrt(13), 0.0]


def test_centre_and_spread_of_weights_are_floats():
    instances = np.array([[-(2**31) + 1, 2**31 - 1], [2**31 - 1, 2**31 - 1]], np.int32)
    centre, spread = centre_and_spread(instances)
    assert (centre.dtype, spread.dtype) == (np.float64, np.float64)
    assert centre.tolist() == [0.0, 2.0**31 - 1]
    assert spread.tolist() == [pytest.approx((2**31 - 1) * math.sqrt(2)), 0.0]
    assert [part.dtype for part in centre_and_spread(instances[:1])] == [np.float64, np.float64]


def test_a_single_instance_has_no_spread():
    centre, spread = centre_and_spread(np.array([[1.0, 5.0]]))
    assert (centre.tolist(), spread.tolist()) == ([1.0, 5.0], [0.0, 0.0])


def test_a_scale_is_half_the_weights_own_variance_and_half_that_of_all():
    assert scales(np.array([2.0, 6.0]), 4.0, 3.0).tolist() == [3.0 + 9, 5.0 + 9]


@pytest.mark.parametrize("merge", ["blend", "discard"])
def test_honest_updates_deviate_by_about_one(merge):
    figures = params(12, variant="paper", merge=merge)
    _, seen = deviations(figures, moves_of(figures), 0, SeededEntropy(2))
    assert seen.squares.shape == (800 * 128, 2)
    assert 0.8 < seen.squares[:, 1].mean() < 1.1
    assert (seen.largest[:, 1] ** 2 >= seen.squares[:, 1] - 1e-6).all()
    assert (seen.fourths >= seen.squares**2 * (1 - 1e-5)).all()


def test_what_is_pushed_goes_further():
    figures = params(12, unit="weight", epsilon=8.0)
    _, seen = deviations(figures, moves_of(figures), 0, SeededEntropy(2))
    # Blending damps the push that instances share with an update; the noise of variance 1 is left.
    assert seen.squares[:, 1].mean() > 3 * seen.squares[:, 0].mean()


@pytest.mark.untraced
def test_a_longer_way_takes_updates_further_from_where_the_instances_are():
    figures = params(12, variant="paper", merge="discard")
    far, near = (deviations(figures, moves_of(figures), in_flight, SeededEntropy(2))[1].squares[:, 1] for in_flight in (100, 0))
    assert np.quantile(far, 0.99) > 1.2 * np.quantile(near, 0.99)


@pytest.mark.untraced
def test_a_long_way_makes_a_long_simulation(monkeypatch):
    monkeypatch.setattr(honest, "_NUMBERS", 1)
    monkeypatch.setattr(honest, "_MOST_UPDATES", 3_000)
    figures = params(4, variant="paper", n_instances=3)
    for in_flight, n in ((0, 800), (27, 2 * 30**2), (300, 3_000)):
        assert len(deviations(figures, moves_of(figures), in_flight, SeededEntropy(2))[1].largest) == pytest.approx(n, abs=3)
