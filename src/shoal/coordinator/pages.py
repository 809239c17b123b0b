"""What a browser is shown: the list of studies, each study, its label, its statement and its report, as pages that need no script.

They say no more than the public routes do, and are looked up after them. Nothing is kept for a visitor: no cookie, no log. `PAGES` is the
whole list; what an analyst does by a form is in `shoal.coordinator.pages_forms`, and what changes while somebody looks in `pages_events`.
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

from shoal.coordinator.aggregators import names_of
from shoal.coordinator.office import Office, Served
from shoal.coordinator.pages_answers import Page, html, save_as
from shoal.coordinator.pages_events import Streams
from shoal.coordinator.pages_facts import known_of, phases_of, warnings_of
from shoal.coordinator.pages_forms import close_form, close_study, publish_form, publish_study
from shoal.coordinator.pages_kept import Kept
from shoal.coordinator.publishing import end_of
from shoal.coordinator.routes import Way, summary_of
from shoal.coordinator.store.base import Hosted
from shoal.report import report_of, statement_page
from shoal.transport.problems import RequestError, not_here
from shoal.transport.reading import digest_of, query_of
from shoal.transport.routes import JSON
from shoal.web import assets, facts, views

_DOWNLOAD = {"download": range(1, 2)}
_FOR_EVER = {"cache-control": "public, max-age=31536000, immutable", "cross-origin-resource-policy": "same-origin"}
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""A report or a statement is one file with its styles in it: it may do nothing but look as it does."""

_STUDY = "/studies/{digest}"
_MOST_CARDS, _MOST_REPORTS, _MOST_STATEMENTS = 4096, 64, 64
"""That are kept in memory: a card is a few hundred bytes, a report or a statement some ten thousand."""


class Overview:
    """All studies, each as a card that is made once."""

    def __init__(self) -> None:
        self._cards: Kept[Mapping[str, Any]] = Kept(_MOST_CARDS)

    async def show(self, office: Office, request: Request) -> Response:
        query_of(request)
        studies = await office.studies()
        cards = [await self._cards.get(hosted.digest, partial(_card, hosted)) for hosted in studies]
        # A card never changes; how its study stands does.
        listed = [{**card, "status": hosted.status} for card, hosted in zip(cards, studies, strict=True)]
        return html(await run_in_threadpool(views.studies_page, listed))


async def show_study(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    digest, manifest = served.hosted.digest, served.manifest
    progress = await office.progress(digest)
    letters = (await office.board(digest, 0, 0)).letters if served.protocol == "anonml" else ()

    def rendered() -> str:
        ends = end_of(manifest, served.hosted) if progress["status"] == "open" else None
        known, phases = known_of(served.hosted.manifest), phases_of(manifest, letters)
        n_named, warnings = len(names_of(manifest)), warnings_of(served.hosted.manifest)
        summary = summary_of(served)
        return views.study_page(facts.described(known, summary, progress, n_named=n_named, ends=ends, phases=phases, warnings=warnings))

    return html(await run_in_threadpool(rendered))


async def show_label(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    return html(await run_in_threadpool(lambda: views.label_page(known_of(served.hosted.manifest), served.hosted.digest)))


class Statements:
    """Studies on one page to sign off, each with the digest that is served."""

    def __init__(self) -> None:
        self._statements: Kept[str] = Kept(_MOST_STATEMENTS)

    async def show(self, office: Office, request: Request) -> Response:
        served = await _served(office, request)
        page = await self._statements.get(served.hosted.digest, partial(statement_page, served.manifest))
        return html(page, policy=_REPORT_POLICY)


class Reports:
    """The reports of studies that have ended, which do not change any more."""

    def __init__(self) -> None:
        self._reports: Kept[str] = Kept(_MOST_REPORTS)

    async def show(self, office: Office, request: Request) -> Response:
        asked = query_of(request, _DOWNLOAD)
        served = await office.study(digest_of(request))
        result = _result(served)
        report = await self._reports.get(served.hosted.digest, lambda: report_of([json.loads(result)]))
        answer = html(report, policy=_REPORT_POLICY)
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
    """All pages of an office. What is kept, and the streams that are open, are kept and counted for each office."""
    ways = (
        Way("GET", "/", Overview().show),
        Way("GET", "/publish", publish_form),
        Way("POST", "/publish", publish_study),
        Way("GET", _STUDY, show_study),
        Way("GET", f"{_STUDY}/label", show_label),
        Way("GET", f"{_STUDY}/statement", Statements().show),
        Way("GET", f"{_STUDY}/report", Reports().show),
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


def _card(hosted: Hosted) -> Mapping[str, Any]:
    known = known_of(hosted.manifest)
    return facts.listed(known, {"digest": hosted.digest, "short": known.manifest.short, "status": hosted.status})


def _result(served: Served) -> bytes:
    hosted = served.hosted
    if hosted.result is not None:
        return hosted.result
    if hosted.status == "open":
        raise RequestError(409, "HOST-002", "The study goes on: nothing is learned yet.", fix="Come back when it has ended.")
    raise RequestError(410, "HOST-002", "The study has ended without a model.", why=hosted.reason)
