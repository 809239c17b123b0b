"""The OpenAPI 3.1 description of the routes, built by hand around the schemas of the forms. A test holds it against the routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal import __version__
from shoal.coordinator.gateway import MAX_SEALED_BYTES
from shoal.crypto.tokens import TOKEN_BYTES
from shoal.messages import codec
from shoal.messages.base import Record
from shoal.transport import ohttp
from shoal.transport.forms import MAX_CONTROL_BYTES, Enrolled, Enrolment, Issuing, Poll, Problem
from shoal.transport.reading import NUMBERS, PATIENCES, WAITS
from shoal.transport.routes import CBOR, GATEWAY, ISSUING, JSON, KEYS, OPENAPI, OPENED, PROBLEM, RAW, SEALED, STUDIES, study_route
from shoal.transport.signing import SCHEME

Plain = dict[str, Any]

_ANY = "{digest}"
_FORMS: tuple[type[Record], ...] = (Enrolment, Enrolled, Issuing, Poll, Problem)

_REFUSALS = {
    400: "The request is malformed (MSG-002 to MSG-006, HOST-006, TOKEN-002), cannot be opened (CRYPTO-001), or asks for what cannot be"
    " served (SPEC, MANIFEST, HOST-003).",
    401: "No signature or key (AUTH-001), a wrong one (AUTH-002), too old (AUTH-003), or seen before (AUTH-005).",
    403: "This key is not enrolled, or cannot enrol (ENROL-001).",
    404: "There is no such study, or no such part of it, or the coordinator issues no tokens (HOST-001).",
    409: "It does not go with what was before (ENROL-002, HOST-005), or is not there yet (HOST-002).",
    410: "The study has ended (HOST-002).",
    413: "The body is too large (MSG-001).",
    415: "The body is of another content type (HOST-006).",
    503: "The coordinator cannot do this now (HOST-004); nothing was stored.",
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
    "required": ["digest", "short", "title", "protocol", "admission", "has_roster", "by_invitation", "status", "reason"],
    "additionalProperties": False,
    "properties": {
        "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "short": {"type": "string"},
        "title": {"type": "string"},
        "protocol": {"enum": ["anonml", "ddml", "pfds", "sdq"]},
        "admission": {"enum": ["token", "signed", "open", None]},
        "has_roster": {"type": "boolean"},
        "by_invitation": {"type": "boolean"},
        "status": {"enum": ["open", "done", "failed", "closed"]},
        "reason": {"type": ["string", "null"]},
    },
}
_OBJECT: Plain = {"type": "object"}
_SIGNED: tuple[Plain, ...] = ({"signature": []},)
_ANALYST: tuple[Plain, ...] = ({"analyst": []},)


def document() -> Plain:
    """The whole description, as plain data."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shoal coordinator",
            "version": __version__,
            "description": "Studies that are trained together without trusting anyone. docs/reference/http.md explains each route.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {path: dict(methods) for path, methods in _paths().items()},
        "components": {
            "schemas": {form.__name__: _schema(form) for form in _FORMS} | {"Study": _STUDY},
            "responses": {str(status): _refusal(status, words) for status, words in _REFUSALS.items()},
            "securitySchemes": {
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": f"{SCHEME} <key> <time> <nonce> <signature>: see docs/reference/http.md.",
                },
                "analyst": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The key that was shown when the coordinator first started.",
                },
            },
        },
    }


