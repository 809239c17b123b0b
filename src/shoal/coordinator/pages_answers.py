"""Pages as answers: the headers that a browser keeps to, files to save, and errors as pages."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import Response

from shoal.coordinator.office import Office
from shoal.coordinator.routes import Endpoint
from shoal.errors import ShoalError
from shoal.study.manifest import Manifest
from shoal.transport.problems import problem
from shoal.web import views

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
_HEADINGS = {401: "Not the analyst", 404: "Not here", 409: "Not yet", 410: "Nothing was learned", 503: "Not now"}


def html(page: str, status: int = 200, *, policy: str = POLICY, headers: dict[str, str] | None = None) -> Response:
    """A page, which may load nothing but what the policy allows, and be shown in no frame."""
    return Response(page, status, {**_HEADERS, "content-security-policy": policy, **(headers or {})}, media_type="text/html")


def save_as(answer: Response, manifest: Manifest, name: str) -> Response:
    """An answer that a browser keeps as a file."""
    answer.headers["content-disposition"] = f'attachment; filename="shoal-{manifest.short}-{name}"'
    return answer


def told(error: ShoalError) -> tuple[int, dict[str, str], dict[str, str | None]]:
    """The status of an error, the headers that go with it, and its words, as the routes for programs would have them."""
    answer = problem(error)
    headers = {name: value for name, value in answer.headers.items() if name in ("retry-after", "www-authenticate", "connection")}
    return answer.status_code, headers, json.loads(bytes(answer.body))


class Page:
    """An endpoint whose errors are pages too."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, office: Office, request: Request) -> Response:
        try:
            return await self._endpoint(office, request)
        except ShoalError as error:
            status, headers, words = told(error)
            digest = request.path_params.get("digest")
            back = f"/studies/{digest}" if digest and status in (409, 410) else "/"
            return html(views.notice_page(_HEADINGS.get(status, "This cannot be done"), words, back), status, headers=headers)
