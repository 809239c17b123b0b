"""Display untrusted text safely: escaping, cleaning, wrapping, plurals, shell quoting.

Error messages and command output call these functions for names from outside (files, columns,
tables), for texts of other parties, and for numbers of things. A change must keep: no result
contains characters that a terminal acts on, or that change the direction of writing.
"""

from __future__ import annotations

import os
import shlex
import unicodedata
from datetime import datetime


def escape_text(name: str) -> str:
    """Return a printable name unchanged, and any other name escaped and in quotes.

    Examples
    --------
    >>> print(escape_text("Größe"), escape_text("a" + chr(27) + "[2J"))
    Größe 'a\\x1b[2J'
    """
    return name if name.isprintable() else ascii(name)


def shell_quote(path: str | os.PathLike[str]) -> str:
    """Return a path as one word of a shell's command line.

    Bytes that cannot be displayed are written in the form that bash and zsh read.

    Examples
    --------
    >>> print(shell_quote("rows.csv"), shell_quote("a b; rm x"), shell_quote("a" + chr(27)))
    rows.csv 'a b; rm x' $'a\\x1b'
    """
    text = os.fspath(path)
    # A leading dash would be read as an option.
    text = f"./{text}" if text.startswith("-") else text
    if text.isprintable():
        return shlex.quote(text)
    return (
        "$'"
        + "".join(
            chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}"
            for byte in os.fsencode(text)
        )
        + "'"
    )


def format_count(n: int, noun: str) -> str:
    """Return a number of things: ``1 row``, ``2,000 rows``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


_MAX_MARKS = 2
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"


def clean_text(text: str) -> str:
    """Return untrusted text on one line, without invisible or direction-changing characters.

    Examples
    --------
    >>> clean_text("pass" + chr(0x202E) + chr(27) + "[2J  now")
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


def format_utc(when: datetime) -> str:
    """Return a time in UTC, to the minute.

    Examples
    --------
    >>> from datetime import UTC
    >>> format_utc(datetime(2031, 1, 31, 12, 0, 59, tzinfo=UTC))
    '2031-01-31 12:00 UTC'
    """
    return f"{when.replace(tzinfo=None).isoformat(' ', 'minutes')} UTC"


def display_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return sum(_char_width(char) for char in text)


def wrap_text(text: str, columns: int) -> list[str]:
    """Return lines of at most ``columns`` columns; a word longer than a line is cut."""
    lines = [""]
    for word in text.split(" "):
        gap = " " if lines[-1] else ""
        if display_width(lines[-1]) + len(gap) + display_width(word) <= columns:
            lines[-1] += gap + word
            continue
        lines += [""] if lines[-1] else []
        for char in word:
            if display_width(lines[-1]) + _char_width(char) > columns:
                lines.append("")
            lines[-1] += char
    return lines


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
