"""A report: one page that needs nothing else, made of any mixture of runs, comparisons and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from shoal import __version__
from shoal.errors import UsageError
from shoal.names import counted
from shoal.report.colours import GREY, colour_of
from shoal.report.documents import Audit, Compared, Document, Result, Run, read_audit, read_document
from shoal.report.figures import epsilon_words
from shoal.report.labels import label_of_run
from shoal.report.layout import Section, paragraph
from shoal.report.markup import Markup, cut, join, tag
from shoal.report.sections.budget import budget
from shoal.report.sections.card import card, reproduce
from shoal.report.sections.checks import audits, calibration
from shoal.report.sections.comparison import comparison
from shoal.report.sections.curves import other_sweeps, privacy_curve
from shoal.report.sections.headline import headline
from shoal.report.sections.learned import histograms, tree_of_run, weights_of_run
from shoal.report.sections.participation import participation
from shoal.report.sections.protocols import exposure, released, spread
from shoal.report.sections.result import result_sections
from shoal.report.views import TITLES, RunView, view_of

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a page may load: nothing."""
_TITLE = 160
_ACROSS = "across"
_OF_RUN: Sequence[Callable[[RunView], Section | None]] = (
    headline,
    lambda view: privacy_curve([view]),
    other_sweeps,
    budget,
    participation,
    histograms,
    weights_of_run,
    tree_of_run,
    spread,
    exposure,
    released,
    calibration,
)
_SIMULATED = "This is a simulation."


@dataclass(frozen=True)
class Chapter:
    """All that is said about one document."""

    key: str
    title: str
    kind: str
    colour: str
    note: str
    sections: tuple[Section, ...]
    is_simulated: bool = True


def report_of(documents: Sequence[Mapping[str, Any]], audits: Sequence[Mapping[str, Any]] = ()) -> str:
    """One self-contained HTML page: no script, no picture of its own, nothing that is loaded.

    Parameters
    ----------
    documents
        Parsed: ``run.json`` of `shoal simulate --out`, ``compare.json`` of `shoal compare --out`, the JSON of a coordinator's model; in any
        mixture, at least one. A run may carry its model as ``learned``.
    audits
        Parsed: what `shoal audit study --json` prints.

    Raises
    ------
    SpecError
        ``REPORT-001`` or ``REPORT-002``: one of them is something else, or not in the form that this version reads.
    """
    if not documents:
        raise UsageError("REPORT-001", "There is nothing to report on.", fix="Give at least one run, comparison or result.")
    read = [read_document(document, f"Document {i}") for i, document in enumerate(documents, 1)]
    found = [read_audit(audit, f"Audit {i}") for i, audit in enumerate(audits, 1)]
    return page(list(_chapters(read, found)))


def _chapters(documents: Sequence[Document], found: Sequence[Audit]) -> Iterator[Chapter]:
    views = {i: view_of(one, f"Document {i + 1}") for i, one in enumerate(documents) if isinstance(one, Run)}
    if len(views) > 1:
        together = privacy_curve(list(views.values()))
        if together is not None:
            yield Chapter(_ACROSS, "Across runs", "several runs", GREY, _SIMULATED, (together,))
    places = [_place(audit, documents) for audit in found]
    for i, one in enumerate(documents):
        mine = [audit for audit, place in zip(found, places, strict=True) if place == i]
        yield _chapter(f"part-{i + 1}", one, views.get(i), mine)


def _place(audit: Audit, documents: Sequence[Document]) -> int:
    """The document that an audit goes with: of the same study, best at the same epsilon; the first for one of no study that is there."""

    def likeness(document: Document) -> int:
        epsilons = [point.total.epsilon for point in document.points if point.total is not None] if isinstance(document, Run) else []
        return (document.title == audit.title) * (1 + (audit.epsilon in epsilons))

    return max(range(len(documents)), key=lambda i: (likeness(documents[i]), -i))


