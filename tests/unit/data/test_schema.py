"""Schemas: valid combinations of features, and encoding of tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema, SchemaInferredWarning, Text, as_columns
from shoal.errors import ShoalError, SpecError


def code(error: pytest.ExceptionInfo[ShoalError]) -> str:
    return error.value.code


class TestSchema:
    def test_rejects_missing_features_and_repeated_names(self) -> None:
        for features, label in [
            ((), None),
            ((Numeric("a", 0, 1), Numeric("a", 0, 2)), None),
            ((Numeric("a", 0, 1),), Numeric("a", 0, 1)),
        ]:
            with pytest.raises(SpecError) as error:
                Schema(features, label)
            assert code(error) == "SCHEMA-001"

    @pytest.mark.parametrize(
        ("features", "label"),
        [
            ([Numeric("a", 0, 1)], "income"),
            ([None], None),
            (["a"], None),
            (Numeric("a", 0, 1), None),
            ({Numeric("a", 0, 1)}, None),
            ({"a": Numeric("a", 0, 1)}, None),
            (None, None),
            (5, None),
        ],
    )
    def test_rejects_objects_that_are_not_features(self, features: Any, label: Any) -> None:
        with pytest.raises(SpecError) as error:
            Schema(features, label)
        assert code(error) == "SCHEMA-001"

    def test_encode_returns_features_and_label(self) -> None:
        schema = Schema([Numeric("age", 0, 120)], label=Categorical("ill", ["no", "yes"]))
        columns = as_columns({"age": [3, None], "ill": ["yes", "no"], "other": [1, 2]})
        assert list(schema.encode(columns)) == ["age"]
        assert schema.encode_label(columns).tolist() == [1, 0]
        assert schema["ill"].name == "ill"
        with pytest.raises(KeyError):
            schema["other"]

    def test_encode_label_rejects_missing_label(self) -> None:
        for label, column in [
            (Categorical("y", ["no", "yes"]), ["no", None]),
            (Numeric("y", 0, 1), [0.5, None]),
        ]:
            with pytest.raises(SpecError) as error:
                Schema([Numeric("age", 0, 120)], label=label).encode_label(
                    as_columns({"y": column})
                )
            assert code(error) == "DATA-005" and "allow missing" not in str(error.value)

    def test_missing_label_error_does_not_suggest_allowing_missing(self) -> None:
        schema = Schema(
            [Numeric("age", 0, 120)], label=Categorical("y", ["no", "yes"], missing=False)
        )
        with pytest.raises(SpecError) as error:
            schema.encode_label(as_columns({"y": ["no", None]}))
        assert error.value.fix == "Fill in or remove the rows."

    def test_masked_cells_are_missing(self) -> None:
        encoded = Schema([Numeric("age", 0, 120)]).encode(
            {"age": np.ma.array([1, 2], mask=[False, True])}
        )
        np.testing.assert_array_equal(encoded["age"], [1.0, np.nan])

    @pytest.mark.parametrize(
        "column", [np.ones((2, 2)), np.array([[1, 2], [3, 4]], object), 5, None, "12"]
    )
    def test_rejects_column_with_two_dimensions(self, column: Any) -> None:
        with pytest.raises(SpecError) as error:
            Schema([Numeric("age", 0, 120)]).encode({"age": column})
        assert code(error) == "DATA-007"

    def test_rejects_columns_of_different_lengths(self) -> None:
        schema = Schema([Numeric("a", 0, 9), Numeric("b", 0, 9)], label=Numeric("y", 0, 9))
        for columns in ({"a": [1, 2, 3], "b": [1]}, {"a": [1], "b": [1], "y": [1, 2]}):
            with pytest.raises(SpecError) as error:
                schema.encode(as_columns(columns))
            assert code(error) == "DATA-007" and "different lengths" in error.value.what
        with pytest.raises(SpecError):
            schema.encode_label(as_columns({"a": [1], "y": [1, 2]}))

    def test_missing_column_error_does_not_repeat_other_names(self) -> None:
        schema = Schema([Numeric("age", 0, 120), Numeric("size", 0, 3)])
        with pytest.raises(SpecError) as error:
            schema.encode(as_columns({"SECRET\x1b": [1], "age": [2], "FLU": [3]}))
        assert not any(word in str(error.value) for word in ("SECRET", "FLU", "\x1b"))
        assert error.value.why == "Columns in the data: 3. Declared columns: 2; found: 1."
        assert error.value.fix is not None and "first line" in error.value.fix

    def test_missing_column_error_names_column(self) -> None:
        schema = Schema([Numeric("age", 0, 120)])
        with pytest.raises(SpecError) as error:
            schema.encode(as_columns({"Age": [1]}))
        assert code(error) == "DATA-001" and "no column age" in error.value.what
        with pytest.raises(SpecError) as error:
            schema.encode_label(as_columns({"age": [1]}))
        assert code(error) == "SCHEMA-001"

    def test_texts_are_encoded_with_features(self) -> None:
        schema = Schema(
            [Numeric("age", 0, 120)],
            label=Categorical("ill", ["no", "yes"]),
            texts=[Text("note", 100)],
        )
        assert (
            schema.names == ("age",)
            and schema.columns == ("age", "note")
            and schema.texts == (Text("note", 100),)
        )
        encoded = schema.encode(
            as_columns({"note": ["red fish", None], "age": [3, 4], "other": [1, 2]})
        )
        assert list(encoded) == ["age", "note"] and [grams.size for grams in encoded["note"]] == [
            3,
            0,
        ]
        with pytest.raises(SpecError) as error:
            schema.encode(as_columns({"age": [3, 4]}))
        assert code(error) == "DATA-001" and "no column note" in error.value.what

    def test_schema_may_have_only_texts(self) -> None:
        assert Schema([], texts=[Text("note", 100)]).columns == ("note",)

    @pytest.mark.parametrize(
        "texts", [[Numeric("a", 0, 1)], ["note"], Text("note", 8), None, {Text("note", 8)}]
    )
    def test_rejects_objects_that_are_not_texts(self, texts: Any) -> None:
        with pytest.raises(SpecError) as error:
            Schema([Numeric("age", 0, 120)], texts=texts)
        assert code(error) == "SCHEMA-001" and "texts" in error.value.what

    def test_text_is_rejected_as_feature_label_or_repeated_name(self) -> None:
        text = Text("age", 100)
        made: list[dict[str, Any]] = [
            {"features": [text]},
            {"features": [Numeric("b", 0, 1)], "label": text},
            {"features": [Numeric("age", 0, 9)], "texts": [text]},
        ]
        for parts in made:
            with pytest.raises(SpecError) as error:
                Schema(**parts)
            assert code(error) == "SCHEMA-001"

    def test_infer_returns_ranges_and_categories_and_warns(self) -> None:
        columns = as_columns(
            {
                "age": ["3", "9", ""],
                "sex": ["f", "m", "f"],
                "one": ["k", "k", "k"],
                "flat": [5, 5, 5],
                "gone": [None] * 3,
            }
        )
        with pytest.warns(SchemaInferredWarning):
            schema = Schema.infer(columns, label="sex")
        assert schema["age"] == Numeric("age", 3.0, 9.0, missing=True)
        assert schema.label == Categorical("sex", ("f", "m"), missing=False)
        assert schema["one"] == Categorical("one", ("k", "other"), missing=False)
        assert schema["flat"] == Numeric("flat", 5.0, 6.0, missing=False)
        assert schema["gone"] == Categorical("gone", ("other", "another"), missing=True)

    def test_inferred_schema_fits_its_data(self) -> None:
        columns = as_columns(
            {"a": ["1", "nan", "3"], "huge": [1e300] * 3, "spaced": [" u", "v ", "u"]}
        )
        with pytest.warns(SchemaInferredWarning):
            schema = Schema.infer(columns)
        assert schema["spaced"] == Categorical("spaced", ["u", "v"], missing=False)
        schema.encode(columns)

    def test_inference_errors_contain_no_cell(self) -> None:
        for columns in ({"a": [-1.7e308, 1.7e308]}, {"SECRET\n": [1, 2]}):
            with pytest.warns(SchemaInferredWarning), pytest.raises(SpecError) as error:
                Schema.infer(as_columns(columns))
            assert "1.7" not in str(error.value) and "SECRET" not in str(error.value)

    def test_infer_rejects_missing_label_column(self) -> None:
        with pytest.warns(SchemaInferredWarning), pytest.raises(SpecError) as error:
            Schema.infer(as_columns({"age": [1]}), label="nope")
        assert code(error) == "DATA-001"
