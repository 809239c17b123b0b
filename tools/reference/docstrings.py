"""Docstrings with NumPy sections as Markdown."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_RULE = re.compile(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """A docstring in parts: its first sentence, the rest, and its sections by name."""

    summary: str
    body: str = ""
    sections: dict[str, str] = field(default_factory=dict)

    def items(self, section: str) -> dict[str, str]:
        """Return names and texts of a section that is a list, such as Parameters."""
        found: dict[str, list[str]] = {}
        texts: list[str] = []
        for line in self.sections.get(section, "").splitlines():
            if line and not line[0].isspace():
                texts = found.setdefault(line.split(" : ")[0], [])
            else:
                texts.append(line.strip())
        return {name: " ".join(lines).strip() for name, lines in found.items()}


def read_docstring(thing: object) -> Docstring:
    """Return the docstring of a class or function, in parts."""
    text = inspect.cleandoc(thing.__doc__ or "") + "\n"
    head, *rest = _RULE.split(text)
    summary, _, body = head.strip().partition("\n\n")
    sections = {name: part.strip("\n") for name, part in zip(rest[::2], rest[1::2], strict=True)}
    return Docstring(" ".join(summary.split()), body.strip(), sections)


def markdown(text: str) -> str:
    """Return prose of a docstring as Markdown: double backticks become single ones.

    Examples
    --------
    >>> print(markdown("Give ``epsilon``, see `fit`."))
    Give `epsilon`, see `fit`.
    """
    return text.replace("``", "`")


def cell(text: str) -> str:
    """Return the same for one cell of a table."""
    return markdown(" ".join(text.split())).replace("|", "\\|")


def example(text: str) -> str:
    """Return an interactive example as a block of code."""
    return f"```pycon\n{text.strip()}\n```"
