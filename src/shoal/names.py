"""Names from outside (files, columns, tables) and numbers of things, as a message may show them."""

from __future__ import annotations

import os
import shlex


def shown(name: str) -> str:
    """A name as it is, or escaped and in quotes where it would move a terminal's cursor or deceive its reader.

    Examples
    --------
    >>> print(shown("Größe"), shown("a" + chr(27) + "[2J"))
    Größe 'a\\x1b[2J'
    """
    return name if name.isprintable() else ascii(name)


def shell_word(path: str | os.PathLike[str]) -> str:
    """A path as one word of a shell's command line; bytes that cannot be shown are written in the form that bash and zsh read.

    Examples
    --------
    >>> print(shell_word("rows.csv"), shell_word("a b; rm x"), shell_word("a" + chr(27)))
    rows.csv 'a b; rm x' $'a\\x1b'
    """
    text = os.fspath(path)
    # A leading dash would be read as an option.
    text = f"./{text}" if text.startswith("-") else text
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(text)) + "'"


def counted(n: int, noun: str) -> str:
    """A number of things: ``1 row``, ``2,000 rows``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
