"""The report: one HTML page from any mixture of runs, comparisons and results.

``shoal report`` and the Python API call `make_report`. The page must stay self-contained: its
policy forbids all requests and scripts, and its styles are inline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from shoal import __version__
from shoal.errors import UsageError
from shoal.report.documents import (
    AuditDocument,
    ComparisonDocument,
    ReportDocument,
    ResultDocument,
    RunDocument,
    read_audit,
    read_document,
)
from shoal.report.formatting import GREY, format_epsilon_delta, get_protocol_colour
from shoal.report.html import Markup, Section, join, make_paragraph, tag, truncate
from shoal.report.sections.comparison import make_comparison_section
from shoal.report.sections.evaluation import (
    make_audits_section,
    make_calibration_section,
    make_participation_section,
    make_privacy_section,
    make_sweeps_section,
)
from shoal.report.sections.learned import (
    make_histograms_section,
    make_model_card,
    make_reproduction_section,
    make_run_tree_section,
    make_run_weights_section,
)
from shoal.report.sections.protocols import (
    make_exposure_section,
    make_released_section,
    make_spread_section,
)
from shoal.report.sections.result import make_result_sections
from shoal.report.sections.summary import make_budget_section, make_headline_section
from shoal.report.views import RunView, make_run_label, make_run_view
from shoal.study.registry import PROTOCOLS
from shoal.text import format_count

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy of a page: it may load nothing."""
_MAX_TITLE_LENGTH = 160
_ACROSS_KEY = "across"
_RUN_SECTIONS: Sequence[Callable[[RunView], Section | None]] = (
    make_headline_section,
    lambda view: make_privacy_section([view]),
    make_sweeps_section,
    make_budget_section,
    make_participation_section,
    make_histograms_section,
    make_run_weights_section,
    make_run_tree_section,
    make_spread_section,
    make_exposure_section,
    make_released_section,
    make_calibration_section,
)
_SIMULATED = "This is a simulation."


@dataclass(frozen=True)
class Chapter:
    """The sections for one document."""

    key: str
    title: str
    kind: str
    colour: str
    note: str
    sections: tuple[Section, ...]
    is_simulated: bool = True


