"""Hostile tables: any file gives columns or a `ShoalError`, also with a schema."""

from __future__ import annotations

import gzip
import io
import sqlite3
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from shoal.data import tables
from shoal.data.schema import Categorical, Numeric, Schema, SchemaInferredWarning
from shoal.errors import ShoalError
from shoal.study.loader import parse_study_text
from shoal.study.starters.infer import infer_study
from tests.support.hostile import hostile

SCHEMA = Schema(
    [Numeric("a", 0, 10, bins=[5]), Categorical("b", ["x", "y"])],
    label=Categorical("c", ["no", "yes"]),
)
PLAIN = [
    "a",
    "b",
    "c",
    "x",
    "y",
    "no",
    "yes",
    "1",
    "9.5",
    "-3",
    "nan",
    "inf",
    "1_0",
    "1e999",
    "",
    " ",
    "é",
    "0x10",
    "True",
    "١",
    ";",
]
STRANGE = [
    '"',
    '""',
    "'",
    "\ufeff",
    "\0",
    "\x1b",
    "\ud7ff",
    "\u2028",
    "\r",
    "\n",
    ",",
    '"a,b"',
    '"a\nb"',
    "x" * 300,
    "1" * 400,
]
CELLS = st.sampled_from(PLAIN + STRANGE)
CSVS = st.lists(st.lists(CELLS, max_size=5).map(",".join), max_size=8).map("\n".join)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def check_table(source: Path | str) -> None:
    """Do everything that a participant does with a table."""
    try:
        columns = tables.read_table_file(source)
    except ShoalError as error:
        str(error)
        return
    lengths = {len(column) for column in columns.values()}
    assert lengths == {tables.count_rows(columns)} and all(name for name in columns)
    use_columns(columns)


def use_columns(columns: Any) -> None:
    for outside in ("error", "clip"):
        with suppress(ShoalError):
            SCHEMA.encode(columns, outside)  # type: ignore[arg-type]
    with suppress(ShoalError):
        SCHEMA.encode_label(columns)
    with suppress(ShoalError):
        tables.limit_rows(columns, next(iter(columns)), 1)
    with suppress(ShoalError), warnings.catch_warnings():
        warnings.simplefilter("ignore", SchemaInferredWarning)
        inferred = Schema.infer(columns)
        inferred.encode(columns)
    for protocol in ("anonml", "pfds"):
        try:
            text = infer_study(columns, protocol)[0]
        except ShoalError:
            continue
        # The draft is a valid study, and its own rows fit it.
        schema = parse_study_text(text).schema()
        schema.encode(columns)
        schema.encode_label(columns)


@hostile()
@given(CSVS | st.text(max_size=120) | CSVS.map(lambda text: "a,b,c\n1,x,no\n" + text))
def test_rubbish_csv_is_read_or_raises(scratch: Path, text: str) -> None:
    (scratch / "t.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
    check_table(scratch / "t.csv")


@hostile()
@given(
    st.binary(max_size=200),
    st.sampled_from([".csv", ".csv.gz", ".parquet", ".db", ".sqlite", ".xlsx", ""]),
)
def test_rubbish_bytes_are_read_or_raise(scratch: Path, data: bytes, suffix: str) -> None:
    (scratch / f"t{suffix}").write_bytes(data)
    check_table(scratch / f"t{suffix}")


def make_files() -> dict[str, bytes]:
    csv = b"a,b,c\n" + b"1,x,no\n7.5,y,yes\n,,no\n" * 20
    sink = io.BytesIO()
    parquet.write_table(
        pa.table({"a": [1.0, None, 3.0], "b": ["x", "y", None], "c": [[1], [2, 3], None]}), sink
    )
    path = "file:made?mode=memory&cache=shared"
    database = sqlite3.connect(path, uri=True)
    database.execute("CREATE TABLE t (a REAL, b TEXT, c BLOB)")
    database.executemany(
        "INSERT INTO t VALUES (?, ?, ?)", [(1.5, "x", b"\xff"), (None, "y", "no")] * 30
    )
    database.commit()
    image = database.serialize()
    database.close()
    return {
        ".csv": csv,
        ".csv.gz": gzip.compress(csv, mtime=0),
        ".parquet": sink.getvalue(),
        ".db": image,
    }


WHOLE = make_files()


@pytest.mark.parametrize("suffix", WHOLE)
@hostile()
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 60),
)
def test_mutated_table_is_read_or_raises(
    scratch: Path, suffix: str, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(WHOLE[suffix])
    for place, value in changes:
        data[place % len(data)] = value
    (scratch / f"m{suffix}").write_bytes(data[: len(data) - cut] if cut < 30 else data)
    check_table(scratch / f"m{suffix}")


@pytest.mark.parametrize("suffix", WHOLE)
def test_unmutated_tables_are_valid(scratch: Path, suffix: str) -> None:
    (scratch / f"w{suffix}").write_bytes(WHOLE[suffix])
    assert list(tables.read_table_file(scratch / f"w{suffix}")) == ["a", "b", "c"]


@hostile()
@given(st.text(max_size=30))
def test_table_with_strange_names_is_read_or_raises(scratch: Path, name: str) -> None:
    check_table(name)
    check_table(f"{scratch}/m.db#{name}")


SECRETS = st.lists(
    st.sampled_from(
        ["SECRET", "SECRET\n", " SECRET", "SECRET" * 50, "SECRET\u202e", "7SECRET", "1", "u", ""]
    ),
    min_size=2,
    max_size=4,
)


@hostile()
@given(
    rows=st.lists(SECRETS, min_size=1, max_size=12),
    n=st.integers(2, 4),
    mark=st.sampled_from([",", ";", "\t"]),
)
def test_table_errors_never_repeat_a_cell(
    scratch: Path, rows: list[list[str]], n: int, mark: str
) -> None:
    quoted = [mark.join('"' + cell + '"' for cell in (row * 2)[:n]) for row in rows]
    for text in ("\n".join(quoted), "a,b,c,d\n" + "\n".join(quoted * 3)):
        (scratch / "s.csv").write_text(text)
        try:
            columns = tables.read_table_file(scratch / "s.csv")
        except ShoalError as error:
            assert "SECRET" not in str(error)
            continue
        for use in (
            SCHEMA.encode,
            SCHEMA.encode_label,
            lambda c: infer_study(c, "anonml"),
            lambda c: tables.limit_rows(c, "who", 1),
        ):
            try:
                use(columns)
            except ShoalError as error:
                assert "SECRET" not in str(error)


THINGS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3)
    | st.lists(st.integers(), max_size=2)
)


@hostile()
@given(st.lists(st.tuples(THINGS, THINGS, THINGS), max_size=6))
def test_any_python_values_as_cells_are_read_or_raise(rows: list[tuple[Any, Any, Any]]) -> None:
    columns = {name: [row[i] for row in rows] for i, name in enumerate("abc")}
    with suppress(ShoalError):
        use_columns(
            tables.from_frame(
                {name: np.fromiter(cells, object, len(cells)) for name, cells in columns.items()}
            )
        )
