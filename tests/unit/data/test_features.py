"""Features: valid declarations, and encoding of cells as numbers and positions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.data.features import Categorical, Numeric, Text, hash_ngrams
from shoal.errors import ShoalError, SpecError


def code(error: pytest.ExceptionInfo[ShoalError]) -> str:
    return error.value.code


def cells(*values: Any) -> np.ndarray:
    return np.fromiter(values, object, len(values))


class TestNumeric:
    @pytest.mark.parametrize(
        ("low", "high"),
        [
            (1, 1),
            (2, 1),
            (0, float("inf")),
            (float("nan"), 1),
            ("0", 1),
            (True, 2),
            (0, 10**400),
            (-1e308, 1e308),
            (None, 1),
        ],
    )
    def test_rejects_invalid_range(self, low: Any, high: Any) -> None:
        with pytest.raises(SpecError) as error:
            Numeric("age", low, high)
        assert code(error) == "SCHEMA-002"

    @pytest.mark.parametrize(
        "bins",
        [[5, 3], [3, 3], [-1], [10], ["3"], [float("nan")], 5, "357", {3.0}, [10**400], [None]],
    )
    def test_rejects_cut_points_outside_range(self, bins: Any) -> None:
        with pytest.raises(SpecError) as error:
            Numeric("age", 0, 10, bins=bins)
        assert code(error) == "SCHEMA-003"

    @pytest.mark.parametrize("bins", ["0.5", 0.5, {0.5}])
    def test_rejects_cut_points_that_are_not_a_list(self, bins: Any) -> None:
        with pytest.raises(SpecError) as error:
            Numeric("age", 0, 10, bins=bins)
        assert f"the cut points {bins!r} are not a list" in error.value.what

    def test_accepts_numpy_numbers_and_cut_at_lowest_value(self) -> None:
        assert Numeric("age", np.int64(0), np.float32(10), bins=(0, 5)).n_bins == 4

    def test_n_bins_includes_missing_values(self) -> None:
        assert Numeric("age", 0, 10).n_bins is None
        assert Numeric("age", 0, 10, bins=[5]).n_bins == 3
        assert Numeric("age", 0, 10, bins=[5], missing=False).n_bins == 2
        assert Numeric("age", 0, 10, bins=[]).n_bins == 2

    def test_cut_point_belongs_to_lower_bin_and_missing_is_last(self) -> None:
        assert Numeric("age", 0, 10, bins=[3, 5]).cut(
            np.array([0, 3, 3.1, 5, 10, np.nan])
        ).tolist() == [0, 0, 1, 1, 2, 3]

    def test_encode_reads_cells_of_any_type(self) -> None:
        column = cells("3", " 4 ", 5, 6.5, Decimal("7"), None, "", float("nan"), pd.NA, np.int8(1))
        encoded = Numeric("age", 0, 10).encode(column)
        assert encoded[[0, 1, 2, 3, 4, 9]].tolist() == [3, 4, 5, 6.5, 7, 1]
        assert np.isnan(encoded[5:9]).all()

    @pytest.mark.parametrize(
        "cell",
        [
            "xyzzy",
            "1_000",
            [1],
            "1,5",
            10**400,
            complex(1, 1),
            pd.Timestamp("2020-01-01"),
            "infinity",
            float("-inf"),
            b"5",
        ],
    )
    def test_error_for_non_number_names_row_but_not_cell(self, cell: Any) -> None:
        with pytest.raises(SpecError) as error:
            Numeric("age", 0, 10).encode(cells("3", cell))
        assert code(error) == "DATA-004"
        assert "row 2" in error.value.what
        assert str(cell)[:99] not in str(error.value)

    def test_encode_rejects_value_outside_range_without_repeating_it(self) -> None:
        with pytest.raises(SpecError) as error:
            Numeric("age", 0, 10).encode(np.array([3.0, 77.0, 88.0]))
        assert code(error) == "DATA-002"
        assert "2 rows, the first of them row 2" in error.value.what
        assert "77" not in str(error.value) and "88" not in str(error.value)

    def test_encode_clips_in_prediction(self) -> None:
        assert Numeric("age", 0, 10).encode(np.array([-3.0, 77.0]), outside="clip").tolist() == [
            0,
            10,
        ]

    @pytest.mark.parametrize("outside", ["error", "clip"])
    def test_encode_rejects_missing_value_if_not_allowed(self, outside: Any) -> None:
        with pytest.raises(SpecError) as error:
            Numeric("age", 0, 10, missing=False).encode(cells("1", None, ""), outside)
        assert code(error) == "DATA-005" and "2 rows, the first of them row 2" in error.value.what


class TestCategorical:
    @pytest.mark.parametrize(
        "values",
        [
            [],
            ["a"],
            ["a", "a"],
            ["a", ""],
            ["a", 3],
            "ab",
            None,
            7,
            [["a"], ["b"]],
            {"a", "b"},
            ["a", "b "],
        ],
    )
    def test_rejects_invalid_values(self, values: Any) -> None:
        with pytest.raises(SpecError) as error:
            Categorical("sex", values)
        assert code(error) == "SCHEMA-004"

    def test_error_counts_single_value(self) -> None:
        with pytest.raises(SpecError) as error:
            Categorical("sex", ["f"])
        assert "the 1 declared value should be" in error.value.what

    def test_rejects_too_many_values(self) -> None:
        with pytest.raises(SpecError) as error:
            Categorical("id", [str(i) for i in range(10_001)])
        assert code(error) == "SCHEMA-004"

    @pytest.mark.parametrize(
        "groups",
        [
            {"all": ["a", "b", "c"]},
            {"x": ["a"], "y": ["b"]},
            {"x": ["a", "b"], "y": ["b", "c"]},
            {"x": ["a", "b", "c"], "y": []},
            {"x": "ab", "y": ["c"]},
            {"x": ["a", "b"], "y": [3]},
            {"x": 3, "y": ["a"]},
            {"x": {"a", "b"}, "y": ["c"]},
            [("x", ["a"]), ("y", ["b", "c"])],
            "xy",
        ],
    )
    def test_rejects_groups_that_do_not_partition_values(self, groups: Any) -> None:
        with pytest.raises(SpecError) as error:
            Categorical("kind", ["a", "b", "c"], groups=groups)
        assert code(error) == "SCHEMA-005"

    def test_cut_returns_group_with_missing_last(self) -> None:
        kind = Categorical("kind", ["a", "b", "c"], groups={"x": ["a", "c"], "y": ["b"]})
        assert kind.n_bins == 3
        assert kind.cut(kind.encode(cells("a", "b", "c", None))).tolist() == [0, 1, 0, 2]

    def test_whole_floats_match_integer_values(self) -> None:
        assert Categorical("grade", ["1", "2"]).encode(np.array([1.0, 2.0, np.nan])).tolist() == [
            0,
            1,
            -1,
        ]

    def test_encode_rejects_undeclared_value_without_repeating_it(self) -> None:
        with pytest.raises(SpecError) as error:
            Categorical("sex", ["f", "m"]).encode(cells("f", "secret"))
        assert code(error) == "DATA-003"
        assert "row 2" in error.value.what and "secret" not in str(error.value)

    def test_encode_rejects_raw_bytes(self) -> None:
        for column in (cells("f", b"secret"), np.array([b"secret"])):
            with pytest.raises(SpecError) as error:
                Categorical("sex", ["f", "b'secret'"]).encode(column)
            assert (
                code(error) == "DATA-003"
                and "raw bytes, not text" in error.value.what
                and "secret" not in str(error.value)
            )

    def test_spaces_around_cell_are_ignored(self) -> None:
        assert Categorical("sex", ["f", "m"]).encode(cells(" m", "f ", "  ")).tolist() == [1, 0, -1]

    def test_text_values_are_compared_exactly(self) -> None:
        with pytest.raises(SpecError):
            Categorical("grade", ["1", "2"]).encode(cells("1.0"))

    @pytest.mark.parametrize("missing", [True, False])
    def test_undeclared_value_is_missing_in_prediction(self, missing: bool) -> None:
        assert Categorical("sex", ["f", "m"], missing=missing).encode(
            cells("f", "x"), outside="clip"
        ).tolist() == [0, -1]

    @pytest.mark.parametrize(("outside", "cell"), [("error", "f"), ("clip", "x")])
    def test_encode_rejects_missing_value_if_not_allowed(self, outside: Any, cell: str) -> None:
        with pytest.raises(SpecError) as error:
            Categorical("sex", ["f", "m"], missing=False).encode(cells(cell, None, ""), outside)
        assert code(error) == "DATA-005" and "2 rows, the first of them row 2" in error.value.what

    def test_equal_declarations_are_equal_and_have_same_hash(self) -> None:
        first, second = (
            Categorical("k", ["a", "b"], groups={"x": ["a"], "y": ["b"]}) for _ in range(2)
        )
        assert first == second and hash(first) == hash(second)


class TestText:
    @pytest.mark.parametrize(
        ("buckets", "ngrams"),
        [
            (1, 3),
            (0, 3),
            ((1 << 20) + 1, 3),
            (True, 3),
            (8.0, 3),
            ("8", 3),
            (8, 0),
            (8, 4),
            (8, True),
            (8, 2.0),
        ],
    )
    def test_rejects_invalid_buckets_and_ngrams(self, buckets: Any, ngrams: Any) -> None:
        with pytest.raises(SpecError) as error:
            Text("query", buckets, ngrams)
        assert code(error) == "SCHEMA-006" and "2 to 1,048,576 buckets" in str(error.value)

    def test_encode_returns_ngrams_of_each_text(self) -> None:
        short, none, long = Text("query", 1000, 2).encode(cells("Red", None, "red fish"))
        assert short.tolist() == hash_ngrams("red", 2, 1000).tolist() and none.size == 0
        assert long.tolist() == hash_ngrams("red fish", 2, 1000).tolist() and long.size == 3

    def test_text_of_spaces_is_missing(self) -> None:
        assert Text("query", 1000).encode(cells("  ", ""))[0].size == 0

    @pytest.mark.parametrize("outside", ["error", "clip"])
    def test_encode_rejects_missing_text_if_not_allowed(self, outside: Any) -> None:
        with pytest.raises(SpecError) as error:
            Text("query", 1000, missing=False).encode(cells("a", None, ""), outside)
        assert code(error) == "DATA-005" and "2 rows, the first of them row 2" in error.value.what

    def test_encode_rejects_raw_bytes(self) -> None:
        with pytest.raises(SpecError) as error:
            Text("query", 1000).encode(cells("a", b"secret"))
        assert code(error) == "DATA-003" and "secret" not in str(error.value)

    def test_rejects_invalid_name(self) -> None:
        with pytest.raises(SpecError) as error:
            Text(" ", 1000)
        assert code(error) == "SCHEMA-001"


@pytest.mark.parametrize("name", ["", "x" * 201, " a", "a\u200b", "a\nb", "\x1b[2J", None, 5])
def test_features_reject_invalid_names(name: Any) -> None:
    with pytest.raises(SpecError) as error:
        Numeric(name, 0, 1)
    assert code(error) == "SCHEMA-001"
