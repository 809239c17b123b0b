"""What scikit-learn hands over, as columns, labels, schemas and sources of randomness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from shoal.domain import Categorical, Numeric, SchemaInferredWarning
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import ShoalError, SpecError
from shoal.estimators.inputs import (
    EstimatorError,
    as_estimator_errors,
    classes_like,
    entropy_of,
    holder_numbers,
    infer_number_schema,
    infer_schema,
    rows,
    training_rows,
)

FRAME = {"age": [3.5, None, 9.0], "sex": ["f", "m", None]}


class Bare(BaseEstimator):
    """Learns nothing but what scikit-learn's validation writes down."""


class Measuring(RegressorMixin, BaseEstimator):
    """Its labels are numbers."""


def read(X: Any, y: Any = (0, 1, 0), names: Any = None) -> tuple[Any, Any, Any]:
    estimator = Bare()
    columns, labels = training_rows(estimator, X, y, names)
    return estimator, columns, labels


class TestRows:
    @pytest.mark.parametrize("library", [pd, pl])
    def test_dataframes_keep_their_kinds_and_names(self, library: Any) -> None:
        estimator, columns, labels = read(library.DataFrame(FRAME), library.Series(["no", "yes", "no"]))
        assert columns["sex"].tolist() == ["f", "m", None] and columns["age"][0] == 3.5
        assert estimator.feature_names_in_.tolist() == ["age", "sex"] and estimator.n_features_in_ == 2
        assert labels.tolist() == ["no", "yes", "no"]

    def test_arrays_get_the_names_that_are_given(self) -> None:
        assert list(read(np.zeros((3, 2)), names=["a", "b"])[1]) == ["a", "b"]
        estimator, columns, _ = read([[1, 2], [3, 4], [5, 6]])
        assert list(columns) == ["x0", "x1"] and not hasattr(estimator, "feature_names_in_") and estimator.n_features_in_ == 2

    def test_a_mask_is_not_lost(self) -> None:
        assert read(np.ma.array([[1], [2], [3]], mask=[[0], [1], [0]]))[1]["x0"].tolist() == [1, None, 3]

    @pytest.mark.parametrize("X", [np.zeros((0, 2)), np.zeros(3), [[np.inf], [0], [1]], pd.DataFrame({"a": []}), np.zeros((3, 1), complex)])
    def test_what_is_no_table_is_a_value_error(self, X: Any) -> None:
        with pytest.raises(ValueError):
            read(X)

    @pytest.mark.parametrize(
        ("X", "words"),
        [
            (["SECRET", "B", "C"], "X has 1 dimension; a table has two"),
            (pd.Series(["SECRET", "B", "C"]), "X has 1 dimension"),
            ("SECRET", "X has 0 dimensions"),
            ([{"a": "SECRET"}] * 3, "X has 1 dimension"),
            (np.full((3, 1, 1), "SECRET"), "X has 3 dimensions"),
            ([["SECRET"], ["B", "C"], ["D"]], "different lengths"),
            ({"a": ["SECRET", "B", "C"]}, "X is a mapping"),
            (np.full((3, 1), 77j), "complex numbers"),
        ],
    )
    @pytest.mark.parametrize("is_first", [True, False])
    def test_cells_that_are_no_table_are_not_repeated(self, X: Any, words: str, is_first: bool) -> None:
        estimator = read(np.zeros((3, 1)))[0]
        with pytest.raises(EstimatorError, match=words) as error:
            rows(estimator, X, None, is_first=is_first)
        assert "SECRET" not in str(error.value) and "77" not in str(error.value) and error.value.fix

    @pytest.mark.parametrize(
        "y",
        [
            np.array([77j, 0, 1]),
            [["SECRET"], ["B", "C"], ["D"]],
            [["SECRET", "B"]] * 3,
            {"SECRET": [1, 2, 3]},
            "SECRET",
            ["SECRET"],
            [0.77, 0.1, 0.2],
            pd.Series(["SECRET", None, "B"], dtype="category"),
        ],
    )
    def test_labels_are_not_repeated(self, y: Any) -> None:
        with pytest.raises(ValueError) as error:
            read(np.zeros((3, 1)), y)
        assert "SECRET" not in str(error.value) and "77" not in str(error.value)

    @pytest.mark.parametrize("dtype", ["boolean", bool])
    def test_truth_values_of_a_frame_stay_truth_values(self, dtype: Any) -> None:
        labels = read(np.zeros((3, 1)), pd.Series([True, False, True], dtype=dtype))[2]
        assert labels.dtype == bool and labels.tolist() == [True, False, True]

    def test_a_missing_truth_value_is_a_value_error(self) -> None:
        with pytest.raises(ValueError, match="NaN"):
            read(np.zeros((3, 1)), pd.Series([True, None, False], dtype="boolean"))

    @pytest.mark.parametrize("y", [None, [0, 1], [[0, 1]] * 3, [0.5, 0.25, 1.5], [0, 1, np.nan], ["a", np.nan, "b"]])
    @pytest.mark.parametrize("make", [np.array, pd.DataFrame])
    def test_what_is_no_label_is_a_value_error(self, make: Any, y: Any) -> None:
        with pytest.raises(ValueError):
            read(make([[1], [2], [3]]), y if y is None else np.array(y, object) if "a" in y else y)

    def test_labels_of_a_regressor_may_be_any_numbers(self) -> None:
        assert training_rows(Measuring(), np.zeros((3, 1)), [0.5, 0.25, 1.5], None)[1].tolist() == [0.5, 0.25, 1.5]
        with pytest.raises(ValueError, match="infinity"):
            training_rows(Measuring(), np.zeros((3, 1)), [0.5, np.inf, 1.5], None)

    def test_a_frame_without_rows_has_a_sentence(self) -> None:
        with pytest.raises(EstimatorError) as error:
            rows(Bare(), pd.DataFrame({"a": []}), None, is_first=True)
        assert error.value.code == "DATA-007" and "0 rows" in error.value.what

    def test_a_lazy_frame_has_a_sentence(self) -> None:
        with pytest.raises(SpecError) as error:
            read(pl.LazyFrame(FRAME))
        assert error.value.code == "DATA-007"

    def test_later_rows_have_the_features_of_the_first(self) -> None:
        estimator = read(pd.DataFrame(FRAME))[0]
        assert list(rows(estimator, pd.DataFrame(FRAME), None)) == ["age", "sex"]
        with pytest.raises(ValueError, match="feature names"):
            rows(estimator, pd.DataFrame({"age": [1], "size": [2]}), None)


