"""The demonstration: what it shows is true, and it leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.main import run


def test_shows_truth_report_odds_and_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hello"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "true answer",
        "what leaves",
        "73.1 %",
        "at most 73.2 of 100",
        "person, relation replace, against everyone",
        "spent 1.0 of 4.0",
        "% (standard error) sleep badly",
        "AnonML: 100,000 people, 6 features, one answer each, about one feature, the label, or both",
    ):
        assert part in printed
    assert printed.rstrip().endswith("next      shoal new my-study --protocol anonml")


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hello", "--epsilon", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["event"]["unit"] == "person"
    assert 2 - 1e-9 < shown["event"]["epsilon"] <= 2
    person, crowd = shown["person"], shown["crowd"]
    assert person["bytes"] == person["retry"] == {"no": "00", "yes": "01"}[person["sent"]]
    assert person["state"] == "sent"
    # Eight standard errors: one run in 10^15 fails by chance.
    assert abs(crowd["estimated_share"] - crowd["true_share"]) < 8 * crowd["standard_error"]
    # Ten points above guessing and 1.6 below the truth, with a standard deviation of 0.6 in 40 runs: the limits are 8 and 6 of them away.
    model = shown["model"]
    assert model["guessing"] + 0.05 < model["private"] < model["truth"] + 0.02


@pytest.mark.parametrize("epsilon", ["0", "0.09", "4.1", "nan", "-1"])
def test_refuses_what_would_show_nothing(epsilon: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hello", "--epsilon", epsilon]) == 2
    assert capsys.readouterr().err.startswith("USAGE-001")


@pytest.mark.parametrize("epsilon", ["0.1", "4"])
def test_takes_the_ends_of_its_range(epsilon: str) -> None:
    assert run(["hello", "--epsilon", epsilon]) == 0


def test_says_where_there_is_no_room_for_its_ledger(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert run(["hello"]) == 1
    assert capsys.readouterr().err.startswith("LEDGER-001")


def test_leaves_no_file_and_does_not_touch_the_users_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_LEDGER", str(tmp_path / "mine.db"))
    monkeypatch.chdir(tmp_path)
    assert run(["hello"]) == 0
    assert list(tmp_path.iterdir()) == []
