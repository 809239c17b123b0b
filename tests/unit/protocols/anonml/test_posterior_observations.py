"""Noise-free counts give exactly the observations of the model."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.mechanisms.calibrate import choose_mechanism
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.protocols.anonml.evidence import (
    N_LEVELS,
    BlockCounts,
    FeatureBins,
    FeatureEvidence,
    NoisyBit,
    NoisyLabelTable,
)
from shoal.protocols.anonml.posterior import map_bins, observe, observe_tables

N = 10**12
BIT = RandomizedResponse(1.0, 2)
T = float(BIT.p - BIT.q)
TWO = FeatureBins(2, is_ordered=False, has_missing=False)

# A feature whose label 1 leans by DELTA, at label shares PI.
PI = np.array([0.8, 0.2])
M = np.array([0.5, 0.3, 0.2])
DELTA = np.array([-0.6, 0.2, 1.2])
CELLS = np.stack([PI[0] * M * (1 - PI[1] * DELTA), PI[1] * M * (1 + PI[0] * DELTA)], axis=1)


def counted(shares, mechanism, n=N):
    """The counts to be expected of n reports."""
    chances = float(mechanism.q) + np.ravel(shares) * float(mechanism.p - mechanism.q)
    return np.round(n * chances).astype(np.int64)


def bit(mean, n=N):
    return NoisyBit(round(n * (1 + T * mean) / 2), n, BIT)


def make_table(cells, n=N):
    mechanism = choose_mechanism(1.0, cells.size, n)
    return NoisyLabelTable(counted(cells, mechanism, n), n, mechanism)


def blocks_of(cells, levels, n=N):
    """Blocks about one feature and a second one that is never asked about."""
    mechanism = RandomizedResponse(6.0, 2 * N_LEVELS**2)
    kept = float(mechanism.p - mechanism.q)
    merged = np.zeros((N_LEVELS, 2))
    np.add.at(merged, levels, cells)
    singles = np.zeros((2, N_LEVELS, 2), np.int64)
    singles[0] = np.round(n * (kept * merged + (1 - kept) / (2 * N_LEVELS)))
    return BlockCounts(
        (levels, levels),
        singles,
        np.array([n, 0]),
        np.zeros((1, N_LEVELS, N_LEVELS), np.int64),
        np.array([0]),
        mechanism,
    )


def test_example_shares_are_distribution():
    assert CELLS.sum() == pytest.approx(1)
    assert CELLS.sum(0) == pytest.approx(PI)
    assert CELLS.sum(1) == pytest.approx(M)


def test_observe_table_recovers_associations():
    seen = observe(FeatureEvidence(FeatureBins(3, True, False), make_table(CELLS)), PI, 1)
    assert seen.shares == pytest.approx(M, abs=1e-4)
    assert seen.values / seen.design == pytest.approx(DELTA, abs=1e-3)


def test_observe_table_has_noise_of_cells():
    table = make_table(CELLS, 1000)
    seen = observe(FeatureEvidence(FeatureBins(3, True, False), table), PI, 1)
    _, v = table.estimate(2)
    assert (seen.shares / seen.design) ** 2 == pytest.approx(v[:, 1] / 0.04 + v[:, 0] / 0.64)


def test_observe_compares_one_label_with_rest():
    cells = np.array([[0.3, 0.1, 0.1], [0.1, 0.2, 0.2]])
    pi = cells.sum(0)
    seen = observe(FeatureEvidence(TWO, make_table(cells)), pi, 2)
    within_label, within_rest = cells[:, 2] / pi[2], cells[:, :2].sum(1) / (1 - pi[2])
    assert seen.shares * seen.values / seen.design == pytest.approx(
        within_label - within_rest, abs=1e-3
    )


def test_observe_table_is_balanced_to_pooled_labels():
    """If the table's labels are wrong, the pooled ones are used; the noisiest cells change most."""
    table = make_table(CELLS, 10_000)
    f, v = table.estimate(2)
    pooled = np.array([0.7, 0.3])
    seen = observe(FeatureEvidence(FeatureBins(3, True, False), table), pooled, 1)
    shifted = f + (pooled - f.sum(0)) * v / v.sum(0)
    noise = np.sqrt(v[:, 1] / 0.09 + v[:, 0] / 0.49)
    assert seen.values * noise == pytest.approx(shifted[:, 1] / 0.3 - shifted[:, 0] / 0.7)


def sides(mu=None, n_side=N, n_agree=N, n_placed=0, is_lowest=True):
    """Bin 1 of the example on the high side, by bits."""
    h = np.array([-1.0, 1.0, -1.0])
    agreement = (h * (CELLS[:, 1] - CELLS[:, 0])).sum()
    side = bit(h @ M if mu is None else mu, n_side)
    return FeatureEvidence(
        FeatureBins(3, False, True),
        side=side,
        agree=bit(agreement, n_agree),
        n_placed=n_placed,
        is_lowest=is_lowest,
    )


def test_observe_bits_recovers_difference_of_sides():
    seen = observe(sides(), PI, 1)
    assert seen.shares == pytest.approx([0.7, 0.3], abs=1e-6)
    low = (M * DELTA)[[0, 2]].sum() / 0.7
    high = DELTA[1]
    assert seen.design @ [low, high] == pytest.approx(seen.values, rel=1e-4)


