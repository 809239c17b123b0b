"""Names of cells: one unique name for each cell, and formatted counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Categorical, Feature, Numeric, cell_names
from shoal.protocols.sdq.params import add_bins
from shoal.protocols.sdq.tree_view import format_counts


def test_cell_names_of_a_number_are_its_ranges() -> None:
    age = Numeric("age", 17, 90, bins=[30, 45.25, 60])
    assert cell_names(age) == ("<= 30", "30 to 45.25", "45.25 to 60", "> 60", "missing")
    assert [cell_names(age)[i] for i in age.cut(np.array([30.0, 30.5, 45.25, 90, np.nan]))] == [
        "<= 30", "30 to 45.25", "30 to 45.25", "> 60", "missing",
    ]  # fmt: skip


def test_cell_names_of_a_category_are_values_or_groups() -> None:
    assert cell_names(Categorical("sex", ["f", "m"], missing=False)) == ("f", "m")
    assert cell_names(
        Categorical("job", ["a", "b", "c"], groups={"x": ["c"], "y": ["a", "b"]})
    ) == ("x", "y", "missing")


def test_value_named_missing_differs_from_a_missing_value() -> None:
    assert cell_names(Categorical("x", ["missing", "(missing)"])) == (
        "missing",
        "(missing)",
        "((missing))",
    )


FEATURES = [
    Numeric("x", 0, 1, bins=[], missing=False),
    Numeric("x", 0, 1, bins=[]),
    Numeric("x", 0, 1, bins=[0.5, math.nextafter(0.5, 1)]),
    Numeric("x", -1e300, 1e300, bins=[-1e200, 1e16, 1e16 + 2, 1e200]),
    add_bins(Numeric("x", 0, 1)),
    add_bins(Numeric("x", 1e6, 1e6 + 1)),
    Categorical("x", ["a", "b"]),
]


@pytest.mark.parametrize("feature", FEATURES)
def test_cell_names_are_unique(feature: Feature) -> None:
    names = cell_names(feature)
    assert len(set(names)) == len(names) == feature.n_bins


def test_format_counts_rounds_and_sorts_many_classes() -> None:
    assert format_counts(["a", "b", "c"], [-0.4, 2.6, -7.0]) == "a 0, b 3, c -7"
    assert format_counts(["a", "b", "c", "d"], [5.0, 2.6, -7.0, 9.0]) == "d 9, a 5, b 3, …"
    assert format_counts(["a", "b"], [math.nan, math.nan]) == ""
