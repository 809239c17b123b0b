"""Inputs of estimators: columns, labels, schemas and random sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from shoal.data.schema import Categorical, Numeric, SchemaInferredWarning
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import ShoalError, SpecError
from shoal.estimators.inputs import (
    EstimatorError,
    infer_number_schema,
    infer_schema,
    make_entropy,
    match_classes,
    number_holders,
    read_rows,
    read_training_rows,
    translate_spec_errors,
)

FRAME = {"age": [3.5, None, 9.0], "sex": ["f", "m", None]}


class BareEstimator(BaseEstimator):
    """An estimator that stores only the attributes of scikit-learn's validation."""


class NumberEstimator(RegressorMixin, BaseEstimator):
    """An estimator with numbers as labels."""


def read_training(X: Any, y: Any = (0, 1, 0), names: Any = None) -> tuple[Any, Any, Any]:
    estimator = BareEstimator()
    columns, labels = read_training_rows(estimator, X, y, names)
    return estimator, columns, labels


class TestRows:
    @pytest.mark.parametrize("library", [pd, pl])
    def test_read_rows_keeps_types_and_names_of_a_frame(self, library: Any) -> None:
        estimator, columns, labels = read_training(
            library.DataFrame(FRAME), library.Series(["no", "yes", "no"])
        )
        assert columns["sex"].tolist() == ["f", "m", None] and columns["age"][0] == 3.5
        assert (
            estimator.feature_names_in_.tolist() == ["age", "sex"] and estimator.n_features_in_ == 2
        )
        assert labels.tolist() == ["no", "yes", "no"]

    def test_read_rows_names_the_columns_of_an_array(self) -> None:
        assert list(read_training(np.zeros((3, 2)), names=["a", "b"])[1]) == ["a", "b"]
        estimator, columns, _ = read_training([[1, 2], [3, 4], [5, 6]])
        assert (
            list(columns) == ["x0", "x1"]
            and not hasattr(estimator, "feature_names_in_")
            and estimator.n_features_in_ == 2
        )

    def test_read_rows_keeps_a_mask_as_missing(self) -> None:
        assert read_training(np.ma.array([[1], [2], [3]], mask=[[0], [1], [0]]))[1][
            "x0"
        ].tolist() == [
            1,
            None,
            3,
        ]

    @pytest.mark.parametrize(
        "X",
        [
            np.zeros((0, 2)),
            np.zeros(3),
            [[np.inf], [0], [1]],
            pd.DataFrame({"a": []}),
            np.zeros((3, 1), complex),
        ],
    )
    def test_read_rows_rejects_inputs_that_are_not_tables(self, X: Any) -> None:
        with pytest.raises(ValueError):
            read_training(X)

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
    def test_read_rows_errors_contain_no_cells(self, X: Any, words: str, is_first: bool) -> None:
        estimator = read_training(np.zeros((3, 1)))[0]
        with pytest.raises(EstimatorError, match=words) as error:
            read_rows(estimator, X, None, is_first=is_first)
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
    def test_label_errors_contain_no_labels(self, y: Any) -> None:
        with pytest.raises(ValueError) as error:
            read_training(np.zeros((3, 1)), y)
        assert "SECRET" not in str(error.value) and "77" not in str(error.value)

    @pytest.mark.parametrize("dtype", ["boolean", bool])
    def test_boolean_labels_stay_boolean(self, dtype: Any) -> None:
        labels = read_training(np.zeros((3, 1)), pd.Series([True, False, True], dtype=dtype))[2]
        assert labels.dtype == bool and labels.tolist() == [True, False, True]

    def test_missing_boolean_label_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="NaN"):
            read_training(np.zeros((3, 1)), pd.Series([True, None, False], dtype="boolean"))

    @pytest.mark.parametrize(
        "y", [None, [0, 1], [[0, 1]] * 3, [0.5, 0.25, 1.5], [0, 1, np.nan], ["a", np.nan, "b"]]
    )
    @pytest.mark.parametrize("make", [np.array, pd.DataFrame])
    def test_invalid_labels_are_rejected(self, make: Any, y: Any) -> None:
        with pytest.raises(ValueError):
            read_training(
                make([[1], [2], [3]]), y if y is None else np.array(y, object) if "a" in y else y
            )

    def test_regressor_accepts_any_finite_numbers_as_labels(self) -> None:
        assert read_training_rows(NumberEstimator(), np.zeros((3, 1)), [0.5, 0.25, 1.5], None)[
            1
        ].tolist() == [0.5, 0.25, 1.5]
        with pytest.raises(ValueError, match="infinity"):
            read_training_rows(NumberEstimator(), np.zeros((3, 1)), [0.5, np.inf, 1.5], None)

    def test_frame_without_rows_raises_data_007(self) -> None:
        with pytest.raises(EstimatorError) as error:
            read_rows(BareEstimator(), pd.DataFrame({"a": []}), None, is_first=True)
        assert error.value.code == "DATA-007" and "0 rows" in error.value.what

    def test_lazy_frame_raises_data_007(self) -> None:
        with pytest.raises(SpecError) as error:
            read_training(pl.LazyFrame(FRAME))
        assert error.value.code == "DATA-007"

    def test_later_rows_must_have_the_same_features(self) -> None:
        estimator = read_training(pd.DataFrame(FRAME))[0]
        assert list(read_rows(estimator, pd.DataFrame(FRAME), None)) == ["age", "sex"]
        with pytest.raises(ValueError, match="feature names"):
            read_rows(estimator, pd.DataFrame({"age": [1], "size": [2]}), None)


