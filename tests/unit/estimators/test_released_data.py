"""Released rows have the frame type of the fitted data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from shoal.estimators.released_data import SharedDataset, convert_to_frame

COLUMNS: dict[str, Any] = {"age": np.array([1.5, np.nan]), "kind": np.array(["u", None], object)}


@pytest.mark.parametrize(
    "given",
    [pd.DataFrame({"x": [1]}), pl.DataFrame({"x": [1]}), pa.table({"x": [1]})],
    ids=["pandas", "polars", "pyarrow"],
)
def test_convert_to_frame_returns_the_same_library(given: Any) -> None:
    made = convert_to_frame(given, COLUMNS)
    assert type(made) is type(given)
    names = made.column_names if isinstance(made, pa.Table) else list(made.columns)
    assert names == ["age", "kind"]
    kinds = made["kind"].to_pylist() if isinstance(made, pa.Table) else made["kind"].to_list()
    assert kinds[0] == "u" and (kinds[1] is None or kinds[1] != kinds[1])


def test_convert_to_frame_returns_an_array_for_an_array() -> None:
    mixed = convert_to_frame(np.zeros((1, 2)), COLUMNS)
    assert mixed.dtype == object and mixed.shape == (2, 2) and mixed[0].tolist() == [1.5, "u"]
    numbers = convert_to_frame([[1, 2]], {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])})
    assert numbers.dtype == np.float64 and numbers.tolist() == [[1, 3], [2, 4]]


def test_repr_of_shared_dataset_shows_size_but_no_rows() -> None:
    dataset = SharedDataset(np.full((3, 2), "SECRET"), np.array(["SECRET", "no", "no"]), "north")
    assert len(dataset) == 3 and repr(dataset) == "SharedDataset(3 rows, 2 columns, holder='north')"
