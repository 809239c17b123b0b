"""Rows as files: exact values, and exactly the declared columns."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import SpecError, UsageError
from shoal.protocols.pfds.dataset import Dataset
from shoal.releases.content import RowsFormat, decode_rows, encode_rows

SCHEMA = Schema(
    [Numeric("a", -1e300, 1e300), Categorical("b", ["x, y", 'say "z"', "7", "=1+1"])],
    label=Numeric("c", 0, 1, missing=False),
)
ROWS = Dataset(
    {"a": np.array([0.1, -0.0, np.nan, 1e16, 5.0, -1e300]), "b": np.array([0, 1, 2, 3, -1, 0])},
    np.array([0, 1, 1 / 3, 0.5, 1e-300, 0]),
)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_decode_rows_inverts_encode_rows(kind: RowsFormat) -> None:
    again = decode_rows(SCHEMA, encode_rows(SCHEMA, ROWS, kind), kind)
    np.testing.assert_array_equal(again.columns["a"], ROWS.columns["a"])
    np.testing.assert_array_equal(again.columns["b"], ROWS.columns["b"])
    np.testing.assert_array_equal(again.labels, ROWS.labels)


def test_encode_rows_writes_plain_csv() -> None:
    lines = encode_rows(SCHEMA, ROWS, "csv").decode().splitlines()
    assert lines[:4] == ["a,b,c", '0.1,"x, y",0', '0,"say ""z""",1', ",7,0.3333333333333333"]
    assert lines[4:] == ["1e+16,=1+1,0.5", "5,,1e-300", '-1e+300,"x, y",0']


@pytest.mark.parametrize(
    "data",
    [
        b"b,a,c\n7,1,1\n",
        b"a,b\n1,7\n",
        b"a,b,c,d\n1,7,1,1\n",
        b"a,b,c\n1,8,1\n",
        b"a,b,c\n1,7,\n",
        b"",
        b"\xff",
    ],
)
def test_decode_rows_rejects_other_columns_and_cells(data: bytes) -> None:
    with pytest.raises(SpecError):
        decode_rows(SCHEMA, data, "csv")
    with pytest.raises(SpecError):
        decode_rows(SCHEMA, data, "parquet")


def test_encode_parquet_without_pyarrow_raises_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow, which is not installed"):
        encode_rows(SCHEMA, ROWS, "parquet")
