"""Table files: accepted formats, and errors for other files."""

from __future__ import annotations

import gzip
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from shoal.data import tables
from shoal.data import tables as table_files
from shoal.errors import ShoalError, UsageError, format_install_command


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
        tables.read_table_file(source)
    assert error.value.code == expected
    return str(error.value)


class TestCsv:
    @pytest.mark.parametrize("name", ["rows.csv", "rows.CSV", "rows.csv.gz"])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_read_csv_returns_columns(
        self, csv_file: Callable[..., Path], name: str, mark: str, end: str
    ) -> None:
        text = mark + end.join(['age, "sex"', "3, f", "", '"4","a ""b"", c"', ",", ""])
        columns = tables.read_table_file(csv_file(text, name))
        assert {key: column.tolist() for key, column in columns.items()} == {
            "age": ["3", "4", None],
            "sex": ["f", 'a "b", c', None],
        }
        assert tables.count_rows(columns) == 3

    def test_read_csv_accepts_cells_with_line_breaks(self, csv_file: Callable[..., Path]) -> None:
        assert tables.read_table_file(csv_file('a,b\n"x\ny",2\n'))["a"].tolist() == ["x\ny"]

    def test_header_alone_gives_table_without_rows(self, csv_file: Callable[..., Path]) -> None:
        columns = tables.read_table_file(csv_file("a,b\n"))
        assert list(columns) == ["a", "b"] and tables.count_rows(columns) == 0

    @pytest.mark.parametrize(
        ("content", "where"),
        [
            ("", "no columns"),
            ("\n\n", "no columns"),
            ("a,b\n1,2\n3\n", "rows.csv:3  The row has 1 cell, the first line has 2."),
            ('a,b\n"x\ny",2\n1,2,3\n', "rows.csv:4"),
            ("a,,b\n", "column 2 has no name"),
            ("a,b,a\n", "columns 1 and 3 have the same name"),
            (",,\na,b,c\n", "column 1 has no name"),
            (b"a,b\n1,\x00\n", "rows.csv:2"),
            (b"a,b\n1,2\n\xff\xfe,3\n", "rows.csv:3  The line is not UTF-8 text."),
            ('a,b\n1,"open\n', "not CSV"),
            ("a,b\r1,2\r", "rows.csv:1  A line ends in a carriage return alone."),
            ("a;b\n1;2\n", "Separate columns by commas."),
            ("a\tb\n1\t2\n", "Separate columns by commas."),
            ("a\n" + "x" * 200_000 + "\n", "not CSV"),
        ],
    )
    def test_malformed_csv_error_names_line(
        self, csv_file: Callable[..., Path], content: str | bytes, where: str
    ) -> None:
        error = refused(csv_file(content), "DATA-007")
        assert where in error and "\n  fix  " in error and "?." not in error

    @pytest.mark.parametrize(
        "text",
        [
            "a,b\nsecret\n",
            "39,secret,x,secret\n1,2,3,4\n",
            "39;secret\n1;2\n",
            "secret,,b\n",
            'a,"b"secret\n',
        ],
    )
    def test_errors_repeat_neither_cells_nor_names(
        self, csv_file: Callable[..., Path], text: str
    ) -> None:
        assert "secret" not in refused(csv_file(text), "DATA-007")

    def test_empty_lines_before_header_are_skipped(self, csv_file: Callable[..., Path]) -> None:
        assert tables.read_table_file(csv_file("\n  \n\r\na,b\n1,2\n"))["b"].tolist() == ["2"]

    def test_unprintable_file_name_is_escaped(self, csv_file: Callable[..., Path]) -> None:
        for name in ("e\x1b[31m.csv", "e\x1b[31m.csv.gz", "e\x1b[31m.xlsx"):
            code = "DATA-006" if name.endswith("x") else "DATA-007"
            assert "\x1b" not in refused(csv_file("a,b\n1\n", name), code)

    def test_rejects_long_lines_and_too_many_cells(
        self, csv_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(table_files, "MAX_LINE", 50)
        assert "rows.csv:2" in refused(csv_file("a\n" + "x" * 60 + "\n"), "DATA-007")
        monkeypatch.setattr(table_files, "MAX_CELLS", 3)
        assert "more than 3 cells" in refused(csv_file("a,b\n1,2\n3,4\n"), "DATA-007")
        monkeypatch.setattr(table_files, "MAX_COLUMNS", 1)
        assert "at most 1" in refused(csv_file("a,b\n"), "DATA-007")

    def test_rejects_file_that_is_not_gzip(
        self, csv_file: Callable[..., Path], tmp_path: Path
    ) -> None:
        whole = csv_file("a,b\n" * 5_000, "rows.csv.gz").read_bytes()
        for broken in (b"a,b\n1,2\n", whole[:-9], whole[:20] + b"\xff" * 30 + whole[50:]):
            path = tmp_path / "broken.csv.gz"
            path.write_bytes(broken)
            refused(path, "DATA-006")


class TestOtherFiles:
    def test_read_parquet_returns_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        parquet.write_table(
            pa.table({"age": [3, None], "sex": ["f", "m"], "tags": [[1, 2], [3, 4]]}), path
        )
        columns = tables.read_table_file(path)
        assert columns["age"].tolist() == [3, None]
        assert columns["tags"].tolist() == [[1, 2], [3, 4]] and columns["tags"].shape == (2,)

    def test_rejects_damaged_parquet_and_repeated_names(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "rows.parquet"
        parquet.write_table(
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path
        )
        refused(path, "DATA-007")
        monkeypatch.setattr(table_files, "MAX_CELLS", 1)
        refused(path, "DATA-007")
        path.write_bytes(path.read_bytes()[:-20])
        refused(path, "DATA-006")

    def test_parquet_without_pyarrow_names_extra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "rows.parquet"
        path.touch()
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UsageError) as error:
            tables.read_table_file(path)
        assert error.value.code == "USAGE-002"
        assert error.value.fix == format_install_command("arrow")

    def test_read_sqlite_returns_table(self, tmp_path: Path) -> None:
        path = tmp_path / "ro ws?#.db"
        with sqlite3.connect(path) as database:
            database.execute('CREATE TABLE "pa""tients" (age INTEGER, name TEXT)')
            database.execute('INSERT INTO "pa""tients" VALUES (3, NULL), (4.5, \'x\')')
        database.close()
        before = path.read_bytes()
        columns = tables.read_table_file(path)
        assert {name: column.tolist() for name, column in columns.items()} == {
            "age": [3, 4.5],
            "name": [None, "x"],
        }
        assert tables.read_table_file(f'{path}#pa"tients')["age"].tolist() == [3, 4.5]
        assert "has no table" in refused(f"{path}#other", "DATA-007")
        assert path.read_bytes() == before

    def test_several_sqlite_tables_require_a_choice(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.sqlite"
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE a (x)")
            database.execute("CREATE TABLE b (x)")
            database.execute("CREATE VIEW c AS SELECT 1 AS x")
        database.close()
        assert "rows.sqlite#a" in refused(path, "DATA-007")
        assert "c is a view" in refused(f"{path}#c", "DATA-007")
        assert "has no table 'd'" in refused(f"{path}#d", "DATA-007")
        assert tables.count_rows(tables.read_table_file(f"{path}#b")) == 0

    def test_rejects_file_that_is_not_a_database(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "rows.db"
        path.write_bytes(b"not a database, but long enough to look like one" * 10)
        refused(path, "DATA-006")
        path.write_bytes(b"")
        assert "has no tables" in refused(path, "DATA-007")
        with sqlite3.connect(path) as database:
            database.execute("CREATE VIEW v AS SELECT 1 AS x")
        database.close()
        assert "has no tables" in refused(path, "DATA-007") and "v is a view" in refused(
            f"{path}#v", "DATA-007"
        )
        with sqlite3.connect(path) as database:
            database.execute("DROP VIEW v")
            database.execute("CREATE TABLE a (x, y)")
            database.execute("INSERT INTO a VALUES (1, 2), (3, CAST(x'ff' AS TEXT))")
        database.close()
        refused(path, "DATA-006")
        monkeypatch.setattr(table_files, "MAX_CELLS", 1)
        refused(path, "DATA-007")

    @pytest.mark.parametrize(
        "name", ["missing.csv", "rows.xlsx", "", ".", "a\0b.csv", "missing.db#t", "rows.csv#t"]
    )
    def test_rejects_missing_files_and_unknown_formats(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "rows.xlsx").touch()
        refused(str(tmp_path / name) if name else "", "DATA-006")

    def test_rejects_directory(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").mkdir()
        assert "it is a directory" in refused(tmp_path / "rows.csv", "DATA-006")
        assert "no such file" in refused(tmp_path / "none.csv", "DATA-006")

    @pytest.mark.parametrize("table", ["a#b", "x.db#y", "sqliteX", "with space", "#"])
    def test_sqlite_tables_with_any_name_are_read(self, tmp_path: Path, table: str) -> None:
        path = tmp_path / "odd.db#1.db"
        with sqlite3.connect(path) as database:
            database.execute(f'CREATE TABLE "{table}" (x)')
            database.execute("CREATE TABLE other (y)")
        database.close()
        assert list(tables.read_table_file(f"{path}#{table}")) == ["x"]

    def test_locked_database_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(table_files, "SQLITE_TIMEOUT", 0.0)
        path = tmp_path / "rows.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("CREATE TABLE a (x)")
            database.execute("BEGIN EXCLUSIVE")
            assert "another process has locked it" in refused(path, "DATA-006")
            database.execute("ROLLBACK")
            assert list(tables.read_table_file(path)) == ["x"]

    def test_sqlite_table_names_are_escaped(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.db"
        with sqlite3.connect(path) as database:
            database.execute('CREATE TABLE "t\x1b[31m" (x)')
            database.execute("CREATE TABLE b (x)")
        database.close()
        for source in (path, f"{path}#none"):
            error = refused(source, "DATA-007")
            assert "\x1b" not in error and "t\\x1b[31m" in error

    def test_column_names_are_stripped(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({" a ": [1], "b": [2]}), tmp_path / "rows.parquet")
        assert list(tables.read_table_file(tmp_path / "rows.parquet")) == ["a", "b"]
        parquet.write_table(pa.table({" a": [1], "a": [2]}), tmp_path / "rows.parquet")
        assert "columns 1 and 2" in refused(tmp_path / "rows.parquet", "DATA-007")
