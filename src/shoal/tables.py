"""A participant's data as columns: CSV, Parquet, a table of SQLite, or any dataframe.

Spaces around a cell or a name are not part of it, and an empty cell is a missing value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shoal.cells import as_column, cell_text
from shoal.domain import Columns, as_columns, missing_column
from shoal.errors import SpecError
from shoal.names import counted, shown
from shoal.table_files import Table, checked_names, malformed, read_csv, read_parquet, read_sqlite, unreadable

_SQLITE = (".db", ".sqlite", ".sqlite3")


def read(source: str | os.PathLike[str]) -> Table:
    """The columns of a file: ``.csv``, ``.csv.gz``, ``.parquet``, or ``.db``/``.sqlite`` with an optional ``#table``.

    Raises
    ------
    SpecError
        The file cannot be read, or is not what its name says.
    """
    path = Path(source)
    try:
        path, table = _split(os.fspath(source))
        lower = path.name.lower()
        if not path.is_file():
            kind = "it is a directory" if path.is_dir() else "it is not a plain file" if path.exists() else "there is no such file"
            raise unreadable(path, kind)
        if lower.endswith((".csv", ".csv.gz")):
            return read_csv(path)
        if lower.endswith(".parquet"):
            return read_parquet(path)
        if lower.endswith(_SQLITE):
            return read_sqlite(path, table)
    except OSError as error:
        raise unreadable(path, error.strerror or "it is not what its name says") from None
    raise unreadable(path, "its name ends in none of .csv, .csv.gz, .parquet, .db, .sqlite, .sqlite3")


def _split(name: str) -> tuple[Path, str | None]:
    """The file, and the table of an SQLite database that stands behind a ``#``; both may have such a sign in their own names."""
    marks = [i for i, char in enumerate(name) if char == "#" and Path(name[:i]).suffix.lower() in _SQLITE]
    found = [i for i in marks if Path(name[:i]).is_file()]
    if not marks or Path(name).is_file():
        return Path(name), None
    mark = (found or marks)[0]
    return Path(name[:mark]), name[mark + 1 :]


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
    except (TypeError, nw.exceptions.NarwhalsError):
        # What the library says may hold names of columns.
        raise malformed("The data is not a table that can be read.", "Give a collected dataframe, each column named once.") from None


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
        raise missing_column(f"{shown(person)}, which tells people apart", len(list(columns)))
    people = [cell_text(value) for value in as_column(person, columns[person])]
    if None in people:
        what = f"{shown(person)}: row {people.index(None) + 1} does not say whose it is."
        raise SpecError("DATA-005", what, why="Rows without a person cannot be counted per person.", fix="Fill in or remove the rows.")
    seen: dict[str | None, int] = {}
    keep = np.empty(len(people), bool)
    for row, who in enumerate(people):
        seen[who] = seen.get(who, 0) + 1
        keep[row] = seen[who] <= max_rows
    return {name: as_column(name, column)[keep] for name, column in columns.items()}, int(len(people) - keep.sum())


def n_rows(columns: Columns) -> int:
    """How many rows a table has."""
    return len(next(iter(columns.values()), ()))


def _series(series: Any) -> npt.NDArray[Any]:
    if series.dtype.is_numeric() and not series.is_null().any():
        return np.asarray(series.to_numpy())
    # Texts are the same objects in an array as in a list, and faster to have; other kinds may become numbers or NumPy's own.
    is_text = str(series.dtype) == "String"
    cells = np.array(series.to_numpy(), object) if is_text else as_column(series.name, series.to_list())
    cells[series.is_null().to_numpy()] = None
    return cells


def _from_array(frame: object, names: Sequence[str] | None) -> Table:
    try:
        array = frame if isinstance(frame, np.ma.MaskedArray) else np.asarray(frame)
    except ValueError:
        array = np.empty(0)
    if array.ndim != 2:
        what = f"The data has {counted(array.ndim, 'dimension')}; a table has two."
        raise SpecError("DATA-007", what, fix="Give a dataframe, or an array with one row per record.")
    labels = [f"x{i}" for i in range(array.shape[1])] if names is None else [str(name) for name in names]
    if len(labels) != array.shape[1]:
        raise malformed(f"The data has {array.shape[1]} columns, but {len(labels)} names are given.", "Give one name per column.")
    return _table(labels, [as_column(label, column) for label, column in zip(labels, array.T, strict=True)])


def _table(header: list[str], columns: list[npt.NDArray[Any]]) -> Table:
    names = checked_names("The data", header)
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        what = f"The data has columns of different lengths: {', '.join(map(str, lengths[:12]))}."
        raise malformed(what, "Give every row a cell in each column.")
    return dict(zip(names, columns, strict=True))