@pytest.mark.filterwarnings("ignore::shoal.domain.SchemaInferredWarning")
class TestInference:
    @pytest.mark.parametrize(
        ("labels", "values"),
        [
            (np.array([2, -1, 2]), ("-1", "2")),
            (np.array([True, False]), ("False", "True")),
            (np.array([1.0, 0.0]), ("0", "1")),
            (np.array(["v", "u"]), ("u", "v")),
            (np.array(["v", "u"], object), ("u", "v")),
        ],
    )
    def test_classes_are_the_sorted_labels_in_their_own_type(self, labels: Any, values: tuple[str, ...]) -> None:
        schema, classes = infer_schema({"a": np.arange(len(labels))}, labels)
        assert schema.label == Categorical("label", values, missing=False)
        assert classes.dtype == labels.dtype and classes.tolist() == sorted(set(labels.tolist()))

    def test_features_are_inferred_and_it_is_said(self) -> None:
        with pytest.warns(SchemaInferredWarning):
            schema, _ = infer_schema({"label": np.array([1, 5] * 2), "s": np.array(["x", "y"] * 2, object)}, np.array([0, 1] * 2))
        assert schema.features == (Numeric("label", 1, 5, missing=False), Categorical("s", ("x", "y"), missing=False))
        assert schema.label is not None and schema.label.name == "label_"

    def test_missing_labels_are_no_class(self) -> None:
        assert infer_schema({"a": np.arange(3)}, np.array(["u", "", "v"], object))[1].tolist() == ["u", "v"]

    @pytest.mark.parametrize(
        ("labels", "code", "words"),
        [
            (np.array([1, 1]), "SCHEMA-004", "one class"),
            (np.array(["u", None], object), "SCHEMA-004", "one class"),
            (np.array([1, "u"], object), "DATA-007", "several types"),
            (np.fromiter([["SECRET"], ["u"]], object, 2), "DATA-007", "or lists"),
            (np.array(["SECRET", "SECRET "]), "DATA-007", "labels differ only in the spaces"),
            (np.array(["SECRET\x07", "u"], object), "DATA-007", "plain line"),
            (np.array(["SECRET" * 40, "u"], object), "DATA-007", "plain line"),
        ],
    )
    def test_labels_that_are_no_classes(self, labels: Any, code: str, words: str) -> None:
        with pytest.raises(EstimatorError, match=words) as error:
            infer_schema({"a": np.arange(2)}, labels)
        assert error.value.code == code and "SECRET" not in str(error.value) and isinstance(error.value, ValueError)

    def test_a_value_that_cannot_stand_in_a_study_is_not_repeated(self) -> None:
        with pytest.raises(ShoalError, match="s: a value is not a plain line") as error:
            infer_schema({"s": np.array(["SECRET\u202e", "u"] * 2, object)}, np.array([0, 1] * 2))
        assert "SECRET" not in str(error.value)

    @pytest.mark.parametrize(
        "column",
        [
            np.array([f"SECRET{i}" for i in range(20_000)], object),
            np.array(["SECRET", "u", "v", "v", None], object),
            np.datetime64("2020-01-01") + np.arange(10),
        ],
    )
    def test_texts_of_their_own_in_most_rows_are_no_categories(self, column: Any) -> None:
        with pytest.raises(EstimatorError, match="who: most rows have a text of their own") as error:
            infer_schema({"a": np.arange(len(column)), "who": column}, np.arange(len(column)) % 2)
        assert error.value.code == "DATA-007" and "SECRET" not in str(error.value) and error.value.fix

    @pytest.mark.parametrize(
        "column", [np.arange(4), np.array(["1", "2.5", "3", "4"], object), np.array(["u", "v"] * 2), np.array([None] * 4, object)]
    )
    def test_numbers_and_values_of_several_rows_are_features(self, column: Any) -> None:
        assert infer_schema({"who": column}, np.array([0, 1] * 2))[0].names == ("who",)


