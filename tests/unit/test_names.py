"""Names from outside are shown whole where they are harmless, and escaped where they are not."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from shoal.names import counted, shell_word, shown


@pytest.mark.parametrize("name", ["rows.csv", "Größe", "漢字 b", "a'b"])
def test_harmless_names_are_shown_as_they_are(name: str) -> None:
    assert shown(name) == name


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\u202eb", "\udcff", "a\0"])
def test_other_names_are_escaped(name: str) -> None:
    assert shown(name) == ascii(name) and shown(name).isprintable()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the words")
@pytest.mark.parametrize("path", ["a b; rm -rf x", "it's", "-y", "$HOME", "a\x1b[31m", "a\nb'c\\", os.fsdecode(b"q\xff"), "é\u202e", "~"])
def test_a_shell_reads_one_word(path: str) -> None:
    word = shell_word(path)
    assert word.isprintable()
    read = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout
    assert read.removeprefix(b"./") == os.fsencode(path)
    assert not read.startswith(b"-")


def test_numbers_of_things() -> None:
    assert (counted(0, "row"), counted(1, "row"), counted(2000, "row")) == ("0 rows", "1 row", "2,000 rows")
