"""The published schema is current, accepts every model, and rejects invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.models.reader import make_json_schema
from tests.support.hostile import at
from tests.unit.models.model_cases import KINDS, models
from tests.unit.models.test_reader import STATEMENT

VALIDATOR = jsonschema.Draft202012Validator(make_json_schema())
PUBLISHED = Path(__file__).parents[3] / "docs" / "reference" / "model.schema.json"


def test_published_schema_is_current() -> None:
    assert json.loads(PUBLISHED.read_text("utf-8")) == make_json_schema(), (
        "run: python -m shoal.models.reader > docs/reference/model.schema.json"
    )


def test_schema_is_valid_and_contains_no_python_names() -> None:
    jsonschema.Draft202012Validator.check_schema(make_json_schema())
    assert not [
        name for name in make_json_schema()["$defs"] if name.startswith("_")
    ] and "_Tree" not in json.dumps(make_json_schema())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_schema_accepts_every_kind_of_model(kind: str, data: st.DataObject) -> None:
    document = data.draw(models(kind)).to_document() | {
        "statement": data.draw(st.sampled_from([None, STATEMENT]))
    }
    validate(json.loads(json.dumps(document)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(data=st.data())
def test_schema_rejects_invalid_models(kind: str, data: st.DataObject) -> None:
    document = data.draw(models(kind)).to_document()
    wrong: list[tuple[tuple[str | int, ...], Any]] = [
        (("format",), "shoal"),
        (("version",), 2),
        (("simulated",), "no"),
        (("study",), "xyz"),
        (("protocol",), "fl"),
        (("statement",), {"epsilon": 1.0}),
        (("more",), 1),
        (("model", "kind"), "forest"),
        (("model", "code"), "print()"),
        (("model", "features"), "age"),
        (("model", "features", 0, "missing"), 1),
        (("model", "label"), None),
    ]
    for path, value in wrong:
        with pytest.raises(jsonschema.ValidationError):
            validate(at(document, path, value))
    for key in document["model"]:
        with pytest.raises(jsonschema.ValidationError):
            validate(
                document
                | {
                    "model": {
                        name: value for name, value in document["model"].items() if name != key
                    }
                }
            )


def validate(document: dict[str, Any]) -> None:
    VALIDATOR.validate(document)
