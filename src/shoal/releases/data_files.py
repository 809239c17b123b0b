"""The rows of a release as the bytes of a file, CSV or Parquet, and back."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal import tables
from shoal.domain import Schema
from shoal.errors import SpecError, UsageError
from shoal.protocols.pfds.dataset import Dataset

Kind = Literal["csv", "parquet"]

_MOST_WHOLE = 1e15
"""Larger whole numbers are written with an exponent."""


def to_bytes(schema: Schema, dataset: Dataset, kind: Kind) -> bytes:
    """The rows as a file: texts as they are declared, numbers that read back exactly, nothing where a value is missing."""
    columns = dataset.decoded(schema)
    return _csv(columns) if kind == "csv" else _parquet(columns)


def from_bytes(schema: Schema, data: bytes, kind: Kind) -> Dataset:
    """The rows of a file; `SpecError` unless it has exactly the schema's columns and every cell fits."""
    # The readers of tables take names of files. What was checked against a digest must be what they read.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"data.{kind}"
        path.write_bytes(data)
        columns = tables.read(path)
    assert schema.label is not None
    if tuple(columns) != (*schema.names, schema.label.name):
        raise SpecError("DATA-001", "The columns are not those that the study declares, in their order.")
    return Dataset(schema.encode(columns), schema.encode_label(columns))


def _csv(columns: dict[str, npt.NDArray[Any]]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(map(_cell, column.tolist()) for column in columns.values()), strict=True))
    return file.getvalue().encode()


def _cell(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if math.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < _MOST_WHOLE else repr(value)


def _parquet(columns: dict[str, npt.NDArray[Any]]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError("USAGE-002", "Parquet files need pyarrow, which is not installed.", fix="pip install 'shoal[arrow]'") from None
    arrays = {
        name: pyarrow.array(column, pyarrow.float64() if column.dtype == np.float64 else pyarrow.string(), from_pandas=True)
        for name, column in columns.items()
    }
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), file)
    return file.getvalue()
