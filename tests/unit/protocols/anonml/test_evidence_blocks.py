"""Blocks: exact levels, merged tables, and factors that count shared information once."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.protocols.anonml.evidence import (
    N_LEVELS,
    BlockCounts,
    compute_score_factors,
    cut_levels,
    estimate_level_table,
)

RESPONSE = RandomizedResponse(8.0, 2 * N_LEVELS**4)
KEPT = float(RESPONSE.p - RESPONSE.q)
LEVELS = np.array([0, 1, 2])


def scatter(values, weights, levels):
    """Weighted squares around the mean of each level."""
    total = 0.0
    for level in np.unique(levels):
        x, w = values[levels == level], weights[levels == level]
        total += float((w * (x - np.average(x, weights=w)) ** 2).sum())
    return total


@pytest.mark.untraced
@given(st.lists(st.tuples(st.integers(-20, 20), st.floats(0.01, 1)), min_size=1, max_size=6))
def test_cut_levels_is_optimal(cells):
    values, weights = (
        np.array([value / 10 for value, _ in cells]),
        np.array([weight for _, weight in cells]),
    )
    levels = cut_levels(values, weights)
    assert levels.max() + 1 == min(N_LEVELS, np.unique(values).size)
    best = min(
        scatter(values, weights, np.array(way))
        for way in product(range(N_LEVELS), repeat=values.size)
    )
    assert scatter(values, weights, levels) == pytest.approx(best, abs=1e-6)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_cut_levels_rise_with_values(values):
    array = np.array(values)
    levels = cut_levels(array, np.full(array.size, 1 / array.size))
    assert (np.diff(levels[np.argsort(array, kind="stable")]) >= 0).all()
    assert set(levels.tolist()) == set(range(levels.max() + 1))


def test_cut_levels_merges_equal_values():
    assert cut_levels(np.zeros(5), np.ones(5)).tolist() == [0] * 5


def test_cut_levels_keeps_heavy_values_apart():
    """Two levels for three values: the light one joins its nearer neighbour."""
    assert cut_levels(np.array([0.0, 1.0, 1.9]), np.array([1.0, 1.0, 0.001]), 2).tolist() == [
        0,
        1,
        1,
    ]


def test_cut_levels_makes_four_levels_of_many_bins():
    levels = cut_levels(np.repeat([1.0, 5.0, 3.0, 9.0], 100), np.full(400, 1 / 400), 4)
    assert levels.tolist() == [0] * 100 + [2] * 100 + [1] * 100 + [3] * 100


def blocks_of(joint, n=10**9, levels=LEVELS):
    """Return expected blocks for a joint distribution of levels and label, ``(G, ..., G, 2)``."""
    J = joint.ndim - 1
    singles = np.stack([joint.sum(tuple(k for k in range(J) if k != j)) for j in range(J)])
    i, j = np.triu_indices(J, 1)
    pairs = np.stack(
        [
            joint.sum((*(k for k in range(J) if k not in pair), J))
            for pair in zip(i.tolist(), j.tolist(), strict=True)
        ]
    )
    return BlockCounts(
        (levels,) * J,
        np.round(n * (KEPT * singles + (1 - KEPT) / singles[0].size)).astype(np.int64),
        np.full(J, n),
        np.round(n * (KEPT * pairs + (1 - KEPT) / pairs[0].size)).astype(np.int64),
        np.full(i.size, n),
        RESPONSE,
    )


def three_features(copies):
    """Return three features, of which 0 and 1 are equal with probability ``copies``.

    Otherwise, and feature 2 always, they are independent given the label.
    """
    given_label = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
    joint = np.zeros((3, 3, 3, 2))
    for y in (0, 1):
        p = given_label[y]
        joint[..., y] = 0.5 * (copies * np.diag(p) + (1 - copies) * np.outer(p, p))[:, :, None] * p
    return joint


SHARES = np.array([0.35, 0.3, 0.35])
DELTA = np.array([-0.5, 0.0, 0.5]) / SHARES
SCORE = np.log([1 / 6, 1, 6])


def weights_of(joint, n=10**9):
    return compute_score_factors(blocks_of(joint, n), [SCORE] * 3, [SHARES] * 3, [DELTA] * 3)


def test_level_table_recovers_shares():
    joint = three_features(0.5)
    H, shares, variances = estimate_level_table(blocks_of(joint), 1)
    assert H.tolist() == np.eye(3).tolist()
    assert shares == pytest.approx(joint.sum((0, 2)), abs=1e-6)
    seen = KEPT * joint.sum((0, 2)) + (1 - KEPT) / 6
    assert variances == pytest.approx(seen * (1 - seen) / (1e9 * KEPT**2), rel=1e-4)


def test_level_table_has_only_used_levels():
    levels = np.array([1, 0, 1, 0])
    H, shares, variances = estimate_level_table(blocks_of(three_features(0.0), levels=levels), 0)
    assert H.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]
    assert shares.shape == variances.shape == (2, 2)


def test_level_table_of_one_report_has_large_variance():
    blocks = BlockCounts(
        (LEVELS,),
        np.array([[[0, 0], [0, 1], [0, 0]]]),
        np.array([1]),
        np.zeros((0, 3, 3), np.int64),
        np.zeros(0, np.int64),
        RESPONSE,
    )
    assert (estimate_level_table(blocks, 0)[2] >= 0.2).all()


def test_score_factors_of_redundant_features_are_smaller():
    first, second, other = weights_of(three_features(0.9))
    assert first == pytest.approx(second)
    assert 0.5 <= first < 0.95 < 1.05 < other


def test_score_factors_of_independent_features_are_equal():
    assert weights_of(three_features(0.0)) == pytest.approx(np.ones(3), abs=1e-3)


def test_score_factors_have_mean_one_and_are_at_least_half():
    weights = weights_of(three_features(0.9))
    assert weights.mean() == pytest.approx(1)
    assert weights.min() >= 0.5


def test_score_factor_of_negative_coefficient_is_half():
    """Feature 1 nearly copies feature 0 with less information: no factor is negative."""
    blocks = blocks_of(three_features(0.99))
    weights = compute_score_factors(blocks, [SCORE] * 3, [SHARES] * 3, [DELTA, 0.05 * DELTA, DELTA])
    assert weights[1] == 0.5


def lopsided():
    """Return three different, dependent features with unequal labels."""
    joint = np.random.default_rng(6).dirichlet(np.full(54, 0.7)).reshape(3, 3, 3, 2)
    tables = [joint.sum(tuple(k for k in range(3) if k != j)) for j in range(3)]
    pi = joint.sum((0, 1, 2))
    shares = [table.sum(1) for table in tables]
    deltas = [
        (table[:, 1] / pi[1] - table[:, 0] / pi[0]) / M
        for table, M in zip(tables, shares, strict=True)
    ]
    scores = [np.log(table[:, 1] / table[:, 0]) for table in tables]
    return joint, scores, shares, deltas, float(pi[1])


def regression(joint, scores, pi, shrink=1.0):
    """The same weights, from all the cells of the joint distribution."""
    cells = np.array(list(np.ndindex(joint.shape)))
    p, y = joint.ravel(), cells[:, 3]
    G = np.stack([scores[j][cells[:, j]] for j in range(3)])
    G = G - (G * p).sum(1, keepdims=True)
    T = (G * p) @ G.T
    sd = np.sqrt(np.diag(T))
    R = T / np.outer(sd, sd)
    R = shrink * R + (1 - shrink) * np.eye(3)
    w = np.linalg.solve((R + 0.05 * np.eye(3)) * np.outer(sd, sd), (G * p) @ (y - pi))
    assert (w > 0).all()
    assert np.linalg.eigvalsh(R).min() > 0.05
    return (w / w.mean() + 1) / 2


def test_score_factors_match_regression_on_rows():
    joint, scores, shares, deltas, pi = lopsided()
    weights = compute_score_factors(blocks_of(joint, 10**12), scores, shares, deltas)
    assert weights == pytest.approx(regression(joint, scores, pi), abs=1e-4)


def test_score_factors_shrink_uncertain_correlations():
    """By s / (s + se^2), with the same se for all pairs here, near enough."""
    joint, scores, shares, deltas, pi = lopsided()
    sure, unsure = regression(joint, scores, pi), regression(joint, scores, pi, 0.5)
    few = compute_score_factors(blocks_of(joint, 100), scores, shares, deltas)
    assert np.abs(few - unsure).max() < np.abs(few - sure).max()


def test_score_factors_ignore_silent_features():
    quiet = np.zeros(3)
    assert compute_score_factors(
        blocks_of(three_features(0.9)), [SCORE, quiet, quiet], [SHARES] * 3, [DELTA, quiet, quiet]
    ).tolist() == [
        1,
        1,
        1,
    ]
    weights = compute_score_factors(
        blocks_of(three_features(0.9)), [SCORE, quiet, SCORE], [SHARES] * 3, [DELTA, quiet, DELTA]
    )
    assert weights[1] == 1


def test_score_factors_ignore_scores_against_label():
    assert compute_score_factors(
        blocks_of(three_features(0.9)), [SCORE] * 3, [SHARES] * 3, [-DELTA] * 3
    ).tolist() == [1, 1, 1]


def test_score_factors_treat_unanswered_pairs_as_unrelated():
    blocks = blocks_of(three_features(0.9))
    unanswered = BlockCounts(
        blocks.levels,
        blocks.singles,
        blocks.n_singles,
        0 * blocks.pairs,
        0 * blocks.n_pairs,
        RESPONSE,
    )
    assert compute_score_factors(
        unanswered, [SCORE] * 3, [SHARES] * 3, [DELTA] * 3
    ) == pytest.approx(np.ones(3))
