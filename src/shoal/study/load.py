"""TOML -> study, with errors that name the file, the line, the key and the fix.

Whatever the bytes are, the result is a `Study` or one `StudyError` that lists every problem found.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shoal.errors import SpecError
from shoal.names import shown
from shoal.study.explain import explain
from shoal.study.lines import Lines
from shoal.study.problems import Problem
from shoal.study.spec import Study

MAX_BYTES = 1_000_000

_AT_LINE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
# tomllib takes time that grows with the square of a dotted key's length; no key of a study has more than four parts.
_ENDLESS_KEY = re.compile(r"""(?:^|[\[{,])[ \t]*(?:(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){16}""", re.MULTILINE)


class StudyError(SpecError):
    """What is wrong with a study file: the first problem in full, the others listed as its reason.

    Parameters
    ----------
    name
        Name of the file, as the reader knows it.
    found
        Line and problem, at least one.
    """

    def __init__(self, name: str, found: Sequence[tuple[int, Problem]]) -> None:
        ordered, name = sorted(found, key=lambda item: item[0]), shown(name)
        self.problems = tuple(f"{problem.code}  {name}:{line}  {problem.what}" for line, problem in ordered)
        rest = [
            f"{text}{'   fix: ' + problem.fix if problem.fix else ''}" for text, (_, problem) in zip(self.problems, ordered, strict=True)
        ][1:]
        line, first = ordered[0]
        why = "\n            ".join([f"{len(rest)} more problem{'s' if len(rest) > 1 else ''}:", *rest]) if rest else None
        super().__init__(first.code, f"{name}:{line}  {first.what}", why=why, fix=first.fix)


def load(path: str | os.PathLike[str]) -> Study:
    """The study in a file.

    Raises
    ------
    SpecError
        The file cannot be read, is not TOML, or is not a study; everything that is wrong is listed.
    """
    return parse(read_text(path), Path(path).name)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a study file; `SpecError` where it cannot be read."""
    name = shown(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not one that a file can have"
        raise SpecError(
            "SPEC-001", f"The study file {name} cannot be read: {reason}.", fix="shoal new DIR --protocol NAME writes one."
        ) from None
    if len(content) > MAX_BYTES:
        raise SpecError(
            "SPEC-001", f"{name} is larger than {MAX_BYTES:,} bytes.", fix="A study file holds no data; keep rows in a file of their own."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError("SPEC-001", f"{name}:{line}  The study file is not UTF-8 text.", fix="Save it as UTF-8 in an editor.") from None


def parse(text: str, name: str = "study.toml") -> Study:
    """The study in a text.

    Examples
    --------
    >>> parse('title = "Naps"\\nprotocol = 7')
    Traceback (most recent call last):
    shoal.study.load.StudyError: SPEC-011  study.toml:1  The study lacks purpose...
    """
    document = _document(text, name)
    try:
        return Study.model_validate(document)
    except ValidationError as error:
        lines = Lines(text)
        raise StudyError(name, [(lines.of(problem.path), problem) for problem in explain(error)]) from None


def _document(text: str, name: str) -> dict[str, Any]:
    endless = _ENDLESS_KEY.search(text)
    if endless:
        raise StudyError(
            name, [(text.count("\n", 0, endless.end()) + 1, Problem("SPEC-002", (), "A key has too many parts joined by dots."))]
        )
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise SpecError(
            "SPEC-002", f"{shown(name)}  Lists or tables are nested too deeply.", fix="A study needs no more than three levels."
        ) from None
    except ValueError as error:
        complaint = str(error)
    match = _AT_LINE.search(complaint)
    line = int(match[1]) if match and match[1] else text.count("\n") + 1 if match else 1
    place = f" (column {match[2]})" if match and match[2] else ""
    what = _AT_LINE.sub("", complaint) if match else "A number is too long to be read"
    fix = "Text needs quotes, lists need commas between their items, and every key of a table may be given once."
    raise StudyError(name, [(line, Problem("SPEC-002", (), f"This is not TOML: {what}{place}.", fix))])
