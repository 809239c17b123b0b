"""A participant's data as columns: CSV, Parquet, a table of SQLite, or any dataframe.

A file is only ever read. An error about it names the file, the line or row and the column, and never repeats a cell. In a CSV, spaces
after a comma are not part of the value, an empty cell is a missing value, and lines without any cell are skipped.
"""

from __future__ import annotations

import csv
import gzip
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from shoal.domain import Columns, as_columns, cell_text
from shoal.errors import SpecError, UsageError

Table = dict[str, npt.NDArray[Any]]

MAX_COLUMNS = 10_000
MAX_CELLS = 200_000_000
MAX_LINE = 1 << 24

_SQLITE = (".db", ".sqlite", ".sqlite3")


def read(source: str | os.PathLike[str]) -> Table:
    """The columns of a file: ``.csv``, ``.csv.gz``, ``.parquet``, or ``.db``/``.sqlite`` with an optional ``#table``.

    Raises
    ------
    SpecError
        The file cannot be read, or is not what its name says.
    """
    name = os.fspath(source)
    path, table = Path(name), None
    if "#" in name and Path(name.rpartition("#")[0]).suffix.lower() in _SQLITE:
        path, table = Path(name.rpartition("#")[0]), name.rpartition("#")[2]
    lower = path.name.lower()
    try:
        if not path.is_file():
            raise _unreadable(path, "there is no such file")
        if lower.endswith((".csv", ".csv.gz")):
            return _read_csv(path)
        if lower.endswith(".parquet"):
            return _read_parquet(path)
        if lower.endswith(_SQLITE):
            return _read_sqlite(path, table)
    except OSError as error:
        raise _unreadable(path, error.strerror or "it is not what its name says") from None
    raise _unreadable(path, "its name ends in none of .csv, .csv.gz, .parquet, .db, .sqlite, .sqlite3")


def from_frame(frame: object, names: Sequence[str] | None = None) -> Table:
    """The columns of a dataframe (pandas, polars, pyarrow and others), of a mapping, or of a two-dimensional array.

    Parameters
    ----------
    frame
        The data. A lazy frame has to be collected first.
    names
        Names of an array's columns; ``x0``, ``x1``, ... without.
    """
    # Asking the type, not the frame: a lazy frame would start computing.
    if not isinstance(frame, Mapping) and not hasattr(type(frame), "columns"):
        return _from_array(frame, names)
    import narwhals as nw

    try:
        if isinstance(frame, Mapping):
            return _table([str(name) for name in frame], list(as_columns(frame).values()))
        columns = nw.from_native(cast("Any", frame), eager_only=True)
        labels = [str(name) for name in columns.columns]
        return _table(labels, [_series(columns[:, i]) for i in range(len(labels))])
    except (TypeError, nw.exceptions.NarwhalsError) as error:
        why = " ".join(str(error).split())[:200]
        raise SpecError(
            "DATA-007", "The data is not a table that can be read.", why=why, fix="Give a collected dataframe, each column named once."
        ) from None


def limit_rows(columns: Columns, person: str, max_rows: int) -> tuple[Table, int]:
    """At most ``max_rows`` rows of each person, the first ones, and how many rows were left out.

    Privacy
    -------
    This is what makes a sensitivity per person true: whatever a person's rows are, no release reads more than ``max_rows`` of them.

    Examples
    --------
    >>> columns = {"who": np.array(["a", "b", "a", "a"]), "age": np.array([1, 2, 3, 4])}
    >>> limited, dropped = limit_rows(columns, "who", 2)
    >>> limited["age"], dropped
    (array([1, 2, 3]), 1)
    """
    if person not in columns:
        raise SpecError(
            "DATA-001", f"The data has no column {person}, which tells people apart.", fix="Add the column, or ask the analyst."
        )
    people = [cell_text(value) for value in columns[person]]
    if None in people:
        what = f"{person}: row {people.index(None) + 1} does not say whose it is."
        raise SpecError("DATA-005", what, why="Rows without a person cannot be counted per person.", fix="Fill in or remove the rows.")
    seen: dict[str | None, int] = {}
    keep = np.empty(len(people), bool)
    for row, who in enumerate(people):
        seen[who] = seen.get(who, 0) + 1
        keep[row] = seen[who] <= max_rows
    return {name: np.asarray(column)[keep] for name, column in columns.items()}, int(len(people) - keep.sum())


def n_rows(columns: Columns) -> int:
    """How many rows a table has."""
    return len(next(iter(columns.values()), ()))


def _read_csv(path: Path) -> Table:
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            return _columns_of_csv(path.name, file)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise _unreadable(path, "it is not a whole gzip file") from None


class _ByteLines(Protocol):
    def readline(self, size: int, /) -> bytes: ...


