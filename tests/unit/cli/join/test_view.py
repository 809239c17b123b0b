"""Output of ``shoal join``: progress lines, label, and escaped text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cli.join.view import (
    format_example,
    format_label,
    format_misfits,
    format_sent,
    format_sent_answers,
    make_label_data,
    make_sent_data,
    show_progress,
)
from shoal.clock import ManualClock
from shoal.crypto.identity import Identity
from shoal.data.schema import FittedRows
from shoal.participant.consent import price_offer
from shoal.participant.ledger_file import LedgerFile
from shoal.study.handle import StudyHandle
from shoal.study.manifest import shorten_digest
from shoal.study.registry import PROTOCOLS
from tests.support.participants import make_manifest


def test_show_progress_prints_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("A study") as say:
        for line in ("enrolled", "enrolled", "a\x1b[2J", "enrolled"):
            say(line)
    printed = capsys.readouterr()
    assert printed.err == "enrolled\n'a\\x1b[2J'\nenrolled\n" and not printed.out


def test_show_progress_replaces_line_on_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with show_progress("[bold]A study") as say:
        say("[red]enrolled")
    printed = capsys.readouterr()
    assert not printed.out and "\x1b[2J" not in printed.err


def test_example_without_answers_gives_reason() -> None:
    assert format_example((), "Because.", "Note.") == "Because."
    assert all(protocol.no_preview_reason for protocol in PROTOCOLS.values())


def test_misfits_are_counted_by_column() -> None:
    none: dict[str, Any] = {"columns": {}, "labels": np.zeros(0), "unusable": {}, "changed": {}}
    assert format_misfits(FittedRows(**none, n_left_out=0)) == []
    misfits = FittedRows(
        **{**none, "changed": {"heat": 1_200}, "unusable": {"wi\x1bnd": 1}}, n_left_out=1
    )
    changed, left_out, last = format_misfits(misfits)
    assert changed.endswith("counted as missing: heat 1,200.")
    assert left_out == "1 row left out ('wi\\x1bnd' 1)." and "stay on this computer" in last
    assert format_misfits(FittedRows(**none, n_left_out=2))[0] == "2 rows left out."


def test_answers_that_wait_are_counted_and_not_shown() -> None:
    text = format_sent_answers((), 2)
    assert text.startswith("No answer was sent.") and "2 answers not sent yet" in text
    assert "not sent yet" not in format_sent_answers((), 0)


def test_label_and_data_contain_roster(tmp_path: Path) -> None:
    keys = tuple(Identity.from_seed(bytes([i]) * 32).public_key for i in range(3))
    clock = ManualClock()
    with LedgerFile(tmp_path / "ledger.db", clock) as ledger:
        asked = price_offer(
            StudyHandle(make_manifest("sdq", 3, keys, sdq={"n_databases": 3})),
            ledger,
            "rows.csv",
            clock.now(),
        )
    for i, key in enumerate(keys):
        assert f"site-{i}, key {shorten_digest(key)}" in format_label(asked, "over Tor")
    assert format_label(asked, "over Tor").endswith("\nconnects  over Tor")
    *_, last = format_label(asked, "through a relay", rests_on_relay=True).splitlines()
    assert last.startswith(
        "warning   this is your first contact with this coordinator"
    ) and last.endswith("--study DIGEST")
    assert make_label_data(asked)["roster"] == [
        {"name": f"site-{i}", "key": key.hex()} for i, key in enumerate(keys)
    ]


def test_format_sent_states_price_with_unit_relation_and_delta(tmp_path: Path) -> None:
    clock = ManualClock()
    with LedgerFile(tmp_path / "ledger.db", clock) as ledger:
        assert (
            format_sent(ledger.entries()) == "nothing"
            and make_sent_data(ledger.entries())["unit"] is None
        )
        event = price_offer(
            StudyHandle(make_manifest("ddml", ddml={"n_instances": 2})),
            ledger,
            "rows.csv",
            clock.now(),
        ).plan.charges[0]
        ledger.reserve(
            "d1", "q1", event, source="rows.csv", recipient="https://x.org", title="Naps"
        )
        ledger.store("d1", "q1", b"noisy")
        assert format_sent(ledger.entries()) == "nothing"
        ledger.mark_sending("d1", "q1")
        assert (
            format_sent(ledger.entries())
            == "1 answer, 5 bytes, epsilon 2.0, delta 0 (unit: update, relation: replace)"
        )
        assert make_sent_data(ledger.entries()) == {
            "questions": 1,
            "bytes": 5,
            "epsilon": 2.0,
            "delta": 0.0,
            "unit": "update",
            "relation": "replace",
        }
