"""The fleet: split tables, real participants with separate files, and their results."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cli.fleet import (
    FleetSettings,
    main,
    make_fleet_roster,
    make_ledger_path,
    run_fleet,
    split_table,
)
from shoal.cli.join import join
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError, UsageError
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.runner import MODEL_NAME
from shoal.privacy.ledger.records import ReleaseState
from shoal.releases.artifact import read_signed_release
from shoal.study.attachments import load_roster
from shoal.study.manifest import Manifest
from tests.support.credentials import token_manifest
from tests.support.participants import folder, make_manifest, make_study, make_table
from tests.support.servers import FLEET, Process, live, write_csv, write_table

__all__ = ["folder"]

ANONML = make_manifest("anonml", 20)
PFDS = make_manifest("pfds", 3, pfds={"n_holders": 3})


def test_split_table_uses_each_row_once() -> None:
    table = make_table(10)
    table["row"] = np.arange(10)
    for protocol in ("ddml", "sdq", "pfds"):
        more: dict[str, Any] = {
            "ddml": {"ddml": {"n_instances": 2}},
            "sdq": {"sdq": {"n_databases": 3}},
            "pfds": {"pfds": {"n_holders": 3}},
        }
        parts = split_table(make_study(protocol, 3, **more[protocol]), table, 4)
        assert sorted(np.concatenate([part["row"] for part in parts]).tolist()) == list(range(10))
        assert {len(part["row"]) for part in parts} == {2, 3}
    assert [part["row"].tolist() for part in split_table(make_study("anonml"), table, 4)] == [
        [0],
        [1],
        [2],
        [3],
    ]


def test_split_table_by_column_of_holders() -> None:
    table = {**make_table(4), "site": np.array(["b", "a", "b", "c"], object), "row": np.arange(4)}
    study = make_study("pfds", 3, pfds={"n_holders": 3})
    assert [part["row"].tolist() for part in split_table(study, table, 3, "site")] == [
        [1],
        [0, 2],
        [3],
    ]
    with pytest.raises(UsageError, match="names 3 holders; --participants is 2"):
        split_table(study, table, 2, "site")
    with pytest.raises(UsageError, match="no column town"):
        split_table(study, table, 2, "town")
    with pytest.raises(UsageError, match="4 rows, too few for 5 participants"):
        split_table(study, table, 5)


def test_fleet_of_people_answers_and_writes_model(folder: Path) -> None:
    said: list[str] = []
    with live(folder, ANONML) as coordinator:
        waters = FleetSettings(
            coordinator.url, folder / "fleet", SystemClock(), SystemEntropy(), out=folder / "out"
        )
        ended = asyncio.run(
            run_fleet(waters, make_table(30), 20, max_concurrent=20, on_progress=said.append)
        )
        assert (
            coordinator.totals(ANONML).enrolled == 20 and coordinator.totals(ANONML).accepted == 20
        )
    assert [getattr(one, "status", one) for one in ended.values()] == ["finished"] * 20 and said[
        -1
    ] == "20 of 20: 20 finished"
    model = json.loads(
        (folder / "out" / make_ledger_path(folder, 7).stem / MODEL_NAME).read_bytes()
    )
    assert model["study"] == ANONML.digest.hex()
    with LedgerFile(make_ledger_path(folder / "fleet", 7), SystemClock()) as ledger:
        assert [entry.state for entry in ledger.entries()] == [ReleaseState.SENT]
    # All have a ledger, and so a key and a ticket, of their own.
    assert len(list((folder / "fleet").glob("*.db"))) == 20


def test_fleet_uses_relay_of_manifest(folder: Path) -> None:
    waters = FleetSettings("http://127.0.0.1:9", folder, SystemClock(), SystemEntropy())
    relayed = replace(token_manifest(), gateway_key=b"g" * 32, relay="http://127.0.0.1:10")
    assert (
        waters.open_network_path(ANONML, 0).name == "direct"
        and waters.open_network_path(relayed, 0).name == "ohttp"
    )
    assert (
        replace(waters, via="direct", from_addresses=True)
        .open_network_path(relayed, 251)
        ._local_address
        == "127.0.2.2"
    )  # type: ignore[attr-defined]
    assert replace(waters, via="tor:127.0.0.1:9050").open_network_path(relayed, 0).name == "tor"


def test_fleet_of_holders_writes_releases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(folder / "rows.csv", make_table(60))
    with live(folder, PFDS) as coordinator:
        main(
            coordinator.url,
            participants=3,
            directory=folder / "fleet",
            data=str(folder / "rows.csv"),
            out=folder / "out",
        )
        printed = capsys.readouterr()
        assert (
            printed.out == "3 of 3: 3 finished\n" and "for tests and demonstrations" in printed.err
        )
        signed = [
            read_signed_release(folder / "out" / make_ledger_path(folder, i).stem / "release")
            for i in range(3)
        ]
        assert {one.signer.name for one in signed} == {
            "holder-0",
            "holder-1",
            "holder-2",
        } and not signed[0].release.is_simulated
        join(
            coordinator.url,
            study=PFDS.short_digest,
            ledger=folder / "me.db",
            new_ledger=True,
            read_only=True,
            out=folder / "mine",
            json=True,
        )
        told = json.loads(capsys.readouterr().out)
    assert told["sent"]["questions"] == 0 and Path(told["out"]).name == MODEL_NAME


def test_roster_is_made_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(participants=3, directory=folder / "fleet", roster=folder / "roster.toml")
    members = load_roster(folder / "roster.toml")
    assert (
        members == make_fleet_roster(folder / "fleet", 3, SystemClock(), SystemEntropy())
        and len({member.key for member in members}) == 3
    )
    assert "3 members" in capsys.readouterr().out
    Manifest(make_study("pfds", 3, pfds={"n_holders": 3}), roster=members)


def test_roster_never_overwrites_other_file(folder: Path) -> None:
    for _ in range(2):
        main(participants=2, directory=folder / "fleet", roster=folder / "roster.toml")
    before = (folder / "roster.toml").read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        main(participants=3, directory=folder / "fleet", roster=folder / "roster.toml")
    assert (folder / "roster.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"participants": 0}, "--participants 0 is not from 1"),
        ({"participants": -1}, "--participants -1 is not from 1"),
        ({"participants": 10**6}, "to 100,000"),
        ({"at_once": 0}, "--at-once 0 is not from 1"),
        ({"directory": Path("/dev/null")}, "a file with this name exists"),
        ({"directory": Path("/dev/null/x")}, "The directory /dev/null/x cannot be written"),
        ({"directory": Path("a\0b")}, "not a valid file name"),
        ({"roster": Path("/dev/null/x")}, "The roster /dev/null/x cannot be written"),
        ({"data": "rows.csv"}, "cannot be combined"),
        ({"roster": None}, "an address and a table"),
    ],
)
def test_fleet_rejects_invalid_options(options: dict[str, Any], words: str, folder: Path) -> None:
    given = {
        "participants": 2,
        "directory": folder / "fleet",
        "roster": folder / "roster.toml",
        **options,
    }
    with pytest.raises(UsageError) as refused:
        main(**given)
    assert refused.value.code == "USAGE-001" and words in refused.value.what
    assert not (folder / "roster.toml").exists()


def test_fleet_rejects_invalid_command_line(folder: Path) -> None:
    for words in (
        [],
        [
            "--participants",
            "2.7",
            "--directory",
            folder / "fleet",
            "--roster",
            folder / "roster.toml",
        ],
    ):
        process = Process(folder / "log", words, FLEET)
        assert process.wait() == 2
        assert (
            process.read_output().startswith("USAGE-001  ")
            and process.read_output().count("\n") == 2
        )
    assert not (folder / "fleet").exists()


def test_fleet_raises_first_error_at_end(folder: Path) -> None:
    data = str(write_csv(folder / "rows.csv", 9))
    with pytest.raises(UsageError, match="an address and a table"):
        main(participants=3, directory=folder / "fleet", data=data)
    # There are places for three.
    with live(folder, PFDS) as coordinator, pytest.raises(ShoalError) as refused:
        main(coordinator.url, participants=4, directory=folder / "fleet", data=data)
    assert refused.value.code == "ENROL-001"
