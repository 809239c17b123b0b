"""The published schema: up to date, met by every model, and by no garbage that it can tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_garbage import at
from shoal.models.schema import json_schema
from unit.models.model_cases import KINDS, models
from unit.models.test_reading import STATEMENT

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
PUBLISHED = Path(__file__).parents[3] / "docs" / "reference" / "model.schema.json"


def test_the_published_schema_is_that_of_the_code() -> None:
    assert json.loads(PUBLISHED.read_text("utf-8")) == json_schema(), (
        "run: python -m shoal.models.schema > docs/reference/model.schema.json"
    )


def test_it_is_a_schema_without_names_of_python() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert not [name for name in json_schema()["$defs"] if name.startswith("_")] and "_Tree" not in json.dumps(json_schema())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_every_kind_meets_it(kind: str, data: st.DataObject) -> None:
    document = data.draw(models(kind)).to_document() | {"statement": data.draw(st.sampled_from([None, STATEMENT]))}
    validate(json.loads(json.dumps(document)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(data=st.data())
def test_garbage_does_not(kind: str, data: st.DataObject) -> None:
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
            validate(document | {"model": {name: value for name, value in document["model"].items() if name != key}})


def validate(document: dict[str, Any]) -> None:
    VALIDATOR.validate(document)
