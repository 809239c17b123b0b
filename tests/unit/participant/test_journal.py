"""The journal: what is saved together is there together, consent is to one digest, and an old ledger is brought up to date."""

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

from processes import child
from shoal.clock import ManualClock
from shoal.errors import ConsentError, IntegrityError, RemoteProtocolError, StoreError
from shoal.participant.journal import Joined, Journal, Saved, Standing, Step
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


def test_of_two_processes_that_enter_at_once_the_first_ticket_wins(path: Path) -> None:
    first, second = replace(STUDY, ticket=b"1" * 32), replace(STUDY, ticket=b"2" * 32)

    class Late(Journal):
        """Another process is faster, by the moment before this one writes."""

        def _transaction(self, begin: str) -> AbstractContextManager[sqlite3.Connection]:
            if begin == "BEGIN IMMEDIATE":
                with open_journal(path) as other:
                    other.enter(first)
            return super()._transaction(begin)

    with Late(path, ManualClock()) as journal:
        assert journal.enter(second).ticket == first.ticket
    with open_journal(path) as journal:
        assert journal.studies() == (first,)
        assert len(journal.consents(STUDY.study)) == 1


def test_whoever_enters_a_study_at_once_has_one_ticket(path: Path) -> None:
    with ExitStack() as stack:
        links = [stack.enter_context(child(enter_and_tell, path, bytes([i]) * 32))[0] for i in range(4)]
        for link in links:
            assert link.recv() == "ready"
        for link in links:
            link.send("go")
        assert len({link.recv() for link in links}) == 1


def enter_and_tell(path: Path, ticket: bytes, link: Connection) -> None:
    """Enter a study with a ticket when told to, and tell which one it has."""
    with open_journal(path) as journal:
        link.send("ready")
        link.recv()
        link.send(journal.enter(replace(STUDY, ticket=ticket)).ticket)
        link.recv()


def test_when_it_was_agreed_to_is_kept(path: Path) -> None:
    clock = ManualClock()
    with Journal(path, clock) as journal:
        journal.enter(replace(STUDY, standing="previewed"))
        assert journal.consents(STUDY.study) == ()
        times = []
        for _ in range(2):
            clock.advance(60)
            times.append((STUDY.url, clock.now()))
            journal.enter(STUDY)
            journal.enter(STUDY)
            journal.stand(STUDY.study, "left")
        assert journal.consents(STUDY.study) == tuple(times)


def test_an_invitation_that_comes_later_is_noted(path: Path) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        journal.invited(STUDY.study, "code")
        assert journal.study(STUDY.study) == replace(STUDY, invitation="code")


@pytest.mark.parametrize("ended", ["finished", "over", "aborted"])
def test_what_had_ended_when_it_was_left_has_ended_when_one_comes_back(path: Path, ended: Standing) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        journal.enrolled(STUDY.study, "holder-2", 2)
        journal.stand(STUDY.study, ended)
        for _ in range(2):
            journal.stand(STUDY.study, "left")
        assert journal.enter(STUDY) == replace(STUDY, name="holder-2", position=2, standing=ended, ended=ended)


def test_whoever_comes_back_half_way_enrols_anew(path: Path) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        journal.enrolled(STUDY.study, "holder-2", 2)
        journal.stand(STUDY.study, "left")
        assert journal.enter(replace(STUDY, ticket=b"u" * 32)) == STUDY


@pytest.mark.parametrize("standing", ["agreed", "left"])
def test_a_sharer_does_not_become_a_reader(path: Path, standing: Standing) -> None:
    with open_journal(path) as journal:
        journal.enter(STUDY)
        journal.save(STUDY.study, Step(b"one"))
        journal.stand(STUDY.study, standing)
        with pytest.raises(ConsentError, match="you share, and not otherwise"):
            journal.enter(replace(STUDY, role="reader"))
        assert journal.study(STUDY.study) == replace(STUDY, standing=standing)


def test_whoever_only_looked_may_read(path: Path) -> None:
    with open_journal(path) as journal:
        journal.enter(replace(STUDY, standing="previewed"))
        assert journal.enter(replace(STUDY, role="reader")).role == "reader"


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


def test_a_ledger_with_two_names_has_one_lock(path: Path) -> None:
    link = path.with_name("link.db")
    with open_journal(path) as one:
        link.symlink_to(path)
        with open_journal(link) as two, one.hold("d1"), pytest.raises(StoreError, match="LEDGER-003"), two.hold("d1"):
            pass


def test_no_file_can_be_read_by_others(path: Path) -> None:
    before = os.umask(0)
    try:
        with LedgerFile(path, ManualClock()), open_journal(path) as journal, journal.hold(STUDY.study):
            journal.enter(STUDY)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert len(modes) == 2 and set(modes.values()) == {0o600}


def test_an_error_of_the_caller_is_not_the_files(path: Path) -> None:
    with open_journal(path) as journal, pytest.raises(ConnectionError), journal.hold("d1"):
        raise ConnectionError


LATER = ("journal.sql", "tokens.sql")
"""What was added by version 2, and by version 3."""


def make_old(path: Path, version: int = 1) -> None:
    """A ledger as an earlier version wrote it."""
    with LedgerFile(path, ManualClock()):
        pass
    with closing(sqlite3.connect(":memory:")) as db:
        for name in LATER[version - 1 :]:
            db.executescript(files("shoal.participant").joinpath(name).read_text("utf-8"))
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    with closing(sqlite3.connect(path)) as db, db:
        for table in tables:
            db.execute(f"DROP TABLE {table}")
        db.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", [LedgerFile, Journal])
def test_an_old_ledger_is_brought_up_to_date(path: Path, kind: type[LedgerFile] | type[Journal], version: int) -> None:
    make_old(path, version)
    with kind(path, ManualClock()):
        pass
    with LedgerFile(path, ManualClock()) as ledger, open_journal(path) as journal:
        assert ledger.verify().seq > 0
        assert journal.enter(STUDY) == STUDY
        assert journal.studies() == (STUDY,)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)


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
    script = "".join(files("shoal.participant").joinpath(name).read_text("utf-8") for name in LATER)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"BEGIN; {script} COMMIT; BEGIN; {script} COMMIT;")
    with open_journal(path) as journal:
        assert journal.studies() == ()
