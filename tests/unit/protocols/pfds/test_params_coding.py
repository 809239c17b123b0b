"""Cells of a number, which follow from its range only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.protocols.pfds.params import code_feature, code_schema

ENDS = st.integers(-30, 30).map(float) | st.floats(-1e9, 1e9)


def find_cells(low: float, high: float, *numbers: float) -> list[int]:
    return code_feature(Numeric("x", low, high)).cut(np.array(numbers)).tolist()


def test_declared_bins_are_kept() -> None:
    kind = Categorical("kind", ["a", "b"], groups={"one": ["a"], "two": ["b"]})
    age = Numeric("age", 0, 5000, bins=[17])
    assert code_feature(kind) is kind and code_feature(age) is age
    schema = Schema([age, Numeric("floor", 0, 3), kind], label=Numeric("price", 0, 5000))
    assert [feature.n_bins for feature in code_schema(schema).features] == [3, 5, 3]
    assert code_schema(schema).label == schema.label


def test_few_whole_numbers_have_one_cell_each() -> None:
    assert find_cells(-2, 3, -2, -1, 0, 1, 2, 3, np.nan) == [0, 1, 2, 3, 4, 5, 6]
    assert len(code_feature(Numeric("hour", 0, 23)).bins or ()) == 23
    assert code_feature(Numeric("floor", 0, 3)).bins == (0.5, 1.5, 2.5)
    # A range of 25 whole numbers has eight equal widths. So have ranges of two or three, which may
    # be shares or marks, and ranges between fractions.
    for low, high in ((0, 24), (0, 1), (0, 2), (-1, 1), (0.5, 3.5)):
        assert code_feature(Numeric("x", low, high)).bins == tuple(
            low + (high - low) / 8 * i for i in range(1, 8)
        )


def test_wide_range_is_cut_by_magnitudes() -> None:
    assert code_feature(Numeric("gain", 0, 12800)).bins == (0, 100, 200, 400, 800, 1600, 3200, 6400)
    assert find_cells(0, 12800, 0, 1, 100, 101, 12800, np.nan) == [0, 1, 1, 2, 8, 9]
    assert code_feature(Numeric("price", 1000, 12800)).bins == (1600, 3200, 6400)
    assert code_feature(Numeric("x", 0, 2000)).bins == (250, 500, 750, 1000, 1250, 1500, 1750)


def test_wide_range_far_from_zero_has_equal_widths() -> None:
    for low, high in ((1e6, 1.008e6), (-12000, -4000), (4000, 12000)):
        assert code_feature(Numeric("day", low, high)).bins == tuple(
            low + (high - low) / 8 * i for i in range(1, 8)
        )


def test_magnitudes_are_symmetric_and_zero_has_a_cell() -> None:
    cells = find_cells(-12800, 3000, -6401, -6399, -101, -99, -1e-300, 0, 1e-300, 100, 101, 3000)
    assert [cell - cells[0] for cell in cells] == [0, 1, 6, 7, 7, 8, 9, 9, 10, 14]
    below, zero, missing = find_cells(-12800, 0, -0.1, 0.0, np.nan)
    assert missing == zero + 1 == below + 2


def test_range_of_few_floats_has_fewer_cells() -> None:
    assert code_feature(Numeric("x", 1e16, 1e16 + 2)).bins == (1e16,)
    assert code_feature(Numeric("x", 1.0, float(np.nextafter(1.0, 2)))).bins == (1.0,)


@given(ENDS, ENDS)
def test_code_feature_cuts_every_range(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    if low < high:
        feature = code_feature(Numeric("x", low, high))
        assert feature.bins is not None and len(feature.bins) <= 23
        cells = feature.cut(np.array([low, high, np.nan]))
        assert cells.tolist() == [0, len(feature.bins), len(feature.bins) + 1]
        assert code_feature(feature) == feature


@pytest.mark.parametrize("missing", [True, False])
def test_missing_values_have_a_cell_if_allowed(missing: bool) -> None:
    assert code_feature(Numeric("x", 0, 80, missing=missing)).n_bins == 8 + missing
