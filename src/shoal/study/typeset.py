"""Words of strangers made harmless, and lines that fit a terminal."""

from __future__ import annotations

import unicodedata
from datetime import datetime

_MAX_MARKS = 2
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"


def clean(text: str) -> str:
    """Words of a stranger, made harmless: one line, nothing invisible, nothing that turns the direction of writing.

    Examples
    --------
    >>> clean("pass" + chr(0x202E) + chr(27) + "[2J  now")
    'pass��[2J now'
    """
    kept: list[str] = []
    n_marks = 0
    for char in unicodedata.normalize("NFC", text):
        category = unicodedata.category(char)
        n_marks = n_marks + 1 if category in ("Mn", "Me") else 0
        if char.isspace():
            kept.append(" ")
        elif category in ("Cc", "Cf", "Cs", "Co", "Cn") or char in _BLANK_LETTERS:
            kept.append("\N{REPLACEMENT CHARACTER}")
        elif n_marks <= _MAX_MARKS:
            kept.append(char)
    return " ".join("".join(kept).split())


def moment(when: datetime) -> str:
    """A time in UTC, to the minute.

    Examples
    --------
    >>> from datetime import UTC
    >>> moment(datetime(2031, 1, 31, 12, 0, 59, tzinfo=UTC))
    '2031-01-31 12:00 UTC'
    """
    return f"{when.replace(tzinfo=None).isoformat(' ', 'minutes')} UTC"


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(_columns(char) for char in text)


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most so many columns; a word that is longer than a line is cut."""
    lines = [""]
    for word in text.split(" "):
        gap = " " if lines[-1] else ""
        if width(lines[-1]) + len(gap) + width(word) <= columns:
            lines[-1] += gap + word
            continue
        lines += [""] if lines[-1] else []
        for char in word:
            if width(lines[-1]) + _columns(char) > columns:
                lines.append("")
            lines[-1] += char
    return lines


def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