def test_observe_bits_adds_uncertainty_of_sides_to_noise():
    """The noise of the agreement grows by (2 pi - 1)^2 var mu."""
    n = 10_000
    unit = np.array([[-0.5, 0.5]]) * 2 * 0.2 * 0.8
    sure, unsure = observe(sides(0.0, N, n), PI, 1), observe(sides(0.0, 0, n), PI, 1)
    assert (unit / sure.design) ** 2 == pytest.approx(1 / (T**2 * n), rel=1e-3)
    assert (unit / unsure.design) ** 2 == pytest.approx(1 / (T**2 * n) + 0.36 * 1.0)


def test_observe_bits_assumes_placed_median_near_middle():
    n = 10_000
    unit = np.array([[-0.5, 0.5]]) * 2 * 0.2 * 0.8
    placed = observe(sides(0.0, 0, n, n_placed=n, is_lowest=False), PI, 1)
    assert (unit / placed.design) ** 2 == pytest.approx(
        1 / (T**2 * n) + 0.36 * (0.01 + 1 / (T**2 * n))
    )
    at_lowest = observe(sides(0.0, 0, n, n_placed=n, is_lowest=True), PI, 1)
    assert at_lowest.design == pytest.approx(observe(sides(0.0, 0, n), PI, 1).design)
    unplaced = observe(sides(0.0, 0, n, n_placed=0, is_lowest=False), PI, 1)
    assert unplaced.design == pytest.approx(at_lowest.design)


def test_observe_bits_shrinks_sides_to_middle_for_placed_median():
    n = 100
    side = NoisyBit(n, n, BIT)
    agree = bit(0.0, n)
    placed = observe(FeatureEvidence(TWO, side=side, agree=agree, n_placed=10**6), PI, 1)
    free = observe(FeatureEvidence(TWO, side=side, agree=agree, is_lowest=True), PI, 1)
    assert 0.5 < placed.shares[1] < 0.75 < free.shares[1] <= 0.98


def test_observe_bits_limits_empty_side():
    seen = observe(FeatureEvidence(TWO, side=bit(1.0), agree=bit(0.0), is_lowest=True), PI, 1)
    assert seen.shares == pytest.approx([0.02, 0.98])


@pytest.mark.parametrize(
    "evidence",
    [
        FeatureEvidence(TWO),
        FeatureEvidence(
            TWO, NoisyLabelTable(np.zeros(4, np.int64), 0, choose_mechanism(1.0, 4, 1))
        ),
        FeatureEvidence(TWO, side=NoisyBit(0, 0, BIT), agree=NoisyBit(0, 0, BIT), n_placed=5),
        FeatureEvidence(TWO, agree=NoisyBit(0, 0, BIT)),
    ],
)
def test_observations_without_answers_are_zero(evidence):
    seen = observe(evidence, PI, 1)
    assert not seen.values.any()
    assert not seen.design.any()
    assert seen.shares.tolist() == [0.5, 0.5]


def test_map_bins_returns_bins_or_sides():
    assert map_bins(FeatureEvidence(FeatureBins(3, True, True))).tolist() == [0, 1, 2]
    assert map_bins(sides()).tolist() == [0, 1, 0]


def test_bin_shares_are_never_zero():
    cells = np.array([[0.5, 0.5], [0.0, 0.0]])
    assert (
        observe(FeatureEvidence(TWO, make_table(cells)), np.array([0.5, 0.5]), 1).shares[1] > 5e-5
    )


LEVELS = np.array([0, 0, 1])


def whitened(seen, delta):
    """How far delta is from what was seen, in standard deviations."""
    return np.abs(seen.design @ delta - seen.values).max()


def test_observe_tables_recovers_associations_for_any_shares():
    evidence = FeatureEvidence(FeatureBins(3, True, False), make_table(CELLS, 10**7))
    seen = observe_tables(evidence, PI, blocks_of(CELLS, LEVELS, 10**7), 0)
    assert seen.design.shape == (2 * (3 + 2), 3)
    assert seen.shares == pytest.approx(M, abs=2e-3)
    direction, *_ = np.linalg.lstsq(seen.design, seen.values, rcond=None)
    assert direction == pytest.approx(DELTA, abs=0.05)
    assert whitened(seen, DELTA) < 3
    assert whitened(seen, -DELTA) > 30


def test_observe_tables_of_blocks_alone_recovers_levels():
    seen = observe_tables(
        FeatureEvidence(FeatureBins(3, True, False)), PI, blocks_of(CELLS, LEVELS, 10**7), 0
    )
    assert seen.design.shape == (4, 3)
    assert seen.shares[:2].sum() == pytest.approx(0.8, abs=0.05)
    assert seen.shares[0] == pytest.approx(seen.shares[1])


def test_observe_tables_without_blocks_or_answers():
    blocks = blocks_of(CELLS, LEVELS)
    assert observe_tables(
        FeatureEvidence(FeatureBins(3, True, False), make_table(CELLS)), PI, blocks, 1
    ).design.shape == (6, 3)
    assert (
        observe_tables(FeatureEvidence(FeatureBins(3, True, False)), PI, blocks, 1).design.any()
        == np.False_
    )
