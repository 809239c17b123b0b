"""OpenAPI document, generated from the route table.

`shoal.coordinator.routes` describes each route with an `Operation`, built from the helpers here,
and serves the document. Path parameters and the errors that all routes share are derived from the
path, so the table states only what is particular to a route.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal import __version__
from shoal.crypto.credentials.tokens import TOKEN_BYTES
from shoal.messages import codec
from shoal.messages.base import Record
from shoal.study.registry import PROTOCOLS
from shoal.transport.api import (
    JSON,
    MAX_CONTROL_BYTES,
    PROBLEM,
    Enrolled,
    Enrolment,
    Issuing,
    Poll,
    Problem,
)
from shoal.transport.signing import SCHEME

if TYPE_CHECKING:
    from shoal.coordinator.routes import RouteSpec

Plain = dict[str, Any]

_FORMS: tuple[type[Record], ...] = (Enrolment, Enrolled, Issuing, Poll, Problem)

_REJECTIONS = {
    400: "The request is malformed (MSG-002 to MSG-006, HOST-006, TOKEN-002), cannot be opened "
    "(CRYPTO-001), or contains a study that cannot be served (SPEC, MANIFEST, HOST-003).",
    401: "The signature or key is missing (AUTH-001), invalid (AUTH-002), too old (AUTH-003) or "
    "repeated (AUTH-005).",
    403: "This key is not enrolled, or cannot enrol (ENROL-001).",
    404: "The study or the resource does not exist, or the coordinator issues no tokens "
    "(HOST-001).",
    409: "The request contradicts an earlier one (ENROL-002, HOST-005), or the resource is not "
    "available yet (HOST-002).",
    410: "The study has ended (HOST-002).",
    413: "The body is too large (MSG-001).",
    415: "The body has another content type (HOST-006).",
    503: "The coordinator is temporarily unavailable (HOST-004); nothing was stored.",
}

_DIGEST = {
    "name": "digest",
    "in": "path",
    "required": True,
    "description": "Digest of the study's manifest.",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}
_STUDY = {
    "type": "object",
    "required": [
        "digest",
        "short",
        "title",
        "protocol",
        "admission",
        "has_roster",
        "by_invitation",
        "status",
        "reason",
    ],
    "additionalProperties": False,
    "properties": {
        "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "short": {"type": "string"},
        "title": {"type": "string"},
        "protocol": {"enum": sorted(PROTOCOLS)},
        "admission": {"enum": ["token", "signed", "open", None]},
        "has_roster": {"type": "boolean"},
        "by_invitation": {"type": "boolean"},
        "status": {"enum": ["open", "done", "failed", "closed"]},
        "reason": {"type": ["string", "null"]},
    },
}
OBJECT: Plain = {"type": "object"}
SIGNED: tuple[Plain, ...] = ({"signature": []},)
ANALYST: tuple[Plain, ...] = ({"analyst": []},)
ANY_OR_SIGNED: tuple[Plain, ...] = ({}, *SIGNED)

AFTER = {
    "name": "after",
    "in": "query",
    "required": False,
    "description": "The last key or name of the previous page.",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}
UPDATE_NUMBER = {
    "name": "number",
    "in": "query",
    "required": False,
    "description": "Number of the update among those of its sender, from 0, if admission is by "
    "signature; ignored otherwise.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 10**9 - 1},
}
TICKET = {
    "name": "Shoal-Ticket",
    "in": "header",
    "required": False,
    "description": "A ticket and the number of the update, if admission is by tickets.",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64} [0-9]{1,9}$"},
}
TOKEN = {
    "name": "Shoal-Token",
    "in": "header",
    "required": False,
    "description": "A token for this update and its number, if admission is by tokens.",
    "schema": {"type": "string", "pattern": f"^[0-9a-f]{{{2 * TOKEN_BYTES}}} [0-9]{{1,9}}$"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Description of one route.

    Parameters
    ----------
    name
        The operationId.
    status, content
        Status of a successful response, and its content by media type.
    parameters
        Query and header parameters; the study's digest is added to paths that contain it.
    security
        Alternatives of authentication; none for a public route.
    errors
        Statuses of errors in addition to 400 and 503, and to 404 on paths with a digest.
    is_silent
        Whether the response does not say that the request was malformed.
    """

    name: str
    summary: str
    status: int = 200
    content: Mapping[str, Plain] = field(default_factory=dict)
    body: Plain | None = None
    parameters: tuple[Plain, ...] = ()
    security: tuple[Plain, ...] = ()
    errors: tuple[int, ...] = ()
    is_silent: bool = False

    def to_plain(self, path: str) -> Plain:
        """Return the operation as OpenAPI describes it."""
        has_study = "{digest}" in path
        errors = {*self.errors, 503} | ({404} if has_study else set())
        errors |= set() if self.is_silent else {400}
        parameters = [_DIGEST] * has_study + list(self.parameters)
        return {
            "operationId": self.name,
            "summary": self.summary,
            "responses": _describe_success(self.status, self.content)
            | {
                str(status): {"$ref": f"#/components/responses/{status}"}
                for status in sorted(errors)
            },
            **({} if self.body is None else {"requestBody": self.body}),
            **({"parameters": parameters} if parameters else {}),
            "security": list(self.security),
        }


