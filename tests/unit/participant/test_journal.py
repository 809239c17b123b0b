"""The journal: atomic updates, consent to one digest, and migration of older ledgers."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from importlib.resources import files
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from shoal.clock import ManualClock
from shoal.errors import ConsentError, IntegrityError, RemoteProtocolError, StoreError
from shoal.participant.journal import (
    JoinedStudy,
    Journal,
    JournalUpdate,
    ParticipationStatus,
    SavedPeerState,
)
from shoal.participant.ledger_file import LedgerFile
from shoal.protocols.driver import OutgoingMessage
from shoal.protocols.effects import AGGREGATOR
from tests.support.participants import child

STUDY = JoinedStudy(
    "d1" * 32,
    "https://x.org",
    "https://x.org",
    b"k" * 32,
    b"manifest",
    "Naps",
    "me.csv",
    ticket=b"t" * 32,
    standing="agreed",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def open_journal(path: Path) -> Journal:
    return Journal(path, ManualClock())


def test_saved_update_is_loaded_after_reopening(path: Path) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        letters = (
            OutgoingMessage(AGGREGATOR, b"hello"),
            OutgoingMessage(AGGREGATOR, b"noisy", "q1"),
        )
        numbers = journal.save(
            STUDY.study,
            JournalUpdate(
                b"one", cursor=7, messages=letters, alarms=(5, 9), started_tasks=("choice",)
            ),
        )
    with open_journal(path) as journal:
        kept = ((numbers[0], letters[0]), (numbers[1], OutgoingMessage(AGGREGATOR, b"", "q1")))
        assert journal.load(STUDY.study) == SavedPeerState(b"one", 7, kept, (5, 9), ("choice",))
        assert journal.load("another") == SavedPeerState()
        journal.save(
            STUDY.study,
            JournalUpdate(
                b"two", dropped_question="q1", fired_alarms=(5,), ended_tasks=("choice",)
            ),
        )
        journal.remove_messages("another", numbers[0])
        assert journal.load(STUDY.study) == SavedPeerState(b"two", 7, kept[:1], (9,))
        journal.save(STUDY.study, JournalUpdate(b"three", cursor=3))
        journal.remove_messages(STUDY.study, numbers[0])
        assert journal.load(STUDY.study) == SavedPeerState(b"three", 7, (), (9,))


def test_journal_stores_no_bytes_of_answers(path: Path) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        journal.save(
            STUDY.study,
            JournalUpdate(b"one", messages=(OutgoingMessage(AGGREGATOR, b"a noisy answer", "q1"),)),
        )
    assert b"a noisy answer" not in path.read_bytes()


def test_aborted_status_drops_messages_alarms_and_tasks(path: Path) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        journal.save(
            STUDY.study,
            JournalUpdate(
                b"one",
                messages=(OutgoingMessage(AGGREGATOR, b"hello"),),
                alarms=(5,),
                started_tasks=("choice",),
            ),
        )
        journal.save(STUDY.study, JournalUpdate(b"two", status="aborted", reason="PFDS-004"))
        assert journal.load(STUDY.study) == SavedPeerState(b"two")
        assert journal.find_study(STUDY.study) == replace(
            STUDY, standing="aborted", reason="PFDS-004"
        )


def test_save_on_full_disk_changes_nothing(path: Path) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        journal.save(STUDY.study, JournalUpdate(b"one", cursor=1))
        (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
        journal._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="LEDGER-002"):
            journal.save(
                STUDY.study,
                JournalUpdate(
                    b"two", cursor=2, messages=(OutgoingMessage(AGGREGATOR, bytes(100_000)),)
                ),
            )
        assert journal.load(STUDY.study) == SavedPeerState(b"one", 1)


def test_record_study_keeps_first_ticket(path: Path) -> None:
    with open_journal(path) as journal:
        looked = journal.record_study(replace(STUDY, standing="previewed", invitation=None))
        agreed = journal.record_study(
            replace(STUDY, ticket=b"u" * 32, source="other.csv", invitation="code")
        )
        assert agreed == replace(looked, standing="agreed", invitation="code")
        journal.record_enrolment(STUDY.study, "holder-2", 2)
        journal.set_status(STUDY.study, "finished")
        again = journal.record_study(replace(STUDY, url="https://moved.org"))
        assert again == replace(
            agreed, url="https://moved.org", name="holder-2", position=2, standing="finished"
        )
        assert again.recipient == "https://x.org"
        assert journal.list_studies() == (again,)


def test_two_processes_keep_ticket_of_first(path: Path) -> None:
    first, second = replace(STUDY, ticket=b"1" * 32), replace(STUDY, ticket=b"2" * 32)

    class LateJournal(Journal):
        """A journal that another process writes to just before this one does."""

        def _transaction(self, begin: str) -> AbstractContextManager[sqlite3.Connection]:
            if begin == "BEGIN IMMEDIATE":
                with open_journal(path) as other:
                    other.record_study(first)
            return super()._transaction(begin)

    with LateJournal(path, ManualClock()) as journal:
        assert journal.record_study(second).ticket == first.ticket
    with open_journal(path) as journal:
        assert journal.list_studies() == (first,)
        assert len(journal.list_consents(STUDY.study)) == 1


def test_concurrent_consents_keep_one_ticket(path: Path) -> None:
    with ExitStack() as stack:
        links = [
            stack.enter_context(child(record_and_send_ticket, path, bytes([i]) * 32))[0]
            for i in range(4)
        ]
        for link in links:
            assert link.recv() == "ready"
        for link in links:
            link.send("go")
        assert len({link.recv() for link in links}) == 1


def record_and_send_ticket(path: Path, ticket: bytes, link: Connection) -> None:
    """Record a study with a ticket when asked to; send back the ticket that is stored."""
    with open_journal(path) as journal:
        link.send("ready")
        link.recv()
        link.send(journal.record_study(replace(STUDY, ticket=ticket)).ticket)
        link.recv()


def test_list_consents_returns_time_of_each_consent(path: Path) -> None:
    clock = ManualClock()
    with Journal(path, clock) as journal:
        journal.record_study(replace(STUDY, standing="previewed"))
        assert journal.list_consents(STUDY.study) == ()
        times = []
        for _ in range(2):
            clock.advance(60)
            times.append((STUDY.url, clock.now()))
            journal.record_study(STUDY)
            journal.record_study(STUDY)
            journal.set_status(STUDY.study, "left")
        assert journal.list_consents(STUDY.study) == tuple(times)


def test_record_invitation_stores_later_code(path: Path) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        journal.record_invitation(STUDY.study, "code")
        assert journal.find_study(STUDY.study) == replace(STUDY, invitation="code")


@pytest.mark.parametrize("ended", ["finished", "over", "aborted"])
def test_rejoining_ended_study_keeps_its_status(path: Path, ended: ParticipationStatus) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        journal.record_enrolment(STUDY.study, "holder-2", 2)
        journal.set_status(STUDY.study, ended)
        for _ in range(2):
            journal.set_status(STUDY.study, "left")
        assert journal.record_study(STUDY) == replace(
            STUDY, name="holder-2", position=2, standing=ended, ended=ended
        )


def test_rejoining_open_study_enrols_again(path: Path) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        journal.record_enrolment(STUDY.study, "holder-2", 2)
        journal.set_status(STUDY.study, "left")
        assert journal.record_study(replace(STUDY, ticket=b"u" * 32)) == STUDY


@pytest.mark.parametrize("standing", ["agreed", "left"])
def test_record_study_rejects_change_of_role(path: Path, standing: ParticipationStatus) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        journal.save(STUDY.study, JournalUpdate(b"one"))
        journal.set_status(STUDY.study, standing)
        with pytest.raises(ConsentError, match="you agreed to share data"):
            journal.record_study(replace(STUDY, role="reader"))
        assert journal.find_study(STUDY.study) == replace(STUDY, standing=standing)


def test_record_study_allows_reader_after_preview(path: Path) -> None:
    with open_journal(path) as journal:
        journal.record_study(replace(STUDY, standing="previewed"))
        assert journal.record_study(replace(STUDY, role="reader")).role == "reader"


def test_record_study_rejects_changed_study_without_review(path: Path) -> None:
    changed = replace(STUDY, study="d2" * 32)
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        with pytest.raises(
            ConsentError, match="changed since you agreed: digest d1d1d1d1d1d1 became d2d2d2d2d2d2"
        ):
            journal.record_study(changed)
        assert journal.find_study(changed.study) is None
        journal.record_study(replace(changed, title="Another"))
        journal.record_study(replace(changed, study="d3" * 32), is_reviewed=True)
        assert [one.standing for one in journal.list_studies()] == ["left", "agreed", "agreed"]


def test_record_study_rejects_changed_coordinator_key(path: Path) -> None:
    with open_journal(path) as journal:
        assert journal.find_pinned_key("https://x.org") is None
        journal.record_study(STUDY)
        assert journal.find_pinned_key("https://x.org") == b"k" * 32
        with pytest.raises(RemoteProtocolError, match="AUTH-004"):
            journal.record_study(replace(STUDY, study="d2" * 32, title="Another", key=b"l" * 32))


def test_record_study_rejects_other_coordinator(path: Path) -> None:
    with open_journal(path) as journal:
        journal.record_study(STUDY)
        with pytest.raises(ConsentError, match="CONSENT-001") as refused:
            journal.record_study(replace(STUDY, url="https://y.org", key=b"l" * 32))
        assert "https://x.org" in refused.value.what
        assert journal.find_pinned_key("https://y.org") is None


def test_lock_study_excludes_second_process(path: Path) -> None:
    with open_journal(path) as one, open_journal(path) as two, one.lock_study("d1"):
        with pytest.raises(StoreError, match="LEDGER-003"), two.lock_study("d1"):
            pass
        with two.lock_study("d2"):
            pass
    with open_journal(path) as one, one.lock_study("d1"):
        pass


def test_lock_study_is_shared_by_links_to_one_file(path: Path) -> None:
    link = path.with_name("link.db")
    with open_journal(path) as one:
        link.symlink_to(path)
        with (
            open_journal(link) as two,
            one.lock_study("d1"),
            pytest.raises(StoreError, match="LEDGER-003"),
            two.lock_study("d1"),
        ):
            pass


def test_files_are_readable_by_owner_only(path: Path) -> None:
    before = os.umask(0)
    try:
        with (
            LedgerFile(path, ManualClock()),
            open_journal(path) as journal,
            journal.lock_study(STUDY.study),
        ):
            journal.record_study(STUDY)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert len(modes) == 2 and set(modes.values()) == {0o600}


def test_transaction_passes_errors_of_caller_through(path: Path) -> None:
    with open_journal(path) as journal, pytest.raises(ConnectionError), journal.lock_study("d1"):
        raise ConnectionError


LATER = ("journal.sql", "tokens.sql", "budgets.sql")
"""What was added by version 2, by version 3 and by version 4."""


def make_old_ledger(path: Path, version: int = 1) -> None:
    """Return a ledger as an earlier version wrote it."""
    with LedgerFile(path, ManualClock()):
        pass
    with closing(sqlite3.connect(":memory:")) as db:
        for name in LATER[version - 1 :]:
            db.executescript(files("shoal.participant").joinpath(name).read_text("utf-8"))
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
    with closing(sqlite3.connect(path)) as db, db:
        for table in tables:
            db.execute(f"DROP TABLE {table}")
        db.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("kind", [LedgerFile, Journal])
def test_open_migrates_older_ledger(
    path: Path, kind: type[LedgerFile] | type[Journal], version: int
) -> None:
    make_old_ledger(path, version)
    with kind(path, ManualClock()):
        pass
    with LedgerFile(path, ManualClock()) as ledger, open_journal(path) as journal:
        assert ledger.verify().seq > 0
        assert journal.record_study(STUDY) == STUDY
        assert journal.list_studies() == (STUDY,)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (4,)


def test_open_leaves_damaged_older_ledger_unchanged(path: Path) -> None:
    make_old_ledger(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE outbox")
    for kind in (LedgerFile, Journal):
        with pytest.raises(IntegrityError, match="LEDGER-006"):
            kind(path, ManualClock())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


def test_two_processes_migrate_older_ledger_once(path: Path) -> None:
    make_old_ledger(path)
    script = "".join(files("shoal.participant").joinpath(name).read_text("utf-8") for name in LATER)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"BEGIN; {script} COMMIT; BEGIN; {script} COMMIT;")
    with open_journal(path) as journal:
        assert journal.list_studies() == ()
