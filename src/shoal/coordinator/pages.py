"""What a browser is shown: the list of studies, each study, its label and its report, as pages that need no script.

They say no more than the public routes do, and are looked up after them. Nothing is kept for a visitor: no cookie, no log. `PAGES` is the
whole list; what an analyst does by a form is in `shoal.coordinator.pages_forms`, and what changes while somebody looks in `pages_events`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from shoal.coordinator.aggregators import names_of
from shoal.coordinator.office import Office, Served
from shoal.coordinator.pages_answers import Page, html, save_as
from shoal.coordinator.pages_events import Streams
from shoal.coordinator.pages_facts import known_of, phases_of
from shoal.coordinator.pages_forms import close_form, close_study, publish_form, publish_study
from shoal.coordinator.publishing import end_of
from shoal.coordinator.routes import Way, summary_of
from shoal.report import report_of
from shoal.transport.problems import RequestError, not_here
from shoal.transport.reading import digest_of, query_of
from shoal.transport.routes import JSON
from shoal.web import assets, facts, views

_DOWNLOAD = {"download": range(1, 2)}
_FOR_EVER = {"cache-control": "public, max-age=31536000, immutable", "cross-origin-resource-policy": "same-origin"}
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""A report is one file with its styles in it: it may do nothing but look as it does."""

_STUDY = "/studies/{digest}"


async def list_studies(office: Office, request: Request) -> Response:
    query_of(request)
    served = [await office.study(hosted.digest) for hosted in await office.studies()]
    return html(await run_in_threadpool(_listed, served))


async def show_study(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    digest, manifest = served.hosted.digest, served.manifest
    progress = await office.progress(digest)
    letters = (await office.board(digest, 0, 0)).letters if served.protocol == "anonml" else ()

    def rendered() -> str:
        ends = end_of(manifest, served.hosted) if progress["status"] == "open" else None
        known, phases = known_of(served.hosted.manifest), phases_of(manifest, letters)
        described = facts.described(known, summary_of(served), progress, n_named=len(names_of(manifest)), ends=ends, phases=phases)
        return views.study_page(described)

    return html(await run_in_threadpool(rendered))


async def show_label(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    return html(await run_in_threadpool(lambda: views.label_page(known_of(served.hosted.manifest), served.hosted.digest)))


async def show_report(office: Office, request: Request) -> Response:
    asked = query_of(request, _DOWNLOAD)
    served = await office.study(digest_of(request))
    result = _result(served)
    answer = html(await run_in_threadpool(_report, result), policy=_REPORT_POLICY)
    return save_as(answer, served.manifest, "report.html") if asked else answer


async def save_model(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    return save_as(Response(_result(served), media_type=JSON), served.manifest, "model.json")


async def asset(_: Office, request: Request) -> Response:
    query_of(request)
    found = assets.served().get(request.url.path)
    if found is None:
        raise not_here("There is no such file.")
    return Response(found.content, headers={**_FOR_EVER, "content-type": found.media_type})


def pages_of(office: Office) -> tuple[Way, ...]:
    """All pages of an office. Streams of events are counted for each of them."""
    ways = (
        Way("GET", "/", list_studies),
        Way("GET", "/publish", publish_form),
        Way("POST", "/publish", publish_study),
        Way("GET", _STUDY, show_study),
        Way("GET", f"{_STUDY}/label", show_label),
        Way("GET", f"{_STUDY}/report", show_report),
        Way("GET", f"{_STUDY}/model", save_model),
        Way("GET", f"{_STUDY}/events", Streams(office).follow),
        Way("GET", f"{_STUDY}/close", close_form),
        Way("POST", f"{_STUDY}/close", close_study),
        Way("GET", f"{assets.ROOT}/{{name}}", asset),
    )
    return tuple(replace(way, endpoint=Page(way.endpoint)) for way in ways)


async def _served(office: Office, request: Request) -> Served:
    query_of(request)
    return await office.study(digest_of(request))


def _listed(studies: list[Served]) -> str:
    return views.studies_page([facts.listed(known_of(served.hosted.manifest), summary_of(served)) for served in studies])


def _result(served: Served) -> bytes:
    hosted = served.hosted
    if hosted.result is not None:
        return hosted.result
    if hosted.status == "open":
        raise RequestError(409, "HOST-002", "The study goes on: nothing is learned yet.", fix="Come back when it has ended.")
    raise RequestError(410, "HOST-002", "The study has ended without a model.", why=hosted.reason)


@lru_cache(maxsize=8)
def _report(result: bytes) -> str:
    return report_of([json.loads(result)])
