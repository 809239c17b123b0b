"""``shoal identity``: one lasting key, as a block of a roster file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.identity import identity
from shoal.errors import SpecError, StoreError
from shoal.study.attachments import load_roster, parse_roster


def test_identity_prints_same_key_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = []
    for name in ("north", "south"):
        identity(name=name, ledger=tmp_path / "ledger.db", new_ledger=True)
        [member] = parse_roster(capsys.readouterr().out)
        keys.append(member.key.hex())
    identity(ledger=tmp_path / "ledger.db", new_ledger=True, json=True)
    told = json.loads(capsys.readouterr().out)
    assert {told["key"], *keys} == {keys[0]} and told["ledger"] == str(tmp_path / "ledger.db")


def test_identity_output_can_be_appended_to_roster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["north", 'Zürich "1"', "𝓝\\x"]
    with (tmp_path / "roster.toml").open("a", encoding="utf-8") as roster:
        for i, name in enumerate(names):
            identity(name=name, ledger=tmp_path / f"{i}.db", new_ledger=True)
            printed = capsys.readouterr().out
            assert printed.endswith("\n# next      shoal join URL --data rows.csv\n")
            roster.write(printed)
    members = load_roster(tmp_path / "roster.toml")
    assert [member.name for member in members] == names and len(
        {member.key for member in members}
    ) == 3


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 1000])
def test_identity_rejects_invalid_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        identity(name=name, ledger=tmp_path / "ledger.db", new_ledger=True)
    assert refused.value.code == "MANIFEST-002"


def test_identity_without_terminal_needs_new_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(StoreError, match="LEDGER-010") as refused:
        identity(ledger=path)
    assert "--new-ledger" in (refused.value.fix or "") and not path.exists()
    identity(ledger=path, new_ledger=True)
    assert capsys.readouterr().err.startswith(f"A new ledger starts at {path}; earlier studies")
    identity(ledger=path)
    assert capsys.readouterr().err == ""