def make_openapi_document(routes: Iterable[RouteSpec]) -> Plain:
    """Return the document that describes some routes, as plain data."""
    paths: dict[str, Plain] = {}
    for route in routes:
        assert route.operation is not None, f"{route.path} is described"
        described = route.operation.to_plain(route.path)
        paths.setdefault(route.path, {})[route.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shoal coordinator",
            "version": __version__,
            "description": "Studies with differential privacy, without a trusted party. "
            "docs/reference/http.md explains each route.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {form.__name__: _make_schema(form) for form in _FORMS} | {"Study": _STUDY},
            "responses": {
                str(status): _describe_rejection(status, text)
                for status, text in _REJECTIONS.items()
            },
            "securitySchemes": {
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": f"{SCHEME} <key> <time> <nonce> <signature>: see "
                    "docs/reference/http.md.",
                },
                "analyst": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The key that was shown when the coordinator first started.",
                },
            },
        },
    }


def content(media: str, schema: Plain | str | None = None) -> Plain:
    """Describe content of one media type.

    ``schema`` is a schema, or the name of one of the document; None means bytes.
    """
    if schema is None:
        schema = _describe_bytes()
    elif isinstance(schema, str):
        schema = _ref(schema)
    return {media: {"schema": schema}}


def json_body(form: type[Record]) -> Plain:
    """Describe a request body with a JSON form."""
    limit = f"At most {MAX_CONTROL_BYTES} bytes."
    return _describe_body(content(JSON, form.__name__), limit)


def binary_body(
    *media: str,
    limit: int = codec.MAX_BYTES,
    description: str = "Limited to the size of the study's largest message.",
) -> Plain:
    """Describe a request body of bytes, in one of some media types."""
    contents: Plain = {}
    for media_type in media:
        contents |= content(media_type, _describe_bytes(limit))
    return _describe_body(contents, description)


def query_number(name: str, allowed: range, description: str) -> Plain:
    """Describe an optional whole number in the query."""
    schema = {"type": "integer", "minimum": allowed[0], "maximum": allowed[-1]}
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": schema,
    }


def _describe_success(status: int, contents: Mapping[str, Plain]) -> Plain:
    text = "Stored, or rejected without notice." if status == 202 else "Success."
    return {str(status): {"description": text} | ({"content": dict(contents)} if contents else {})}


def _describe_rejection(status: int, text: str) -> Plain:
    description: Plain = {"description": text, "content": content(PROBLEM, "Problem")}
    header = {401: "WWW-Authenticate", 503: "Retry-After"}.get(status)
    return description | (
        {"headers": {header: {"required": True, "schema": {"type": "string"}}}} if header else {}
    )


def _describe_body(contents: Plain, description: str) -> Plain:
    return {"required": True, "description": description, "content": contents}


def _describe_bytes(limit: int | None = None) -> Plain:
    return {"type": "string", "format": "binary"} | ({} if limit is None else {"maxLength": limit})


def _make_schema(form: type[Record]) -> Plain:
    schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
    schema["description"] = str(form.__doc__).partition("\n")[0]
    return schema


def _ref(name: str) -> Plain:
    return {"$ref": f"#/components/schemas/{name}"}
