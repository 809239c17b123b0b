"""`shoal leave`: what is given up, what stays, and whether the coordinator knows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from live import Live, live, write_csv
from participants import folder, manifest_of
from shoal.cli.join import join
from shoal.cli.leave import leave
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import StoreError, UsageError
from shoal.participant.credentials import registration_of
from shoal.participant.journal import Joined, Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer
from shoal.participant.offers import take_up as write_down
from shoal.participant.session import opened
from shoal.privacy.events import LOCAL_PERSON, Event
from shoal.privacy.ledger import Entry
from shoal.privacy.records import State
from token_desk import token_manifest

__all__ = ["folder"]

DDML = manifest_of("ddml", 3, ddml={"n_instances": 2, "admission": "signed"}, privacy={"epsilon": 4.0, "n_updates": 2})
PFDS = manifest_of("pfds", 3, pfds={"n_holders": 3})


def entries(path: Path) -> tuple[Entry, ...]:
    with LedgerFile(path, SystemClock()) as ledger:
        return ledger.entries()


def take_up(path: Path, coordinator: Live) -> None:
    async def agree() -> None:
        async with opened(path, coordinator.url, SystemClock(), SystemEntropy()) as session:
            session.agree(await session.offer(PFDS.short), "rows.csv")

    asyncio.run(agree())


def test_what_was_sent_stays_sent_and_the_coordinator_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(folder, DDML) as coordinator:
        data = str(write_csv(folder / "rows.csv", 5))
        join(coordinator.url, ledger=folder / "me.db", data=data, yes=True, max_epsilon="4", json=True)
        capsys.readouterr()
        assert coordinator.totals(DDML).enrolled == 1
        leave(DDML.short, ledger=folder / "me.db")
        printed = capsys.readouterr().out
        assert coordinator.totals(DDML).enrolled == 0
    assert "voided    nothing: no answer was drawn and not sent" in printed
    assert "stays     2 answers, " in printed and "epsilon 4.0, delta 0 (unit: update, relation: replace)" in printed
    assert "what was sent stays sent, and stays spent" in printed
    assert f"told      the coordinator at {coordinator.url}\n" in printed
    assert printed.endswith(f"next      shoal ledger show --ledger {folder / 'me.db'}\n")
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert journal.studies()[0].standing == "left"


def test_a_coordinator_that_is_gone_is_told_later(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(folder, DDML) as coordinator:
        join(coordinator.url, ledger=folder / "me.db", data=str(write_csv(folder / "rows.csv", 5)), yes=True, max_epsilon="4", json=True)
    capsys.readouterr()
    leave("Wind, by ddml", ledger=folder / "me.db")
    printed = capsys.readouterr().out
    assert f"told      not the coordinator at {coordinator.url}: " in printed
    assert printed.count(coordinator.url) == 1
    assert printed.endswith(f"next      shoal leave {DDML.digest.hex()[:12]} --ledger {folder / 'me.db'}\n")
    leave(DDML.digest.hex(), ledger=folder / "me.db", json=True)
    assert json.loads(capsys.readouterr().out)["coordinator"]["error"]["code"] == "NET-001"


def test_a_coordinator_that_never_knew_is_not_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
        leave(PFDS.short, ledger=folder / "me.db")
    assert "told      nobody: the coordinator does not know of you" in capsys.readouterr().out


def test_what_was_drawn_and_not_sent_is_voided_and_free_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = folder / "me.db", str(write_csv(folder / "rows.csv", 5))
    with live(folder, DDML) as coordinator:
        join(coordinator.url, ledger=path, data=data, preview=True, json=True)
        assert [entry.state for entry in entries(path)] == [State.STORED]
        capsys.readouterr()
        leave(DDML.short, ledger=path)
        printed = capsys.readouterr().out
    assert [entry.state for entry in entries(path)] == [State.VOIDED]
    assert "voided    1 answer not sent, epsilon 2.0 (update, replace, against " in printed
    assert "), which is free again; its question stays unanswered, also if you join again" in printed
    assert "stays     nothing\n" in printed


@pytest.mark.parametrize("name", [None, "participant-1"])
def test_a_study_that_cannot_be_read_any_more_is_left_and_nobody_is_told(
    name: str | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, study = folder / "me.db", "ab" * 32
    with LedgerFile(path, SystemClock()) as ledger, Journal(path, SystemClock()) as journal:
        journal.enter(Joined(study, "https://c.example", "https://c.example", bytes(32), b"of another version", "Old", "rows.csv"))
        if name is not None:
            journal.enrolled(study, name, None)
        ledger.reserve(study, "age", Event("random-response", {}, LOCAL_PERSON, 0.5), source="rows.csv", recipient="x", title="Old")
        ledger.store(study, "age", b"noisy")
    leave(study[:12], ledger=path)
    printed = capsys.readouterr().out
    assert "voided    1 answer not sent, epsilon 0.5" in printed
    assert "told      nobody: what you keep of the study is of another version of shoal" in printed
    assert [entry.state for entry in entries(path)] == [State.VOIDED]
    with Journal(path, SystemClock()) as journal:
        assert [one.standing for one in journal.studies()] == ["left"]
    leave(study[:12], ledger=path, json=True)
    assert json.loads(capsys.readouterr().out)["registration_stays"] is (name is not None)


def test_who_has_left_can_say_so_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = folder / "me.db", str(write_csv(folder / "rows.csv", 5))
    with live(folder, DDML) as coordinator:
        join(coordinator.url, ledger=path, data=data, yes=True, max_epsilon="4", json=True)
        before = entries(path)
        leave(DDML.short, ledger=path)
        capsys.readouterr()
        leave(DDML.short, ledger=path)
        assert coordinator.totals(DDML).enrolled == 0 and entries(path) == before
    assert f"told      nobody: the coordinator at {coordinator.url} does not know of you any more\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "ffff", "Another study"])
def test_a_study_that_is_not_there_is_a_sentence_with_those_that_are(name: str, folder: Path) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
    with pytest.raises(UsageError, match="There is no study") as refused:
        leave(name, ledger=folder / "me.db")
    assert name in refused.value.what
    assert refused.value.why == f"In the ledger {folder / 'me.db'}: Wind, by pfds ({PFDS.digest.hex()[:12]})."
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert [one.standing for one in journal.studies()] == ["agreed"]


def test_who_is_in_no_study_is_told_so_and_no_ledger_is_made(folder: Path) -> None:
    with pytest.raises(UsageError, match="There is no study") as refused:
        leave("ffff", ledger=folder / "me.db")
    assert refused.value.why == f"In the ledger {folder / 'me.db'}: no study."
    assert list(folder.iterdir()) == []


def test_nobody_leaves_while_another_process_takes_part(folder: Path) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
    with Journal(folder / "me.db", SystemClock()) as journal, journal.hold(PFDS.digest.hex()), pytest.raises(StoreError):
        leave(PFDS.short, ledger=folder / "me.db")


def test_of_a_study_with_tokens_nobody_is_told_and_the_registration_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, path = token_manifest(), folder / "me.db"
    url = "http://127.0.0.1:9"
    with Journal(path, SystemClock()) as journal:
        offer = Offer(url, manifest, manifest.digest.hex(), bytes(32))
        write_down(journal, offer, "rows.csv", SystemEntropy())
        registration = registration_of(journal, manifest, SystemEntropy())
        journal.enrolled(offer.digest, "person-1", None)
    leave(manifest.short, ledger=path)
    printed = capsys.readouterr().out
    assert "told      nobody: the coordinator keeps your registration" in printed
    assert "By its token nobody can tell which packet is yours, or that none is; whoever saw your address might\n" in printed
    assert printed.endswith(f"next      shoal ledger show --ledger {path}\n")
    leave(manifest.short, ledger=path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["registration_stays"] is True and told["coordinator"] == {"url": url, "error": None}
    with Journal(path, SystemClock()) as journal:
        assert registration_of(journal, manifest, SystemEntropy()) == registration
