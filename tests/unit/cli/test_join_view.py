"""How `shoal join` says what goes on: lines, each once, or in place on a terminal; and nothing that moves a cursor."""

from __future__ import annotations

import sys

import pytest

from shoal.cli.join_view import NOTHING_DRAWN, drawn_text, progress


def test_lines_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("A study") as say:
        for line in ("enrolled", "enrolled", "a\x1b[2J", "enrolled"):
            say(line)
    printed = capsys.readouterr()
    assert printed.err == "enrolled\n'a\\x1b[2J'\nenrolled\n" and not printed.out


def test_a_terminal_shows_the_last_in_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("[bold]A study") as say:
        say("[red]enrolled")
    printed = capsys.readouterr()
    assert not printed.out and "\x1b[2J" not in printed.err


@pytest.mark.parametrize("protocol", ["anonml", "ddml", "sdq", "pfds"])
def test_where_nothing_is_drawn_a_sentence_says_why(protocol: str) -> None:
    assert drawn_text((), protocol, "A study") == NOTHING_DRAWN[protocol]
