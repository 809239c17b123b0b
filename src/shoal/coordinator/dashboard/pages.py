"""Read-only pages: the list of studies, and each study with label and report.

`shoal.coordinator.app` serves `make_pages` after the HTTP API. The pages need no script, contain no
more than the public routes, and store nothing about a visitor: no cookie, no log. The analyst's
forms are in `shoal.coordinator.dashboard.forms`, and live totals in
`shoal.coordinator.dashboard.events`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from shoal.coordinator.cache import SingleFlightCache
from shoal.coordinator.dashboard.events import EventStreams
from shoal.coordinator.dashboard.forms import (
    close_study,
    publish_study,
    show_close_form,
    show_publish_form,
)
from shoal.coordinator.dashboard.responses import (
    answer_with_page,
    html_response,
    list_phases,
    list_warnings,
    mark_download,
)
from shoal.coordinator.handlers import get_result, open_study, summarize_study
from shoal.coordinator.publishing import describe_end
from shoal.coordinator.routes import RouteSpec
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.studies import StudyView
from shoal.report import make_report, make_statement_page
from shoal.transport.api import JSON
from shoal.transport.requests import not_found_error, read_digest, read_query
from shoal.web import rendering, study_pages
from shoal.web.study_pages import StudyFacts

_DOWNLOAD = {"download": range(1, 2)}
_FOR_EVER = {
    "cache-control": "public, max-age=31536000, immutable",
    "cross-origin-resource-policy": "same-origin",
}
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""A report or statement is one file with inline styles; it may load and run nothing else."""

_STUDY = "/studies/{digest}"
_MAX_CARDS, _MAX_REPORTS, _MAX_STATEMENTS = 4096, 64, 64
"""Cached values: a card has a few hundred bytes, a report or statement some ten thousand."""


class OverviewPage:
    """The list of studies; the card of a study is made once."""

    def __init__(self) -> None:
        self._cards: SingleFlightCache[Mapping[str, Any]] = SingleFlightCache(_MAX_CARDS)

    async def show(self, service: CoordinatorService, request: Request) -> Response:
        read_query(request)
        views = await service.list_studies()
        cards = [await self._cards.get(view.digest, partial(_make_card, view)) for view in views]
        # A card never changes; the status of its study does.
        entries = [
            {**card, "status": view.record.status} for card, view in zip(cards, views, strict=True)
        ]
        return html_response(await run_in_threadpool(study_pages.render_studies, entries))


async def show_study(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    handle = view.handle
    progress = await service.get_progress(view.digest)
    # Only AnonML opens phases with messages that have times.
    broadcasts = (
        (await service.mailbox.fetch(view.digest, None, 0, 0)).letters
        if handle.protocol.has_packets
        else ()
    )

    def render() -> str:
        is_open = progress["status"] == "open"
        return study_pages.render_study(
            study_pages.make_page_data(
                StudyFacts.from_handle(handle),
                summarize_study(view),
                progress,
                n_named=len(handle.participant_names),
                ends=describe_end(handle, view.record) if is_open else None,
                phases=list_phases(handle, broadcasts),
                warnings=list_warnings(handle),
            )
        )

    return html_response(await run_in_threadpool(render))


async def show_label(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)

    def render() -> str:
        return study_pages.render_label(StudyFacts.from_handle(view.handle), view.digest)

    return html_response(await run_in_threadpool(render))


class StatementPages:
    """One-page statements to sign, each with the digest of the published study."""

    def __init__(self) -> None:
        self._statements: SingleFlightCache[str] = SingleFlightCache(_MAX_STATEMENTS)

    async def show(self, service: CoordinatorService, request: Request) -> Response:
        view = await open_study(service, request)
        page = await self._statements.get(
            view.digest, lambda: make_statement_page(view.manifest, view.handle.label())
        )
        return html_response(page, policy=_REPORT_POLICY)


class ReportPages:
    """Reports of studies that have ended; they never change."""

    def __init__(self) -> None:
        self._reports: SingleFlightCache[str] = SingleFlightCache(_MAX_REPORTS)

    async def show(self, service: CoordinatorService, request: Request) -> Response:
        query = read_query(request, _DOWNLOAD)
        view = await service.get_study(read_digest(request))
        result = get_result(view)
        report = await self._reports.get(view.digest, lambda: make_report([json.loads(result)]))
        response = html_response(report, policy=_REPORT_POLICY)
        return mark_download(response, view.manifest, "report.html") if query else response


async def save_model(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    return mark_download(Response(get_result(view), media_type=JSON), view.manifest, "model.json")


async def show_asset(_: CoordinatorService, request: Request) -> Response:
    read_query(request)
    asset = rendering.list_assets().get(request.url.path)
    if asset is None:
        raise not_found_error("This file does not exist.")
    return Response(asset.content, headers={**_FOR_EVER, "content-type": asset.media_type})


def make_pages(service: CoordinatorService) -> tuple[RouteSpec, ...]:
    """Return all pages of a service; each service has its own caches and streams."""
    pages = (
        RouteSpec("GET", "/", OverviewPage().show),
        RouteSpec("GET", "/publish", show_publish_form),
        RouteSpec("POST", "/publish", publish_study),
        RouteSpec("GET", _STUDY, show_study),
        RouteSpec("GET", f"{_STUDY}/label", show_label),
        RouteSpec("GET", f"{_STUDY}/statement", StatementPages().show),
        RouteSpec("GET", f"{_STUDY}/report", ReportPages().show),
        RouteSpec("GET", f"{_STUDY}/model", save_model),
        RouteSpec("GET", f"{_STUDY}/events", EventStreams(service).open_stream),
        RouteSpec("GET", f"{_STUDY}/close", show_close_form),
        RouteSpec("POST", f"{_STUDY}/close", close_study),
        RouteSpec("GET", f"{rendering.STATIC_ROOT}/{{name}}", show_asset),
    )
    return tuple(replace(page, endpoint=partial(answer_with_page, page.endpoint)) for page in pages)


def _make_card(view: StudyView) -> Mapping[str, Any]:
    return study_pages.make_card(StudyFacts.from_handle(view.handle), summarize_study(view))
