"""The journal: what is saved together is there together, consent is to one digest, and an old ledger is brought up to date."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from shoal.clock import ManualClock
from shoal.errors import ConsentError, IntegrityError, RemoteProtocolError, StoreError
from shoal.participant.journal import Joined, Journal, Saved, Step
from shoal.participant.ledger_file import LedgerFile
from shoal.protocols.effects import AGGREGATOR
from shoal.protocols.settle import Outbound

STUDY = Joined("d1" * 32, "https://x.org", "https://x.org", b"k" * 32, b"manifest", "Naps", "me.csv", ticket=b"t" * 32, standing="agreed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def open_journal(path: Path) -> Journal:
    return Journal(path, ManualClock())


def test_what_came_of_an_input_is_there_when_reopened(path: Path) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        letters = (Outbound(AGGREGATOR, b"hello"), Outbound(AGGREGATOR, b"noisy", "q1"))
        numbers = journal.save(STUDY.study, Step(b"one", cursor=7, letters=letters, alarms=(5, 9), begun=("choice",)))
    with open_journal(path) as journal:
        kept = ((numbers[0], letters[0]), (numbers[1], Outbound(AGGREGATOR, b"", "q1")))
        assert journal.load(STUDY.study) == Saved(b"one", 7, kept, (5, 9), ("choice",))
        assert journal.load("another") == Saved()
        journal.save(STUDY.study, Step(b"two", dropped="q1", rung=(5,), over=("choice",)))
        journal.delivered("another", numbers[0])
        assert journal.load(STUDY.study) == Saved(b"two", 7, kept[:1], (9,))
        journal.save(STUDY.study, Step(b"three", cursor=3))
        journal.delivered(STUDY.study, numbers[0])
        assert journal.load(STUDY.study) == Saved(b"three", 7, (), (9,))


def test_an_answer_is_not_written_twice(path: Path) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        journal.save(STUDY.study, Step(b"one", letters=(Outbound(AGGREGATOR, b"a noisy answer", "q1"),)))
    assert b"a noisy answer" not in path.read_bytes()


def test_giving_up_drops_all_that_was_to_be_done(path: Path) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        journal.save(STUDY.study, Step(b"one", letters=(Outbound(AGGREGATOR, b"hello"),), alarms=(5,), begun=("choice",)))
        journal.save(STUDY.study, Step(b"two", standing="aborted", reason="PFDS-004"))
        assert journal.load(STUDY.study) == Saved(b"two")
        assert journal.study(STUDY.study) == replace(STUDY, standing="aborted", reason="PFDS-004")


def test_a_full_disk_leaves_everything_as_it_was(path: Path) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        journal.save(STUDY.study, Step(b"one", cursor=1))
        (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
        journal._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="LEDGER-002"):
            journal.save(STUDY.study, Step(b"two", cursor=2, letters=(Outbound(AGGREGATOR, bytes(100_000)),)))
        assert journal.load(STUDY.study) == Saved(b"one", 1)


def test_a_study_is_entered_once_and_remembers_its_ticket(path: Path) -> None:
    with open_journal(path) as journal:
        looked = journal.enter(replace(STUDY, standing="previewed", invitation=None))
        agreed = journal.enter(replace(STUDY, ticket=b"u" * 32, source="other.csv", invitation="code"))
        assert agreed == replace(looked, standing="agreed", invitation="code")
        journal.enrolled(STUDY.study, "holder-2", 2)
        journal.stand(STUDY.study, "finished")
        again = journal.enter(replace(STUDY, url="https://moved.org"))
        assert again == replace(agreed, url="https://moved.org", name="holder-2", position=2, standing="finished")
        assert again.recipient == "https://x.org"
        assert journal.studies() == (again,)
        journal.stand(STUDY.study, "left")
        assert journal.enter(STUDY).standing == "agreed"


def test_a_study_that_changed_is_read_again_first(path: Path) -> None:
    changed = replace(STUDY, study="d2" * 32)
    with open_journal(path) as journal:
        journal.enter(STUDY)
        with pytest.raises(ConsentError, match="changed since you agreed: digest d1d1d1d1d1d1 became d2d2d2d2d2d2"):
            journal.enter(changed)
        assert journal.study(changed.study) is None
        journal.enter(replace(changed, title="Another"))
        journal.enter(replace(changed, study="d3" * 32), is_reviewed=True)
        assert [one.standing for one in journal.studies()] == ["left", "agreed", "agreed"]


def test_a_coordinator_keeps_its_key(path: Path) -> None:
    with open_journal(path) as journal:
        assert journal.pinned("https://x.org") is None
        journal.enter(STUDY)
        assert journal.pinned("https://x.org") == b"k" * 32
        with pytest.raises(RemoteProtocolError, match="AUTH-004"):
            journal.enter(replace(STUDY, study="d2" * 32, title="Another", key=b"l" * 32))


def test_a_study_has_one_coordinator(path: Path) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        with pytest.raises(ConsentError, match="CONSENT-001") as refused:
            journal.enter(replace(STUDY, url="https://y.org", key=b"l" * 32))
        assert "https://x.org" in refused.value.what
        assert journal.pinned("https://y.org") is None


def test_one_process_holds_a_study(path: Path) -> None:
    with open_journal(path) as one, open_journal(path) as two, one.hold("d1"):
        with pytest.raises(StoreError, match="LEDGER-003"), two.hold("d1"):
            pass
        with two.hold("d2"):
            pass
    with open_journal(path) as one, one.hold("d1"):
        pass


def test_an_error_of_the_caller_is_not_the_files(path: Path) -> None:
    with open_journal(path) as journal, pytest.raises(ConnectionError), journal.hold("d1"):
        raise ConnectionError


def make_old(path: Path) -> None:
    """A ledger as version 1 wrote it."""
    with LedgerFile(path, ManualClock()):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("identity", "coordinators", "studies", "machines", "letters", "alarms", "tasks"):
            db.execute(f"DROP TABLE {table}")
        db.execute("PRAGMA user_version = 1")


@pytest.mark.parametrize("kind", [LedgerFile, Journal])
def test_an_old_ledger_is_brought_up_to_date(path: Path, kind: type[LedgerFile] | type[Journal]) -> None:
    make_old(path)
    with kind(path, ManualClock()):
        pass
    with LedgerFile(path, ManualClock()) as ledger, open_journal(path) as journal:
        assert ledger.verify().seq > 0
        assert journal.enter(STUDY) == STUDY
        assert journal.studies() == (STUDY,)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)


def test_an_old_ledger_that_is_not_whole_is_left_alone(path: Path) -> None:
    make_old(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE outbox")
    for kind in (LedgerFile, Journal):
        with pytest.raises(IntegrityError, match="LEDGER-006"):
            kind(path, ManualClock())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


def test_two_processes_may_meet_at_an_old_ledger(path: Path) -> None:
    make_old(path)
    script = files("shoal.participant").joinpath("journal.sql").read_text("utf-8")
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"BEGIN; {script} COMMIT; BEGIN; {script} COMMIT;")
    with open_journal(path) as journal:
        assert journal.studies() == ()
