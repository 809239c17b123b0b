"""A new ledger is announced, and a clock that runs ahead is confirmed by a person."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shoal.cli.ledger.paths import announce_ledger, check_date
from shoal.clock import ManualClock
from shoal.errors import StoreError, UsageError
from shoal.participant.ledger_file import LedgerFile


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 11, 1, tzinfo=UTC))


@pytest.fixture
def ledger(tmp_path: Path, clock: ManualClock) -> Iterator[LedgerFile]:
    with LedgerFile(tmp_path / "ledger.db", clock) as ledger:
        yield ledger


def test_new_ledger_is_announced_at_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(StoreError, match=r"(?s)LEDGER-010.*earlier studies") as refused:
        announce_ledger(path, new_ledger=False)
    assert "--new-ledger" in (refused.value.fix or "")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert announce_ledger(path, new_ledger=False) == path
    expected = f"A new ledger starts at {path}; earlier studies are not known.\n"
    assert capsys.readouterr().err == expected
    assert not path.exists(), "the first record creates it"


def test_existing_ledger_is_not_announced(
    ledger: LedgerFile, capsys: pytest.CaptureFixture[str]
) -> None:
    for new_ledger in (True, False):
        assert announce_ledger(ledger.path, new_ledger=new_ledger) == ledger.path
    assert capsys.readouterr().err == ""


def test_date_near_last_record_is_not_asked_for(ledger: LedgerFile, clock: ManualClock) -> None:
    check_date(ledger, clock.now(), None, can_ask=False)
    check_date(ledger, clock.now(), "2030-11-01", can_ask=False)
    with pytest.raises(UsageError, match=r"2030-11-02.* is not the date of your clock, 2030-11-01"):
        check_date(ledger, clock.now(), "2030-11-02", can_ask=False)


def test_date_far_ahead_needs_person_or_option(ledger: LedgerFile, clock: ManualClock) -> None:
    clock.advance(62 * 86400)
    with pytest.raises(StoreError, match="LEDGER-012"):
        check_date(ledger, clock.now(), None, can_ask=False)
    for answer in ("", "n", "Y?"):
        with pytest.raises(StoreError, match="LEDGER-012"):
            check_date(ledger, clock.now(), None, can_ask=True, ask=lambda _, a=answer: a)

    def end(_: str) -> str:
        raise EOFError

    with pytest.raises(StoreError, match="LEDGER-012"):
        check_date(ledger, clock.now(), None, can_ask=True, ask=end)
    with pytest.raises(UsageError, match="USAGE-001"):
        check_date(ledger, clock.now(), "2030-11-02", can_ask=True)
    with pytest.raises(StoreError, match="LEDGER-012"):
        ledger.check_clock()
    check_date(ledger, clock.now(), "2031-01-02", can_ask=False)
    ledger.check_clock()


def test_person_confirms_date(
    ledger: LedgerFile, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.advance(62 * 86400)
    asked: list[str] = []
    check_date(
        ledger, clock.now(), None, can_ask=True, ask=lambda prompt: asked.append(prompt) or "y"
    )
    assert asked == ["Is 2031-01-02 the right date (UTC)?   [y] yes   [N] no  "]
    assert "62 days after the last record" in capsys.readouterr().out
    ledger.check_clock()
