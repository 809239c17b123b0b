"""A participant's ledger page, opened from a file in a browser without a network."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

from shoal.cli.main import run
from shoal.clock import SystemClock
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import LOCAL_PERSON, Event
from tests.browser.visitor import Visitor

HOSTILE = "<img src=x onerror=alert(1)>"


def test_ledger_page_opens_from_file(
    tmp_path: Path, visit: Callable[..., Visitor], capsys: object
) -> None:
    path, out = tmp_path / "ledger.db", tmp_path / "ledger.html"
    with LedgerFile(path, SystemClock()) as ledger:
        for i, title in enumerate(["Sleep", "Sleep", HOSTILE]):
            event = Event("random-response", {}, LOCAL_PERSON, 0.7)
            ledger.reserve(
                "ab" * 32, f"q{i}", event, source="me.csv", recipient="https://x.org", title=title
            )
            ledger.store("ab" * 32, f"q{i}", bytes(100))
            if i != 1:
                ledger.mark_sending("ab" * 32, f"q{i}")
    assert run(["ledger", "page", "--ledger", str(path), "--out", str(out), "--json"]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    summary = json.loads(capsys.readouterr().out)  # type: ignore[attr-defined]
    for scheme in ("light", "dark"):
        for width in (1280, 390):
            visitor = visit(
                offline=True, color_scheme=scheme, viewport={"width": width, "height": 800}
            )
            visitor.goto(out.as_uri())
            assert visitor.find_accessibility_faults() == [] and not visitor.is_too_wide()
            text = visitor.page.locator("main").inner_text()
            for words in (
                "epsilon 2.1 of 4.0, 1.9 left",
                summary["head"],
                "all of its",
                HOSTILE,
                "https://x.org",
            ):
                assert words in text
            there, reached, are_seen = visitor.tab_through()
            assert reached == there and are_seen
            assert visitor.errors == [] and visitor.requests == [out.as_uri()]
            bar = visitor.page.locator(".meter-spent").first.evaluate(
                "bar => getComputedStyle(bar).fill"
            )
            assert bar == "rgb(0, 114, 178)", "the styles are those of the page"
