"""Estimates from counts are unbiased and have the stated variances."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.calibrate import choose_mechanism
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.mechanisms.subset_selection import SubsetSelection
from shoal.protocols.anonml.evidence import NoisyBit, NoisyLabelTable, clip_shares

SHARES = np.array([[0.4, 0.1], [0.2, 0.05], [0.15, 0.1]])


@pytest.mark.parametrize("mechanism", [RandomizedResponse(2.0, 6), SubsetSelection(0.5, 6)])
def test_table_estimate_recovers_shares(mechanism):
    n = 10**9
    p, q = float(mechanism.p), float(mechanism.q)
    counts = np.round(n * (q + SHARES.ravel() * (p - q))).astype(np.int64)
    shares, variances = NoisyLabelTable(counts, n, mechanism).estimate(2)
    assert shares == pytest.approx(SHARES, abs=1e-6)
    chances = q + SHARES * (p - q)
    assert variances == pytest.approx(chances * (1 - chances) / (n * (p - q) ** 2), rel=1e-4)


def test_table_variance_includes_sampling():
    """Peers are drawn again each time; the spread of the estimate is the one that it states."""
    n, mechanism, rng = 400, choose_mechanism(2.0, 6, 400), np.random.default_rng(5)
    found = []
    for seed in range(600):
        cells = rng.choice(6, n, p=SHARES.ravel())
        counts = mechanism.tally(mechanism.report_many(cells, SeededEntropy(seed)))
        found.append(NoisyLabelTable(counts, n, mechanism).estimate(2))
    spread = np.var([shares for shares, _ in found], axis=0)
    claimed = np.mean([variances for _, variances in found], axis=0)
    assert np.abs(np.log(spread / claimed)).max() < 0.25


@pytest.mark.parametrize("epsilon", [1e-9, 64.0])
def test_table_variance_is_never_zero(epsilon):
    _, variances = NoisyLabelTable(
        np.array([0, 7, 0, 0]), 7, RandomizedResponse(epsilon, 4)
    ).estimate(2)
    assert np.isfinite(variances).all()
    assert (variances > 0).all()


def test_clip_shares_keeps_half_a_report():
    assert clip_shares(np.array([-0.2, 0.0, 0.3, 1.0, 1.7]), 10).tolist() == [
        0.05,
        0.05,
        0.3,
        0.95,
        0.95,
    ]
    assert clip_shares(np.array([0.0, 1.0]), 1).tolist() == [0.5, 0.5]


def test_bit_mean_recovers_expectation():
    mechanism = RandomizedResponse(1.0, 2)
    t = float(mechanism.p - mechanism.q)
    assert t == pytest.approx(np.tanh(0.5))
    yes = round(10**9 * (0.5 + t * -0.3 / 2))
    assert NoisyBit(yes, 10**9, mechanism).mean == pytest.approx(-0.3, abs=1e-6)
    assert NoisyBit(50, 100, mechanism).variance == pytest.approx(1 / (t**2 * 100))
