"""``shoal ledger page``: a private file with the content of ``shoal ledger show``."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import sqlite3
import stat
import webbrowser
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import run
from shoal.clock import SystemClock
from shoal.errors import format_install_command
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.ledger.limits import Limit, Period
from shoal.privacy.rounding import delta_grains_down, grains_down

PERSON = Scope(Unit.PERSON, Relation.REPLACE, "everyone")
RECORD = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner")
HOSTILE = "<script>alert(1)</script>"
Page = Callable[..., tuple[int, str, str]]


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a ledger with releases of two studies and two kinds, in several states."""
    path = tmp_path / "data" / "ledger.db"
    monkeypatch.setenv("SHOAL_LEDGER", str(path))
    monkeypatch.chdir(tmp_path)
    with LedgerFile(path, SystemClock()) as ledger:
        ledger.set_limit(Limit(None, grains_down(8.0), delta_grains=delta_grains_down(1e-4)))
        for i, (study, scope, title) in enumerate(
            [
                ("ab" * 32, PERSON, "Sleep"),
                ("ab" * 32, PERSON, "Sleep"),
                ("d1", RECORD, HOSTILE),
                ("d1", RECORD, HOSTILE),
            ]
        ):
            event = Event("test", {}, scope, 0.7, 1e-7 if scope is RECORD else 0.0, reads=("age",))
            ledger.reserve(
                study, f"q{i}", event, source="me.csv", recipient="https://x.org", title=title
            )
            ledger.store(study, f"q{i}", bytes(100 + i))
            if i < 3:
                ledger.mark_sending(study, f"q{i}")
        ledger.mark_sent("ab" * 32, "q0")
    return path


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str], used: Path) -> Page:
    def command(*words: str) -> tuple[int, str, str]:
        code = run(["ledger", "page", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return command


def extract_text(path: Path) -> str:
    return " ".join(
        html.unescape(re.sub(r"<[^>]*>", " ", path.read_text().partition("</style>")[2])).split()
    )


def test_page_contains_output_of_show(
    page: Page, used: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = page()
    assert (code, err) == (0, "") and out.endswith("next      shoal ledger page --open\n")
    assert page("--out", "my page.html")[1].endswith(
        "next      shoal ledger page --out 'my page.html' --open\n"
    )
    written = used.parents[1] / "ledger.html"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    text = extract_text(written)
    assert run(["ledger", "show"]) == 0
    shown = capsys.readouterr().out
    for line in re.findall(r"^  (me\.csv: .*)$", shown, re.MULTILINE):
        assert line in text
    for line in re.findall(r"^  \[[#.]*\] (.*)  \((.*)\)$", shown, re.MULTILINE):
        assert line[1] in text and all(part in text for part in line[0].split(", delta"))
    for line in re.findall(r"^  (\d{4}-.*)$", shown, re.MULTILINE):
        assert " ".join(line.split()) in text
    assert (
        "epsilon 1.4 (person, replace, against everyone), in 2 releases" in text
        and "abab-abab-abab" in text
    )
    assert "epsilon 0.7, delta 1e-07 (record, add-remove, against the miner), in 1 release" in text
    assert "stored: " in text and "<script" not in written.read_text() and HOSTILE in text
    with LedgerFile(used, SystemClock()) as ledger:
        assert str(ledger.read_head()) in text


def test_bars_are_rounded_up_to_100_at_most(page: Page, used: Path) -> None:
    with LedgerFile(used, SystemClock()) as ledger:
        ledger.set_limit(Limit(Unit.PERSON, grains_down(1.0), period=Period.EVER, releases=3))
        ledger.set_limit(Limit(Unit.PERSON, 0, source="me.csv", feature="age"))
        ledger.set_limit(Limit(Unit.PERSON, grains_down(3.0), Relation.ADD_REMOVE))
    assert page("--out", "mine.HTML")[0] == 0
    written = (used.parents[1] / "mine.HTML").read_text()
    widths = {float(width) for width in re.findall(r'class="meter-spent" width="([^"]*)"', written)}
    # 2.8 of 8, 1.4 of 1 and of 0; 2 of 3 releases; and a small delta.
    assert {35.0, 100.0, 66.7, 0.7} <= widths and max(widths) == 100.0
    assert "cannot be checked: 2 releases" in written and "does not hide the value" in written


def test_page_prints_json_and_opens_browser(
    page: Page, used: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    told = json.loads(page("--json", "--open")[1])
    assert (told["out"], told["opened"], told["ledger"]) == ("ledger.html", True, str(used))
    assert opened == [(used.parents[1] / "ledger.html").as_uri()]

    def fail(_: str) -> Any:
        raise webbrowser.Error

    for none in (fail, lambda _: False):
        monkeypatch.setattr(webbrowser, "open", none)
        assert "No browser could be opened." in page("--open")[1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--out", "ledger.txt"], 2, "USAGE-001  ledger.txt ends neither in .html nor in .htm."),
        (["--out", "nowhere/ledger.html"], 1, "LEDGER-001  nowhere/ledger.html cannot be written"),
        (["--ledger", "none.db"], 1, "LEDGER-010  There is no ledger at none.db."),
    ],
)
def test_refused_page_leaves_no_file(
    page: Page, used: Path, words: list[str], code: int, said: str
) -> None:
    found, out, err = page(*words)
    assert (found, out) == (code, "") and err.startswith(said)
    assert sorted(path.name for path in used.parents[1].iterdir()) == ["data"]


def test_page_does_not_overwrite_ledger(page: Page, used: Path) -> None:
    same = used.with_suffix(".html")
    used.rename(same)
    before = same.read_bytes()
    code, _, err = page("--ledger", str(same), "--out", str(same))
    assert code == 2 and "is the ledger itself" in err and same.read_bytes() == before


def test_page_refuses_altered_ledger(page: Page, used: Path) -> None:
    with closing(sqlite3.connect(used, isolation_level=None)) as db:
        db.execute("UPDATE outbox SET bytes = zeroblob(7)")
    code, out, err = page()
    assert (
        (code, out) == (1, "")
        and err.startswith("LEDGER-00")
        and not (used.parents[1] / "ledger.html").exists()
    )


def test_page_without_extra_raises_usage_002(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    code, _, err = page()
    assert code == 2 and "USAGE-002" in err and format_install_command("report") in err