def make_report(
    documents: Sequence[Mapping[str, Any]], audits: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return one self-contained HTML page: no script, no external file, no request.

    Parameters
    ----------
    documents
        At least one parsed document, in any mixture: ``run.json`` of `shoal simulate --out`,
        ``compare.json`` of `shoal compare --out`, or the JSON of a coordinator's model. A run may
        have its model under the key ``learned``.
    audits
        Parsed output of `shoal audit study --json`.

    Raises
    ------
    SpecError
        ``REPORT-001``: a document is of another kind. ``REPORT-002``: a field is absent or invalid.
    UsageError
        ``REPORT-001``: there is no document.
    """
    if not documents:
        raise UsageError(
            "REPORT-001",
            "The report has no document.",
            fix="Give at least one run, comparison or result.",
        )
    read = [read_document(document, f"Document {i}") for i, document in enumerate(documents, 1)]
    read_audits = [read_audit(audit, f"Audit {i}") for i, audit in enumerate(audits, 1)]
    return make_page(list(_make_chapters(read, read_audits)))


def _make_chapters(
    documents: Sequence[ReportDocument], audits: Sequence[AuditDocument]
) -> Iterator[Chapter]:
    views = {
        i: make_run_view(document, f"Document {i + 1}")
        for i, document in enumerate(documents)
        if isinstance(document, RunDocument)
    }
    if len(views) > 1:
        curves = make_privacy_section(list(views.values()))
        if curves is not None:
            yield Chapter(_ACROSS_KEY, "All runs", "several runs", GREY, _SIMULATED, (curves,))
    positions = [_match_audit(audit, documents) for audit in audits]
    for i, document in enumerate(documents):
        matching = [audit for audit, at in zip(audits, positions, strict=True) if at == i]
        yield _make_chapter(f"part-{i + 1}", document, views.get(i), matching)


def _match_audit(audit: AuditDocument, documents: Sequence[ReportDocument]) -> int:
    """Return the position of the document that an audit is about.

    It has the same title, and if possible a point with the same epsilon. An audit that fits no
    document is shown with the first.
    """

    def rate_match(document: ReportDocument) -> int:
        epsilons = (
            [point.total.epsilon for point in document.points if point.total is not None]
            if isinstance(document, RunDocument)
            else []
        )
        return (document.title == audit.title) * (1 + (audit.epsilon in epsilons))

    return max(range(len(documents)), key=lambda i: (rate_match(documents[i]), -i))


def _make_chapter(
    key: str, document: ReportDocument, view: RunView | None, audits: Sequence[AuditDocument]
) -> Chapter:
    if isinstance(document, RunDocument):
        assert view is not None, "each run has a view"
        sections = [section for make in _RUN_SECTIONS if (section := make(view)) is not None]
        sections += [
            extra
            for extra in (
                make_audits_section(audits, view.colour),
                make_model_card(view),
                make_run_label(view),
                make_reproduction_section(document),
            )
            if extra is not None
        ]
        return Chapter(
            key,
            view.title,
            _describe_run(view),
            view.colour,
            _format_note(document.remark),
            tuple(sections),
        )
    if isinstance(document, ComparisonDocument):
        sections = [
            extra
            for extra in (
                make_comparison_section(document),
                make_audits_section(audits, GREY),
                make_reproduction_section(document),
            )
            if extra is not None
        ]
        return Chapter(
            key,
            document.title,
            "comparison of protocols",
            GREY,
            _format_note(document.remark),
            tuple(sections),
        )
    assert isinstance(document, ResultDocument)
    colour = get_protocol_colour(document.protocol)
    sections = list(make_result_sections(document, "The result"))
    audited = make_audits_section(audits, colour)
    sections[2:2] = [audited] if audited is not None else []
    note = (
        "A coordinator published this result. It is not verified; the digest and the label state "
        "what participants agreed to."
    )
    return Chapter(
        key,
        document.title,
        f"{PROTOCOLS[document.protocol].title} {document.variant}, result",
        colour,
        note,
        tuple(sections),
        is_simulated=False,
    )


def _describe_run(view: RunView) -> str:
    stated = view.guarantee
    return (
        f"{view.protocol}, without noise"
        if stated is None
        else f"{view.protocol}, {format_epsilon_delta(stated)} per {stated.unit} "
        f"({stated.relation})"
    )


def _format_note(remark: str) -> str:
    """Return the note of a run, with one statement that it is a simulation."""
    if remark.startswith(_SIMULATED):
        return remark
    return f"This is {remark}." if remark.startswith("a simulation") else f"{_SIMULATED} {remark}"


def make_page(chapters: Sequence[Chapter]) -> str:
    """Return the page with the given chapters."""
    several = len(chapters) > 1
    # The page has the title of the first document, also if charts of all runs come first.
    title = truncate(
        next((chapter.title for chapter in chapters if chapter.key != _ACROSS_KEY), ""),
        _MAX_TITLE_LENGTH,
    )
    body = [
        tag("a", "Skip to the report", href="#main", class_="skip"),
        tag(
            "header",
            tag("p", "shoal report", class_="brand"),
            tag("h1", title, dir="auto"),
            make_paragraph(
                format_count(len(chapters), "part") if several else chapters[0].kind, class_="kind"
            ),
            class_="top",
            style=f"--accent: {GREY if several else chapters[0].colour}",
        ),
        _make_contents(chapters),
        tag("main", [_render_chapter(chapter, several) for chapter in chapters], id="main"),
        tag(
            "footer",
            make_paragraph(
                f"Written by shoal {__version__}. This file loads nothing and sends nothing."
            ),
        ),
    ]
    return make_document(title, "report.css", body)


def _make_contents(chapters: Sequence[Chapter]) -> Markup:
    items = []
    for chapter in chapters:
        inner = tag(
            "ol",
            [
                tag("li", tag("a", section.title, href=f"#{chapter.key}-{section.key}"))
                for section in chapter.sections
            ],
        )
        name = tag(
            "a",
            truncate(chapter.title, 80),
            f" – {chapter.kind}",
            href=f"#{chapter.key}",
            dir="auto",
        )
        items.append(tag("li", name, inner) if len(chapters) > 1 else inner)
    return tag(
        "nav",
        tag("h2", "Contents"),
        tag("ul", items) if len(chapters) > 1 else items,
        aria_label="Contents",
    )


def _render_chapter(chapter: Chapter, several: bool) -> Markup:
    level = "h3" if several else "h2"
    head = (
        join(
            [
                tag("h2", truncate(chapter.title, _MAX_TITLE_LENGTH), dir="auto"),
                make_paragraph(chapter.kind, class_="kind"),
            ]
        )
        if several
        else None
    )
    sections = [
        tag(
            "section",
            tag(level, section.title),
            make_paragraph(section.lead, class_="lead"),
            section.body,
            id=f"{chapter.key}-{section.key}",
        )
        for section in chapter.sections
    ]
    return tag(
        "article",
        head,
        make_paragraph(chapter.note, class_="simulated" if chapter.is_simulated else "published"),
        sections,
        id=chapter.key,
        style=f"--accent: {chapter.colour}",
        class_="chapter",
    )


def make_document(title: str, style: str, body: Sequence[Markup]) -> str:
    """Return a complete HTML document with its styles inline."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"shoal {__version__}"),
        tag("title", title),
        tag("style", Markup(_read_stylesheet(style))),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


@cache
def _read_stylesheet(name: str) -> str:
    return (resources.files(__package__) / "styles" / name).read_text("utf-8")
