"""Read CSV, Parquet and SQLite tables and data frames into columns.

The command line and the estimators read a participant's data with these functions.

Spaces around a cell or a name are not part of it, and an empty cell is a missing value. Files are
only read, never written.

Invariant: an error about a file names the file, the line and the number of a column, and never
repeats a cell. The first line of a CSV may be data, so the names of columns are not repeated
either.
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

from shoal.data.cells import as_column, cell_text
from shoal.data.schema import Columns, as_columns, missing_column_error
from shoal.errors import SpecError, require_extra
from shoal.text import escape_text, format_count, shell_quote

Table = dict[str, npt.NDArray[Any]]

MAX_COLUMNS = 10_000
MAX_CELLS = 200_000_000
MAX_LINE = 1 << 24
SQLITE_TIMEOUT = 2.0
"""Seconds to wait for a database that another process has locked."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SMALLER = "Give a table with fewer rows or columns."
_QUOTE = "Quote cells that contain commas or line ends, and double the quotes inside them."


def read_csv(path: Path) -> Table:
    """Return the columns of a ``.csv`` or ``.csv.gz``.

    Cells are text, an empty one is None, and empty lines are skipped.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            return _parse_csv(escape_text(path.name), file)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise unreadable_file_error(path, "it is not a complete gzip file") from None


class _LineReader(Protocol):
    def readline(self, size: int, /) -> bytes: ...


def _parse_csv(name: str, file: _LineReader) -> Table:
    reader = csv.reader(_decode_lines(name, file), strict=True, skipinitialspace=True)
    rows: list[list[str]] = []
    try:
        header = check_column_names(
            name, next((row for row in reader if row not in ([], [""])), [])
        )
        if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
            raise malformed_table_error(
                f"{name} has a single column, with semicolons or tabs in its name.",
                "Separate columns by commas.",
            )
        for row in reader:
            if row and len(row) != len(header):
                cells = format_count(len(row), "cell")
                raise malformed_table_error(
                    f"{name}:{reader.line_num}  The row has {cells}, the first line has "
                    f"{len(header)}.",
                    _QUOTE,
                )
            if (len(rows) + 1) * len(header) > MAX_CELLS:
                raise malformed_table_error(f"{name} has more than {MAX_CELLS:,} cells.", _SMALLER)
            rows += [row] if row else []
    except csv.Error as error:
        raise _csv_error(f"{name}:{reader.line_num}", str(error)) from None
    table = np.empty((len(rows), len(header)), object)
    for i, row in enumerate(rows):
        table[i] = [cell or None for cell in row]
    return {column: table[:, i] for i, column in enumerate(header)}


def _csv_error(position: str, complaint: str) -> SpecError:
    if "new-line character" in complaint:
        return malformed_table_error(
            f"{position}  A line ends in a carriage return alone.",
            "Save the file with line feeds, as LF or CRLF.",
        )
    return malformed_table_error(f"{position}  The line is not CSV: {complaint}.", _QUOTE)


def _decode_lines(name: str, file: _LineReader) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE:
            raise malformed_table_error(
                f"{name}:{number}  The line is longer than {MAX_LINE:,} bytes.", _QUOTE
            )
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise malformed_table_error(
                f"{name}:{number}  The line is not UTF-8 text.", "Save the file as UTF-8."
            ) from None
        if "\0" in text:
            raise malformed_table_error(
                f"{name}:{number}  The line has a NUL byte: this is not a text file.",
                "Save the file as UTF-8 text.",
            )
        yield text


def read_parquet(path: Path) -> Table:
    """Return the columns of a ``.parquet`` file."""
    require_extra("arrow", "pyarrow", purpose=f"The Parquet file {escape_text(path.name)}")
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if file.metadata.num_rows * file.metadata.num_columns > MAX_CELLS:
                raise malformed_table_error(
                    f"{escape_text(path.name)} has more than {MAX_CELLS:,} cells.", _SMALLER
                )
            table = file.read()
        names = check_column_names(escape_text(path.name), list(table.column_names))
        return {name: as_column(name, table.column(i).to_pylist()) for i, name in enumerate(names)}
    except SpecError:
        raise
    except Exception:  # the reader may raise anything for a broken file
        raise unreadable_file_error(path, "it is not a complete Parquet file") from None


def read_sqlite(path: Path, table: str | None) -> Table:
    """Return the columns of a table of an SQLite database; of its only table if None."""
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=SQLITE_TIMEOUT)
        ) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            quoted = _choose_table(path, database, table).replace('"', '""')
            cursor = database.execute(f'SELECT * FROM "{quoted}" LIMIT {MAX_CELLS}')
            header = check_column_names(
                escape_text(path.name), [description[0] for description in cursor.description]
            )
            rows = cursor.fetchmany(MAX_CELLS // len(header) + 1)
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        # The low byte is the primary code.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY:
            raise unreadable_file_error(
                path,
                "another process has locked it",
                "Close the other program, or try again later.",
            ) from None
        raise unreadable_file_error(path, "it is not a complete SQLite database") from None
    if len(rows) * len(header) > MAX_CELLS:
        raise malformed_table_error(
            f"{escape_text(path.name)} has more than {MAX_CELLS:,} cells.", _SMALLER
        )
    return {name: as_column(name, [row[i] for row in rows]) for i, name in enumerate(header)}


def _choose_table(path: Path, database: sqlite3.Connection, table: str | None) -> str:
    kind_of: dict[str, str] = dict(
        database.execute(
            "SELECT name, type FROM sqlite_schema "
            r"WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\_%' ESCAPE '\'"
        )
    )
    known = [name for name, kind in kind_of.items() if kind == "table"]
    listed = ", ".join(map(escape_text, known[:12]))
    if table is not None and kind_of.get(table) == "view":
        what = f"{escape_text(path.name)}: {escape_text(table)} is a view; only tables are read."
        raise malformed_table_error(
            what, "Store its rows in a table: CREATE TABLE ... AS SELECT * FROM ..."
        )
    if not known:
        raise malformed_table_error(
            f"{escape_text(path.name)} has no tables.",
            "Give a database that has the rows in a table.",
        )
    if table is None and len(known) > 1:
        raise malformed_table_error(
            f"{escape_text(path.name)} has {len(known)} tables: {listed}.",
            f"Name one: {shell_quote(f'{path.name}#{known[0]}')}",
        )
    if table is not None and table not in known:
        raise malformed_table_error(
            f"{escape_text(path.name)} has no table {table!a:.60}.", f"Its tables are: {listed}."
        )
    return known[0] if table is None else table


def check_column_names(source: str, header: list[str]) -> list[str]:
    """Return the names of columns without spaces around them.

    Names must be unique. An error gives numbers of columns only.
    """
    names = [name.strip() for name in header]
    if not names:
        raise malformed_table_error(
            f"{source} has no columns.", "The first line of a CSV names them."
        )
    if len(names) > MAX_COLUMNS:
        raise malformed_table_error(
            f"{source} has {len(names):,} columns; at most {MAX_COLUMNS:,} are supported.", _SMALLER
        )
    if "" in names:
        raise malformed_table_error(
            f"{source}: column {names.index('') + 1} has no name.", "Name every column."
        )
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            what = f"{source}: columns {first[name] + 1} and {i + 1} have the same name."
            raise malformed_table_error(
                what,
                "Give each column a different name. Check that the first line names the columns.",
            )
    return names


def unreadable_file_error(
    path: Path, reason: str, fix: str = "Give a CSV, a Parquet file or an SQLite database."
) -> SpecError:
    """Return the error for a file that cannot be read."""
    return SpecError(
        "DATA-006", f"{escape_text(path.name or str(path))} cannot be read: {reason}.", fix=fix
    )


def malformed_table_error(what: str, fix: str | None = None) -> SpecError:
    """Return the error for the content of a file."""
    return SpecError("DATA-007", what, fix=fix)


_SQLITE = (".db", ".sqlite", ".sqlite3")


def read_table_file(source: str | os.PathLike[str]) -> Table:
    """Return the columns of a file.

    The file is a ``.csv``, ``.csv.gz``, ``.parquet``, or ``.db``/``.sqlite`` with an optional
    ``#table``.

    Raises
    ------
    SpecError
        The file cannot be read, or does not have the format that its name states.
    """
    path = Path(source)
    try:
        path, table = _split_table_name(os.fspath(source))
        lower = path.name.lower()
        if not path.is_file():
            kind = (
                "it is a directory"
                if path.is_dir()
                else "it is not a plain file"
                if path.exists()
                else "there is no such file"
            )
            raise unreadable_file_error(path, kind)
        if lower.endswith((".csv", ".csv.gz")):
            return read_csv(path)
        if lower.endswith(".parquet"):
            return read_parquet(path)
        if lower.endswith(_SQLITE):
            return read_sqlite(path, table)
    except OSError as error:
        raise unreadable_file_error(
            path, error.strerror or "it does not have the format of its name"
        ) from None
    raise unreadable_file_error(
        path, "its name ends in none of .csv, .csv.gz, .parquet, .db, .sqlite, .sqlite3"
    )


def _split_table_name(name: str) -> tuple[Path, str | None]:
    """Split a path into the file and the table of an SQLite database after ``#``.

    Both may have such a sign in their names.
    """
    marks = [
        i for i, char in enumerate(name) if char == "#" and Path(name[:i]).suffix.lower() in _SQLITE
    ]
    positions = [i for i in marks if Path(name[:i]).is_file()]
    if not marks or Path(name).is_file():
        return Path(name), None
    mark = (positions or marks)[0]
    return Path(name[:mark]), name[mark + 1 :]


def from_frame(frame: object, names: Sequence[str] | None = None) -> Table:
    """Return the columns of a dataframe, a mapping or a two-dimensional array.

    Parameters
    ----------
    frame
        A dataframe of pandas, polars, pyarrow or others. A lazy frame must be collected first.
    names
        Names of an array's columns; ``x0``, ``x1``, ... by default.
    """
    # Ask the type, not the frame: a lazy frame would start computing.
    if not isinstance(frame, Mapping) and not hasattr(type(frame), "columns"):
        return _from_array(frame, names)
    import narwhals as nw

    try:
        if isinstance(frame, Mapping):
            return _make_table([str(name) for name in frame], list(as_columns(frame).values()))
        columns = nw.from_native(cast("Any", frame), eager_only=True)
        labels = [str(name) for name in columns.columns]
        return _make_table(labels, [_series_to_array(columns[:, i]) for i in range(len(labels))])
    except (TypeError, nw.exceptions.NarwhalsError):
        # The library's message may contain names of columns.
        raise malformed_table_error(
            "The data is not a table that can be read.",
            "Give a collected dataframe, each column named once.",
        ) from None


def limit_rows(columns: Columns, person: str, max_rows: int) -> tuple[Table, int]:
    """Return the first ``max_rows`` rows of each person and the number of omitted rows.

    Privacy
    -------
    The sensitivity per person relies on this: no release reads more than ``max_rows`` rows of a
    person.

    Examples
    --------
    >>> columns = {"who": np.array(["a", "b", "a", "a"]), "age": np.array([1, 2, 3, 4])}
    >>> limited, dropped = limit_rows(columns, "who", 2)
    >>> limited["age"], dropped
    (array([1, 2, 3]), 1)
    """
    if person not in columns:
        raise missing_column_error(
            f"{escape_text(person)}, which identifies people", len(list(columns))
        )
    people = [cell_text(value) for value in as_column(person, columns[person])]
    if None in people:
        what = f"{escape_text(person)}: row {people.index(None) + 1} names no person."
        raise SpecError(
            "DATA-005",
            what,
            why="Rows without a person cannot be counted per person.",
            fix="Fill in or remove the rows.",
        )
    seen: dict[str | None, int] = {}
    keep = np.empty(len(people), bool)
    for row, who in enumerate(people):
        seen[who] = seen.get(who, 0) + 1
        keep[row] = seen[who] <= max_rows
    return {name: as_column(name, column)[keep] for name, column in columns.items()}, int(
        len(people) - keep.sum()
    )


def drop_nameless_rows(columns: Columns, person: str) -> tuple[Columns, int]:
    """Return the rows that name a person, and the number of the others.

    `limit_rows` reports a table without that column.
    """
    if person not in columns:
        return columns, 0
    people = as_column(person, columns[person])
    keep = np.fromiter((cell_text(value) is not None for value in people), bool, len(people))
    if keep.all():
        return columns, 0
    kept = {name: as_column(name, column)[keep] for name, column in columns.items()}
    return kept, int((~keep).sum())


def count_rows(columns: Columns) -> int:
    """Return the number of rows of a table."""
    return len(next(iter(columns.values()), ()))


def _series_to_array(series: Any) -> npt.NDArray[Any]:
    if series.dtype.is_numeric() and not series.is_null().any():
        return np.asarray(series.to_numpy())
    # For texts an array has the same objects as a list and is faster; other types may become
    # numbers or NumPy scalars.
    is_text = str(series.dtype) == "String"
    cells = (
        np.array(series.to_numpy(), object) if is_text else as_column(series.name, series.to_list())
    )
    cells[series.is_null().to_numpy()] = None
    return cells


def _from_array(frame: object, names: Sequence[str] | None) -> Table:
    try:
        array = frame if isinstance(frame, np.ma.MaskedArray) else np.asarray(frame)
    except ValueError:
        array = np.empty(0)
    if array.ndim != 2:
        what = f"The data has {format_count(array.ndim, 'dimension')}; a table has two."
        raise SpecError(
            "DATA-007", what, fix="Give a dataframe, or an array with one row per record."
        )
    labels = (
        [f"x{i}" for i in range(array.shape[1])] if names is None else [str(name) for name in names]
    )
    if len(labels) != array.shape[1]:
        raise malformed_table_error(
            f"The data has {array.shape[1]} columns, but {len(labels)} names are given.",
            "Give one name per column.",
        )
    return _make_table(
        labels, [as_column(label, column) for label, column in zip(labels, array.T, strict=True)]
    )


def _make_table(header: list[str], columns: list[npt.NDArray[Any]]) -> Table:
    names = check_column_names("The data", header)
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        what = f"The data has columns of different lengths: {', '.join(map(str, lengths[:12]))}."
        raise malformed_table_error(what, "Give every row a cell in each column.")
    return dict(zip(names, columns, strict=True))
