"""Scores and bins in whole numbers; each row is in one bin."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.protocols.pfds.params import GRID
from shoal.protocols.pfds.refinement import (
    MAX_REACH,
    MAX_WEIGHT,
    MIN_REACH,
    ONE,
    assign_bins,
    compute_bin_centres,
    compute_reach,
    compute_scores,
    count_histogram,
    to_units,
)


def test_to_units_rounds_and_bounds_weights() -> None:
    assert to_units(np.array([1.0, -0.5, 0.4 / ONE, 1e300, -np.inf])).tolist() == [
        ONE,
        -ONE // 2,
        0,
        MAX_WEIGHT * ONE,
        -MAX_WEIGHT * ONE,
    ]


def test_compute_reach_is_four_deviations_within_bounds() -> None:
    assert compute_reach(1.0) == 4 * ONE
    assert compute_reach(0.25) == 2 * ONE
    assert (compute_reach(0.0), compute_reach(1e300)) == (MIN_REACH, MAX_REACH)


def test_compute_scores_adds_weights_of_cells() -> None:
    weights = np.array([1, -20, 300, 4000])
    assert compute_scores(weights, np.array([[0, 2], [1, 3], [1, 2]])).tolist() == [301, 3980, 280]


@pytest.mark.parametrize(
    ("reach", "n_bins"), [(800, 16), (1000, 10), (MIN_REACH, 16), (MAX_REACH, 10)]
)
def test_bins_have_equal_widths_and_symmetric_centres(reach: int, n_bins: int) -> None:
    middle = compute_bin_centres(reach, n_bins)
    assert middle == pytest.approx(-middle[::-1])
    assert np.diff(middle) == pytest.approx(np.full(n_bins - 1, 2 * reach / n_bins / ONE))
    assert assign_bins(np.rint(middle * ONE).astype(np.int64), reach, n_bins).tolist() == list(
        range(n_bins)
    )
    ends = np.array([-(2**62), -reach, -1, 0, reach - 1, reach, 2**62])
    assert assign_bins(ends, reach, n_bins).tolist() == [
        0,
        0,
        n_bins // 2 - 1,
        n_bins // 2,
        n_bins - 1,
        n_bins - 1,
        n_bins - 1,
    ]


def test_count_histogram_adds_sides_to_bins() -> None:
    sides = np.array([[256, 0], [200, 56], [0, 256], [1, 255]])
    counted = count_histogram(np.array([2, 0, 2, 2]), sides, 3).reshape(3, 2)
    assert counted.tolist() == [[200, 56], [0, 0], [257, 511]]
    assert counted.dtype == np.int64 and counted.sum() == 4 * GRID
    assert count_histogram(np.zeros(0, np.int64), np.zeros((0, 2), np.int64), 3).tolist() == [0] * 6
