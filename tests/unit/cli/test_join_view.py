"""How `shoal join` says what goes on: lines, each once, or in place on a terminal; and nothing that moves a cursor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from participants import manifest_of
from shoal.cli.join_view import NOTHING_DRAWN, drawn_text, label_data, label_text, progress, sent_data, sent_text
from shoal.clock import ManualClock
from shoal.crypto.roster import Identity
from shoal.participant.consent import asked_of
from shoal.participant.ledger_file import LedgerFile
from shoal.study.manifest import short


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


def test_where_nothing_is_drawn_a_sentence_says_why() -> None:
    assert drawn_text((), "Because.", "shoal leave") == "Because."
    assert set(NOTHING_DRAWN) == {"anonml", "ddml", "sdq", "pfds"}


def test_a_roster_is_on_the_label_and_in_its_data(tmp_path: Path) -> None:
    keys = tuple(Identity.from_seed(bytes([i]) * 32).public for i in range(3))
    clock = ManualClock()
    with LedgerFile(tmp_path / "ledger.db", clock) as ledger:
        asked = asked_of(manifest_of("sdq", 3, keys, sdq={"n_databases": 3}), ledger, "rows.csv", clock.now())
    for i, key in enumerate(keys):
        assert f"site-{i}, key {short(key)}" in label_text(asked, "over Tor")
    assert label_text(asked, "over Tor").endswith("\nsent      over Tor")
    *_, last = label_text(asked, "through a relay", rests_on_relay=True).splitlines()
    assert last.startswith("but       you have not met this coordinator") and last.endswith("--study DIGEST")
    assert label_data(asked)["roster"] == [{"name": f"site-{i}", "key": key.hex()} for i, key in enumerate(keys)]


def test_what_was_sent_has_a_price_with_its_unit_relation_and_delta(tmp_path: Path) -> None:
    clock = ManualClock()
    with LedgerFile(tmp_path / "ledger.db", clock) as ledger:
        assert sent_text(ledger.entries()) == "nothing" and sent_data(ledger.entries())["unit"] is None
        event = asked_of(manifest_of("ddml", ddml={"n_instances": 2}), ledger, "rows.csv", clock.now()).plan.charges[0]
        ledger.reserve("d1", "q1", event, source="rows.csv", recipient="https://x.org", title="Naps")
        ledger.store("d1", "q1", b"noisy")
        assert sent_text(ledger.entries()) == "nothing"
        ledger.mark_sending("d1", "q1")
        assert sent_text(ledger.entries()) == "1 answer, 5 bytes, epsilon 2.0, delta 0 (unit: update, relation: replace)"
        assert sent_data(ledger.entries()) == {
            "questions": 1,
            "bytes": 5,
            "epsilon": 2.0,
            "delta": 0.0,
            "unit": "update",
            "relation": "replace",
        }
