"""HTML responses and page facts.

`shoal.coordinator.dashboard.pages` and `forms` use it: headers that restrict what a browser loads,
files to save, errors as pages, and the facts of a study that pages show.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shoal.coordinator.routes import Endpoint
from shoal.coordinator.service import CoordinatorService
from shoal.errors import ShoalError
from shoal.messages.codec import decode
from shoal.protocols.anonml.messages import AnonMLAsk
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.plan import find_warnings
from shoal.text import format_utc
from shoal.transport.api import QueuedMessage
from shoal.transport.requests import make_problem_response
from shoal.web import study_pages

POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_HEADERS = {
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
_HEADINGS = {
    401: "Analyst's key required",
    404: "Page not found",
    409: "Not available yet",
    410: "No model",
    503: "Temporarily unavailable",
}


def html_response(
    page: str, status: int = 200, *, policy: str = POLICY, headers: dict[str, str] | None = None
) -> Response:
    """Return a page that may load only what the policy allows, and not be shown in a frame."""
    return Response(
        page,
        status,
        {**_HEADERS, "content-security-policy": policy, **(headers or {})},
        media_type="text/html",
    )


def mark_download(response: Response, manifest: Manifest, name: str) -> Response:
    """Return a response that a browser saves as a file."""
    response.headers["content-disposition"] = (
        f'attachment; filename="shoal-{manifest.short_digest}-{name}"'
    )
    return response


def describe_error(error: ShoalError) -> tuple[int, dict[str, str], dict[str, str | None]]:
    """Return the status, headers and problem document of an error, as the HTTP API has them."""
    response = make_problem_response(error)
    headers = {
        name: value
        for name, value in response.headers.items()
        if name in ("retry-after", "www-authenticate", "connection")
    }
    return response.status_code, headers, json.loads(bytes(response.body))


async def answer_with_page(
    endpoint: Endpoint, service: CoordinatorService, request: Request
) -> Response:
    """Call an endpoint; if it raises an error, return a page that shows the error."""
    try:
        return await endpoint(service, request)
    except ShoalError as error:
        status, headers, problem = describe_error(error)
        digest = request.path_params.get("digest")
        back = f"/studies/{digest}" if digest and status in (409, 410) else "/"
        heading = _HEADINGS.get(status, "The request failed")
        return html_response(
            study_pages.render_notice(heading, problem, back), status, headers=headers
        )


def list_warnings(handle: StudyHandle) -> tuple[str, ...]:
    """Return the warnings of a study's plan: weak protection, or a result that is mostly noise."""
    # The time is before any study closes: the page itself shows whether the study has ended.
    return find_warnings(handle.plan, datetime.min.replace(tzinfo=UTC))


def list_phases(handle: StudyHandle, broadcasts: Iterable[QueuedMessage]) -> list[dict[str, Any]]:
    """Return the phases of an AnonML study so far, from its public messages."""
    messages = (
        decode(message.payload, handle.protocol.messages, handle.digest) for message in broadcasts
    )
    n_phases = handle.protocol.count_phases(handle)
    return [
        {
            "number": ask.phase + 1,
            "of": n_phases,
            "opened": format_utc(ask.opened),
            "closes": format_utc(ask.closes),
        }
        for ask in messages
        if isinstance(ask, AnonMLAsk)
    ]
