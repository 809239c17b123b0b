"""`Schema.fit`: cells that do not fit are changed or their rows left out, each row on its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, FittedRows, Numeric, Schema, Text
from shoal.errors import SpecError

SCHEMA = Schema(
    [
        Numeric("age", 0, 100),
        Numeric("heat", 0, 40, bins=[20], missing=False),
        Categorical("sex", ["F", "M"]),
        Categorical("wind", ["weak", "strong"], missing=False),
    ],
    label=Categorical("play", ["no", "yes"]),
    texts=[Text("note", buckets=16, missing=False)],
)
GOOD = {"age": 30, "heat": 20, "sex": "F", "wind": "weak", "note": "dry", "play": "no"}


def fit(*rows: dict[str, Any]) -> FittedRows:
    return SCHEMA.fit({name: np.array([row[name] for row in rows], object) for name in GOOD})


def test_fit_leaves_rows_that_fit_as_encode_does() -> None:
    table = {name: np.array([value, value], object) for name, value in GOOD.items()}
    fitted, encoded = SCHEMA.fit(table), SCHEMA.encode(table)
    for name in SCHEMA.names:
        np.testing.assert_array_equal(fitted.columns[name], encoded[name])
    np.testing.assert_array_equal(fitted.labels, SCHEMA.encode_label(table))
    assert (fitted.changed, fitted.unusable, fitted.n_left_out) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("column", "cell", "encoded"),
    [
        ("age", 101, 100.0),
        ("age", -1e300, 0.0),
        ("age", "old", np.nan),
        ("age", float("inf"), np.nan),
        ("heat", 40.5, 40.0),
        ("sex", "X", -1),
    ],
)
def test_fit_changes_cell_to_end_of_range_or_missing(
    column: str, cell: object, encoded: float
) -> None:
    fitted = fit(GOOD, {**GOOD, column: cell})
    np.testing.assert_array_equal(fitted.columns[column][1], encoded)
    assert fitted.changed == {column: 1} and fitted.n_left_out == 0
    assert len(fitted.labels) == 2


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("heat", None),
        ("heat", "hot"),
        ("wind", "none"),
        ("wind", ""),
        ("note", None),
        ("play", "maybe"),
        ("play", None),
    ],
)
def test_fit_leaves_out_row_with_cell_that_cannot_be_represented(column: str, cell: object) -> None:
    fitted = fit(GOOD, {**GOOD, column: cell, "age": 101}, {**GOOD, "wind": "strong"})
    assert fitted.n_left_out == 1 and fitted.unusable == {column: 1}
    assert fitted.columns["wind"].tolist() == [0, 1] and len(fitted.labels) == 2
    assert fitted.changed == {}, "changes in rows that are left out do not count"


def test_fit_clips_numeric_label() -> None:
    schema = Schema([Numeric("age", 0, 100)], label=Numeric("income", 0, 10))
    fitted = schema.fit({"age": np.array([1, 2]), "income": np.array([11.0, np.nan])})
    assert fitted.labels.tolist() == [10.0] and fitted.n_left_out == 1
    assert fitted.changed == {"income": 1}


def test_fit_without_label_is_refused() -> None:
    with pytest.raises(SpecError, match="no label"):
        Schema([Numeric("age", 0, 100)]).fit({"age": np.array([1])})


CELLS = {
    "age": st.one_of(st.none(), st.just("old"), st.floats(-200, 200)),
    "heat": st.one_of(st.none(), st.floats(-10, 50)),
    "sex": st.sampled_from(["F", "M", "X", ""]),
    "wind": st.sampled_from(["weak", "strong", "none", ""]),
    "note": st.one_of(st.none(), st.just("dry sand")),
    "play": st.sampled_from(["no", "yes", "maybe", ""]),
}


@given(st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=6))
def test_fit_encodes_each_row_alone(rows: list[dict[str, Any]]) -> None:
    """One row of the table is at most one row of the result, whatever the others are.

    Sensitivities rely on this: add or remove a row, and one encoded row is added or removed.
    """
    together, alone = fit(*rows), [fit(row) for row in rows]
    assert together.n_left_out == sum(one.n_left_out for one in alone)
    for name in SCHEMA.names:
        np.testing.assert_array_equal(
            together.columns[name], np.concatenate([one.columns[name] for one in alone])
        )
    np.testing.assert_array_equal(together.labels, np.concatenate([one.labels for one in alone]))
    for feature in SCHEMA.features:
        column = together.columns[feature.name]
        if isinstance(feature, Numeric):
            known = column[~np.isnan(column)]
            assert ((known >= feature.low) & (known <= feature.high)).all()
            assert feature.missing or known.size == column.size
        else:
            assert (column >= -int(feature.missing)).all()
