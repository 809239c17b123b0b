"""Readers of a participant's data: what they accept, and what they say about the rest."""

from __future__ import annotations

import gzip
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from shoal import tables
from shoal.domain import Categorical, Numeric, Schema
from shoal.errors import ShoalError, SpecError, UsageError


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[..., Path]:
    def write(content: str | bytes, name: str = "rows.csv") -> Path:
        path = tmp_path / name
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def refused(source: str | Path, expected: str) -> str:
    with pytest.raises(ShoalError) as error:
        tables.read(source)
    assert error.value.code == expected
    return str(error.value)


class TestCsv:
    @pytest.mark.parametrize("name", ["rows.csv", "rows.CSV", "rows.csv.gz"])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_reads_columns(self, csv_file: Callable[..., Path], name: str, mark: str, end: str) -> None:
        text = mark + end.join(['age, "sex"', "3, f", "", '"4","a ""b"", c"', ",", ""])
        columns = tables.read(csv_file(text, name))
        assert {key: column.tolist() for key, column in columns.items()} == {"age": ["3", "4", None], "sex": ["f", 'a "b", c', None]}
        assert tables.n_rows(columns) == 3

    def test_reads_cells_of_several_lines(self, csv_file: Callable[..., Path]) -> None:
        assert tables.read(csv_file('a,b\n"x\ny",2\n'))["a"].tolist() == ["x\ny"]

    def test_a_header_alone_is_a_table_without_rows(self, csv_file: Callable[..., Path]) -> None:
        columns = tables.read(csv_file("a,b\n"))
        assert list(columns) == ["a", "b"] and tables.n_rows(columns) == 0

    @pytest.mark.parametrize(
        ("content", "where"),
        [
            ("", "no columns"),
            ("\n\n", "no columns"),
            ("a,b\n1,2\n3\n", "rows.csv:3  The row has 1 cells, the header has 2."),
            ('a,b\n"x\ny",2\n1,2,3\n', "rows.csv:4"),
            ("a,,b\n", "column 2 has no name"),
            ("a,b,a\n", "stands over two columns"),
            (b"a,b\n1,\x00\n", "rows.csv:2"),
            (b"a,b\n1,2\n\xff\xfe,3\n", "rows.csv:3  The line is not UTF-8 text."),
            ('a,b\n1,"open\n', "not CSV"),
            ("a,b\r1,2\r", "not CSV"),
            ("a\n" + "x" * 200_000 + "\n", "not CSV"),
        ],
    )
    def test_says_what_is_wrong_and_in_which_line(self, csv_file: Callable[..., Path], content: str | bytes, where: str) -> None:
        assert where in refused(csv_file(content), "DATA-007")

    def test_never_repeats_a_cell(self, csv_file: Callable[..., Path]) -> None:
        assert "secret" not in refused(csv_file("a,b\nsecret\n"), "DATA-007")

    def test_refuses_endless_lines_and_too_many_cells(self, csv_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tables, "MAX_LINE", 50)
        assert "rows.csv:2" in refused(csv_file("a\n" + "x" * 60 + "\n"), "DATA-007")
        monkeypatch.setattr(tables, "MAX_CELLS", 3)
        assert "more than 3 cells" in refused(csv_file("a,b\n1,2\n3,4\n"), "DATA-007")
        monkeypatch.setattr(tables, "MAX_COLUMNS", 1)
        assert "at most 1" in refused(csv_file("a,b\n"), "DATA-007")

    def test_refuses_what_is_not_gzip(self, csv_file: Callable[..., Path], tmp_path: Path) -> None:
        whole = csv_file("a,b\n" * 5_000, "rows.csv.gz").read_bytes()
        for broken in (b"a,b\n1,2\n", whole[:-9], whole[:20] + b"\xff" * 30 + whole[50:]):
            path = tmp_path / "broken.csv.gz"
            path.write_bytes(broken)
            refused(path, "DATA-006")