def _paths() -> dict[str, Plain]:
    study = _content(JSON, _ref("Study"))
    return {
        STUDIES: {
            "get": _operation("listStudies", "All studies.", {200: _content(JSON, {"type": "array", "items": _ref("Study")})}),
            "post": _operation(
                "publishStudy",
                "Publish a study. One that is published already goes on as it is.",
                {201: study},
                body=_body(CBOR, _bytes(codec.MAX_BYTES), "A manifest."),
                query=[_number("patience", PATIENCES, "Seconds that a phase waits.")],
                security=_ANALYST,
                refusals=(400, 401, 413, 415),
            ),
        },
        study_route(_ANY): {"get": _of_study("showStudy", "A study in a few lines.", {200: study})},
        study_route(_ANY, "manifest"): {
            "get": _of_study(
                "getManifest", "Published: manifest, the coordinator's key and its signature.", {200: _content(CBOR, _bytes())}
            )
        },
        study_route(_ANY, "label"): {
            "get": _of_study(
                "getLabel",
                "The label that a participant reads before consenting.",
                {200: _content(JSON, _OBJECT) | _content("text/plain", {"type": "string"})},
            )
        },
        study_route(_ANY, "board"): {
            "get": _of_study(
                "readBoard",
                "Letters to everyone, after a number; waits for one where there is none. The same for all who ask.",
                {200: _content(CBOR, _bytes())},
                query=[_number("after", NUMBERS, "Of the last letter."), _number("wait", WAITS, "Seconds.")],
            )
        },
        study_route(_ANY, "progress"): {"get": _of_study("getProgress", "Totals, rounded.", {200: _content(JSON, _OBJECT)})},
        study_route(_ANY, "model"): {
            "get": _of_study("getModel", "What was learned.", {200: _content(JSON, _OBJECT)}, refusals=(409, 410)),
        },
        study_route(_ANY, "members"): {
            "get": _of_study(
                "listMembers",
                "Members: the keys of those whose credentials count in the study, where it has tokens; a page of them.",
                {200: _content(CBOR, _bytes())},
                query=[_AFTER],
            )
        },
        study_route(_ANY, "received"): {
            "get": _of_study(
                "listReceived",
                "Received: the names of the packets that have arrived, while a phase does not collect any more; a page of them.",
                {200: _content(CBOR, _bytes())},
                query=[_AFTER],
                refusals=(409, 410),
            )
        },
        study_route(_ANY, "enrolments"): {
            "post": _of_study(
                "enrol",
                "Take part, under the key that signs.",
                {200: _content(JSON, _ref("Enrolled"))},
                body=_body(JSON, _ref("Enrolment")),
                security=_SIGNED,
                refusals=(401, 403, 409, 413, 415),
            )
        },
        study_route(_ANY, "messages"): {
            "post": _of_study(
                "sendMessage",
                "A message of the protocol, under the participant's name.",
                {202: {}},
                body=_body(CBOR, _bytes(codec.MAX_BYTES)),
                security=_SIGNED,
                refusals=(401, 403, 409, 410, 413, 415),
            )
        },
        study_route(_ANY, "mailbox"): {
            "post": _of_study(
                "readMailbox",
                "Letters to everyone and to this participant; deletes those to it alone up to the number that it has saved.",
                {200: _content(CBOR, _bytes())},
                body=_body(JSON, _ref("Poll")),
                security=_SIGNED,
                refusals=(401, 403, 413, 415),
            )
        },
        study_route(_ANY, "leave"): {
            "post": _of_study("leave", "Leave. What was sent stays sent.", {204: {}}, security=_SIGNED, refusals=(401, 403, 413))
        },
        study_route(_ANY, "submissions"): {
            "post": _anonymous(
                "submit",
                "A packet with its token, or a message: whoever sends it is not to be known. One answer, whatever became of it.",
                CBOR,
            )
        },
        study_route(_ANY, "batches"): {
            "post": _of_study(
                "takeBatch",
                "Batch: sealed packets that a relay hands over. Answered when they are stored, with Taken: what became of them.",
                {200: _content(CBOR, _bytes())},
                body=_body(CBOR, _bytes(codec.MAX_BYTES)),
                refusals=(409, 410, 413, 415),
            )
        },
        study_route(_ANY, "draw"): {
            "post": _of_study("drawInstance", "DDML: the epoch, and a random instance.", {200: _content(RAW, _bytes())}, refusals=(410,))
        },
        study_route(_ANY, "update"): {
            "post": _anonymous("sendUpdate", "DDML: an id, an epoch and weights.")
            | {
                "security": [{}, {"signature": []}],
                "parameters": [_DIGEST, _UPDATE_NUMBER, _TICKET, _TOKEN],
                "responses": _responses({202: {}}, (400, 401, 403, 404, 409, 410, 413, 503)),
            }
        },
        study_route(_ANY, "close"): {"post": _of_study("closeStudy", "End a study.", {204: {}}, security=_ANALYST, refusals=(401, 413))},
        ISSUING: {
            "get": _operation(
                "getKeys",
                "The keys that belong into manifests of this coordinator.",
                {200: _content(JSON, _ref("Issuing"))},
                refusals=(400, 404),
            )
        },
        KEYS: {"get": _operation("getGatewayKey", "The gateway's key (RFC 9458).", {200: _content(ohttp.KEYS, _bytes())}, refusals=(400,))},
        GATEWAY: {
            "post": _operation(
                "openSealed",
                "A request of a participant, sealed to the gateway's key (RFC 9458), answered likewise.",
                {200: _content(OPENED, _bytes())},
                body=_body(SEALED, _bytes(MAX_SEALED_BYTES), "Binary HTTP (RFC 9292), sealed."),
                refusals=(400, 413, 415),
            )
        },
        OPENAPI: {"get": _operation("describe", "This description.", {200: _content(JSON, _OBJECT)}, refusals=(400,))},
        "/healthz": {"get": _operation("isAlive", "Whether the process answers.", {200: _content(JSON, _OBJECT)}, refusals=(400,))},
        "/readyz": {"get": _operation("isReady", "Whether the store can be used.", {200: _content(JSON, _OBJECT)})},
        "/metrics": {"get": _operation("getMetrics", "Totals for Prometheus.", {200: _content("text/plain", {"type": "string"})})},
    }