def _chapter(key: str, document: Document, view: RunView | None, found: Sequence[Audit]) -> Chapter:
    if isinstance(document, Run):
        assert view is not None, "a run is read with its study"
        sections = [section for make in _OF_RUN if (section := make(view)) is not None]
        sections += [one for one in (audits(found, view.colour), card(view), label_of_run(view), reproduce(document)) if one is not None]
        return Chapter(key, view.title, _kind(view), view.colour, _note(document.remark), tuple(sections))
    if isinstance(document, Compared):
        sections = [one for one in (comparison(document), audits(found, GREY), reproduce(document)) if one is not None]
        return Chapter(key, document.title, "comparison of protocols", GREY, _note(document.remark), tuple(sections))
    assert isinstance(document, Result)
    colour = colour_of(document.protocol)
    sections = list(result_sections(document, "The result"))
    checked = audits(found, colour)
    sections[2:2] = [checked] if checked is not None else []
    note = "This is what a coordinator has published. It is its word: digest and label say what was agreed to."
    return Chapter(
        key, document.title, f"{TITLES[document.protocol]} {document.variant}, result", colour, note, tuple(sections), is_simulated=False
    )


def _kind(view: RunView) -> str:
    of = view.guarantee
    return f"{view.protocol}, without perturbation" if of is None else f"{view.protocol}, {epsilon_words(of)} per {of.unit} ({of.relation})"


def _note(remark: str) -> str:
    return f"This is {remark}." if remark.startswith("a simulation") else f"{_SIMULATED} {remark}"


def page(chapters: Sequence[Chapter]) -> str:
    """The page."""
    several = len(chapters) > 1
    # What is drawn across runs is named after the first of them.
    title = cut(next((chapter.title for chapter in chapters if chapter.key != _ACROSS), ""), _TITLE)
    body = [
        tag("a", "Skip to the report", href="#main", class_="skip"),
        tag(
            "header",
            tag("p", "shoal report", class_="brand"),
            tag("h1", title, dir="auto"),
            paragraph(counted(len(chapters), "part") if several else chapters[0].kind, class_="kind"),
            class_="top",
            style=f"--accent: {GREY if several else chapters[0].colour}",
        ),
        _contents(chapters),
        tag("main", [_drawn(chapter, several) for chapter in chapters], id="main"),
        tag("footer", paragraph(f"Made by shoal {__version__}. This file loads nothing and sends nothing.")),
    ]
    return document(title, "report.css", body)


def _contents(chapters: Sequence[Chapter]) -> Markup:
    items = []
    for chapter in chapters:
        inner = tag("ol", [tag("li", tag("a", one.title, href=f"#{chapter.key}-{one.key}")) for one in chapter.sections])
        name = tag("a", cut(chapter.title, 80), f" – {chapter.kind}", href=f"#{chapter.key}", dir="auto")
        items.append(tag("li", name, inner) if len(chapters) > 1 else inner)
    return tag("nav", tag("h2", "Contents"), tag("ul", items) if len(chapters) > 1 else items, aria_label="Contents")


def _drawn(chapter: Chapter, several: bool) -> Markup:
    level = "h3" if several else "h2"
    head = join([tag("h2", cut(chapter.title, _TITLE), dir="auto"), paragraph(chapter.kind, class_="kind")]) if several else None
    sections = [
        tag("section", tag(level, one.title), paragraph(one.lead, class_="lead"), one.body, id=f"{chapter.key}-{one.key}")
        for one in chapter.sections
    ]
    return tag(
        "article",
        head,
        paragraph(chapter.note, class_="simulated" if chapter.is_simulated else "published"),
        sections,
        id=chapter.key,
        style=f"--accent: {chapter.colour}",
        class_="chapter",
    )


def document(title: str, style: str, body: Sequence[Markup]) -> str:
    """A whole document with its styles inside."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"shoal {__version__}"),
        tag("title", title),
        tag("style", Markup(_styles(style))),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


@cache
def _styles(name: str) -> str:
    return (resources.files(__package__) / "styles" / name).read_text("utf-8")
