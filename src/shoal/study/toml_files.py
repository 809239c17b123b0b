"""A TOML file beside a study, such as a roster: read whole or refused in a sentence that names the file and the line."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import SpecError
from shoal.names import shown
from shoal.study.lines import Lines

_AT_LINE = re.compile(r"\(at line (\d+), ")
_LONGEST = 60


@dataclass(frozen=True)
class Kind:
    """What a file is to be: an array of tables and nothing else.

    Parameters
    ----------
    code
        Of all errors.
    noun, key
        What a file is called, and what its tables are.
    fix
        What it looks like.
    max_bytes
        More are not read.
    """

    code: str
    noun: str
    key: str
    fix: str
    max_bytes: int

    def error(self, where: str, what: str, fix: str | None = None) -> SpecError:
        """The error for something that is wrong at a place."""
        return SpecError(self.code, f"{where}  {what}", fix=fix or self.fix)


@dataclass(frozen=True)
class Blocks:
    """The tables of a file, as they were written, and where."""

    name: str
    blocks: tuple[Any, ...]
    lines: Lines
    key: str

    def where(self, position: int) -> str:
        """The file and the line of a table."""
        return f"{self.name}:{self.lines.of((self.key, position))}"


def read_blocks(path: str | os.PathLike[str], kind: Kind) -> Blocks:
    """The tables in a file; `SpecError` for anything else."""
    name = shown(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            content = file.read(kind.max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not one that a file can have"
        raise SpecError(kind.code, f"The {kind.noun} {name} cannot be read: {reason}.", fix=kind.fix) from None
    if len(content) > kind.max_bytes:
        raise kind.error(name, f"This is larger than {kind.max_bytes:,} bytes.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise kind.error(f"{name}:{line}", "This is not UTF-8 text.", "Save it as UTF-8 in an editor.") from None
    return parse_blocks(text, name, kind)


def parse_blocks(text: str, name: str, kind: Kind) -> Blocks:
    """The tables in a text."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        at = _AT_LINE.search(str(error))
        # Where the text ends too early there is no number.
        line = at[1] if at else text.count("\n") + 1
        raise kind.error(f"{name}:{line}", "This is not TOML.") from None
    lines = Lines(text)
    for key in document:
        if key != kind.key:
            raise kind.error(f"{name}:{lines.of((key,))}", f"A {kind.noun} has no {shown(key[:_LONGEST])}.")
    blocks = document.get(kind.key)
    if not isinstance(blocks, list) or not blocks:
        raise kind.error(name, f"There is no [[{kind.key}]].")
    return Blocks(name, tuple(blocks), lines, kind.key)