@pytest.mark.filterwarnings("ignore::shoal.domain.SchemaInferredWarning")
class TestInferenceOfNumbers:
    @pytest.mark.parametrize(
        ("labels", "low", "high"),
        [
            (np.array([2, -1, 2]), -1, 2),
            (np.array([0.5, 0.5]), 0.5, 1.5),
            (np.array([False, True]), 0, 1),
            (np.array(["3", None, "4.5"], object), 3, 4.5),
        ],
    )
    def test_the_range_is_that_of_the_labels(self, labels: Any, low: float, high: float) -> None:
        schema = infer_number_schema({"label": np.arange(len(labels))}, labels)
        assert schema.label == Numeric("label_", low, high, missing=False) and schema.names == ("label",)

    @pytest.mark.parametrize(
        ("labels", "code"),
        [(["SECRET", 1], "DATA-004"), ([np.inf, 1], "DATA-004"), ([None, ""], "DATA-005"), ([-1e308, 1e308], "DATA-004")],
    )
    def test_labels_that_have_none(self, labels: Any, code: str) -> None:
        with pytest.raises(SpecError) as error:
            infer_number_schema({"a": np.arange(2)}, np.array(labels, object))
        assert error.value.code == code and "SECRET" not in str(error.value) and error.value.fix


class TestHolders:
    @pytest.mark.parametrize(
        "holders",
        [
            ["b", "a", "b", "c"],
            (7, 3, 7, 5),
            np.array([7.0, 3, 7, 5]),
            pd.Series(["b", "a", "b", "c"], dtype="category"),
            pl.Series([7, 3, 7, 5]),
            np.array(["b", 3, "b ", 5.5], object),
        ],
    )
    def test_are_numbered_in_the_order_in_which_they_appear(self, holders: Any) -> None:
        assert holder_numbers(holders, 4).tolist() == [0, 1, 0, 2]

    @pytest.mark.parametrize(
        ("holders", "code", "words"),
        [
            (["SECRET", None, "", "b"], "DATA-005", "holders: 2 rows, the first of them row 2,"),
            (np.ma.array([1, 2, 3, 4], mask=[0, 0, 0, 1]), "DATA-005", "holders: row 4"),
            (["SECRET"], "DATA-007", "the holders of 1 row, and X has 4 rows"),
            (["SECRET"] * 5, "DATA-007", "the holders of 5 rows"),
            ("SECRET", "DATA-007", "not a list"),
            (np.array([["SECRET"]] * 4), "DATA-007", "2 dimensions"),
            ([b"SECRET"] * 4, "DATA-003", "raw bytes"),
        ],
    )
    def test_that_are_not_named_have_a_sentence(self, holders: Any, code: str, words: str) -> None:
        with pytest.raises(SpecError, match=words) as error:
            holder_numbers(holders, 4)
        assert error.value.code == code and error.value.fix and "SECRET" not in str(error.value)


