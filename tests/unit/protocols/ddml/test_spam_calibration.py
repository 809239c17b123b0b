"""Simulated honest updates: true noise, largest legal gradients, and common descent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml import spam_calibration
from shoal.protocols.ddml.noisy_step import AdditiveStep, ClosestStep, make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.spam_calibration import (
    VectorClippedUpdates,
    WeightClippedUpdates,
    WeightGroup,
    compute_centre_and_deviation,
    make_honest_updates,
    noise_deviation,
    pool_variances,
    simulate_deviations,
)


def params(p: int, **more) -> DDMLParams:
    schema = Schema(
        [Numeric(f"x{i}", 0, 1, missing=False) for i in range(p - 1)],
        label=Categorical("y", ["no", "yes"]),
    )
    return DDMLParams(schema, **{"epsilon": 4.0, "size": 10_000, **more})


def drawn(figures: DDMLParams, n: int = 4_000) -> np.ndarray:
    return make_honest_updates(figures).draw(n, SeededEntropy(1))


def test_weight_clipped_updates_push_no_weight_or_all():
    moves = make_honest_updates(params(10, unit="weight"))
    assert isinstance(moves, WeightClippedUpdates)
    assert moves.mixtures == ((WeightGroup(slice(0, 10), 10),), (WeightGroup(slice(10, 20), 10),))
    assert moves.groups == (WeightGroup(slice(0, 10), 10), WeightGroup(slice(10, 20), 10))


def test_vector_clipped_updates_push_one_weight():
    moves = make_honest_updates(params(10))
    assert isinstance(moves, VectorClippedUpdates)
    assert moves.mixtures == ((WeightGroup(slice(0, 1), 1), WeightGroup(slice(1, 10), 9)),)


def test_few_columns_represent_many_weights():
    moves = make_honest_updates(params(1_000, variant="paper"))
    assert [(kind.n_columns, kind.n_weights) for kind in moves.groups] == [(1, 1), (255, 999)]
    assert moves.draw(3, SeededEntropy(1)).shape == (3, 256)


def test_noise_has_unit_deviation_and_push_is_bound():
    figures = params(6, unit="weight", epsilon=3.0)
    step, moves = make_step(figures), drawn(figures)
    assert isinstance(step, AdditiveStep)
    assert np.allclose(moves.std(axis=0), 1, atol=0.15)
    assert np.allclose(moves[:, :6].mean(axis=0), 0, atol=0.1)
    assert np.allclose(moves[:, 6:].mean(axis=0), step.bound / step.deviation, atol=0.1)
    assert math.isclose(step.bound / step.deviation, 3.0 / math.sqrt(8), rel_tol=1e-3)


def test_l1_clipped_update_pushes_first_weight():
    figures = params(6, variant="paper")
    step, moves = make_step(figures), drawn(figures)
    assert isinstance(step, AdditiveStep)
    assert np.allclose(moves.mean(axis=0), [step.bound / step.deviation, 0, 0, 0, 0, 0], atol=0.1)


def test_directions_have_one_length_and_align_with_gradient():
    figures = params(20)
    step, moves = make_step(figures), drawn(figures)
    assert isinstance(step, ClosestStep)
    assert np.allclose(np.square(moves).mean(axis=1), 1, atol=1e-5)
    assert math.isclose(moves[:, 0].mean(), step.mechanism.alignment * math.sqrt(20), abs_tol=0.05)
    assert np.allclose(moves[:, 1:].mean(axis=0), 0, atol=0.1)


def test_long_direction_is_drawn_in_part():
    moves = drawn(params(1_000))
    assert moves.shape == (4_000, 256)
    assert math.isclose(np.square(moves[:, 1:]).mean(), 1, abs_tol=0.02)


def test_noiseless_updates_use_largest_step_as_unit():
    figures = params(4, epsilon=math.inf)
    step = make_step(figures)
    assert noise_deviation(step) == step.scale * figures.rates.clip
    assert drawn(figures, 1).tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


def test_centre_and_spread_are_mean_and_sample_deviation():
    instances = np.array([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]])
    centre, deviation = compute_centre_and_deviation(instances)
    assert centre.tolist() == [4.0, 5.0]
    assert deviation.tolist() == [math.sqrt(13), 0.0]


def test_centre_and_spread_of_weights_are_floats():
    instances = np.array([[-(2**31) + 1, 2**31 - 1], [2**31 - 1, 2**31 - 1]], np.int32)
    centre, deviation = compute_centre_and_deviation(instances)
    assert (centre.dtype, deviation.dtype) == (np.float64, np.float64)
    assert centre.tolist() == [0.0, 2.0**31 - 1]
    assert deviation.tolist() == [pytest.approx((2**31 - 1) * math.sqrt(2)), 0.0]
    assert [part.dtype for part in compute_centre_and_deviation(instances[:1])] == [
        np.float64,
        np.float64,
    ]


def test_spread_of_single_instance_is_zero():
    centre, deviation = compute_centre_and_deviation(np.array([[1.0, 5.0]]))
    assert (centre.tolist(), deviation.tolist()) == ([1.0, 5.0], [0.0, 0.0])


def test_pool_variances_averages_own_and_common_variance():
    assert pool_variances(np.array([2.0, 6.0]), 4.0, 3.0).tolist() == [3.0 + 9, 5.0 + 9]


@pytest.mark.parametrize("merge", ["blend", "discard"])
def test_honest_updates_deviate_by_about_one(merge):
    figures = params(12, variant="paper", merge=merge)
    _, seen = simulate_deviations(figures, make_honest_updates(figures), 0, SeededEntropy(2))
    assert seen.squares.shape == (800 * 128, 2)
    assert 0.8 < seen.squares[:, 1].mean() < 1.1
    assert (seen.largest[:, 1] ** 2 >= seen.squares[:, 1] - 1e-6).all()
    assert (seen.fourths >= seen.squares**2 * (1 - 1e-5)).all()


def test_pushed_weights_deviate_further():
    figures = params(12, unit="weight", epsilon=8.0)
    _, seen = simulate_deviations(figures, make_honest_updates(figures), 0, SeededEntropy(2))
    # Blending damps the push that instances share with an update; the noise of variance 1 is left.
    assert seen.squares[:, 1].mean() > 3 * seen.squares[:, 0].mean()


@pytest.mark.untraced
def test_more_updates_in_flight_deviate_further():
    figures = params(12, variant="paper", merge="discard")
    far, near = (
        simulate_deviations(figures, make_honest_updates(figures), in_flight, SeededEntropy(2))[
            1
        ].squares[:, 1]
        for in_flight in (100, 0)
    )
    assert np.quantile(far, 0.99) > 1.2 * np.quantile(near, 0.99)


@pytest.mark.untraced
def test_more_updates_in_flight_need_longer_simulation(monkeypatch):
    monkeypatch.setattr(spam_calibration, "_NUMBERS", 1)
    monkeypatch.setattr(spam_calibration, "_MAX_UPDATES", 3_000)
    figures = params(4, variant="paper", n_instances=3)
    for in_flight, n in ((0, 800), (27, 2 * 30**2), (300, 3_000)):
        assert len(
            simulate_deviations(figures, make_honest_updates(figures), in_flight, SeededEntropy(2))[
                1
            ].largest
        ) == pytest.approx(n, abs=3)
