"""Names of cells: one for each, as rows are cut, and no two alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.domain import Categorical, Feature, Numeric
from shoal.protocols.sdq.params import with_bins
from shoal.protocols.sdq.words import cell_names, counts_in_words


def test_a_number_is_named_by_its_ranges() -> None:
    age = Numeric("age", 17, 90, bins=[30, 45.25, 60])
    assert cell_names(age) == ("<= 30", "30 to 45.25", "45.25 to 60", "> 60", "missing")
    assert [cell_names(age)[i] for i in age.cut(np.array([30.0, 30.5, 45.25, 90, np.nan]))] == [
        "<= 30", "30 to 45.25", "30 to 45.25", "> 60", "missing",
    ]  # fmt: skip


def test_a_category_is_named_by_its_values_or_groups() -> None:
    assert cell_names(Categorical("sex", ["f", "m"], missing=False)) == ("f", "m")
    assert cell_names(Categorical("job", ["a", "b", "c"], groups={"x": ["c"], "y": ["a", "b"]})) == ("x", "y", "missing")


def test_a_value_called_missing_is_told_from_a_missing_one() -> None:
    assert cell_names(Categorical("x", ["missing", "(missing)"])) == ("missing", "(missing)", "((missing))")


FEATURES = [
    Numeric("x", 0, 1, bins=[], missing=False),
    Numeric("x", 0, 1, bins=[]),
    Numeric("x", 0, 1, bins=[0.5, math.nextafter(0.5, 1)]),
    Numeric("x", -1e300, 1e300, bins=[-1e200, 1e16, 1e16 + 2, 1e200]),
    with_bins(Numeric("x", 0, 1)),
    with_bins(Numeric("x", 1e6, 1e6 + 1)),
    Categorical("x", ["a", "b"]),
]


@pytest.mark.parametrize("feature", FEATURES)
def test_no_two_cells_have_one_name(feature: Feature) -> None:
    names = cell_names(feature)
    assert len(set(names)) == len(names) == feature.n_bins


def test_counts_are_rounded_and_of_many_classes_the_largest_come_first() -> None:
    assert counts_in_words(["a", "b", "c"], [-0.4, 2.6, -7.0]) == "a 0, b 3, c -7"
    assert counts_in_words(["a", "b", "c", "d"], [5.0, 2.6, -7.0, 9.0]) == "d 9, a 5, b 3, …"
    assert counts_in_words(["a", "b"], [math.nan, math.nan]) == ""