class TestClasses:
    @pytest.mark.parametrize(
        ("labels", "values", "classes"),
        [
            (np.array([1, 0]), ("0", "1"), [0, 1]),
            (np.array([1, 0], np.uint8), ("1", "0", "7"), [1, 0, 7]),
            (np.array([1.0, 0.5]), ("1", "0.5", "2"), [1.0, 0.5, 2.0]),
            (np.array([True]), ("False", "True"), [False, True]),
            (np.array([True, False], object), ("True", "False"), [True, False]),
            (np.array([3, 4], object), ("3", "4", "5"), [3, 4, 5]),
            (np.array(["u ", "v"]), ("v", "u", "longer"), ["v", "u ", "longer"]),
            (np.array(["u ", "v"]), ("v", "u"), ["v", "u "]),
            (np.array(["u"], object), ("v", "u"), ["v", "u"]),
            (np.array(["2020-01-01"], "M8[D]"), ("2020-01-02", "2020-01-01"), np.array(["2020-01-02", "2020-01-01"], "M8[D]").tolist()),
        ],
    )
    def test_are_of_the_type_of_the_labels_in_the_order_of_the_values(self, labels: Any, values: Any, classes: list[Any]) -> None:
        found = classes_like(labels, values)
        assert found.tolist() == classes and found.dtype.kind == labels.dtype.kind

    @pytest.mark.parametrize(
        ("labels", "values"),
        [
            (np.array([1, 0]), ("0", "1", "more")),
            (np.array([1, 0], np.uint8), ("0", "1", "300")),
            (np.array([1, 0]), ("0", "1", "1_0")),
            (np.array([True]), ("True", "no")),
            (np.array([" u", "u "]), ("u", "v")),
            (np.array([1, "u"], object), ("1", "u")),
            (np.fromiter([("u", 1)], object, 1), ("('u', 1)", "('v', 1)")),
        ],
    )
    def test_are_the_declared_texts_where_not_each_stands_for_one_label(self, labels: Any, values: Any) -> None:
        assert classes_like(labels, values).tolist() == list(values)


class TestErrors:
    def test_keep_their_words(self) -> None:
        with pytest.raises(EstimatorError) as error, as_estimator_errors():
            raise SpecError("DATA-005", "what", why="why", fix="fix")
        assert error.value.to_dict() == {"code": "DATA-005", "what": "what", "why": "why", "fix": "fix"}

    def test_pass_where_they_are_an_estimators_already(self) -> None:
        first = EstimatorError("DATA-005", "what")
        with pytest.raises(EstimatorError) as error, as_estimator_errors():
            raise first
        assert error.value is first


class TestEntropy:
    def test_none_is_the_system(self) -> None:
        assert type(entropy_of(None)) is SystemEntropy

    @pytest.mark.parametrize("seed", [7, np.int64(7)])
    def test_an_integer_is_a_seed(self, seed: Any) -> None:
        assert entropy_of(seed).word() == SeededEntropy(7).word()

    @pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
    def test_generators_are_drawn_from(self, make: Any) -> None:
        generator = make(3)
        first, second = entropy_of(generator).word(), entropy_of(generator).word()
        assert first != second and first == entropy_of(make(3)).word()

    def test_anything_else_is_refused(self) -> None:
        with pytest.raises(EstimatorError, match="random_state is of type str") as error:
            entropy_of("7")
        assert error.value.code == "USAGE-001"
