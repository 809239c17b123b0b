"""The cells that a number is cut into, by its range alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.domain import Categorical, Numeric, Schema
from shoal.protocols.pfds.coding import coded, coded_schema

ENDS = st.integers(-30, 30).map(float) | st.floats(-1e9, 1e9)


def cells_of(low: float, high: float, *numbers: float) -> list[int]:
    return coded(Numeric("x", low, high)).cut(np.array(numbers)).tolist()


def test_what_has_cells_keeps_them() -> None:
    kind = Categorical("kind", ["a", "b"], groups={"one": ["a"], "two": ["b"]})
    age = Numeric("age", 0, 5000, bins=[17])
    assert coded(kind) is kind and coded(age) is age
    schema = Schema([age, Numeric("floor", 0, 3), kind], label=Numeric("price", 0, 5000))
    assert [feature.n_bins for feature in coded_schema(schema).features] == [3, 5, 3]
    assert coded_schema(schema).label == schema.label


def test_few_whole_numbers_have_a_cell_each() -> None:
    assert cells_of(-2, 3, -2, -1, 0, 1, 2, 3, np.nan) == [0, 1, 2, 3, 4, 5, 6]
    assert len(coded(Numeric("hour", 0, 23)).bins or ()) == 23
    assert coded(Numeric("floor", 0, 3)).bins == (0.5, 1.5, 2.5)
    # A range of 25 whole numbers is cut into eight widths, and so are those of two or three, which may be a share or a mark, and one
    # between fractions.
    for low, high in ((0, 24), (0, 1), (0, 2), (-1, 1), (0.5, 3.5)):
        assert coded(Numeric("x", low, high)).bins == tuple(low + (high - low) / 8 * i for i in range(1, 8))


def test_a_wide_range_is_cut_by_magnitudes() -> None:
    assert coded(Numeric("gain", 0, 12800)).bins == (0, 100, 200, 400, 800, 1600, 3200, 6400)
    assert cells_of(0, 12800, 0, 1, 100, 101, 12800, np.nan) == [0, 1, 1, 2, 8, 9]
    assert coded(Numeric("price", 1000, 12800)).bins == (1600, 3200, 6400)
    assert coded(Numeric("x", 0, 2000)).bins == (250, 500, 750, 1000, 1250, 1500, 1750)


def test_a_wide_range_far_from_zero_is_cut_into_equal_widths() -> None:
    for low, high in ((1e6, 1.008e6), (-12000, -4000), (4000, 12000)):
        assert coded(Numeric("day", low, high)).bins == tuple(low + (high - low) / 8 * i for i in range(1, 8))


def test_magnitudes_are_mirrored_and_zero_is_apart() -> None:
    cells = cells_of(-12800, 3000, -6401, -6399, -101, -99, -1e-300, 0, 1e-300, 100, 101, 3000)
    assert [cell - cells[0] for cell in cells] == [0, 1, 6, 7, 7, 8, 9, 9, 10, 14]
    below, zero, missing = cells_of(-12800, 0, -0.1, 0.0, np.nan)
    assert missing == zero + 1 == below + 2


def test_a_range_that_floats_can_hardly_cut_has_fewer_cells() -> None:
    assert coded(Numeric("x", 1e16, 1e16 + 2)).bins == (1e16,)
    assert coded(Numeric("x", 1.0, float(np.nextafter(1.0, 2)))).bins == (1.0,)


@given(ENDS, ENDS)
def test_every_range_can_be_cut(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    if low < high:
        feature = coded(Numeric("x", low, high))
        assert feature.bins is not None and len(feature.bins) <= 23
        cells = feature.cut(np.array([low, high, np.nan]))
        assert cells.tolist() == [0, len(feature.bins), len(feature.bins) + 1]
        assert coded(feature) == feature


@pytest.mark.parametrize("missing", [True, False])
def test_missing_values_have_a_cell_where_they_may_be(missing: bool) -> None:
    assert coded(Numeric("x", 0, 80, missing=missing)).n_bins == 8 + missing
