"""Cells: what is a text, what is a number, what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.cells import as_column, cell_text, to_number, to_numbers, where
from shoal.errors import SpecError


def test_cell_text_of_everything_that_means_missing() -> None:
    assert [cell_text(value) for value in (None, "", float("nan"), np.float64("nan"), pd.NA, pd.NaT)] == [None] * 6
    assert [cell_text(value) for value in (0, 3.0, 3.5, "x", True, np.int64(4))] == ["0", "3", "3.5", "x", "True", "4"]
    assert [cell_text(value) for value in (" ", "\t", np.ma.masked)] == [None] * 3
    assert cell_text(10**5000) == hex(10**5000)


@pytest.mark.parametrize(
    ("cell", "number"),
    [("3", 3.0), (" 4 ", 4.0), (True, 1.0), (np.int8(5), 5.0), ("1e3", 1000.0)]
    + [(cell, None) for cell in ("inf", float("-inf"), "1e999", "1_0", b"5", 1j, np.complex64(1), "x", [1], 10**400, "0x10")],
)
def test_one_definition_of_a_number(cell: Any, number: float | None) -> None:
    assert to_number(cell) == number


@pytest.mark.parametrize("column", [np.array([1.0, np.inf]), np.array([1, 1j]), np.array(["1", "inf"], object)])
def test_numbers_are_finite_and_real(column: Any) -> None:
    with pytest.raises(SpecError) as error:
        to_numbers("a", column)
    assert error.value.code == "DATA-004" and "not a finite number" in error.value.what


def test_columns_of_any_kind_become_arrays() -> None:
    assert as_column("a", (1, 2)).tolist() == [1, 2] and as_column("a", pd.Series([1, 2])).tolist() == [1, 2]
    assert as_column("a", [[1, 2], [3]]).shape == (2,)
    assert as_column("a", np.ma.array(["u", "v"], mask=[True, False])).tolist() == [None, "v"]


def test_where_a_fault_is() -> None:
    assert where(np.array([False, True])) == "row 2 has a value that is"
    assert where(np.array([False, True, True])) == "2 rows, the first of them row 2, have values that are"
