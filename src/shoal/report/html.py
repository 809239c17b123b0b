"""HTML builder with escaping; sections, tables, figures.

Pages and charts are built with `tag` instead of templates. All text that is not `Markup` is
escaped, and invisible characters are replaced. Untrusted text therefore cannot leave its element,
and the output is well-formed. Do not wrap untrusted text in `Markup`.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

_VOID = frozenset(("br", "hr", "meta"))
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")
_KEPT = "\n\t"


class Markup(str):
    """Text that is already markup and is not escaped again."""

    __slots__ = ()

    def __add__(self, other: str) -> Self:
        """Return the markup followed by `other`, which is escaped unless it is markup."""
        return type(self)(f"{self}{escape(other)}")


Content = str | Iterable[str] | None
Attribute = str | float | bool | None


def escape(text: str) -> Markup:
    """Return text as markup; replace invisible characters and changes of writing direction.

    Examples
    --------
    >>> print(escape("a < b"), escape(Markup("<b>")), escape("x" + chr(0x202E)))
    a &lt; b <b> x�
    """
    if isinstance(text, Markup):
        return text
    if not (text.isascii() and text.isprintable()):
        text = "".join(
            "\N{REPLACEMENT CHARACTER}" if _is_invisible(char) else char for char in text
        )
    return Markup(html.escape(text))


def _is_invisible(char: str) -> bool:
    return char not in _KEPT and unicodedata.category(char) in _INVISIBLE


def tag(element: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """Return an element with attributes and content.

    Parameters
    ----------
    content
        Text, which is escaped, markup, or iterables of both; None is omitted.
    attributes
        Names without a trailing underscore, and with hyphens for underscores; None and False are
        omitted.

    Examples
    --------
    >>> print(tag("p", "1 < 2", tag("b", "!"), class_="note", hidden=None))
    <p class="note">1 &lt; 2<b>!</b></p>
    >>> print(tag("rect", stroke_width=1.25, x=3.0))
    <rect stroke-width="1.25" x="3"></rect>
    """
    formatted = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{_format_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _VOID:
        return Markup(f"<{element}{formatted}>")
    return Markup(f"<{element}{formatted}>{join(content)}</{element}>")


def _format_attribute(value: Attribute) -> str:
    if value is True or value is None:
        return ""
    return escape(value) if isinstance(value, str) else f"{round(value, 2):.10g}"


def join(content: Iterable[Content]) -> Markup:
    """Return texts and markup concatenated as markup."""
    parts: list[str] = []
    for part in content:
        if part is None:
            continue
        parts.append(escape(part) if isinstance(part, str) else join(part))
    return Markup("".join(parts))


def truncate(text: str, max_length: int) -> str:
    """Return a text cut to a length, with an ellipsis if it was cut."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Parameters
    ----------
    key
        Its identifier in links.
    lead
        One or two sentences on how to read it.
    """

    key: str
    title: str
    lead: str
    body: Markup


def make_figure(
    chart: Markup,
    heads: Sequence[str],
    rows: Iterable[Sequence[Content]],
    caption: str = "",
    note: str = "",
) -> Markup:
    """Return a chart with its caption, and the same numbers as a table."""
    above = tag("figcaption", caption, dir="auto") if caption else None
    return tag(
        "figure",
        above,
        chart,
        make_paragraph(note, class_="note") if note else None,
        make_numbers_table(heads, rows),
    )


def make_numbers_table(heads: Sequence[str], rows: Iterable[Sequence[Content]]) -> Markup:
    """Return a table that is hidden until the reader opens it."""
    return tag("details", tag("summary", "The numbers"), make_table(heads, rows))


def make_table(
    heads: Sequence[str], rows: Iterable[Sequence[Content]], class_: str | None = None
) -> Markup:
    """Return a table; the first column contains the row headers."""
    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in heads]))
    body = tag("tbody", [_make_row(heads, row) for row in rows])
    return tag("div", tag("table", head, body, class_=class_), class_="scroll")


def _make_row(heads: Sequence[str], row: Sequence[Content]) -> Markup:
    """Return a row; cells carry their column header, which narrow screens show before them."""
    first, *rest = row
    cells = [tag("td", cell, data_head=head) for head, cell in zip(heads[1:], rest, strict=True)]
    return tag("tr", tag("th", first, scope="row"), cells)


def make_figure_grid(figures: Iterable[Markup]) -> Markup:
    """Return figures next to each other, in several rows if necessary."""
    return tag("div", figures, class_="grid")


def make_terms(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Return a list of terms with their descriptions."""
    return tag("dl", [join([tag("dt", term), tag("dd", content)]) for term, content in pairs])


def make_paragraph(*content: Content, class_: str | None = None) -> Markup:
    """Return a paragraph."""
    return tag("p", *content, class_=class_)


def make_bullets(items: Iterable[Content]) -> Markup:
    """Return a bullet list."""
    return tag("ul", [tag("li", item) for item in items])
