"""The route table of the HTTP API.

`shoal.coordinator.app` serves `ROUTES`, and `shoal.coordinator.openapi` generates the OpenAPI
document from it. Each route states its handler and its description: summary, authentication, forms
and responses.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import Response

from shoal.coordinator import handlers
from shoal.coordinator.handlers import LONG_CACHE, TEXT
from shoal.coordinator.openapi import (
    AFTER,
    ANALYST,
    ANY_OR_SIGNED,
    OBJECT,
    SIGNED,
    TICKET,
    TOKEN,
    UPDATE_NUMBER,
    Operation,
    binary_body,
    content,
    json_body,
    make_openapi_document,
    query_number,
)
from shoal.coordinator.service import CoordinatorService
from shoal.transport import ohttp
from shoal.transport.api import (
    CBOR,
    GATEWAY,
    ISSUING,
    JSON,
    KEYS,
    OHTTP_REQUEST,
    OHTTP_RESPONSE,
    OPENAPI,
    RAW,
    STUDIES,
    Enrolment,
    Poll,
    study_route,
)
from shoal.transport.packets import DEFAULT_SEALED_BYTES
from shoal.transport.requests import (
    MESSAGE_NUMBERS,
    PHASE_TIMEOUTS,
    WAIT_SECONDS,
    read_query,
)

Endpoint = Callable[[CoordinatorService, Request], Awaitable[Response]]

_ANY = "{digest}"


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """A method of a path, its handler, and its description; pages have none."""

    method: str
    path: str
    endpoint: Endpoint
    operation: Operation | None = None


async def get_openapi(_: CoordinatorService, request: Request) -> Response:
    read_query(request)
    return Response(_encode_openapi_document(), headers=LONG_CACHE, media_type=JSON)


ROUTES = (
    RouteSpec(
        "GET",
        STUDIES,
        handlers.list_studies,
        Operation(
            name="listStudies",
            summary="All studies.",
            content=content(
                JSON, {"type": "array", "items": {"$ref": "#/components/schemas/Study"}}
            ),
        ),
    ),
    RouteSpec(
        "POST",
        STUDIES,
        handlers.publish_study,
        Operation(
            name="publishStudy",
            summary="Publish a study. A study that is already published does not change.",
            status=201,
            content=content(JSON, "Study"),
            body=binary_body(CBOR, description="A manifest."),
            parameters=(
                query_number("patience", PHASE_TIMEOUTS, "Timeout of a phase, in seconds."),
            ),
            security=ANALYST,
            errors=(401, 413, 415),
        ),
    ),
    RouteSpec(
        "GET",
        study_route(_ANY),
        handlers.show_study,
        Operation(name="showStudy", summary="Summary of a study.", content=content(JSON, "Study")),
    ),
    RouteSpec(
        "GET",
        study_route(_ANY, "manifest"),
        handlers.get_manifest,
        Operation(
            name="getManifest",
            summary="The manifest with the coordinator's key and signature.",
            content=content(CBOR),
        ),
    ),
    RouteSpec(
        "GET",
        study_route(_ANY, "label"),
        handlers.get_label,
        Operation(
            name="getLabel",
            summary="The label that a participant reads before consenting.",
            content=content(JSON, OBJECT) | content(TEXT, {"type": "string"}),
        ),
    ),
    RouteSpec(
        "GET",
        study_route(_ANY, "board"),
        handlers.get_broadcasts,
        Operation(
            name="readBoard",
            summary="Messages to everyone after a number; waits for the first one. The response "
            "is the same for all callers.",
            content=content(CBOR),
            parameters=(
                query_number("after", MESSAGE_NUMBERS, "Number of the last message that was read."),
                query_number("wait", WAIT_SECONDS, "Seconds to wait."),
            ),
        ),
    ),
    RouteSpec(
        "GET",
        study_route(_ANY, "progress"),
        handlers.get_progress,
        Operation(
            name="getProgress",
            summary="Status and totals; counts of people are rounded.",
            content=content(JSON, OBJECT),
        ),
    ),
    RouteSpec(
        "GET",
        study_route(_ANY, "model"),
        handlers.get_model,
        Operation(
            name="getModel",
            summary="The result of a study that has ended.",
            content=content(JSON, OBJECT),
            errors=(409, 410),
        ),
    ),
    RouteSpec(
        "GET",
        study_route(_ANY, "members"),
        handlers.list_members,
        Operation(
            name="listMembers",
            summary="A page of the list of members: keys with credentials that are valid in the "
            "study, if it has tokens.",
            content=content(CBOR),
            parameters=(AFTER,),
        ),
    ),
    RouteSpec(
        "GET",
        study_route(_ANY, "received"),
        handlers.list_received,
        Operation(
            name="listReceived",
            summary="A page of the list of received packets, by name; available when a phase "
            "collects no more packets.",
            content=content(CBOR),
            parameters=(AFTER,),
            errors=(409, 410),
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "enrolments"),
        handlers.enrol,
        Operation(
            name="enrol",
            summary="Enrol the key that signs the request.",
            content=content(JSON, "Enrolled"),
            body=json_body(Enrolment),
            security=SIGNED,
            errors=(401, 403, 409, 413, 415),
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "messages"),
        handlers.accept_message,
        Operation(
            name="sendMessage",
            summary="Send a message of the protocol under the participant's name.",
            status=202,
            body=binary_body(CBOR),
            security=SIGNED,
            errors=(401, 403, 409, 410, 413, 415),
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "mailbox"),
        handlers.poll_mailbox,
        Operation(
            name="readMailbox",
            summary="Messages to everyone and to this participant. Messages to this participant up "
            "to the acknowledged number are deleted.",
            content=content(CBOR),
            body=json_body(Poll),
            security=SIGNED,
            errors=(401, 403, 413, 415),
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "leave"),
        handlers.leave,
        Operation(
            name="leave",
            summary="Leave the study. Sent answers cannot be withdrawn.",
            status=204,
            security=SIGNED,
            errors=(401, 403, 413),
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "submissions"),
        handlers.submit,
        Operation(
            name="submit",
            summary="Submit a packet with a token, or an anonymous message. The response is the "
            "same for accepted and rejected submissions.",
            status=202,
            body=binary_body(RAW, CBOR),
            is_silent=True,
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "batches"),
        handlers.accept_batch,
        Operation(
            name="takeBatch",
            summary="Send a relay's batch of sealed packets. The response comes when they are "
            "stored, and lists the invalid ones.",
            content=content(CBOR),
            body=binary_body(CBOR),
            errors=(409, 410, 413, 415),
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "draw"),
        handlers.reject_draw_or_update,
        Operation(
            name="drawInstance",
            summary="DDML: draw a random instance, with the epoch.",
            content=content(RAW),
            errors=(410,),
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "update"),
        handlers.reject_draw_or_update,
        Operation(
            name="sendUpdate",
            summary="DDML: send an update: id, epoch and weights.",
            status=202,
            body=binary_body(RAW),
            parameters=(UPDATE_NUMBER, TICKET, TOKEN),
            security=ANY_OR_SIGNED,
            errors=(401, 403, 409, 410, 413),
        ),
    ),
    RouteSpec(
        "POST",
        study_route(_ANY, "close"),
        handlers.close_study,
        Operation(
            name="closeStudy",
            summary="End a study without a result.",
            status=204,
            security=ANALYST,
            errors=(401, 413),
        ),
    ),
    RouteSpec(
        "GET",
        ISSUING,
        handlers.get_issuing_keys,
        Operation(
            name="getKeys",
            summary="The coordinator's keys that manifests contain.",
            content=content(JSON, "Issuing"),
            errors=(404,),
        ),
    ),
    RouteSpec(
        "GET",
        KEYS,
        handlers.get_gateway_keys,
        Operation(
            name="getGatewayKey",
            summary="The gateway's key (RFC 9458).",
            content=content(ohttp.KEYS_CONTENT_TYPE),
        ),
    ),
    RouteSpec(
        "POST",
        GATEWAY,
        handlers.answer_gateway,
        Operation(
            name="openSealed",
            summary="Answer a participant's request that is sealed to the gateway's key (RFC "
            "9458); the response is sealed too.",
            content=content(OHTTP_RESPONSE),
            body=binary_body(
                OHTTP_REQUEST,
                limit=DEFAULT_SEALED_BYTES,
                description="Binary HTTP (RFC 9292), sealed; more bytes if a study needs them.",
            ),
            errors=(413, 415),
        ),
    ),
    RouteSpec(
        "GET",
        OPENAPI,
        get_openapi,
        Operation(name="describe", summary="This description.", content=content(JSON, OBJECT)),
    ),
    RouteSpec(
        "GET",
        "/healthz",
        handlers.healthz,
        Operation(
            name="isAlive", summary="Answers if the process runs.", content=content(JSON, OBJECT)
        ),
    ),
    RouteSpec(
        "GET",
        "/readyz",
        handlers.readyz,
        Operation(
            name="isReady",
            summary="Answers if the store can be used.",
            content=content(JSON, OBJECT),
        ),
    ),
    RouteSpec(
        "GET",
        "/metrics",
        handlers.get_metrics,
        Operation(
            name="getMetrics",
            summary="Totals for Prometheus.",
            content=content(TEXT, {"type": "string"}),
        ),
    ),
)


@lru_cache(maxsize=1)
def _encode_openapi_document() -> bytes:
    return json.dumps(make_openapi_document(ROUTES)).encode()
