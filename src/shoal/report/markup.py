"""HTML and SVG as text: everything that is not markup already is escaped, and what would deceive a reader is replaced.

One small function instead of templates, for pages and pictures alike: what it makes is well formed, and a stranger's words cannot leave
the place that they are put in.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable
from typing import Self

_VOID = frozenset(("br", "hr", "meta"))
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")
_KEPT = "\n\t"


class Markup(str):
    """Text that is markup already, and is put in as it is."""

    __slots__ = ()

    def __add__(self, other: str) -> Self:
        """Markup with more behind it, which is escaped unless it is markup too."""
        return type(self)(f"{self}{escape(other)}")


Content = str | Iterable[str] | None
Attribute = str | float | bool | None


def escape(text: str) -> Markup:
    """Text as markup; characters that cannot be seen, or turn the direction of writing, are replaced.

    Examples
    --------
    >>> print(escape("a < b"), escape(Markup("<b>")), escape("x" + chr(0x202E)))
    a &lt; b <b> x�
    """
    if isinstance(text, Markup):
        return text
    if not (text.isascii() and text.isprintable()):
        text = "".join("\N{REPLACEMENT CHARACTER}" if _is_invisible(char) else char for char in text)
    return Markup(html.escape(text))


def _is_invisible(char: str) -> bool:
    return char not in _KEPT and unicodedata.category(char) in _INVISIBLE


def tag(element: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """An element with its attributes and content.

    Parameters
    ----------
    element
        Its name.
    content
        Texts, which are escaped, markup, or several of either; None is left out.
    attributes
        Without a trailing underscore, and with hyphens for underscores; None and False are left out.

    Examples
    --------
    >>> print(tag("p", "1 < 2", tag("b", "!"), class_="note", hidden=None))
    <p class="note">1 &lt; 2<b>!</b></p>
    >>> print(tag("rect", stroke_width=1.25, x=3.0))
    <rect stroke-width="1.25" x="3"></rect>
    """
    given = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _VOID:
        return Markup(f"<{element}{given}>")
    return Markup(f"<{element}{given}>{join(content)}</{element}>")


def _attribute(value: Attribute) -> str:
    if value is True or value is None:
        return ""
    return escape(value) if isinstance(value, str) else f"{round(value, 2):.10g}"


def join(content: Iterable[Content]) -> Markup:
    """Several texts and pieces of markup, one behind the other."""
    parts: list[str] = []
    for part in content:
        if part is None:
            continue
        parts.append(escape(part) if isinstance(part, str) else join(part))
    return Markup("".join(parts))


def cut(text: str, most: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