def _columns_of_csv(name: str, file: _ByteLines) -> Table:
    reader = csv.reader(_text_lines(name, file), strict=True, skipinitialspace=True)
    rows: list[list[str]] = []
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _check_names(name, header)
        for row in reader:
            if row and len(row) != len(header):
                raise _malformed(f"{name}:{reader.line_num}  The row has {len(row)} cells, the header has {len(header)}.")
            if (len(rows) + 1) * len(header) > MAX_CELLS:
                raise _malformed(f"{name} has more than {MAX_CELLS:,} cells.")
            rows += [row] if row else []
    except csv.Error as error:
        raise _malformed(f"{name}:{reader.line_num}  The line is not CSV: {error}.") from None
    table = np.empty((len(rows), len(header)), object)
    for i, row in enumerate(rows):
        table[i] = [cell or None for cell in row]
    return {column: table[:, i] for i, column in enumerate(header)}


def _text_lines(name: str, file: _ByteLines) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE:
            raise _malformed(f"{name}:{number}  The line is longer than {MAX_LINE:,} bytes.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise _malformed(f"{name}:{number}  The line is not UTF-8 text.", "Save the file as UTF-8.") from None
        if "\0" in text:
            raise _malformed(f"{name}:{number}  The line has a NUL byte: this is not a text file.")
        yield text


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "USAGE-002", f"{path.name} is a Parquet file, and pyarrow is not installed.", fix="pip install 'shoal[arrow]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            if file.metadata.num_rows * file.metadata.num_columns > MAX_CELLS:
                raise _malformed(f"{path.name} has more than {MAX_CELLS:,} cells.")
            table = file.read()
        _check_names(path.name, list(table.column_names))
        return {name: _objects(table.column(name).to_pylist()) for name in table.column_names}
    except SpecError:
        raise
    except Exception:  # a foreign reader fed with rubbish may raise anything
        raise _unreadable(path, "it is not a whole Parquet file") from None


def _read_sqlite(path: Path, table: str | None) -> Table:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            known = [
                name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
            ]
            if table is None and len(known) != 1:
                listed = ", ".join(known[:12]) or "none"
                raise _malformed(
                    f"{path.name} has {len(known)} tables: {listed}.", f"Name one: {path.name}#{known[0] if known else 'table'}"
                )
            chosen = known[0] if table is None else table
            if chosen not in known:
                raise _malformed(f"{path.name} has no table {chosen!a:.60}.", f"Its tables are: {', '.join(known[:12]) or 'none'}.")
            quoted = chosen.replace('"', '""')
            cursor = database.execute(f'SELECT * FROM "{quoted}" LIMIT {MAX_CELLS}')
            header = [description[0] for description in cursor.description]
            _check_names(path.name, header)
            rows = cursor.fetchmany(MAX_CELLS // len(header) + 1)
    except (sqlite3.Error, UnicodeError, OverflowError):
        raise _unreadable(path, "it is not a whole SQLite database") from None
    if len(rows) * len(header) > MAX_CELLS:
        raise _malformed(f"{path.name} has more than {MAX_CELLS:,} cells.")
    return {name: _objects([row[i] for row in rows]) for i, name in enumerate(header)}


def _series(series: Any) -> npt.NDArray[Any]:
    if series.dtype.is_numeric() and not series.is_null().any():
        return np.asarray(series.to_numpy())
    return _objects([None if gone else value for value, gone in zip(series.to_list(), series.is_null().to_list(), strict=True)])


def _objects(cells: list[Any]) -> npt.NDArray[Any]:
    # np.array would take cells that are lists themselves for further dimensions.
    return np.fromiter(cells, object, len(cells))


def _from_array(frame: object, names: Sequence[str] | None) -> Table:
    try:
        array = np.asarray(frame)
    except ValueError:
        array = np.empty(0)
    if array.ndim != 2:
        what = f"The data has {array.ndim} dimensions; a table has two."
        raise SpecError("DATA-007", what, fix="Give a dataframe, or an array with one row per record.")
    labels = [f"x{i}" for i in range(array.shape[1])] if names is None else [str(name) for name in names]
    if len(labels) != array.shape[1]:
        raise SpecError("DATA-007", f"The data has {array.shape[1]} columns, but {len(labels)} names are given.")
    return _table(labels, list(array.T))


def _table(names: list[str], columns: list[npt.NDArray[Any]]) -> Table:
    _check_names("The data", names)
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        raise _malformed(f"The data has columns of different lengths: {lengths}.")
    return dict(zip(names, columns, strict=True))


def _check_names(where: str, header: list[str]) -> None:
    if not header:
        raise _malformed(f"{where} has no columns.", "The first line of a CSV names them.")
    if len(header) > MAX_COLUMNS:
        raise _malformed(f"{where} has {len(header)} columns; at most {MAX_COLUMNS} are supported.")
    if "" in header:
        raise _malformed(f"{where}: column {header.index('') + 1} has no name.", "Name every column.")
    seen: set[str] = set()
    twice = [name for name in header if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if twice:
        raise _malformed(f"{where}: the name {twice[0]!a:.60} stands over two columns.", "Give every column a name of its own.")


def _unreadable(path: Path, reason: str) -> SpecError:
    return SpecError("DATA-006", f"{path.name!a} cannot be read: {reason}.", fix="Give a CSV, a Parquet file or an SQLite database.")


def _malformed(what: str, fix: str | None = None) -> SpecError:
    return SpecError("DATA-007", what, fix=fix)
