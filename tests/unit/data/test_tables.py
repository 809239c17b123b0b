"""Tables as columns: dataframes of any library, and a limit on the rows of a person."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from shoal.data import tables
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import SpecError


class TestFrames:
    @pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table, dict])
    def test_dataframes_of_all_libraries_give_same_columns(self, library: Any) -> None:
        frame = library({"age": [3, 4, 5], "sex": ["f", None, "m"], "gap": [1.5, None, 2.0]})
        columns = tables.from_frame(frame)
        schema = Schema(
            [Numeric("age", 0, 9), Categorical("sex", ["f", "m"]), Numeric("gap", 0, 9)]
        )
        encoded = schema.encode(columns)
        assert encoded["age"].tolist() == [3, 4, 5] and encoded["sex"].tolist() == [0, -1, 1]
        np.testing.assert_array_equal(encoded["gap"], [1.5, np.nan, 2.0])

    def test_nullable_and_categorical_columns_of_pandas_are_read(self) -> None:
        frame = pd.DataFrame(
            {
                "n": pd.array([1, None], dtype="Int64"),
                "c": pd.Categorical(["u", None]),
                3: [True, False],
            }
        )
        columns = tables.from_frame(frame)
        assert {name: column.tolist() for name, column in columns.items()} == {
            "n": [1, None],
            "c": ["u", None],
            "3": [True, False],
        }

    def test_array_columns_get_names(self) -> None:
        assert list(tables.from_frame(np.zeros((2, 3)))) == ["x0", "x1", "x2"]
        assert tables.from_frame([[1, 2], [3, 4]], names=["a", "b"])["b"].tolist() == [2, 4]

    @pytest.mark.parametrize(
        "frame",
        [
            np.arange(3),
            [[1, 2], [3]],
            "text",
            None,
            pd.Series([1]),
            pd.DataFrame([[1, 2]], columns=["a", "a"]),
            pl.LazyFrame({"a": [1]}),
            {"a": [1], "b": [1, 2]},
            {"a": 5},
            {},
            pd.DataFrame(),
        ],
        ids=str,
    )
    def test_rejects_objects_that_are_not_tables(self, frame: Any) -> None:
        with pytest.raises(SpecError) as error:
            tables.from_frame(frame)
        assert error.value.code == "DATA-007"

    def test_masked_cells_are_missing(self) -> None:
        array = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
        columns = tables.from_frame(array, names=["a", "b"])
        assert columns["b"].tolist() == [None, 4]
        assert tables.from_frame({"b": array[:, 1]})["b"].tolist() == [None, 4]

    def test_errors_do_not_repeat_column_names(self) -> None:
        for frame in (
            pd.DataFrame([[1, 2]], columns=["SECRET", "SECRET"]),
            {"SECRET": [1], "SECRET ": [2]},
        ):
            with pytest.raises(SpecError) as error:
                tables.from_frame(frame)
            assert "SECRET" not in str(error.value)

    def test_rejects_names_that_do_not_fit_array(self) -> None:
        for names in (["a"], ["a", "a"], ["a", ""]):
            with pytest.raises(SpecError) as error:
                tables.from_frame(np.zeros((2, 2)), names)
            assert error.value.code == "DATA-007"


COLUMNS = {"who": np.array(["a", "b", "a", "c", "a", "b"], object), "n": np.arange(6)}


class TestLimitRows:
    def test_limit_rows_keeps_first_rows_of_each_person(self) -> None:
        limited, n_dropped = tables.limit_rows(COLUMNS, "who", 1)
        assert (
            limited["n"].tolist() == [0, 1, 3]
            and limited["who"].tolist() == ["a", "b", "c"]
            and n_dropped == 3
        )
        assert tables.limit_rows(COLUMNS, "who", 3)[1] == 0

    def test_limit_rows_treats_1_and_1_0_as_same_person(self) -> None:
        limited, n_dropped = tables.limit_rows(
            {"who": np.array([1, 1.0, "1", 2], object)}, "who", 1
        )
        assert n_dropped == 2 and tables.count_rows(limited) == 2

    def test_limit_rows_rejects_rows_without_person(self) -> None:
        with pytest.raises(SpecError) as error:
            tables.limit_rows({"who": np.array(["a", None], object)}, "who", 1)
        assert error.value.code == "DATA-005" and "row 2" in error.value.what
        with pytest.raises(SpecError) as error:
            tables.limit_rows(COLUMNS, "patient", 1)
        assert error.value.code == "DATA-001" and "Columns in the data: 2." in str(error.value)
