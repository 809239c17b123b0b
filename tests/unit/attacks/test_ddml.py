"""Updates of attackers of DDML: exact values, within the range of weights."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.attacks.ddml import (
    make_constant_update,
    make_random_update,
    make_slow_drift,
    make_stale_update,
    move_one_weight,
    negate_update,
    replay_update,
    scale_update,
    stretch_step,
)
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.merging import MAX_WEIGHT

DRAWN = np.array([10, -20, 30, MAX_WEIGHT], np.int32)
UPDATE = np.array([12, -25, 30, MAX_WEIGHT - 5], np.int32)
OLD = np.array([100, 200, 300, 0], np.int32)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (negate_update(UPDATE), [-12, 25, -30, -MAX_WEIGHT + 5]),
        (scale_update(UPDATE, 3), [36, -75, 90, MAX_WEIGHT]),
        (scale_update(UPDATE, -10), [-120, 250, -300, -MAX_WEIGHT]),
        (stretch_step(DRAWN, UPDATE, 3), [16, -35, 30, MAX_WEIGHT - 15]),
        (stretch_step(DRAWN, UPDATE, -1), [8, -15, 30, MAX_WEIGHT]),
        (make_constant_update(UPDATE, 7), [7, 7, 7, 7]),
        (make_constant_update(UPDATE, -(1 << 40)), [-MAX_WEIGHT] * 4),
        (move_one_weight(UPDATE, 1, 1000), [12, 975, 30, MAX_WEIGHT - 5]),
        (move_one_weight(UPDATE, 3, 1000), [12, -25, 30, MAX_WEIGHT]),
        (make_slow_drift(DRAWN, 2.4), [12, -18, 32, MAX_WEIGHT]),
        (make_stale_update(OLD, DRAWN, UPDATE), [102, 195, 300, -5]),
        (replay_update(UPDATE), UPDATE.tolist()),
    ],
)
def test_attacker_sends_the_expected_update(sent, expected):
    assert sent.dtype == np.int32
    assert sent.tolist() == expected


def test_random_weights_fill_the_range_of_the_model():
    update = np.full(20_000, -50, np.int32)
    sent = make_random_update(update, SeededEntropy(1))
    assert sent.dtype == np.int32
    assert set(sent.tolist()) == set(range(-50, 51))
    assert abs(sent.mean()) < 1


def test_random_weights_know_the_widest_range():
    assert (
        np.abs(make_random_update(np.full(100, -MAX_WEIGHT, np.int32), SeededEntropy(1))).max()
        > MAX_WEIGHT // 2
    )


def test_replay_is_a_copy():
    assert replay_update(UPDATE) is not UPDATE