_AFTER = {
    "name": "after",
    "in": "query",
    "required": False,
    "description": "The last key or name of the page before.",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}
_UPDATE_NUMBER = {
    "name": "number",
    "in": "query",
    "required": False,
    "description": "Which of its sender's updates this is, from 0, where admission is by signature; not looked at elsewhere.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 10**9 - 1},
}
_TICKET = {
    "name": "Shoal-Ticket",
    "in": "header",
    "required": False,
    "description": "A ticket and the number of the update, where admission is by tickets.",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64} [0-9]{1,9}$"},
}
_TOKEN = {
    "name": "Shoal-Token",
    "in": "header",
    "required": False,
    "description": "A token for this update and its number, where admission is by tokens.",
    "schema": {"type": "string", "pattern": f"^[0-9a-f]{{{2 * TOKEN_BYTES}}} [0-9]{{1,9}}$"},
}


def _operation(
    name: str,
    summary: str,
    answers: Mapping[int, Plain],
    *,
    body: Plain | None = None,
    query: Sequence[Plain] = (),
    security: Sequence[Plain] = (),
    refusals: Sequence[int] = (400, 503),
) -> Plain:
    found: Plain = {"operationId": name, "summary": summary, "responses": _responses(answers, sorted({*refusals, 503}))}
    if body is not None:
        found["requestBody"] = body
    if query:
        found["parameters"] = list(query)
    found["security"] = list(security)
    return found


def _of_study(
    name: str, summary: str, answers: Mapping[int, Plain], *, query: Sequence[Plain] = (), refusals: Sequence[int] = (), **rest: Any
) -> Plain:
    return _operation(name, summary, answers, query=(_DIGEST, *query), refusals=(400, 404, *refusals), **rest)


def _anonymous(name: str, summary: str, *others: str) -> Plain:
    found = _of_study(name, summary, {202: {}}, body=_body(RAW, _bytes(codec.MAX_BYTES)))
    for media in others:
        found["requestBody"]["content"] |= _content(media, _bytes(codec.MAX_BYTES))
    del found["responses"]["400"]
    return found


def _responses(answers: Mapping[int, Plain], refusals: Sequence[int]) -> Plain:
    found: Plain = {
        str(status): {"description": "Accepted and stored, or refused in silence." if status == 202 else "It is done."}
        | ({"content": content} if content else {})
        for status, content in answers.items()
    }
    return found | {str(status): {"$ref": f"#/components/responses/{status}"} for status in refusals}


def _refusal(status: int, words: str) -> Plain:
    found: Plain = {"description": words, "content": _content(PROBLEM, _ref("Problem"))}
    header = {401: "WWW-Authenticate", 503: "Retry-After"}.get(status)
    return found | ({"headers": {header: {"required": True, "schema": {"type": "string"}}}} if header else {})


def _schema(form: type[Record]) -> Plain:
    found = form.model_json_schema(ref_template="#/components/schemas/{model}")
    found["description"] = str(form.__doc__).partition("\n")[0]
    return found


def _ref(name: str) -> Plain:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(media: str, schema: Plain) -> Plain:
    return {media: {"schema": schema}}


def _body(media: str, schema: Plain, words: str = "") -> Plain:
    limit = f"At most {MAX_CONTROL_BYTES} bytes." if media == JSON else "At most as large as the study's largest message."
    return {"required": True, "description": words or limit, "content": _content(media, schema)}


def _bytes(most: int | None = None) -> Plain:
    return {"type": "string", "format": "binary"} | ({} if most is None else {"maxLength": most})


def _number(name: str, allowed: range, words: str) -> Plain:
    schema = {"type": "integer", "minimum": allowed[0], "maximum": allowed[-1]}
    return {"name": name, "in": "query", "required": False, "description": words, "schema": schema}
