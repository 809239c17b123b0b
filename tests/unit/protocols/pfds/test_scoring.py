"""Scores and their bins are whole numbers, and a row is in one bin."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.protocols.pfds.params import GRID
from shoal.protocols.pfds.scoring import LEAST_REACH, LONGEST_REACH, MOST, ONE, bins, histogram, in_units, middles, reach_for, scores


def test_weights_are_rounded_and_kept_in_bounds() -> None:
    assert in_units(np.array([1.0, -0.5, 0.4 / ONE, 1e300, -np.inf])).tolist() == [ONE, -ONE // 2, 0, MOST * ONE, -MOST * ONE]


def test_bins_reach_four_deviations_and_always_somewhere() -> None:
    assert reach_for(1.0) == 4 * ONE
    assert reach_for(0.25) == 2 * ONE
    assert (reach_for(0.0), reach_for(1e300)) == (LEAST_REACH, LONGEST_REACH)


def test_a_score_is_the_sum_of_a_rows_weights() -> None:
    weights = np.array([1, -20, 300, 4000])
    assert scores(weights, np.array([[0, 2], [1, 3], [1, 2]])).tolist() == [301, 3980, 280]


@pytest.mark.parametrize(("reach", "n_bins"), [(800, 16), (1000, 10), (LEAST_REACH, 16), (LONGEST_REACH, 10)])
def test_bins_are_equally_wide_and_their_middles_are_in_the_middle(reach: int, n_bins: int) -> None:
    middle = middles(reach, n_bins)
    assert middle == pytest.approx(-middle[::-1])
    assert np.diff(middle) == pytest.approx(np.full(n_bins - 1, 2 * reach / n_bins / ONE))
    assert bins(np.rint(middle * ONE).astype(np.int64), reach, n_bins).tolist() == list(range(n_bins))
    ends = np.array([-(2**62), -reach, -1, 0, reach - 1, reach, 2**62])
    assert bins(ends, reach, n_bins).tolist() == [0, 0, n_bins // 2 - 1, n_bins // 2, n_bins - 1, n_bins - 1, n_bins - 1]


def test_a_row_adds_its_sides_to_its_bin() -> None:
    sides = np.array([[256, 0], [200, 56], [0, 256], [1, 255]])
    counted = histogram(np.array([2, 0, 2, 2]), sides, 3).reshape(3, 2)
    assert counted.tolist() == [[200, 56], [0, 0], [257, 511]]
    assert counted.dtype == np.int64 and counted.sum() == 4 * GRID
    assert histogram(np.zeros(0, np.int64), np.zeros((0, 2), np.int64), 3).tolist() == [0] * 6
