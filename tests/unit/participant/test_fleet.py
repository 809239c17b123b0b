"""A fleet: rows dealt, real participants with files of their own, and what they take home."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import live, write_csv, write_table
from participants import folder, manifest_of, study_of, table_of
from served import FLEET, Process
from shoal.cli.join import join
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError, UsageError
from shoal.participant.fleet import Waters, file_of, fleet, main, parts_of, roster_of
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.outputs import MODEL
from shoal.privacy.records import State
from shoal.releases.artefact import read
from shoal.study.manifest import Manifest
from shoal.study.rosters import load_roster
from token_desk import token_manifest

__all__ = ["folder"]

ANONML = manifest_of("anonml", 20)
PFDS = manifest_of("pfds", 3, pfds={"n_holders": 3})


def test_rows_are_dealt_and_none_twice() -> None:
    table = table_of(10)
    table["row"] = np.arange(10)
    for protocol in ("ddml", "sdq", "pfds"):
        more: dict[str, Any] = {
            "ddml": {"ddml": {"n_instances": 2}},
            "sdq": {"sdq": {"n_databases": 3}},
            "pfds": {"pfds": {"n_holders": 3}},
        }
        parts = parts_of(study_of(protocol, 3, **more[protocol]), table, 4)
        assert sorted(np.concatenate([part["row"] for part in parts]).tolist()) == list(range(10))
        assert {len(part["row"]) for part in parts} == {2, 3}
    assert [part["row"].tolist() for part in parts_of(study_of("anonml"), table, 4)] == [[0], [1], [2], [3]]


def test_a_column_says_whose_rows_they_are() -> None:
    table = {**table_of(4), "site": np.array(["b", "a", "b", "c"], object), "row": np.arange(4)}
    study = study_of("pfds", 3, pfds={"n_holders": 3})
    assert [part["row"].tolist() for part in parts_of(study, table, 3, "site")] == [[1], [0, 2], [3]]
    with pytest.raises(UsageError, match="names 3 holders; 2 are to take part"):
        parts_of(study, table, 2, "site")
    with pytest.raises(UsageError, match="no column town"):
        parts_of(study, table, 2, "town")
    with pytest.raises(UsageError, match="4 rows; 5 participants"):
        parts_of(study, table, 5)


def test_people_answer_and_take_the_model_home(folder: Path) -> None:
    said: list[str] = []
    with live(folder, ANONML) as coordinator:
        waters = Waters(coordinator.url, folder / "fleet", SystemClock(), SystemEntropy(), out=folder / "out")
        ended = asyncio.run(fleet(waters, table_of(30), 20, at_once=20, tell=said.append))
        assert coordinator.totals(ANONML).enrolled == 20 and coordinator.totals(ANONML).accepted == 20
    assert [getattr(one, "standing", one) for one in ended.values()] == ["finished"] * 20 and said[-1] == "20 of 20: 20 finished"
    model = json.loads((folder / "out" / file_of(folder, 7).stem / MODEL).read_bytes())
    assert model["study"] == ANONML.digest.hex()
    with LedgerFile(file_of(folder / "fleet", 7), SystemClock()) as ledger:
        assert [entry.state for entry in ledger.entries()] == [State.SENT]
    # All have a ledger, and so a key and a ticket, of their own.
    assert len(list((folder / "fleet").glob("*.db"))) == 20


def test_a_fleet_goes_the_way_that_its_study_names(folder: Path) -> None:
    waters = Waters("http://127.0.0.1:9", folder, SystemClock(), SystemEntropy())
    relayed = replace(token_manifest(), gateway_key=b"g" * 32, relay="http://127.0.0.1:10")
    assert waters.way(ANONML, 0).name == "direct" and waters.way(relayed, 0).name == "ohttp"
    assert replace(waters, via="direct", from_addresses=True).way(relayed, 251)._local_address == "127.0.2.2"  # type: ignore[attr-defined]
    assert replace(waters, via="tor:127.0.0.1:9050").way(relayed, 0).name == "tor"


def test_holders_write_releases_and_a_reader_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(folder / "rows.csv", table_of(60))
    with live(folder, PFDS) as coordinator:
        main(coordinator.url, participants=3, directory=folder / "fleet", data=str(folder / "rows.csv"), out=folder / "out")
        printed = capsys.readouterr()
        assert printed.out == "3 of 3: 3 finished\n" and "for tests and demonstrations" in printed.err
        signed = [read(folder / "out" / file_of(folder, i).stem / "release") for i in range(3)]
        assert {one.signer.name for one in signed} == {"holder-0", "holder-1", "holder-2"} and not signed[0].release.is_simulated
        join(coordinator.url, study=PFDS.short, ledger=folder / "me.db", read_only=True, out=folder / "mine", json=True)
        told = json.loads(capsys.readouterr().out)
    assert told["sent"]["questions"] == 0 and Path(told["out"]).name == MODEL


def test_a_roster_is_made_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(participants=3, directory=folder / "fleet", roster=folder / "roster.toml")
    members = load_roster(folder / "roster.toml")
    assert members == roster_of(folder / "fleet", 3, SystemClock(), SystemEntropy()) and len({member.key for member in members}) == 3
    assert "3 members" in capsys.readouterr().out
    Manifest(study_of("pfds", 3, pfds={"n_holders": 3}), roster=members)


def test_a_roster_overwrites_nothing_but_itself(folder: Path) -> None:
    for _ in range(2):
        main(participants=2, directory=folder / "fleet", roster=folder / "roster.toml")
    before = (folder / "roster.toml").read_bytes()
    with pytest.raises(UsageError, match="there already"):
        main(participants=3, directory=folder / "fleet", roster=folder / "roster.toml")
    assert (folder / "roster.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"participants": 0}, "--participants 0 is not from 1"),
        ({"participants": -1}, "--participants -1 is not from 1"),
        ({"participants": 10**6}, "to 100,000"),
        ({"at_once": 0}, "--at-once 0 is not from 1"),
        ({"directory": Path("/dev/null")}, "there is a file of that name"),
        ({"directory": Path("/dev/null/x")}, "The directory /dev/null/x cannot be written"),
        ({"directory": Path("a\0b")}, "not one that a file can have"),
        ({"roster": Path("/dev/null/x")}, "The roster /dev/null/x cannot be written"),
        ({"data": "rows.csv"}, "both are given"),
        ({"roster": None}, "an address and a table"),
    ],
)
def test_options_that_make_no_sense_are_sentences(options: dict[str, Any], words: str, folder: Path) -> None:
    given = {"participants": 2, "directory": folder / "fleet", "roster": folder / "roster.toml", **options}
    with pytest.raises(UsageError) as refused:
        main(**given)
    assert refused.value.code == "USAGE-001" and words in refused.value.what
    assert not (folder / "roster.toml").exists()


def test_a_command_line_that_cannot_be_read_is_a_sentence(folder: Path) -> None:
    for words in ([], ["--participants", "2.7", "--directory", folder / "fleet", "--roster", folder / "roster.toml"]):
        process = Process(folder / "log", words, FLEET)
        assert process.code() == 2
        assert process.words().startswith("USAGE-001  ") and process.words().count("\n") == 2
    assert not (folder / "fleet").exists()


def test_what_goes_wrong_is_told_at_the_end(folder: Path) -> None:
    data = str(write_csv(folder / "rows.csv", 9))
    with pytest.raises(UsageError, match="an address and a table"):
        main(participants=3, directory=folder / "fleet", data=data)
    # There are places for three.
    with live(folder, PFDS) as coordinator, pytest.raises(ShoalError) as refused:
        main(coordinator.url, participants=4, directory=folder / "fleet", data=data)
    assert refused.value.code == "ENROL-001"
