"""Load TOML files with errors that name file, line, key and fix.

Commands and coordinators load study files here; `shoal.study.attachments` loads rosters and
queries. For any bytes the result is a `Study` or one `SpecError` that lists every problem found.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shoal.errors import SpecError
from shoal.study.constraints import StudyProblem
from shoal.study.explain import explain
from shoal.study.positions import KeyPositions
from shoal.study.spec import Study
from shoal.study.validation import parse_study
from shoal.text import escape_text

MAX_STUDY_BYTES = 1_000_000

_ERROR_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
# The time of tomllib grows with the square of a dotted key's length. A key of a study has at most
# four parts.
_ENDLESS_KEY = re.compile(
    r"""(?:^|[\[{,])[ \t]*(?:(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){16}""",
    re.MULTILINE,
)


class StudyError(SpecError):
    """The problems of a study file: the first as the error, the others listed as its reason.

    Parameters
    ----------
    found
        Line and problem, at least one.
    """

    def __init__(self, name: str, problems: Sequence[tuple[int, StudyProblem]]) -> None:
        ordered, name = sorted(problems, key=lambda item: item[0]), escape_text(name)
        self.problems = tuple(
            f"{problem.code}  {name}:{line}  {problem.what}" for line, problem in ordered
        )
        rest = [
            f"{text}{'   fix: ' + problem.fix if problem.fix else ''}"
            for text, (_, problem) in zip(self.problems, ordered, strict=True)
        ][1:]
        line, first = ordered[0]
        why = (
            "\n            ".join(
                [f"{len(rest)} more problem{'s' if len(rest) > 1 else ''}:", *rest]
            )
            if rest
            else None
        )
        super().__init__(first.code, f"{name}:{line}  {first.what}", why=why, fix=first.fix)


def load_study(path: str | os.PathLike[str]) -> Study:
    """Load the study in a file.

    Raises
    ------
    SpecError
        The file cannot be read, is not TOML, or is not a study. The error lists all problems.
    """
    return parse_study_text(read_study_text(path), Path(path).name)


def read_study_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a study file; raise `SpecError` if it cannot be read."""
    name = escape_text(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_STUDY_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else "its name is not a valid file name"
        )
        raise SpecError(
            "SPEC-001",
            f"The study file {name} cannot be read: {reason}.",
            fix="Write a starter study: shoal new DIR --protocol NAME",
        ) from None
    if len(content) > MAX_STUDY_BYTES:
        raise SpecError(
            "SPEC-001",
            f"{name} is larger than {MAX_STUDY_BYTES:,} bytes.",
            fix="Move rows to another file: a study file contains no data.",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(
            "SPEC-001",
            f"{name}:{line}  The study file is not UTF-8 text.",
            fix="Save it as UTF-8 in an editor.",
        ) from None


def parse_study_text(text: str, name: str = "study.toml") -> Study:
    """Parse the study in a text.

    Examples
    --------
    >>> parse_study_text('title = "Naps"\\nprotocol = 7')
    Traceback (most recent call last):
    shoal.study.loader.StudyError: SPEC-011  study.toml:1  The study lacks purpose...
    """
    document = _parse_toml(text, name)
    try:
        return parse_study(document)
    except ValidationError as error:
        lines = KeyPositions(text)
        raise StudyError(
            name, [(lines.find_line(problem.path), problem) for problem in explain(error)]
        ) from None


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    endless = _ENDLESS_KEY.search(text)
    if endless:
        raise StudyError(
            name,
            [
                (
                    text.count("\n", 0, endless.end()) + 1,
                    StudyProblem("SPEC-002", (), "A key has too many parts joined by dots."),
                )
            ],
        )
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise SpecError(
            "SPEC-002",
            f"{escape_text(name)}  Lists or tables are nested too deeply.",
            fix="Use at most three levels.",
        ) from None
    except ValueError as error:
        message = str(error)
    match = _ERROR_POSITION.search(message)
    line = int(match[1]) if match and match[1] else text.count("\n") + 1 if match else 1
    place = f" (column {match[2]})" if match and match[2] else ""
    what = _ERROR_POSITION.sub("", message) if match else "A number is too long"
    fix = "Put text in quotes, separate the items of a list by commas, and give each key once."
    raise StudyError(
        name, [(line, StudyProblem("SPEC-002", (), f"This is not TOML: {what}{place}.", fix))]
    )


_LINE_NUMBER = re.compile(r"\(at line (\d+), ")
_MAX_KEY_SHOWN = 60


@dataclass(frozen=True)
class TomlFileFormat:
    """The format of a file that is an array of tables and nothing else.

    Parameters
    ----------
    code
        The code of all errors.
    noun, key
        The name of such a file in errors, and the key of its tables.
    fix
        An example of its content.
    """

    code: str
    noun: str
    key: str
    fix: str
    max_bytes: int

    def make_error(self, where: str, what: str, fix: str | None = None) -> SpecError:
        """Return the error for a problem at a position."""
        return SpecError(self.code, f"{where}  {what}", fix=fix or self.fix)


@dataclass(frozen=True)
class TomlBlocks:
    """The tables of a file, unchanged, with their lines."""

    name: str
    blocks: tuple[Any, ...]
    lines: KeyPositions
    key: str

    def locate_block(self, position: int) -> str:
        """Return the file and the line of a table."""
        return f"{self.name}:{self.lines.find_line((self.key, position))}"


def read_blocks(path: str | os.PathLike[str], file_format: TomlFileFormat) -> TomlBlocks:
    """Read the tables in a file; raise `SpecError` for any other content."""
    name = escape_text(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            content = file.read(file_format.max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else "its name is not a valid file name"
        )
        raise SpecError(
            file_format.code,
            f"The {file_format.noun} {name} cannot be read: {reason}.",
            fix=file_format.fix,
        ) from None
    if len(content) > file_format.max_bytes:
        raise file_format.make_error(name, f"This is larger than {file_format.max_bytes:,} bytes.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise file_format.make_error(
            f"{name}:{line}", "This is not UTF-8 text.", "Save it as UTF-8 in an editor."
        ) from None
    return parse_blocks(text, name, file_format)


def parse_blocks(text: str, name: str, file_format: TomlFileFormat) -> TomlBlocks:
    """Parse the tables in a text."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        at = _LINE_NUMBER.search(str(error))
        # The error has no number if the text ends too early.
        line = at[1] if at else text.count("\n") + 1
        raise file_format.make_error(f"{name}:{line}", "This is not TOML.") from None
    lines = KeyPositions(text)
    for key in document:
        if key != file_format.key:
            raise file_format.make_error(
                f"{name}:{lines.find_line((key,))}",
                f"A {file_format.noun} has no {escape_text(key[:_MAX_KEY_SHOWN])}.",
            )
    blocks = document.get(file_format.key)
    if not isinstance(blocks, list) or not blocks:
        raise file_format.make_error(name, f"There is no [[{file_format.key}]].")
    return TomlBlocks(name, tuple(blocks), lines, file_format.key)