@pytest.mark.filterwarnings("ignore::shoal.data.schema.SchemaInferredWarning")
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
    def test_infer_schema_sorts_classes_and_keeps_their_type(
        self, labels: Any, values: tuple[str, ...]
    ) -> None:
        schema, classes = infer_schema({"a": np.arange(len(labels))}, labels)
        assert schema.label == Categorical("label", values, missing=False)
        assert classes.dtype == labels.dtype and classes.tolist() == sorted(set(labels.tolist()))

    def test_infer_schema_infers_features_and_warns(self) -> None:
        with pytest.warns(SchemaInferredWarning):
            schema, _ = infer_schema(
                {"label": np.array([1, 5] * 2), "s": np.array(["x", "y"] * 2, object)},
                np.array([0, 1] * 2),
            )
        assert schema.features == (
            Numeric("label", 1, 5, missing=False),
            Categorical("s", ("x", "y"), missing=False),
        )
        assert schema.label is not None and schema.label.name == "label_"

    def test_infer_schema_ignores_missing_labels(self) -> None:
        assert infer_schema({"a": np.arange(3)}, np.array(["u", "", "v"], object))[1].tolist() == [
            "u",
            "v",
        ]

    @pytest.mark.parametrize(
        ("labels", "code", "words"),
        [
            (np.array([1, 1]), "SCHEMA-004", "only one class"),
            (np.array(["u", None], object), "SCHEMA-004", "only one class"),
            (np.array([1, "u"], object), "DATA-007", "several types"),
            (np.fromiter([["SECRET"], ["u"]], object, 2), "DATA-007", "or are lists"),
            (np.array(["SECRET", "SECRET "]), "DATA-007", "labels differ only in leading"),
            (np.array(["SECRET\x07", "u"], object), "DATA-007", "single line"),
            (np.array(["SECRET" * 40, "u"], object), "DATA-007", "single line"),
        ],
    )
    def test_infer_schema_rejects_labels_that_are_not_classes(
        self, labels: Any, code: str, words: str
    ) -> None:
        with pytest.raises(EstimatorError, match=words) as error:
            infer_schema({"a": np.arange(2)}, labels)
        assert (
            error.value.code == code
            and "SECRET" not in str(error.value)
            and isinstance(error.value, ValueError)
        )

    def test_infer_schema_error_does_not_repeat_invalid_values(self) -> None:
        with pytest.raises(ShoalError, match="s: a value is not a single line") as error:
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
    def test_infer_schema_rejects_columns_of_unique_texts(self, column: Any) -> None:
        with pytest.raises(EstimatorError, match="who: most texts are unique") as error:
            infer_schema({"a": np.arange(len(column)), "who": column}, np.arange(len(column)) % 2)
        assert (
            error.value.code == "DATA-007" and "SECRET" not in str(error.value) and error.value.fix
        )

    @pytest.mark.parametrize(
        "column",
        [
            np.arange(4),
            np.array(["1", "2.5", "3", "4"], object),
            np.array(["u", "v"] * 2),
            np.array([None] * 4, object),
        ],
    )
    def test_infer_schema_accepts_numbers_and_repeated_values(self, column: Any) -> None:
        assert infer_schema({"who": column}, np.array([0, 1] * 2))[0].names == ("who",)


