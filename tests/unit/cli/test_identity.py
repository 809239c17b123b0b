"""`shoal identity`: one key for ever, as a roster file takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.identity import identity
from shoal.errors import SpecError
from shoal.study.rosters import load_roster, parse_roster


def test_one_key_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = []
    for name in ("north", "south"):
        identity(name=name, ledger=tmp_path / "ledger.db")
        [member] = parse_roster(capsys.readouterr().out)
        keys.append(member.key.hex())
    identity(ledger=tmp_path / "ledger.db", json=True)
    told = json.loads(capsys.readouterr().out)
    assert {told["key"], *keys} == {keys[0]} and told["ledger"] == str(tmp_path / "ledger.db")


def test_all_that_is_printed_can_be_appended_to_a_roster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["north", 'Zürich "1"', "𝓝\\x"]
    with (tmp_path / "roster.toml").open("a", encoding="utf-8") as roster:
        for i, name in enumerate(names):
            identity(name=name, ledger=tmp_path / f"{i}.db")
            printed = capsys.readouterr().out
            assert printed.endswith("\n# next      shoal join URL --data rows.csv\n")
            roster.write(printed)
    members = load_roster(tmp_path / "roster.toml")
    assert [member.name for member in members] == names and len({member.key for member in members}) == 3


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 1000])
def test_a_name_is_a_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        identity(name=name, ledger=tmp_path / "ledger.db")
    assert refused.value.code == "MANIFEST-002"
