"""Readers of the files that tables come in: CSV, Parquet, SQLite.

A file is only ever read. An error about it names the file, the line and the number of a column, and never repeats a cell; the first line
of a CSV may be one, so the names of columns are not repeated either.
"""

from __future__ import annotations

import csv
import gzip
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal.cells import as_column
from shoal.errors import SpecError, UsageError
from shoal.names import counted, shell_word, shown

Table = dict[str, npt.NDArray[Any]]

MAX_COLUMNS = 10_000
MAX_CELLS = 200_000_000
MAX_LINE = 1 << 24
SQLITE_PATIENCE = 2.0
"""Seconds to wait for a database that another process keeps locked."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SMALLER = "Give a table with fewer rows or columns."
_QUOTE = "Quote cells that hold commas or line ends, and double the quotes inside them."


def read_csv(path: Path) -> Table:
    """The columns of a ``.csv`` or ``.csv.gz``. Cells are text; an empty one is None, and lines without any cell are skipped."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            return _columns_of_csv(shown(path.name), file)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise unreadable(path, "it is not a whole gzip file") from None


class _ByteLines(Protocol):
    def readline(self, size: int, /) -> bytes: ...


def _columns_of_csv(name: str, file: _ByteLines) -> Table:
    reader = csv.reader(_text_lines(name, file), strict=True, skipinitialspace=True)
    rows: list[list[str]] = []
    try:
        header = checked_names(name, next((row for row in reader if row not in ([], [""])), []))
        if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
            raise malformed(f"{name} has a single column, with semicolons or tabs in its name.", "Separate columns by commas.")
        for row in reader:
            if row and len(row) != len(header):
                cells = counted(len(row), "cell")
                raise malformed(f"{name}:{reader.line_num}  The row has {cells}, the first line has {len(header)}.", _QUOTE)
            if (len(rows) + 1) * len(header) > MAX_CELLS:
                raise malformed(f"{name} has more than {MAX_CELLS:,} cells.", _SMALLER)
            rows += [row] if row else []
    except csv.Error as error:
        raise _not_csv(f"{name}:{reader.line_num}", str(error)) from None
    table = np.empty((len(rows), len(header)), object)
    for i, row in enumerate(rows):
        table[i] = [cell or None for cell in row]
    return {column: table[:, i] for i, column in enumerate(header)}


def _not_csv(place: str, complaint: str) -> SpecError:
    if "new-line character" in complaint:
        return malformed(f"{place}  A line ends in a carriage return alone.", "Save the file with line feeds, as LF or CRLF.")
    return malformed(f"{place}  The line is not CSV: {complaint}.", _QUOTE)


def _text_lines(name: str, file: _ByteLines) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE:
            raise malformed(f"{name}:{number}  The line is longer than {MAX_LINE:,} bytes.", _QUOTE)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise malformed(f"{name}:{number}  The line is not UTF-8 text.", "Save the file as UTF-8.") from None
        if "\0" in text:
            raise malformed(f"{name}:{number}  The line has a NUL byte: this is not a text file.", "Save the file as UTF-8 text.")
        yield text


def read_parquet(path: Path) -> Table:
    """The columns of a ``.parquet``."""
    try:
        from pyarrow import parquet
    except ImportError:
        what = f"{shown(path.name)} is a Parquet file, and pyarrow is not installed."
        raise UsageError("USAGE-002", what, fix="pip install 'shoal[arrow]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            if file.metadata.num_rows * file.metadata.num_columns > MAX_CELLS:
                raise malformed(f"{shown(path.name)} has more than {MAX_CELLS:,} cells.", _SMALLER)
            table = file.read()
        names = checked_names(shown(path.name), list(table.column_names))
        return {name: as_column(name, table.column(i).to_pylist()) for i, name in enumerate(names)}
    except SpecError:
        raise
    except Exception:  # a foreign reader fed with rubbish may raise anything
        raise unreadable(path, "it is not a whole Parquet file") from None


def read_sqlite(path: Path, table: str | None) -> Table:
    """The columns of a table of an SQLite database; its only one where none is named."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=SQLITE_PATIENCE)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            quoted = _chosen(path, database, table).replace('"', '""')
            cursor = database.execute(f'SELECT * FROM "{quoted}" LIMIT {MAX_CELLS}')
            header = checked_names(shown(path.name), [description[0] for description in cursor.description])
            rows = cursor.fetchmany(MAX_CELLS // len(header) + 1)
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        # The low byte is the primary code.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY:
            raise unreadable(path, "another process keeps it locked", "Close the other program, or try again later.") from None
        raise unreadable(path, "it is not a whole SQLite database") from None
    if len(rows) * len(header) > MAX_CELLS:
        raise malformed(f"{shown(path.name)} has more than {MAX_CELLS:,} cells.", _SMALLER)
    return {name: as_column(name, [row[i] for row in rows]) for i, name in enumerate(header)}


def _chosen(path: Path, database: sqlite3.Connection, table: str | None) -> str:
    kind_of: dict[str, str] = dict(
        database.execute(r"SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\_%' ESCAPE '\'")
    )
    known = [name for name, kind in kind_of.items() if kind == "table"]
    listed = ", ".join(map(shown, known[:12]))
    if table is not None and kind_of.get(table) == "view":
        what = f"{shown(path.name)}: {shown(table)} is a view, whose rows the file itself would compute."
        raise malformed(what, "Store its rows in a table: CREATE TABLE ... AS SELECT * FROM ...")
    if not known:
        raise malformed(f"{shown(path.name)} has no tables.", "Give a database that holds the rows in a table.")
    if table is None and len(known) > 1:
        raise malformed(f"{shown(path.name)} has {len(known)} tables: {listed}.", f"Name one: {shell_word(f'{path.name}#{known[0]}')}")
    if table is not None and table not in known:
        raise malformed(f"{shown(path.name)} has no table {table!a:.60}.", f"Its tables are: {listed}.")
    return known[0] if table is None else table


def checked_names(where: str, header: list[str]) -> list[str]:
    """The names of a table's columns without spaces around them, each its own; an error gives numbers of columns only."""
    names = [name.strip() for name in header]
    if not names:
        raise malformed(f"{where} has no columns.", "The first line of a CSV names them.")
    if len(names) > MAX_COLUMNS:
        raise malformed(f"{where} has {len(names):,} columns; at most {MAX_COLUMNS:,} are supported.", _SMALLER)
    if "" in names:
        raise malformed(f"{where}: column {names.index('') + 1} has no name.", "Name every column.")
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            what = f"{where}: columns {first[name] + 1} and {i + 1} have the same name."
            raise malformed(what, "Give every column a name of its own. Does the first line name the columns?")
    return names


def unreadable(path: Path, reason: str, fix: str = "Give a CSV, a Parquet file or an SQLite database.") -> SpecError:
    """The refusal of a file."""
    return SpecError("DATA-006", f"{shown(path.name or str(path))} cannot be read: {reason}.", fix=fix)


def malformed(what: str, fix: str | None = None) -> SpecError:
    """The refusal of what a file holds."""
    return SpecError("DATA-007", what, fix=fix)
