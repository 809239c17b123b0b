"""Display of untrusted names, shell quoting and counts."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from shoal.text import escape_text, format_count, shell_quote


@pytest.mark.parametrize("name", ["rows.csv", "Größe", "漢字 b", "a'b"])
def test_escape_text_keeps_printable_names(name: str) -> None:
    assert escape_text(name) == name


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\u202eb", "\udcff", "a\0"])
def test_escape_text_escapes_unprintable_names(name: str) -> None:
    assert escape_text(name) == ascii(name) and escape_text(name).isprintable()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the words")
@pytest.mark.parametrize(
    "path",
    [
        "a b; rm -rf x",
        "it's",
        "-y",
        "$HOME",
        "a\x1b[31m",
        "a\nb'c\\",
        os.fsdecode(b"q\xff"),
        "é\u202e",
        "~",
    ],
)
def test_shell_quote_gives_one_word_of_bash(path: str) -> None:
    word = shell_quote(path)
    assert word.isprintable()
    read = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], capture_output=True, check=True
    ).stdout
    assert read.removeprefix(b"./") == os.fsencode(path)
    assert not read.startswith(b"-")


def test_format_count_adds_plural_and_separators() -> None:
    assert (format_count(0, "row"), format_count(1, "row"), format_count(2000, "row")) == (
        "0 rows",
        "1 row",
        "2,000 rows",
    )
