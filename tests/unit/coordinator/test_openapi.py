"""The description against the routes that there are."""

from __future__ import annotations

import json
import re

import pytest
import schemathesis

from shoal.coordinator.openapi import document
from shoal.coordinator.routes import ROUTES
from shoal.transport.forms import Enrolment, from_json
from shoal.transport.reading import NUMBERS, PATIENCES
from shoal.transport.routes import ISSUING

DOCUMENT = document()
OPERATIONS = [(path, method, found) for path, methods in DOCUMENT["paths"].items() for method, found in methods.items()]


def test_every_route_is_described_and_no_other() -> None:
    described = sorted((method.upper(), path) for path, method, _ in OPERATIONS)
    assert described == sorted((way.method, way.path) for way in ROUTES)


def test_it_is_openapi_and_json() -> None:
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.validate()
    assert sum(1 for _ in schema.get_all_operations()) == len(ROUTES)


def test_names_are_used_once() -> None:
    names = [found["operationId"] for _, _, found in OPERATIONS]
    assert len(set(names)) == len(names)


def test_references_lead_somewhere() -> None:
    for reference in re.findall(r'"\$ref": "#/([^"]*)"', json.dumps(DOCUMENT)):
        found = DOCUMENT
        for part in reference.split("/"):
            found = found[part]


@pytest.mark.parametrize(("path", "method", "found"), OPERATIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_operation(path: str, method: str, found: dict[str, object]) -> None:
    responses, parameters = dict(found["responses"]), list(found.get("parameters", []))  # type: ignore[call-overload]
    assert "503" in responses
    assert not any(status.startswith("5") and status != "503" for status in responses)
    is_of_study = "{digest}" in path
    assert is_of_study == any(item["name"] == "digest" for item in parameters)
    assert ("404" in responses) == (is_of_study or path == ISSUING)
    if found["security"] in ([{"signature": []}], [{"analyst": []}]):
        assert "401" in responses
    if "requestBody" in found:
        assert method == "post"
        assert path.endswith("submissions") or "413" in responses


def test_submissions_have_one_answer() -> None:
    submit = DOCUMENT["paths"]["/v1/studies/{digest}/submissions"]["post"]
    assert set(submit["responses"]) == {"202", "404", "503"}
    assert submit["security"] == []


def test_limits_are_those_of_the_routes() -> None:
    board = DOCUMENT["paths"]["/v1/studies/{digest}/board"]["get"]["parameters"]
    after = next(item["schema"] for item in board if item["name"] == "after")
    assert (after["minimum"], after["maximum"]) == (NUMBERS[0], NUMBERS[-1])
    patience = DOCUMENT["paths"]["/v1/studies"]["post"]["parameters"][0]["schema"]
    assert (patience["minimum"], patience["maximum"]) == (1, PATIENCES[-1])


def test_schemas_of_forms() -> None:
    fields = DOCUMENT["components"]["schemas"]["Enrolment"]["properties"]
    assert set(fields) == set(Enrolment.model_fields)
    assert from_json(json.dumps({"ticket": "7f" * 32}).encode(), Enrolment).ticket == "7f" * 32
