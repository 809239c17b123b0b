"""`shoal identity`: one key for ever, as a roster file takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.identity import identity
from shoal.errors import SpecError
from shoal.study.rosters import parse_roster


def test_the_block_is_one_of_a_roster_and_the_key_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = []
    for name in ("north", 'Zürich "1"', "𝓝\\x"):
        identity(name=name, ledger=tmp_path / "ledger.db")
        block = capsys.readouterr().out.partition("\n\nnext")[0]
        [member] = parse_roster(block)
        assert member.name == name
        keys.append(member.key.hex())
    identity(ledger=tmp_path / "ledger.db", json=True)
    told = json.loads(capsys.readouterr().out)
    assert {told["key"], *keys} == {keys[0]} and told["ledger"] == str(tmp_path / "ledger.db")
    identity(ledger=tmp_path / "other.db", json=True)
    assert json.loads(capsys.readouterr().out)["key"] != keys[0]


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 1000])
def test_a_name_is_a_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        identity(name=name, ledger=tmp_path / "ledger.db")
    assert refused.value.code == "MANIFEST-002"