@pytest.mark.filterwarnings("ignore::shoal.data.schema.SchemaInferredWarning")
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
    def test_infer_number_schema_uses_range_of_labels(
        self, labels: Any, low: float, high: float
    ) -> None:
        schema = infer_number_schema({"label": np.arange(len(labels))}, labels)
        assert schema.label == Numeric("label_", low, high, missing=False) and schema.names == (
            "label",
        )

    @pytest.mark.parametrize(
        ("labels", "code"),
        [
            (["SECRET", 1], "DATA-004"),
            ([np.inf, 1], "DATA-004"),
            ([None, ""], "DATA-005"),
            ([-1e308, 1e308], "DATA-004"),
        ],
    )
    def test_infer_number_schema_rejects_labels_without_a_range(
        self, labels: Any, code: str
    ) -> None:
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
    def test_number_holders_numbers_in_order_of_appearance(self, holders: Any) -> None:
        assert number_holders(holders, 4).tolist() == [0, 1, 0, 2]

    @pytest.mark.parametrize(
        ("holders", "code", "words"),
        [
            (["SECRET", None, "", "b"], "DATA-005", "holders: 2 rows, the first of them row 2,"),
            (np.ma.array([1, 2, 3, 4], mask=[0, 0, 0, 1]), "DATA-005", "holders: row 4"),
            (["SECRET"], "DATA-007", "holders has 1 name, but X has 4 rows"),
            (["SECRET"] * 5, "DATA-007", "holders has 5 names"),
            ("SECRET", "DATA-007", "not a list"),
            (np.array([["SECRET"]] * 4), "DATA-007", "2 dimensions"),
            ([b"SECRET"] * 4, "DATA-003", "raw bytes"),
        ],
    )
    def test_number_holders_rejects_invalid_holders(
        self, holders: Any, code: str, words: str
    ) -> None:
        with pytest.raises(SpecError, match=words) as error:
            number_holders(holders, 4)
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
            (
                np.array(["2020-01-01"], "M8[D]"),
                ("2020-01-02", "2020-01-01"),
                np.array(["2020-01-02", "2020-01-01"], "M8[D]").tolist(),
            ),
        ],
    )
    def test_match_classes_returns_type_of_labels_in_order_of_values(
        self, labels: Any, values: Any, classes: list[Any]
    ) -> None:
        found = match_classes(labels, values)
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
    def test_match_classes_returns_declared_texts_if_ambiguous(
        self, labels: Any, values: Any
    ) -> None:
        assert match_classes(labels, values).tolist() == list(values)


class TestErrors:
    def test_translate_spec_errors_keeps_all_parts(self) -> None:
        with pytest.raises(EstimatorError) as error, translate_spec_errors():
            raise SpecError("DATA-005", "what", why="why", fix="fix")
        assert error.value.to_dict() == {
            "code": "DATA-005",
            "what": "what",
            "why": "why",
            "fix": "fix",
        }

    def test_translate_spec_errors_passes_estimator_errors(self) -> None:
        first = EstimatorError("DATA-005", "what")
        with pytest.raises(EstimatorError) as error, translate_spec_errors():
            raise first
        assert error.value is first


class TestEntropy:
    def test_make_entropy_of_none_is_the_system(self) -> None:
        assert type(make_entropy(None)) is SystemEntropy

    @pytest.mark.parametrize("seed", [7, np.int64(7)])
    def test_make_entropy_of_an_integer_is_seeded(self, seed: Any) -> None:
        assert make_entropy(seed).word() == SeededEntropy(7).word()

    @pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
    def test_make_entropy_draws_a_seed_from_generators(self, make: Any) -> None:
        generator = make(3)
        first, second = make_entropy(generator).word(), make_entropy(generator).word()
        assert first != second and first == make_entropy(make(3)).word()

    def test_make_entropy_rejects_other_types(self) -> None:
        with pytest.raises(EstimatorError, match="random_state has type str") as error:
            make_entropy("7")
        assert error.value.code == "USAGE-001"
