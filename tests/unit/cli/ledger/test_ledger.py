"""``shoal ledger``: text, JSON and exit codes."""

from __future__ import annotations

import csv
import io
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.arguments import make_source_name
from shoal.cli.ledger.view import (
    format_history,
    format_limits,
    format_pending,
    format_totals,
    make_usage_data,
)
from shoal.cli.main import run
from shoal.clock import SystemClock
from shoal.errors import BudgetError
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.ledger.limits import DEFAULT_LIMITS, Limit, Period
from shoal.privacy.rounding import delta_grains_down, grains_down

Run = Callable[..., tuple[int, str, str]]
PERSON = Scope(Unit.PERSON, Relation.REPLACE, "everyone")
RECORD = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "ledger.db"
    monkeypatch.setenv("SHOAL_LEDGER", str(path))
    return path


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str], path: Path) -> Run:
    def ledger(*words: str) -> tuple[int, str, str]:
        code = run(["ledger", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return ledger


@pytest.fixture
def used(path: Path) -> Path:
    """Return a ledger with a release in every state."""
    with LedgerFile(path, SystemClock()) as ledger:
        ledger.set_limit(Limit(None, grains_down(8.0), delta_grains=delta_grains_down(1e-4)))
        for i, (scope, title) in enumerate(
            [
                (PERSON, "Sleep"),
                (PERSON, "Sleep"),
                (RECORD, "=SUM(A1:A9)"),
                (RECORD, "Clinic"),
                (PERSON, "Diet"),
            ]
        ):
            event = Event("test", {}, scope, 0.7, 1e-7 if scope is RECORD else 0.0, reads=("age",))
            ledger.reserve(
                "d1", f"q{i}", event, source="me.csv", recipient="https://x.org", title=title
            )
            if i > 0:
                ledger.store("d1", f"q{i}", bytes(100 + i))
            if i in (2, 3):
                ledger.mark_sending("d1", f"q{i}")
        ledger.mark_sent("d1", "q3")
        ledger.void("d1", "q4")
    return path


def test_show_without_ledger_creates_none(shoal: Run, path: Path) -> None:
    for words in (["show"], ["limit"]):
        code, out, _ = shoal(*words)
        assert code == 0
        assert out.startswith(f"There is no ledger at {path} yet: nothing was spent.")
        assert "epsilon 4.0, delta 0.0001  (all units together, replace, all sources" in out
    data = json.loads(shoal("show", "--json")[1])
    assert (data["exists"], data["totals"], data["history"]) == (False, [], [])
    assert not path.parent.exists()


def test_show_prints_spent_held_and_sent(shoal: Run, used: Path) -> None:
    code, out, err = shoal("show")
    assert (code, err) == (0, "")
    assert (
        "me.csv: epsilon 0 spent, 1.4 held, in 2 releases (person, replace, against everyone)"
        in out
    )
    assert (
        "me.csv: epsilon 1.4 spent, 0 held, delta 2e-07, in 2 releases (record, add-remove, "
        "against the miner)" in out
    )
    assert (
        "[###########.........] epsilon 4.2 of 8.0, 3.8 left, delta 6.028e-07 of 0.0001  (all "
        "units together, replace, all sources together, a year)" in out
    )
    waiting, sent = out.split("Waiting")[1].split("\n\nSent\n")
    assert [line.split()[0] for line in waiting.splitlines()[1:]] == [
        "reserved",
        "stored",
        "sending",
    ]
    assert (
        "question q0, about me.csv, to https://x.org: not drawn yet, epsilon 0.7 (person, "
        "replace, against everyone)" in waiting
    )
    assert (
        "Clinic, question q3, about me.csv, to https://x.org: 103 bytes, epsilon 0.7, delta 1e-07 "
        "(record" in sent
    )
    assert sent.count("not acknowledged") == 1
    assert "Diet" not in out
    assert out.endswith("next      shoal ledger verify\n")


def test_show_prints_json(shoal: Run, used: Path) -> None:
    data: dict[str, Any] = json.loads(shoal("show", "--json", "--ledger", str(used))[1])
    assert data["totals"][1]["epsilon_spent"] == 1.4
    assert data["totals"][1]["delta_spent"] == 2e-7
    assert [entry["question"] for entry in data["pending"]] == ["q0", "q1", "q2"]
    assert [entry["question"] for entry in data["history"]] == ["q2", "q3"]
    [limit] = data["limits"]
    assert (limit["unit"], limit["max_rows_per_person"], limit["epsilon_left"]) == (None, 1, 3.8)


def test_verify_accepts_head_that_it_printed(shoal: Run, used: Path) -> None:
    head = json.loads(shoal("verify", "--json")[1])["head"]
    code, out, _ = shoal("verify", "--head", head)
    assert code == 0
    assert (
        f"It contains the head that you noted.\nNote down its head in another place:\n  {head}"
        in out
    )
    code, _, err = shoal("verify", "--head", "999:" + head.split(":")[1])
    assert code == 1
    assert err.startswith("LEDGER-007  The head that you noted is record 999;")
    assert shoal("verify", "--head", "what?")[0] == 2


@pytest.mark.parametrize("command", ["verify", "export"])
def test_commands_without_ledger_raise_ledger_010(shoal: Run, path: Path, command: str) -> None:
    code, _, err = shoal(command)
    assert code == 1
    assert err.startswith(f"LEDGER-010  There is no ledger at {path}.")
    assert not path.parent.exists()


def test_limit_of_table_uses_source_name_of_join(
    shoal: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shoal("limit", "--epsilon", "0.5", "--source", "rows.db#visits", "--new-ledger")[0] == 0
    counted = make_source_name("rows.db#visits")
    assert counted == f"{tmp_path}/rows.db#visits"
    event = Event("test", {}, PERSON, 0.7, reads=("age",))
    with LedgerFile(path, SystemClock()) as ledger, pytest.raises(BudgetError) as refused:
        ledger.reserve("d1", "q1", event, source=counted, recipient="https://x.org", title="Sleep")
    assert refused.value.code == "BUDGET-002"
    assert shoal("limit", "--remove", "--source", "rows.db#visits")[0] == 0
    assert "rows.db" not in shoal("limit")[1]


def test_limit_keeps_name_of_known_source(shoal: Run, used: Path) -> None:
    assert "source me.csv" in shoal("limit", "--epsilon", "0.5", "--source", "me.csv")[1]


def test_limit_sets_changes_and_removes_limits(shoal: Run, path: Path) -> None:
    code, _, err = shoal("limit", "--epsilon", "2.5")
    assert (code, err.split()[0]) == (1, "LEDGER-010") and not path.parent.exists()
    code, out, err = shoal("limit", "--epsilon", "2.5", "--new-ledger")
    assert "epsilon 0 of 2.5, 2.5 left" in out
    assert err == f"A new ledger starts at {path}; earlier studies are not known.\n"
    code, out, _ = shoal(
        "limit",
        "--releases",
        "3",
        "--feature",
        "age",
        "--per",
        "month",
        "--unit",
        "record",
        "--source",
        "/me.csv",
    )
    assert code == 0
    assert (
        "  0 of 3 releases  (record, replace, source /me.csv, releases that read age, a month)"
        in out
    )
    assert "It does not hide the value of the feature" in out
    # A cap that is not mentioned stays.
    assert (
        "epsilon 0 of 2.5, 2.5 left, delta 0 of 0.0001, 0 of 7 releases  (all units together, "
        "replace, all sources together, a year)" in shoal("limit", "--releases", "7")[1]
    )
    assert (
        "epsilon 0 of 3.0, 3.0 left, delta 0 of 0.0001, 0 of 7 releases  (all units"
        in shoal("limit", "--epsilon", "3")[1]
    )
    assert "delta 0 of 1e-05, 0 of 7 releases  (all units" in shoal("limit", "--delta", "1e-5")[1]
    assert "all units" not in shoal("limit", "--remove")[1]
    code, _, err = shoal("limit", "--remove")
    assert (code, err.split()[0]) == (2, "LEDGER-009")
    listed = json.loads(shoal("limit", "--json")[1])["limits"]
    assert [(item["unit"], item["feature"]) for item in listed] == [
        ("record", "age"),
    ]


def test_limit_declares_rows_of_a_person(shoal: Run, used: Path) -> None:
    """A release about a record then counts as often as a person has rows."""
    assert (
        "epsilon 9.8 of 8.0, 0 left, delta 1.296e-05 of 0.0001  (all units together, up to 3 rows "
        "for each person, replace" in shoal("limit", "--max-rows-per-person", "3")[1]
    )
    assert "up to 3 rows" in shoal("limit", "--epsilon", "12")[1], "it stays"
    assert "up to" not in shoal("limit", "--max-rows-per-person", "1")[1]
    code, _, err = shoal("limit", "--max-rows-per-person", "2", "--per", "month")
    assert (code, err.split()[0]) == (2, "LEDGER-009") and "no limit to change" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--epsilon", "-1"],
        ["--epsilon", "nan"],
        ["--epsilon", "abc"],
        ["--epsilon", "inf"],
        ["--epsilon", "1e7"],
        ["--epsilon="],
        ["--delta", "1"],
        ["--delta", "much"],
        ["--releases", "-1"],
        ["--releases", "2.5"],
        ["--releases", "9999999999"],
        ["--epsilon", "1", "--unit", "galaxy"],
        ["--epsilon", "1", "--relation", "swap"],
        ["--epsilon", "1", "--per", "century"],
        ["--epsilon", "1", "--source", ""],
        ["--epsilon", "1", "--feature", "a\x1bb"],
        ["--epsilon", "1", "--remove"],
        ["--max-rows-per-person", "2", "--remove"],
        ["--epsilon", "1", "--max-rows-per-person", "0"],
        ["--epsilon", "1", "--max-rows-per-person", "many"],
        ["--epsilon", "1", "--max-rows-per-person", "2", "--unit", "record"],
        ["--colour", "red"],
    ],
)
def test_bad_limit_raises_and_creates_no_ledger(shoal: Run, path: Path, words: list[str]) -> None:
    code, out, err = shoal("limit", *words)
    assert (code, out) == (2, "")
    assert err.split()[0] in ("USAGE-001", "LEDGER-009")
    assert "Traceback" not in err
    assert not path.parent.exists()


def test_export_contains_everything_but_bytes(shoal: Run, used: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    code, out, _ = shoal("export", "--to", str(target))
    assert (code, out.splitlines()[0]) == (0, f"Wrote 5 entries of {used} to {target}.")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    data = json.loads(target.read_text())
    assert data == json.loads(shoal("export", "--json")[1])
    assert [entry["state"] for entry in data["entries"]] == [
        "reserved",
        "stored",
        "sending",
        "sent",
        "voided",
    ]
    assert data["entries"][1]["bytes"] == 101
    assert len(data["entries"][1]["sha256"]) == 64
    assert list(tmp_path.glob(".*.part")) == []


def test_export_writes_csv(shoal: Run, used: Path, tmp_path: Path) -> None:
    printed = shoal("export")[1]
    assert shoal("export", "--to", str(tmp_path / "out.csv"))[0] == 0
    assert (tmp_path / "out.csv").read_text() == printed
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["question"] for row in rows] == ["q0", "q1", "q2", "q3", "q4"]
    assert rows[2]["title"] == "'=SUM(A1:A9)"
    assert (rows[3]["epsilon"], rows[3]["delta"], rows[3]["reads"], rows[3]["voided_at"]) == (
        "0.7",
        "1e-07",
        "age",
        "",
    )
    assert rows[4]["voided_at"]


def test_export_rejects_bad_target(shoal: Run, used: Path, tmp_path: Path) -> None:
    assert shoal("export", "--to", str(tmp_path / "out.xlsx"))[0] == 2
    assert shoal("export", "--to", str(tmp_path / "nowhere" / "out.json"))[0] == 1
    (tmp_path / "folder.json").mkdir()
    assert shoal("export", "--to", str(tmp_path / "folder.json"))[0] == 1
    used.rename(tmp_path / "ledger.json")
    before = (tmp_path / "ledger.json").read_bytes()
    code, _, err = shoal(
        "export", "--ledger", str(tmp_path / "ledger.json"), "--to", str(tmp_path / "ledger.json")
    )
    assert (code, err.split()[0]) == (2, "USAGE-001")
    assert (tmp_path / "ledger.json").read_bytes() == before


def test_export_writes_private_file_and_follows_no_link(
    shoal: Run, used: Path, tmp_path: Path
) -> None:
    victim, target = tmp_path / "victim.txt", tmp_path / "out.csv"
    victim.write_text("mine")
    target.symlink_to(victim)
    (tmp_path / ".out.csv.part").symlink_to(victim)
    assert shoal("export", "--to", str(target))[0] == 0
    assert victim.read_text() == "mine"
    assert not target.is_symlink() and target.stat().st_mode & 0o777 == 0o600


def test_export_rejects_invalid_name(shoal: Run, used: Path, tmp_path: Path) -> None:
    code, _, err = shoal("export", "--to", str(tmp_path / ("x" * 300 + ".csv")))
    assert code == 1 and err.startswith("LEDGER-001")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("tmp")) == []


