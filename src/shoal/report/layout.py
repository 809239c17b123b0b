"""The blocks that a page is made of: sections, figures with their numbers, tables, terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.report.markup import Content, Markup, join, tag


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Parameters
    ----------
    key
        Its name in addresses.
    title
        What it is.
    lead
        One sentence that says how to read it.
    body
        The rest, as markup.
    """

    key: str
    title: str
    lead: str
    body: Markup


def figure(chart: Markup, heads: Sequence[str], rows: Iterable[Sequence[Content]], caption: str = "", note: str = "") -> Markup:
    """A chart under its caption, and the same numbers as a table for those who do not see it."""
    above = tag("figcaption", caption, dir="auto") if caption else None
    return tag("figure", above, chart, paragraph(note, class_="note") if note else None, numbers(heads, rows))


def numbers(heads: Sequence[str], rows: Iterable[Sequence[Content]]) -> Markup:
    """A table that is there when it is asked for."""
    return tag("details", tag("summary", "The numbers"), table(heads, rows))


def table(heads: Sequence[str], rows: Iterable[Sequence[Content]], class_: str | None = None) -> Markup:
    """A table whose first column names its rows."""
    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in heads]))
    body = tag("tbody", [_row(heads, row) for row in rows])
    return tag("div", tag("table", head, body, class_=class_), class_="scroll")


def _row(heads: Sequence[str], row: Sequence[Content]) -> Markup:
    """Cells know their heads, since on a narrow screen they stand under each other."""
    first, *rest = row
    cells = [tag("td", cell, data_head=head) for head, cell in zip(heads[1:], rest, strict=True)]
    return tag("tr", tag("th", first, scope="row"), cells)


def grid(figures: Iterable[Markup]) -> Markup:
    """Figures side by side, as many as there is room for."""
    return tag("div", figures, class_="grid")


def terms(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Terms and what they stand for."""
    return tag("dl", [join([tag("dt", name), tag("dd", said)]) for name, said in pairs])


def paragraph(*content: Content, class_: str | None = None) -> Markup:
    """A paragraph."""
    return tag("p", *content, class_=class_)


def bullets(items: Iterable[Content]) -> Markup:
    """A list."""
    return tag("ul", [tag("li", item) for item in items])
