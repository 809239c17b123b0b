"""Public cut points: in the range, rising, and dense where numbers are frequent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.anonml.quantiles import candidate_edges, grid_edges

numbers = st.floats(-1e12, 1e12)
widths = st.integers(0, 20)


@given(numbers, st.floats(1e-6, 1e12), widths, widths)
def test_grid_edges_rise_from_low_to_below_high(low, width, n_equal, n_log):
    high = low + width
    if not low < high:
        return
    edges = grid_edges(low, high, n_equal, n_log)
    assert edges[0] == low
    assert (np.diff(edges) > 0).all()
    assert edges[-1] < high


def test_grid_edges_of_narrow_range_are_low_only():
    low = 1e12
    assert candidate_edges(low, np.nextafter(low, np.inf)).tolist() == [low]


def test_grid_edges_have_equal_widths():
    assert grid_edges(10, 50, 4, 0).tolist() == [10, 20, 30, 40]


def test_grid_edges_without_widths_are_low_only():
    assert grid_edges(-3, 5, 0, 0).tolist() == [-3]


def test_grid_edges_grow_from_thousandth_of_range():
    edges = grid_edges(5, 1005, 0, 10)
    assert edges.size == 10
    steps = (edges - 5 + 1) / 1
    assert np.allclose(steps[1:] / steps[:-1], 1001 ** (1 / 10))


def test_grid_edges_grow_from_zero_to_both_sides():
    edges = grid_edges(-10, 1000, 0, 8)
    assert 0.0 in edges
    above, below = edges[edges > 0], edges[(edges < 0) & (edges > -10)]
    assert above.size == 7
    assert below.size == 3
    assert above[0] == pytest.approx(math.expm1(math.log(1001) / 8))
    assert below[-1] == pytest.approx(-10 / 1000 * math.expm1(math.log(1001) / 4))


def test_grid_edges_of_equal_widths_do_not_add_zero():
    assert grid_edges(-1, 2, 2, 0).tolist() == [-1, 0.5]


def test_candidate_edges_contain_equal_and_growing_widths():
    edges = candidate_edges(0, 6400)
    assert {0.0, 100.0, 6300.0} <= set(edges.tolist())
    assert 100 < edges.size <= 128
    assert (edges < 100).sum() > 25


def test_candidate_edges_are_dense_around_zero():
    edges = candidate_edges(-1000, 1000)
    assert ((edges > 0) & (edges < 10)).sum() >= 20
    assert ((edges < 0) & (edges > -10)).sum() >= 10
