"""Features as plain data, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from shoal.data.schema import Categorical, Feature, Numeric, Schema, Text
from shoal.protocols.schema_json import (
    PlainCategory,
    PlainNumber,
    PlainText,
    describe_feature,
    describe_schema,
    describe_texts,
    invalid_model_error,
)

FEATURES: list[Feature] = [
    Numeric("age", 17, 90.5),
    Numeric("height", 0, 2, bins=[0.5, 1], missing=False),
    Categorical("town", ["x", "y"], missing=False),
    Categorical("job", ["p", "q", "r"], groups={"b": ["r", "p"], "a": ["q"]}),
]
READER: TypeAdapter[PlainNumber | PlainCategory] = TypeAdapter(PlainNumber | PlainCategory)


def through_json(document: Any) -> Any:
    return json.loads(json.dumps(document, allow_nan=False, sort_keys=True))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_feature_survives_round_trip(feature: Feature) -> None:
    again = READER.validate_python(through_json(describe_feature(feature))).make_feature()
    assert again == feature
    if isinstance(feature, Categorical) and isinstance(again, Categorical):
        assert list(again.groups or ()) == list(feature.groups or ()), (
            "the order of groups says which bin is whose"
        )


def test_text_survives_round_trip() -> None:
    schema = Schema(FEATURES[:1], label=FEATURES[2], texts=[Text("query", 64, 2, missing=False)])
    (document,) = through_json(describe_texts(schema))
    assert PlainText.model_validate(document).make_text() == schema.texts[0]
    assert set(describe_schema(schema)) == {"features", "label"}


@pytest.mark.parametrize(
    "change", [{"missing": 1}, {"name": None}, {"values": "xy"}, {"range": [0, 1]}, {"more": 1}]
)
def test_feature_record_rejects_other_documents(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        READER.validate_python({**describe_feature(FEATURES[2]), **change})


def test_invalid_model_error_states_reason() -> None:
    error = invalid_model_error("a table is too short")
    assert error.code == "MODEL-001" and "a table is too short" in str(error)
