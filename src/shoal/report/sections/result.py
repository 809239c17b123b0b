"""Sections for a coordinator's result: counts, the model, free counts and the label.

`shoal.report.page` calls `make_result_sections`. A result has no scores: the rows stay with the
participants, so that a real study cannot measure its accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.models.model import MODEL_KINDS
from shoal.privacy.rounding import format_epsilon
from shoal.report.documents import QueryTable, ResultDocument
from shoal.report.formatting import get_protocol_colour
from shoal.report.html import (
    Markup,
    Section,
    join,
    make_bullets,
    make_paragraph,
    make_table,
    make_terms,
    tag,
    truncate,
)
from shoal.report.sections.learned import CARD_LEAD, make_model_weights_section, make_tree_section
from shoal.report.views import make_label_section, read_result_statement
from shoal.study.label import Statement
from shoal.study.registry import PROTOCOLS
from shoal.text import clean_text

_MAX_ROWS, _MAX_CHARACTERS = 60, 120
_COUNT_NAMES = {
    "answers": "answers counted, by phase",
    "late": "answers that arrived too late",
    "answering": "members that answered, by round",
    "left_out": "excluded",
    "merged": "updates merged",
    "refused": "rejected",
    "trees": "trees shared",
    "datasets": "rows shared",
}


def make_result_sections(result: ResultDocument, name: str) -> Iterator[Section]:
    """Yield the sections of a result."""
    statement = read_result_statement(result.model_dump(), name)
    yield _make_headline(result, statement)
    yield _make_counts(result)
    if result.model is not None:
        document = {"model": result.model}
        for section in (
            make_tree_section(document),
            make_model_weights_section(document, get_protocol_colour(result.protocol)),
        ):
            if section is not None:
                yield section
    yield from _make_queries(result)
    yield _make_card(result, statement)
    yield make_label_section(statement)
    yield Section(
        "reproduce",
        "Source",
        "The digest identifies the study to which all participants agreed.",
        make_terms([("Study", tag("code", result.study))]),
    )


def _make_headline(result: ResultDocument, statement: Statement) -> Section:
    delta = f", delta {format_epsilon(statement.delta)}" if statement.delta else ""
    scope = (
        f"unit {statement.scope.unit}, relation {statement.scope.relation}, against "
        f"{statement.scope.adversary}"
    )
    outcome = (
        "The study has ended."
        if result.model is not None
        else "The study has ended without a model: nothing was shared."
    )
    body = join(
        [
            make_paragraph(
                f"{outcome} Epsilon {format_epsilon(statement.epsilon)}{delta} ({scope}).",
                class_="summary",
            ),
            make_paragraph(
                "It is not known how well the model predicts: the rows stay with the participants, "
                "so the coordinator has none to test it on."
            ),
        ]
    )
    return Section(
        "headline",
        "Result",
        "A real study has no rows to test its model on. Simulate the study to estimate scores.",
        body,
    )


def _make_counts(result: ResultDocument) -> Section:
    rows = [
        row
        for key, value in result.counts.items()
        for row in _list_count_rows(_COUNT_NAMES.get(key, key), value)
    ]
    more = make_paragraph(f"And {len(rows) - _MAX_ROWS:,} more.") if len(rows) > _MAX_ROWS else None
    body = join([make_table(("count of", "number"), rows[:_MAX_ROWS]) if rows else None, more])
    return Section(
        "participation",
        "Participation",
        "Totals that the coordinator published. No figure is about a single participant.",
        body,
    )


def _make_queries(result: ResultDocument) -> Iterator[Section]:
    """Yield a section with the queried counts, if there are any."""
    tables = [table for several in result.queries for table in several]
    if tables:
        lead = (
            "Counts that the analyst queried in addition to the model. Each contains noise and may "
            "be negative."
        )
        yield Section("asked", "Free counts", lead, join(map(_make_query_table, tables)))


def _make_query_table(table: QueryTable) -> Markup:
    rows = [(" / ".join(cell.cells), f"{cell.count:,.0f}") for cell in table.counts[:_MAX_ROWS]]
    more = (
        make_paragraph(f"And {len(table.counts) - _MAX_ROWS:,} more.")
        if len(table.counts) > _MAX_ROWS
        else None
    )
    noise = make_paragraph(
        f"The noise of a count has a standard deviation of {table.deviation:.3g}.", class_="note"
    )
    return join([make_table((" / ".join(table.features), "count"), rows), more, noise])


def _list_count_rows(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield counts of any form as rows of a table."""
    if isinstance(value, Mapping) and {"holder", "reason"} <= value.keys():
        yield f"{name}: {_format_value(value['holder'])}", _format_value(value["reason"])
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{name}: {_format_value(key)}", _format_value(inner)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for inner in value:
            yield from _list_count_rows(name, inner)
    elif isinstance(value, list):
        yield name, truncate(", ".join(map(_format_value, value)), _MAX_CHARACTERS) or "none"
    else:
        yield name, _format_value(value)


def _format_value(value: object) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else truncate(clean_text(str(value)), _MAX_CHARACTERS)
    )


def _make_card(result: ResultDocument, statement: Statement) -> Section:
    kind = (result.model or {}).get("kind")
    words = (
        MODEL_KINDS[kind].description
        if isinstance(kind, str) and kind in MODEL_KINDS
        else "no model"
    )
    pairs = [
        (
            "What it is",
            f"{words}, learned by {PROTOCOLS[result.protocol].title} {result.variant}.",
        ),
        ("Intended use", statement.purpose),
        ("Contact", statement.contact),
        (
            "Limits",
            make_bullets(
                [
                    "It is less reliable for people who are unlike those who took part.",
                    *statement.not_covered,
                ]
            ),
        ),
        (
            "Uses not allowed",
            make_bullets(
                [
                    "For a purpose other than the intended use: participants agreed to that use "
                    "only.",
                    "For decisions about a person that no human reviews, or for claims about who "
                    "took part.",
                ]
            ),
        ),
    ]
    return Section(
        "card",
        "Model card",
        CARD_LEAD,
        make_terms(pairs),
    )
