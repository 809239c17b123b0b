"""What each cheat sends, exactly, and that it stays in the range of weights."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.attacks.ddml import constant, negated, one_coordinate, random, replayed, scaled, slow_drift, stale, stretched
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.merging import LIMIT

DRAWN = np.array([10, -20, 30, LIMIT], np.int32)
UPDATE = np.array([12, -25, 30, LIMIT - 5], np.int32)
OLD = np.array([100, 200, 300, 0], np.int32)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (negated(UPDATE), [-12, 25, -30, -LIMIT + 5]),
        (scaled(UPDATE, 3), [36, -75, 90, LIMIT]),
        (scaled(UPDATE, -10), [-120, 250, -300, -LIMIT]),
        (stretched(DRAWN, UPDATE, 3), [16, -35, 30, LIMIT - 15]),
        (stretched(DRAWN, UPDATE, -1), [8, -15, 30, LIMIT]),
        (constant(UPDATE, 7), [7, 7, 7, 7]),
        (constant(UPDATE, -(1 << 40)), [-LIMIT] * 4),
        (one_coordinate(UPDATE, 1, 1000), [12, 975, 30, LIMIT - 5]),
        (one_coordinate(UPDATE, 3, 1000), [12, -25, 30, LIMIT]),
        (slow_drift(DRAWN, 2.4), [12, -18, 32, LIMIT]),
        (stale(OLD, DRAWN, UPDATE), [102, 195, 300, -5]),
        (replayed(UPDATE), UPDATE.tolist()),
    ],
)
def test_what_a_cheat_sends(sent, expected):
    assert sent.dtype == np.int32
    assert sent.tolist() == expected


def test_random_weights_fill_the_range_of_the_model_and_nothing_else():
    update = np.full(20_000, -50, np.int32)
    sent = random(update, SeededEntropy(1))
    assert sent.dtype == np.int32
    assert set(sent.tolist()) == set(range(-50, 51))
    assert abs(sent.mean()) < 1


def test_random_weights_know_the_widest_range():
    assert np.abs(random(np.full(100, -LIMIT, np.int32), SeededEntropy(1))).max() > LIMIT // 2


def test_a_replay_is_a_copy():
    assert replayed(UPDATE) is not UPDATE