class TestOtherFiles:
    def test_reads_parquet(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        parquet.write_table(pa.table({"age": [3, None], "sex": ["f", "m"], "tags": [[1, 2], [3, 4]]}), path)
        columns = tables.read(path)
        assert columns["age"].tolist() == [3, None]
        assert columns["tags"].tolist() == [[1, 2], [3, 4]] and columns["tags"].shape == (2,)

    def test_refuses_broken_parquet_and_repeated_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "rows.parquet"
        parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
        refused(path, "DATA-007")
        monkeypatch.setattr(tables, "MAX_CELLS", 1)
        refused(path, "DATA-007")
        path.write_bytes(path.read_bytes()[:-20])
        refused(path, "DATA-006")

    def test_names_the_extra_that_parquet_needs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "rows.parquet"
        path.touch()
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UsageError) as error:
            tables.read(path)
        assert error.value.code == "USAGE-002" and error.value.fix == "pip install 'shoal[arrow]'"

    def test_reads_a_table_of_sqlite(self, tmp_path: Path) -> None:
        path = tmp_path / "ro ws?#.db"
        with sqlite3.connect(path) as database:
            database.execute('CREATE TABLE "pa""tients" (age INTEGER, name TEXT)')
            database.execute('INSERT INTO "pa""tients" VALUES (3, NULL), (4.5, \'x\')')
        database.close()
        before = path.read_bytes()
        columns = tables.read(path)
        assert {name: column.tolist() for name, column in columns.items()} == {"age": [3, 4.5], "name": [None, "x"]}
        assert tables.read(f'{path}#pa"tients')["age"].tolist() == [3, 4.5]
        assert "has no table" in refused(f"{path}#other", "DATA-007")
        assert path.read_bytes() == before

    def test_asks_which_table_of_several(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.sqlite"
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE a (x)")
            database.execute("CREATE TABLE b (x)")
            database.execute("CREATE VIEW c AS SELECT 1 AS x")
        database.close()
        assert "rows.sqlite#a" in refused(path, "DATA-007")
        assert "has no table" in refused(f"{path}#c", "DATA-007")
        assert tables.n_rows(tables.read(f"{path}#b")) == 0

    def test_refuses_what_is_not_a_database(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "rows.db"
        path.write_bytes(b"not a database, but long enough to look like one" * 10)
        refused(path, "DATA-006")
        path.write_bytes(b"")
        assert "has 0 tables" in refused(path, "DATA-007")
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE a (x, y)")
            database.execute("INSERT INTO a VALUES (1, 2), (3, CAST(x'ff' AS TEXT))")
        database.close()
        refused(path, "DATA-006")
        monkeypatch.setattr(tables, "MAX_CELLS", 1)
        refused(path, "DATA-007")

    @pytest.mark.parametrize("name", ["missing.csv", "rows.xlsx", "", ".", "a\0b.csv", "missing.db#t", "rows.csv#t"])
    def test_refuses_files_that_are_not_there_or_of_no_known_kind(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "rows.xlsx").touch()
        refused(str(tmp_path / name) if name else "", "DATA-006")

    def test_refuses_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").mkdir()
        refused(tmp_path / "rows.csv", "DATA-006")


class TestFrames:
    @pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table, dict])
    def test_any_dataframe_gives_the_same_columns(self, library: Any) -> None:
        frame = library({"age": [3, 4, 5], "sex": ["f", None, "m"], "gap": [1.5, None, 2.0]})
        columns = tables.from_frame(frame)
        schema = Schema([Numeric("age", 0, 9), Categorical("sex", ["f", "m"]), Numeric("gap", 0, 9)])
        encoded = schema.encode(columns)
        assert encoded["age"].tolist() == [3, 4, 5] and encoded["sex"].tolist() == [0, -1, 1]
        np.testing.assert_array_equal(encoded["gap"], [1.5, np.nan, 2.0])

    def test_nullable_and_categorical_columns_of_pandas(self) -> None:
        frame = pd.DataFrame({"n": pd.array([1, None], dtype="Int64"), "c": pd.Categorical(["u", None]), 3: [True, False]})
        columns = tables.from_frame(frame)
        assert {name: column.tolist() for name, column in columns.items()} == {"n": [1, None], "c": ["u", None], "3": [True, False]}

    def test_arrays_get_names(self) -> None:
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
    def test_refuses_what_is_no_table(self, frame: Any) -> None:
        with pytest.raises(SpecError) as error:
            tables.from_frame(frame)
        assert error.value.code == "DATA-007"

    def test_refuses_names_that_do_not_fit_an_array(self) -> None:
        for names in (["a"], ["a", "a"], ["a", ""]):
            with pytest.raises(SpecError) as error:
                tables.from_frame(np.zeros((2, 2)), names)
            assert error.value.code == "DATA-007"


COLUMNS = {"who": np.array(["a", "b", "a", "c", "a", "b"], object), "n": np.arange(6)}


class TestLimitRows:
    def test_keeps_the_first_rows_of_each_person(self) -> None:
        limited, n_dropped = tables.limit_rows(COLUMNS, "who", 1)
        assert limited["n"].tolist() == [0, 1, 3] and limited["who"].tolist() == ["a", "b", "c"] and n_dropped == 3
        assert tables.limit_rows(COLUMNS, "who", 3)[1] == 0

    def test_takes_1_and_1_0_for_the_same_person(self) -> None:
        limited, n_dropped = tables.limit_rows({"who": np.array([1, 1.0, "1", 2], object)}, "who", 1)
        assert n_dropped == 2 and tables.n_rows(limited) == 2

    def test_refuses_rows_that_are_nobodys(self) -> None:
        with pytest.raises(SpecError) as error:
            tables.limit_rows({"who": np.array(["a", None], object)}, "who", 1)
        assert error.value.code == "DATA-005" and "row 2" in error.value.what
        with pytest.raises(SpecError) as error:
            tables.limit_rows(COLUMNS, "patient", 1)
        assert error.value.code == "DATA-001"
