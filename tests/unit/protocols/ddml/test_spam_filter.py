"""The filter compared with its formula, its thresholds, and a small run with cheaters."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.attacks.ddml import (
    make_constant_update,
    make_random_update,
    negate_update,
    scale_update,
    stretch_step,
)
from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml import spam_calibration
from shoal.protocols.ddml.merging import (
    MAX_WEIGHT,
    OUT_OF_RANGE,
    add_step,
    draw_instances,
    find_blend_factor,
    merge_update,
    steady_variance,
)
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.spam_calibration import noise_deviation
from shoal.protocols.ddml.spam_filter import (
    UPDATE_TOO_FAR,
    WEIGHT_TOO_FAR,
    SpamFilter,
    SpamThresholds,
    calibrate_thresholds,
)


def params(p: int, **more) -> DDMLParams:
    schema = Schema(
        [Numeric(f"x{i}", 0, 1, missing=False) for i in range(p - 1)],
        label=Categorical("y", ["no", "yes"]),
    )
    return DDMLParams(schema, **{"epsilon": 4.0, "size": 10_000, "variant": "paper", **more})


FIGURES = params(4)
SIGMA = noise_deviation(make_step(FIGURES))


def around(spam: SpamFilter, *deviations: float) -> str | None:
    """The verdict on an update whose weights deviate so many units from a centre, where nothing but
    noise sets the unit.
    """
    centre = np.array([0.0, 1e6, -1e6, 5.0])
    weights = np.rint(centre + SIGMA * np.array(deviations)).astype(np.int32)
    return spam.find_fault(weights, centre, np.zeros(4))


def test_find_fault_rejects_one_extreme_weight():
    spam = SpamFilter(FIGURES, SpamThresholds(3.0, 2.0))
    assert around(spam, 2.99, 0, 0, 0) is None
    assert around(spam, 3.01, 0, 0, 0) == WEIGHT_TOO_FAR
    assert around(spam, 0, 0, 0, -3.01) == WEIGHT_TOO_FAR


def test_find_fault_rejects_large_root_mean_square():
    spam = SpamFilter(FIGURES, SpamThresholds(3.0, 2.0))
    assert around(spam, 1.99, -1.99, 1.99, 1.99) is None
    assert around(spam, 2.01, -2.01, 2.01, 2.01) == UPDATE_TOO_FAR


def test_find_fault_scales_by_pooled_deviation_and_noise():
    deviation = SIGMA * np.array([1.0, 2.0, 3.0, 4.0])
    unit = math.sqrt((4.0**2 + (1 + 4 + 9 + 16) / 4) / 2 + 1) * SIGMA
    for size, verdict in ((2.99, None), (3.01, WEIGHT_TOO_FAR)):
        weights = np.array([0, 0, 0, round(size * unit)], np.int32)
        assert (
            SpamFilter(FIGURES, SpamThresholds(3.0, 2.0)).find_fault(
                weights, np.zeros(4), deviation
            )
            == verdict
        )


def test_find_fault_of_many_weights_equals_blocks():
    p = 20_000
    schema = Schema([], Categorical("y", ["no", "yes"]), [Text("words", buckets=p - 1)])
    figures = DDMLParams(schema, 4.0, 10_000, variant="paper", fraction_bits=24)
    sigma, still = noise_deviation(make_step(figures)), np.zeros(p)
    spam = SpamFilter(figures, SpamThresholds(3.0, 2.0))
    for where in (0, 10_000, p - 1):
        assert (
            spam.find_fault(
                (round(3.01 * sigma) * (np.arange(p) == where)).astype(np.int32), still, still
            )
            == WEIGHT_TOO_FAR
        )
    for size, verdict in ((1.99, None), (2.01, UPDATE_TOO_FAR)):
        assert spam.find_fault(np.full(p, round(size * sigma), np.int32), still, still) == verdict


def test_find_fault_does_not_change_arguments():
    weights, centre, deviation = np.array([1, 2, 3, 4], np.int32), np.ones(4), np.full(4, 2.0)
    SpamFilter(FIGURES, SpamThresholds(3.0, 2.0)).find_fault(weights, centre, deviation)
    assert (weights.tolist(), centre.tolist(), deviation.tolist()) == (
        [1, 2, 3, 4],
        [1.0] * 4,
        [2.0] * 4,
    )


def test_find_fault_among_equals_find_fault():
    rng = np.random.default_rng(1)
    instances = rng.integers(-10_000, 10_000, (5, 4)).astype(np.int32)
    spam = SpamFilter(FIGURES, SpamThresholds(3.0, 2.0))
    for size in (1e3, 1e4, 1e5, 1e6):
        weights = rng.normal(0, size, 4).astype(np.int32)
        expected = spam.find_fault(weights, instances.mean(axis=0), instances.std(axis=0, ddof=1))
        assert spam.find_fault_among(weights, instances) == expected


def test_find_fault_accepts_single_instance():
    spam, only = SpamFilter(FIGURES, SpamThresholds(3.0, 2.0)), np.zeros((1, 4), np.int32)
    assert spam.find_fault_among(np.array([round(SIGMA), 0, 0, 0], np.int32), only) is None
    assert (
        spam.find_fault_among(np.array([round(4 * SIGMA), 0, 0, 0], np.int32), only)
        == WEIGHT_TOO_FAR
    )


def test_find_fault_rejects_weight_out_of_range_first():
    spam, least = (
        SpamFilter(FIGURES, SpamThresholds(math.inf, math.inf)),
        np.full(4, -MAX_WEIGHT - 1, np.int32),
    )
    assert spam.find_fault(least, np.zeros(4), np.zeros(4)) == OUT_OF_RANGE
    assert spam.find_fault(np.full(4, -MAX_WEIGHT, np.int32), np.zeros(4), np.zeros(4)) is None


def test_find_fault_uses_smaller_noise_in_later_epoch():
    weights, still = np.array([round(2.5 * SIGMA), 0, 0, 0], np.int32), np.zeros(4)
    falling, steady = (
        SpamFilter(params(4, decay=decay), SpamThresholds(3.0, 2.0)) for decay in ("sqrt", "none")
    )
    assert falling.find_fault(weights, still, still) is None
    assert falling.find_fault(weights, still, still, epoch=3) == UPDATE_TOO_FAR
    assert falling.find_fault_among(weights, np.zeros((2, 4), np.int32), epoch=3) == UPDATE_TOO_FAR
    assert steady.find_fault(weights, still, still, epoch=3) is None


def test_update_test_checks_many_updates_as_single_ones():
    spam, still = SpamFilter(params(4, decay="sqrt"), SpamThresholds(3.0, 2.0)), np.zeros(4)
    update_test, updates = (
        spam.make_test(still, still),
        [np.array([round(by * SIGMA), 0, 0, 0], np.int32) for by in (1.0, 2.5, 4.0)],
    )
    alone = [
        [spam.find_fault(weights, still, still, epoch) for weights in updates]
        for epoch in (0, 3, 0)
    ]
    assert [
        [update_test.find_fault(weights, epoch) for weights in updates] for epoch in (0, 3, 0)
    ] == alone
    assert alone[0] == [None, None, WEIGHT_TOO_FAR] and alone[1][1] == UPDATE_TOO_FAR


def test_calibrate_thresholds_is_deterministic():
    first = calibrate_thresholds(FIGURES, 2)
    assert calibrate_thresholds(params(4), 2) is first
    calibrate_thresholds.cache_clear()
    assert calibrate_thresholds(FIGURES, 2) == first


def test_spam_threshold_of_study_replaces_largest():
    assert calibrate_thresholds(FIGURES, 0, 3.5) == SpamThresholds(
        3.5, calibrate_thresholds(FIGURES, 0).rms
    )


def test_thresholds_follow_noise_distribution():
    # Among 20 weights, that have noise of variance 1 and hardly anything else, the largest of
    # Laplace noise goes further.
    laplace, closest = (
        calibrate_thresholds(params(20), 0),
        calibrate_thresholds(params(20, variant="plus"), 0),
    )
    chance_of_each = 0.0025 / 20
    assert math.isclose(laplace.largest, -math.log(chance_of_each) / math.sqrt(2), rel_tol=0.15)
    assert closest.largest < math.sqrt(20)
    # Directions have one length: only the deviation of the instances makes them seem longer or
    # shorter.
    assert closest.rms < 1.25 < laplace.rms


def test_thresholds_of_discard_exceed_those_of_blend():
    replaced, blended = (
        calibrate_thresholds(params(20, variant="plus", merge=merge), 0).rms
        for merge in ("discard", "blend")
    )
    assert replaced > blended + 0.1


def refused_of(figures: DDMLParams, n: int) -> float:
    """The share of honest updates that are refused from the first one on, with the largest legal
    gradient in either direction.
    """
    step, k, part, entropy = (
        make_step(figures),
        figures.n_instances,
        find_blend_factor(figures.merge),
        SeededEntropy(4),
    )
    instances = draw_instances(
        k, figures.n_weights, steady_variance(k, part) * step.deviation**2, entropy
    )
    spam, refused = SpamFilter(figures, calibrate_thresholds(figures)), 0
    for i in range(n):
        gradient = np.full(figures.n_weights, 10.0 if i % 40 < 20 else -10.0)
        update = add_step(instances[entropy.below(k)], step.draw(gradient, entropy))
        slot = entropy.below(k)
        if spam.find_fault_among(update, instances) is None:
            instances[slot] = merge_update(instances[slot], update, part)
        else:
            refused += 1
    return refused / n


@pytest.mark.parametrize("epsilon", [4.0, 32.0])
def test_long_gradients_are_accepted_from_first_update(epsilon):
    assert refused_of(params(4, unit="weight", epsilon=epsilon, variant="plus"), 600) < 0.02


def test_single_instance_and_coarse_grid_allow_rounding():
    assert refused_of(params(4, variant="plus", n_instances=1, fraction_bits=8), 400) < 0.02


@pytest.mark.untraced
@pytest.mark.parametrize("merge", ["blend", "discard"])
def test_few_columns_predict_thresholds_of_many_weights(merge, monkeypatch):
    figures = params(200, merge=merge, n_instances=8)
    exact = replace(figures, size=10_001)  # the same thresholds under another key of the cache
    monkeypatch.setattr(spam_calibration, "COLUMNS", 30)
    foretold = calibrate_thresholds(figures, 1)
    monkeypatch.setattr(spam_calibration, "COLUMNS", 200)
    whole = calibrate_thresholds(exact, 1)
    assert math.isclose(foretold.rms, whole.rms, rel_tol=0.1)
    assert 0.9 * whole.largest < foretold.largest < 1.4 * whole.largest


def test_noiseless_thresholds_depend_on_gradients_only():
    figures = params(300, epsilon=math.inf)
    spam = SpamFilter(figures, calibrate_thresholds(figures, 0))
    assert (
        spam.find_fault_among(
            np.full(300, round(noise_deviation(make_step(figures))), np.int32),
            np.zeros((20, 300), np.int32),
        )
        is None
    )
    assert (
        spam.find_fault_among(np.full(300, 1 << 30, np.int32), np.zeros((20, 300), np.int32))
        == UPDATE_TOO_FAR
    )


@pytest.mark.untraced
@pytest.mark.parametrize("merge", ["blend", "discard"])
@pytest.mark.parametrize(
    "more",
    [
        {"variant": "plus"},
        {},
        {"unit": "weight"},
        {"variant": "plus", "delta": 1e-6, "epsilon": 1.0},
    ],
)
def test_filter_accepts_honest_and_rejects_false_updates(merge, more):
    figures = params(30, merge=merge, n_instances=10, fraction_bits=24, **more)
    step, entropy, in_flight = make_step(figures), SeededEntropy(3), 3
    spam, variance = (
        SpamFilter(figures, calibrate_thresholds(figures, in_flight)),
        steady_variance(10, find_blend_factor(merge)),
    )
    learned = np.rint(
        4
        * noise_deviation(step)
        * math.sqrt(1 + variance)
        * np.random.default_rng(1).choice([-1, 1], 30)
    ).astype(np.int64)
    instances = add_step(
        draw_instances(10, 30, variance * noise_deviation(step) ** 2, entropy), learned
    )
    slope = np.full(30, figures.rates.clip / 30)
    pending, refused, n, caught = [], 0, 250, 0
    for i in range(n + in_flight):
        drawn = instances[entropy.below(10)].copy()
        pending.append((drawn, add_step(drawn, step.draw(slope, entropy))))
        if i < in_flight:
            continue
        drawn, update = pending.pop(entropy.below(len(pending)))
        refused += spam.find_fault_among(update, instances) is not None
        for false in (
            make_random_update(update, entropy),
            negate_update(update),
            make_constant_update(update, 0),
            scale_update(update, 3),
            stretch_step(drawn, update, 10),
        ):
            caught += spam.find_fault_among(false, instances) is not None
        slot = entropy.below(10)
        instances[slot] = merge_update(instances[slot], update, find_blend_factor(merge))
    assert refused <= 0.02 * n
    assert caught >= 0.98 * 5 * n
