"""Parsing of cells: texts, numbers and missing values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.data.cells import (
    as_column,
    cell_text,
    describe_rows,
    map_texts,
    to_number,
    to_numbers,
    to_texts,
)
from shoal.errors import SpecError


def test_cell_text_returns_none_for_missing_values() -> None:
    assert [
        cell_text(value) for value in (None, "", float("nan"), np.float64("nan"), pd.NA, pd.NaT)
    ] == [None] * 6
    assert [cell_text(value) for value in (0, 3.0, 3.5, "x", True, np.int64(4))] == [
        "0",
        "3",
        "3.5",
        "x",
        "True",
        "4",
    ]
    assert [cell_text(value) for value in (" ", "\t", np.ma.masked)] == [None] * 3
    assert cell_text(10**5000) == hex(10**5000)


@pytest.mark.parametrize(
    ("cell", "number"),
    [("3", 3.0), (" 4 ", 4.0), (True, 1.0), (np.int8(5), 5.0), ("1e3", 1000.0)]
    + [
        (cell, None)
        for cell in (
            "inf",
            float("-inf"),
            "1e999",
            "1_0",
            b"5",
            1j,
            np.complex64(1),
            "x",
            [1],
            10**400,
            "0x10",
        )
    ],
)
def test_to_numbers_agrees_with_parsing_of_single_cells(cell: Any, number: float | None) -> None:
    assert to_number(cell) == number


@pytest.mark.parametrize(
    "column", [np.array([1.0, np.inf]), np.array([1, 1j]), np.array(["1", "inf"], object)]
)
def test_to_numbers_rejects_infinite_and_complex_numbers(column: Any) -> None:
    with pytest.raises(SpecError) as error:
        to_numbers("a", column)
    assert error.value.code == "DATA-004" and "not a finite number" in error.value.what


def test_as_column_returns_array_for_any_input() -> None:
    assert as_column("a", (1, 2)).tolist() == [1, 2] and as_column(
        "a", pd.Series([1, 2])
    ).tolist() == [1, 2]
    assert as_column("a", [[1, 2], [3]]).shape == (2,)
    assert as_column("a", np.ma.array(["u", "v"], mask=[True, False])).tolist() == [None, "v"]


def test_describe_rows_names_first_row_and_count() -> None:
    assert describe_rows(np.array([False, True])) == "row 2 has a value that is"
    assert (
        describe_rows(np.array([False, True, True]))
        == "2 rows, the first of them row 2, have values that are"
    )


class Colour(str):
    """An object that equals its text but is written differently."""

    def __str__(self) -> str:
        return "Colour." + super().__str__()


class TestRememberedCells:
    """The cache of parsed cells must not change results."""

    @pytest.mark.parametrize(
        "cells",
        [
            [1, True, 1.0, "1", Decimal("1.0"), Decimal("1")],
            [True, 1, True, 1],
            [Decimal("1.0"), Decimal("1"), None],
            ["red", Colour("red")],
            [[1], [1]],
            [0.0, -0.0, 0, False],
            [1.5, 1.5, float("nan"), float("nan"), None, "nan"],
            [Colour("red"), "red", Colour("red"), np.str_("red")],
            [[1], [1], {"a": 1}, None],
            [pd.NA, "a", pd.NaT, np.ma.masked],
            ["a", " a", "a ", "", None, "a"],
            [10**5000, 10**5000, 3],
        ],
    )
    def test_equal_cells_of_different_types_are_read_separately(self, cells: list[Any]) -> None:
        column = np.fromiter(cells * 2, object, 2 * len(cells))
        assert to_texts("a", column) == [cell_text(cell) for cell in cells * 2]

    @pytest.mark.parametrize(
        "dtype", ["?", "i1", "u8", "f2", "f4", "f8", "g", "c8", "U3", "M8[D]", "m8[s]"]
    )
    def test_map_texts_accepts_arrays_of_any_type(self, dtype: str) -> None:
        column = (
            np.array([0, 1, 1, 0]).astype(dtype)
            if dtype[0] != "f"
            else np.array([0.1, 2, np.nan, 0.1], dtype)
        )
        assert to_texts("a", column) == [cell_text(cell) for cell in column]

    def test_map_texts_reads_numbers_among_texts(self) -> None:
        column = np.array(["1", True, 1, " 1 ", None, 2.5, "", "1"], object)
        np.testing.assert_array_equal(to_numbers("a", column), [1, 1, 1, 1, np.nan, 2.5, np.nan, 1])

    def test_repeated_cell_is_read_once(self) -> None:
        read: list[str | None] = []
        column = np.array(["u", None, "v", "u", None, "v"], object)
        assert (
            list(map_texts("a", column, lambda text: read.append(text) or text)) == column.tolist()
        )  # type: ignore[func-returns-value]
        assert read == ["u", None, "v"]

    def test_cache_limit_does_not_change_results(self) -> None:
        column = np.arange(2**16 + 10) % (2**16 + 5)
        assert to_texts("a", column) == [str(i) for i in column.tolist()]
