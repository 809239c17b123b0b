"""Parse table cells as text or numbers.

Features, schemas and table readers call these functions.

A text is compared exactly, except for spaces around it: "3.0" in a file is not "3", for it may be
a version or a code. A float that is whole reads as an integer, because dataframes turn 3 into 3.0
if another value of the column is missing.

Invariant: an error about cells names the column and the row, and never repeats a cell, which is
private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.errors import SpecError
from shoal.text import format_count

Column = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# Python does not format integers of thousands of digits.
_MAX_INTEGER_BITS = 4096
_BYTES = (bytes, bytearray, memoryview)
_MAX_CACHED_CELLS = 1 << 16

Answer = TypeVar("Answer")


def cell_text(value: Any) -> str | None:
    """Return a cell as a category's text, or None if it is missing.

    Examples
    --------
    >>> cell_text(" u "), cell_text(3.0), cell_text("3.0"), cell_text(float("nan")), cell_text(" ")
    ('u', '3', '3.0', None, None)
    """
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, (float, np.floating)):
        if math.isnan(value):
            return None
        return str(int(value)) if float(value).is_integer() else str(value)
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        return hex(value)
    return str(value).strip() or None


def as_column(name: str, cells: object) -> Column:
    """Return the cells of a column as a one-dimensional array; masked cells become None."""
    if isinstance(cells, np.ma.MaskedArray):
        known = np.ma.getdata(cells).astype(object)
        known[np.ma.getmaskarray(cells)] = None
        cells = known
    if not isinstance(cells, np.ndarray):
        if not isinstance(cells, Iterable) or isinstance(cells, (str, bytes)):
            raise SpecError(
                "DATA-007",
                f"{name}: the column is not a list of cells.",
                fix="Give a list or an array, one cell per row.",
            )
        listed = list(cells)
        # np.array would treat cells that are lists as further dimensions.
        cells = np.fromiter(listed, object, len(listed))
    if cells.ndim != 1:
        raise SpecError(
            "DATA-007",
            f"{name}: the column has {cells.ndim} dimensions.",
            fix="Give one cell per row.",
        )
    return cells


def map_texts(name: str, column: Column, read: Callable[[str | None], Answer]) -> Iterator[Answer]:
    """Apply a function to each cell's text.

    Bytes are rejected: their encoding is unknown.
    """
    cells = _list_cells(column)
    kinds = set(map(type, cells))
    if any(issubclass(kind, _BYTES) for kind in kinds):
        raw = np.array([isinstance(value, _BYTES) for value in cells], bool)
        raise SpecError(
            "DATA-003",
            f"{name}: {describe_rows(raw)} raw bytes, not text.",
            why="The declared values are texts.",
            fix="Store the column as text.",
        )
    return _map_cells(lambda value: read(cell_text(value)), cells, kinds)


def to_texts(name: str, column: Column) -> list[str | None]:
    """Return the cells as texts."""
    return list(map_texts(name, column, lambda text: text))


def parse_numbers(column: Column) -> npt.NDArray[np.float64]:
    """Return the cells as numbers: NaN for missing ones, infinity for those that are no number."""
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    cells = _list_cells(column)
    return np.fromiter(
        _map_cells(_to_number_or_infinity, cells, set(map(type, cells))), np.float64, len(cells)
    )


def to_numbers(name: str, column: Column) -> npt.NDArray[np.float64]:
    """Return the cells as numbers, NaN for missing ones."""
    numbers = parse_numbers(column)
    is_invalid = np.isinf(numbers)
    if is_invalid.any():
        raise SpecError(
            "DATA-004",
            f"{name}: {describe_rows(is_invalid)} not a finite number.",
            fix="Correct the rows, or leave the cell empty.",
        )
    return numbers


def _to_number_or_infinity(value: Any) -> float:
    number = to_number(value)
    return math.inf if number is None else number


def to_number(value: Any) -> float | None:
    """Return a cell as a finite number, NaN if it is missing, None if it is not a number.

    This is the only definition of a number in a table.
    """
    # Python would read 1_000 as a thousand, and bytes as text; in a table both are mistakes. NumPy
    # would drop an imaginary part.
    if isinstance(value, (*_BYTES, complex, np.complexfloating)) or (
        isinstance(value, str) and "_" in value
    ):
        return None
    try:
        number = math.nan if cell_text(value) is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isinf(number) else number


def describe_rows(mask: Mask) -> str:
    """Describe the position of a fault without the value.

    For example "row 17 has a value that is" or "3 rows, the first of them row 17, have values that
    are".
    """
    first, n = int(np.flatnonzero(mask)[0]) + 1, int(mask.sum())
    return (
        f"row {first} has a value that is"
        if n == 1
        else f"{format_count(n, 'row')}, the first of them row {first}, have values that are"
    )


class _CellCache(dict[Any, Answer], Generic[Answer]):
    """Results of a function per cell."""

    def __init__(self, read: Callable[[Any], Answer]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, cell: Any) -> Answer:
        answer = self._read(cell)
        if len(self) < _MAX_CACHED_CELLS:
            self[cell] = answer
        return answer


def _list_cells(column: Column) -> list[Any]:
    """Return the cells as a list.

    Python values are faster, and are used if they read like NumPy's; shorter floats and times do
    not.
    """
    return (
        column.tolist()
        if column.dtype.kind in "biuOU" or column.dtype == np.float64
        else list(column)
    )


def _map_cells(
    read: Callable[[Any], Answer], cells: list[Any], kinds: set[type]
) -> Iterator[Answer]:
    """Apply a function to each cell, once per different cell if equal cells read alike."""
    # True, 1 and 1.0 are equal and read differently, and so may two equal values of any other type.
    numbers = kinds - {str, type(None)}
    is_plain = len(numbers) <= 1 and numbers <= {bool, int, float}
    return map(_CellCache(read).__getitem__ if is_plain else read, cells)
