"""Rules of the project's prose: docstrings, comments, error sentences, output and documentation.

The rules are in `CONTRIBUTING.md`. The phrases below are not used, because readers stop at them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.readability import ROOT, SOURCE, Module, find_comments, read_modules

MAX_FIRST_LINE = 88

BANNED = re.compile(
    r"\bwhoever\b|\bso many\b|\banew\b|\ball the same\b|\bh(eld|olds?|olding) against\b"
    r"|\bof (its|their|his|her|one's|our|your) own\b|\b(comes|come|came) of\b"
    r"|\b(is|are|was|were|be|been) told\b|\btells?\b|\bonce or not at all\b|\bgoes on\b"
    r"|\bnobody\b.{0,40}\banything\b|\bthat is none\b"
    r"|^what(ever)? (is|was|are|has|have)\b(?=.{30})",
    re.IGNORECASE,
)
"""Turns of phrase that are not used."""

EXCEPTIONS = (
    "whoever runs it",
    "whoever sees this one number of one update",
    "if no database tells it anything",
    "by drawing so many rows",
)
"""Texts that are part of stored events, digests or signed releases, and so must not change."""

VALUES = {"goes on"}
"""Strings that programs read, such as values of ``--json``: they keep their spelling."""

MODULES = read_modules(SOURCE) + read_modules(ROOT / "benchmarks") + read_modules(ROOT / "tools")
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "changes").glob("*.md"),
    ]
)
SCRIPTS = sorted([*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.lua")])


def find_texts(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each comment and of each string with several words."""
    yield from find_comments(module)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def find_script_comments(script: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each comment of a SQL or Lua file."""
    for number, line in enumerate(script.read_text("utf-8").splitlines(), start=1):
        _, _, comment = line.partition("--")
        if comment:
            yield number, comment.strip()


def find_banned(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the words of each phrase that is not used."""
    if text in VALUES:
        return
    for match in BANNED.finditer(text):
        around = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
        if not any(exception in around for exception in EXCEPTIONS):
            yield match.start(), around


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_source_has_no_banned_phrases(module: Module) -> None:
    assert [
        f"{module.name}:{line + text[:offset].count(chr(10))}: {words}"
        for line, text in find_texts(module)
        for offset, words in find_banned(text)
    ] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(SOURCE)))
def test_scripts_have_no_banned_phrases(script: Path) -> None:
    assert [
        f"{script.name}:{line}: {words}"
        for line, comment in find_script_comments(script)
        for _, words in find_banned(comment)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_no_banned_phrases(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [
        f"{page.name}:{text[:offset].count(chr(10)) + 1}: {words}"
        for offset, words in find_banned(text)
    ] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_module_docstring_begins_with_a_short_line(module: Module) -> None:
    lines = (ast.get_docstring(module.tree) or "").splitlines()
    assert lines, f"{module.name} has no docstring"
    assert len(lines[0]) <= MAX_FIRST_LINE
    assert lines[0].endswith(".")
    assert lines[1:2] in ([], [""]), f"{module.name}: no blank line after the first"


def test_banned_phrases_are_found() -> None:
    assert list(find_banned("Whoever waits is told.")) and list(
        find_banned("What is due at this moment is done before the next step.")
    )
    assert not list(find_banned("Return the participants that wait."))


def test_comments_of_scripts_are_found(tmp_path: Path) -> None:
    script = tmp_path / "a.sql"
    script.write_text("-- A table.\nCREATE TABLE a (b TEXT); -- told\n", "utf-8")
    assert len(SCRIPTS) >= 2
    assert list(find_script_comments(script)) == [(1, "A table."), (2, "told")]