def test_limit_without_action_raises(shoal: Run, path: Path) -> None:
    assert shoal("limit", "--feature", "age")[0] == 2
    assert shoal("limit", "--per", "month", "--unit", "record")[0] == 2


@pytest.mark.parametrize("command", ["show", "verify", "limit", "export"])
def test_commands_reject_file_that_is_not_a_ledger(shoal: Run, path: Path, command: str) -> None:
    path.parent.mkdir()
    path.write_text("no ledger")
    code, _, err = shoal(command)
    assert (code, err.split()[0]) == (1, "LEDGER-004")
    error = json.loads(shoal(command, "--json")[1])["error"]
    assert error["code"] == "LEDGER-004"


def test_show_marks_limit_that_cannot_be_checked(path: Path, used: Path) -> None:
    with LedgerFile(path, SystemClock()) as ledger:
        ledger.set_limit(Limit(Unit.PERSON, grains_down(9.0), Relation.ADD_REMOVE, Period.EVER))
        ledger.set_limit(Limit(Unit.RECORD, 0))
        usages = ledger.limits()
    text = format_limits(usages)
    assert (
        "cannot be checked: 2 releases under replace have no price under add-remove  "
        "(person, add-remove" in text
    )
    assert "[####################] epsilon 2.8 of 0, 0 left  (record" in text
    assert (
        make_usage_data(usages[-2])["uncountable"],
        make_usage_data(usages[-2])["since"],
        make_usage_data(usages[-2])["epsilon_left"],
    ) == (
        2,
        None,
        0.0,
    )


def test_view_of_empty_ledger_fills_every_section() -> None:
    assert format_limits([]).endswith("\n  none: every release is refused")
    for text in (format_totals([]), format_pending([]), format_history([])):
        assert text.endswith("\n  nothing")
    assert all(limit.has_cap for limit in DEFAULT_LIMITS)


def test_help_explains_feature_limit(shoal: Run) -> None:
    code, out, _ = shoal("limit", "--help")
    assert code == 0
    assert "does not hide the value" in " ".join(out.replace("│", " ").split())
