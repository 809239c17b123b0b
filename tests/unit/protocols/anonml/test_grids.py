"""Public cut points: in the range, rising, and where numbers pile up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.anonml.grids import candidate_edges, grid_edges

numbers = st.floats(-1e12, 1e12)
widths = st.integers(0, 20)


@given(numbers, st.floats(1e-6, 1e12), widths, widths)
def test_edges_rise_from_the_lowest_value_and_stay_below_the_highest(low, width, n_equal, n_log):
    high = low + width
    if not low < high:
        return
    edges = grid_edges(low, high, n_equal, n_log)
    assert edges[0] == low
    assert (np.diff(edges) > 0).all()
    assert edges[-1] < high


def test_a_range_too_narrow_to_be_cut_has_its_lowest_value_only():
    low = 1e12
    assert candidate_edges(low, np.nextafter(low, np.inf)).tolist() == [low]


def test_equal_widths():
    assert grid_edges(10, 50, 4, 0).tolist() == [10, 20, 30, 40]


def test_no_widths_at_all_leave_the_lowest_value():
    assert grid_edges(-3, 5, 0, 0).tolist() == [-3]


def test_growing_widths_start_at_a_thousandth_of_the_range():
    edges = grid_edges(5, 1005, 0, 10)
    assert edges.size == 10
    steps = (edges - 5 + 1) / 1
    assert np.allclose(steps[1:] / steps[:-1], 1001 ** (1 / 10))


def test_growing_widths_leave_zero_to_both_sides():
    edges = grid_edges(-10, 1000, 0, 8)
    assert 0.0 in edges
    above, below = edges[edges > 0], edges[(edges < 0) & (edges > -10)]
    assert above.size == 7
    assert below.size == 3
    assert above[0] == pytest.approx(math.expm1(math.log(1001) / 8))
    assert below[-1] == pytest.approx(-10 / 1000 * math.expm1(math.log(1001) / 4))


def test_zero_is_no_cut_point_of_equal_widths_alone():
    assert grid_edges(-1, 2, 2, 0).tolist() == [-1, 0.5]


def test_candidates_are_many_and_hold_both_kinds():
    edges = candidate_edges(0, 6400)
    assert {0.0, 100.0, 6300.0} <= set(edges.tolist())
    assert 100 < edges.size <= 128
    assert (edges < 100).sum() > 25


def test_candidates_of_a_range_around_zero_are_dense_around_it():
    edges = candidate_edges(-1000, 1000)
    assert ((edges > 0) & (edges < 10)).sum() >= 20
    assert ((edges < 0) & (edges > -10)).sum() >= 10
