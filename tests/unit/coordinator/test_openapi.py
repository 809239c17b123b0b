"""The OpenAPI document compared with the routes."""

from __future__ import annotations

import json
import re

import pytest
import schemathesis

from shoal.coordinator.openapi import make_openapi_document
from shoal.coordinator.routes import ROUTES
from shoal.transport.api import ISSUING, Enrolment, from_json
from shoal.transport.requests import MESSAGE_NUMBERS, PHASE_TIMEOUTS

DOCUMENT = make_openapi_document(ROUTES)
OPERATIONS = [
    (path, method, found)
    for path, methods in DOCUMENT["paths"].items()
    for method, found in methods.items()
]


def test_document_describes_exactly_all_routes() -> None:
    described = sorted((method.upper(), path) for path, method, _ in OPERATIONS)
    assert described == sorted((way.method, way.path) for way in ROUTES)


def test_document_is_valid_openapi() -> None:
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.validate()
    assert sum(1 for _ in schema.get_all_operations()) == len(ROUTES)


def test_operation_ids_are_unique() -> None:
    names = [found["operationId"] for _, _, found in OPERATIONS]
    assert len(set(names)) == len(names)


def test_references_exist() -> None:
    for reference in re.findall(r'"\$ref": "#/([^"]*)"', json.dumps(DOCUMENT)):
        found = DOCUMENT
        for part in reference.split("/"):
            found = found[part]


@pytest.mark.parametrize(
    ("path", "method", "found"),
    OPERATIONS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operation_has_parameters_security_and_responses(
    path: str, method: str, found: dict[str, object]
) -> None:
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


def test_submissions_have_one_response() -> None:
    submit = DOCUMENT["paths"]["/v1/studies/{digest}/submissions"]["post"]
    assert set(submit["responses"]) == {"202", "404", "503"}
    assert submit["security"] == []


def test_limits_match_routes() -> None:
    board = DOCUMENT["paths"]["/v1/studies/{digest}/board"]["get"]["parameters"]
    after = next(item["schema"] for item in board if item["name"] == "after")
    assert (after["minimum"], after["maximum"]) == (MESSAGE_NUMBERS[0], MESSAGE_NUMBERS[-1])
    patience = DOCUMENT["paths"]["/v1/studies"]["post"]["parameters"][0]["schema"]
    assert (patience["minimum"], patience["maximum"]) == (1, PHASE_TIMEOUTS[-1])


def test_schemas_match_forms() -> None:
    fields = DOCUMENT["components"]["schemas"]["Enrolment"]["properties"]
    assert set(fields) == set(Enrolment.model_fields)
    assert from_json(json.dumps({"ticket": "7f" * 32}).encode(), Enrolment).ticket == "7f" * 32
