"""What a coordinator has published: counts, what was learned, the label; and no scores, which nobody can know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.models.model import KINDS
from shoal.privacy.rounding import show
from shoal.report.colours import colour_of
from shoal.report.documents import Counted, Result
from shoal.report.labels import label, statement_of_result
from shoal.report.layout import Section, bullets, paragraph, table, terms
from shoal.report.markup import Markup, cut, join, tag
from shoal.report.sections.learned import tree, weights_of_model
from shoal.report.views import TITLES
from shoal.study.label import Statement
from shoal.study.typeset import clean

_MOST_ROWS, _MOST_WORDS = 60, 120
_SAID = {
    "answers": "answers counted, by phases",
    "late": "answers that came too late",
    "answering": "members that answered, by rounds",
    "left_out": "left out",
    "merged": "updates merged",
    "refused": "refused",
    "trees": "trees shared",
    "datasets": "rows shared",
}


def result_sections(result: Result, name: str) -> Iterator[Section]:
    """The sections of a result."""
    statement = statement_of_result(result.model_dump(), name)
    yield _headline(result, statement)
    yield _counts(result)
    if result.model is not None:
        document = {"model": result.model}
        for section in (tree(document), weights_of_model(document, colour_of(result.protocol))):
            if section is not None:
                yield section
    yield from _asked(result)
    yield _card(result, statement)
    yield label(statement)
    yield Section(
        "reproduce",
        "Where this comes from",
        "The digest names the study that everyone agreed to.",
        terms([("Study", tag("code", result.study))]),
    )


def _headline(result: Result, statement: Statement) -> Section:
    delta = f", delta {show(statement.delta)}" if statement.delta else ""
    scope = f"unit {statement.scope.unit}, relation {statement.scope.relation}, against {statement.scope.adversary}"
    said = "The study is done." if result.model is not None else "The study is done, and there is no model: nothing was shared."
    body = join(
        [
            paragraph(f"{said} Epsilon {show(statement.epsilon)}{delta} ({scope}).", class_="told"),
            paragraph("How well the model predicts is not known: rows stay with those who hold them, and nobody has any to try it on."),
        ]
    )
    return Section("headline", "What came of it", "A real study has no truth to be held against; a simulation of the same study has.", body)


def _counts(result: Result) -> Section:
    rows = [row for key, value in result.counts.items() for row in _rows(_SAID.get(key, key), value)]
    more = paragraph(f"And {len(rows) - _MOST_ROWS:,} more.") if len(rows) > _MOST_ROWS else None
    body = join([table(("what", "how many"), rows[:_MOST_ROWS]) if rows else None, more])
    return Section(
        "participation", "Who took part", "Totals as the coordinator has published them; nothing here is about one participant.", body
    )


def _asked(result: Result) -> Iterator[Section]:
    """The counts that the analyst asked for, if there are any."""
    tables = [one for several in result.queries for one in several]
    if tables:
        lead = "Counts that the analyst asked for beside the model, each with noise in it, so that it may be negative."
        yield Section("asked", "Free counts", lead, join(map(_asked_table, tables)))


def _asked_table(one: Counted) -> Markup:
    rows = [(" / ".join(cell.cells), f"{cell.count:,.0f}") for cell in one.counts[:_MOST_ROWS]]
    more = paragraph(f"And {len(one.counts) - _MOST_ROWS:,} more.") if len(one.counts) > _MOST_ROWS else None
    noise = paragraph(f"The noise of a count has a standard deviation of {one.deviation:.3g}.", class_="note")
    return join([table((" / ".join(one.features), "count"), rows), more, noise])


def _rows(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Any counts as rows of a table."""
    if isinstance(value, Mapping) and {"holder", "reason"} <= value.keys():
        yield f"{name}: {_words(value['holder'])}", _words(value["reason"])
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{name}: {_words(key)}", _words(inner)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for inner in value:
            yield from _rows(name, inner)
    elif isinstance(value, list):
        yield name, cut(", ".join(map(_words, value)), _MOST_WORDS) or "none"
    else:
        yield name, _words(value)


def _words(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else cut(clean(str(value)), _MOST_WORDS)


def _card(result: Result, statement: Statement) -> Section:
    kind = (result.model or {}).get("kind")
    words = KINDS[kind].words if isinstance(kind, str) and kind in KINDS else "no model"
    pairs = [
        ("What it is", f"{words}, learned by {TITLES[result.protocol]} {result.variant}."),
        ("Intended use", statement.purpose),
        ("Asked by", statement.contact),
        ("Limits", bullets(["It says something about people like those who took part, and less about others.", *statement.not_covered])),
        (
            "Must not be used",
            bullets(
                [
                    "For another purpose than the one above: participants agreed to that one.",
                    "To decide about one person without anybody looking at the case, or to claim who took part.",
                ]
            ),
        ),
    ]
    return Section(
        "card", "Model card", "What a reader of the model should know before using it, and what it must not be used for.", terms(pairs)
    )
