"""``shoal leave``: voided answers, answers that stay sent, and the coordinator's notice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from shoal.cli.join import join
from shoal.cli.leave import leave
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import StoreError, UsageError
from shoal.participant.journal import JoinedStudy, Journal
from shoal.participant.keys import ensure_registration
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer
from shoal.participant.offers import record_consent as write_down
from shoal.participant.session import open_session
from shoal.privacy.events import LOCAL_PERSON, Event
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import LedgerEntry
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from tests.support.credentials import token_manifest
from tests.support.participants import folder, make_manifest, store_answer
from tests.support.servers import Live, live, write_csv

__all__ = ["folder"]

DDML = make_manifest(
    "ddml",
    3,
    ddml={"n_instances": 2, "admission": "signed"},
    privacy={"epsilon": 4.0, "n_updates": 2},
)
PFDS = make_manifest("pfds", 3, pfds={"n_holders": 3})


def entries(path: Path) -> tuple[LedgerEntry, ...]:
    with LedgerFile(path, SystemClock()) as ledger:
        return ledger.entries()


def take_up(path: Path, coordinator: Live, manifest: Manifest = PFDS) -> None:
    async def agree() -> None:
        async with open_session(path, coordinator.url, SystemClock(), SystemEntropy()) as session:
            session.agree(await session.fetch_offer(manifest.short_digest), "rows.csv")

    asyncio.run(agree())


def test_leave_keeps_sent_answers_and_notifies_coordinator(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live(folder, DDML) as coordinator:
        data = str(write_csv(folder / "rows.csv", 5))
        join(
            coordinator.url,
            ledger=folder / "me.db",
            data=data,
            yes=True,
            max_epsilon="4",
            new_ledger=True,
            json=True,
        )
        capsys.readouterr()
        assert coordinator.totals(DDML).enrolled == 1
        leave(DDML.short_digest, ledger=folder / "me.db")
        printed = capsys.readouterr().out
        assert coordinator.totals(DDML).enrolled == 0
    assert "voided    nothing: no answer was waiting to be sent" in printed
    assert (
        "sent      2 answers, " in printed
        and "epsilon 4.0, delta 0 (unit: update, relation: replace)" in printed
    )
    assert "; this stays sent and stays spent" in printed
    assert f"notified  the coordinator at {coordinator.url}\n" in printed
    assert printed.endswith(f"next      shoal ledger show --ledger {folder / 'me.db'}\n")
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert journal.list_studies()[0].standing == "left"


def test_leave_with_unreachable_coordinator_suggests_retry(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live(folder, DDML) as coordinator:
        join(
            coordinator.url,
            ledger=folder / "me.db",
            data=str(write_csv(folder / "rows.csv", 5)),
            yes=True,
            max_epsilon="4",
            new_ledger=True,
            json=True,
        )
    capsys.readouterr()
    leave("Wind, by ddml", ledger=folder / "me.db")
    printed = capsys.readouterr().out
    assert f"notified  not the coordinator at {coordinator.url}: " in printed
    assert printed.count(coordinator.url) == 1
    assert printed.endswith(
        f"next      shoal leave {DDML.digest.hex()[:12]} --ledger {folder / 'me.db'}\n"
    )
    leave(DDML.digest.hex(), ledger=folder / "me.db", json=True)
    assert json.loads(capsys.readouterr().out)["coordinator"]["error"]["code"] == "NET-001"


def test_leave_without_enrolment_notifies_nobody(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
        leave(PFDS.short_digest, ledger=folder / "me.db")
    assert "notified  nobody: the coordinator has no enrolment of yours" in capsys.readouterr().out


def test_leave_voids_unsent_answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "me.db"
    with live(folder, DDML) as coordinator:
        take_up(path, coordinator, DDML)
        store_answer(path, SystemClock(), DDML, "update/0")
        assert [entry.state for entry in entries(path)] == [ReleaseState.STORED]
        capsys.readouterr()
        leave(DDML.short_digest, ledger=path)
        printed = capsys.readouterr().out
    assert [entry.state for entry in entries(path)] == [ReleaseState.VOIDED]
    assert "voided    1 answer not sent, epsilon 2.0 (update, replace, against " in printed
    assert (
        "), which is free again; its question stays unanswered, even if you join again" in printed
    )
    assert "sent      nothing\n" in printed


@pytest.mark.parametrize("name", [None, "participant-1"])
def test_leave_with_unreadable_manifest_notifies_nobody(
    name: str | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, study = folder / "me.db", "ab" * 32
    with LedgerFile(path, SystemClock()) as ledger, Journal(path, SystemClock()) as journal:
        journal.record_study(
            JoinedStudy(
                study,
                "https://c.example",
                "https://c.example",
                bytes(32),
                b"of another version",
                "Old",
                "rows.csv",
            )
        )
        if name is not None:
            journal.record_enrolment(study, name, None)
        ledger.reserve(
            study,
            "age",
            Event("random-response", {}, LOCAL_PERSON, 0.5),
            source="rows.csv",
            recipient="x",
            title="Old",
        )
        ledger.store(study, "age", b"noisy")
    leave(study[:12], ledger=path)
    printed = capsys.readouterr().out
    assert "voided    1 answer not sent, epsilon 0.5" in printed
    assert "notified  nobody: your record of the study is from another version of shoal" in printed
    assert [entry.state for entry in entries(path)] == [ReleaseState.VOIDED]
    with Journal(path, SystemClock()) as journal:
        assert [one.standing for one in journal.list_studies()] == ["left"]
    leave(study[:12], ledger=path, json=True)
    assert json.loads(capsys.readouterr().out)["registration_stays"] is (name is not None)


def test_leave_twice_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = folder / "me.db", str(write_csv(folder / "rows.csv", 5))
    with live(folder, DDML) as coordinator:
        join(
            coordinator.url,
            ledger=path,
            data=data,
            yes=True,
            max_epsilon="4",
            new_ledger=True,
            json=True,
        )
        before = entries(path)
        leave(DDML.short_digest, ledger=path)
        capsys.readouterr()
        leave(DDML.short_digest, ledger=path)
        assert coordinator.totals(DDML).enrolled == 0 and entries(path) == before
    assert (
        f"notified  nobody: the coordinator at {coordinator.url} has no enrolment of yours\n"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("name", ["", "ffff", "Another study"])
def test_leave_of_unknown_study_lists_known_studies(name: str, folder: Path) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
    with pytest.raises(UsageError, match="There is no study") as refused:
        leave(name, ledger=folder / "me.db")
    assert name in refused.value.what
    assert (
        refused.value.why
        == f"In the ledger {folder / 'me.db'}: Wind, by pfds ({PFDS.digest.hex()[:12]})."
    )
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert [one.standing for one in journal.list_studies()] == ["agreed"]


def test_leave_without_ledger_creates_none(folder: Path) -> None:
    with pytest.raises(UsageError, match="There is no study") as refused:
        leave("ffff", ledger=folder / "me.db")
    assert refused.value.why == f"In the ledger {folder / 'me.db'}: no study."
    assert list(folder.iterdir()) == []


def test_leave_raises_while_study_is_locked(folder: Path) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
    with (
        Journal(folder / "me.db", SystemClock()) as journal,
        journal.lock_study(PFDS.digest.hex()),
        pytest.raises(StoreError),
    ):
        leave(PFDS.short_digest, ledger=folder / "me.db")


def test_leave_with_tokens_keeps_registration_and_notifies_nobody(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, path = token_manifest(), folder / "me.db"
    url = "http://127.0.0.1:9"
    with Journal(path, SystemClock()) as journal:
        offer = Offer(url, StudyHandle(manifest), bytes(32))
        write_down(journal, offer, "rows.csv", SystemEntropy())
        registration = ensure_registration(journal, manifest, SystemEntropy())
        journal.record_enrolment(offer.digest, "person-1", None)
    leave(manifest.short_digest, ledger=path)
    printed = capsys.readouterr().out
    assert "notified  nobody: the coordinator keeps your registration" in printed
    assert "A token does not show which packet is yours, or whether you sent one" in printed
    assert printed.endswith(f"next      shoal ledger show --ledger {path}\n")
    leave(manifest.short_digest, ledger=path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["registration_stays"] is True and told["coordinator"] == {"url": url, "error": None}
    with Journal(path, SystemClock()) as journal:
        assert ensure_registration(journal, manifest, SystemEntropy()) == registration
