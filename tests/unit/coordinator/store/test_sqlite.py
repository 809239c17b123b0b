"""The SQLite store: traces of deleted data, and the order of rows."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.coordinator.store import sqlite as sqlite_module
from shoal.coordinator.store.base import (
    NewEnrolment,
    StepResult,
    StudyOutcome,
    StudyRecord,
    Submission,
)
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.errors import StoreError

STUDY = "5" * 64
FAR = 1 << 50


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path) as made:
        made.publish(StudyRecord(STUDY, b"m", 0, 1))
        yield made


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def test_applied_inputs_are_erased_from_disk(store: SqliteStore, path: Path) -> None:
    secret = [b"an answer that is long enough to be found again: %d" % i for i in range(200)]
    store.accept(
        STUDY,
        [Submission("", each * 20, digest(str(i)), digest("d")) for i, each in enumerate(secret)],
        FAR,
    )
    assert all(each in on_disk(path) for each in secret)
    term = store.lease(STUDY, "a", 0, 10)
    assert term is not None
    held = store.load(STUDY, 0, 1_000).inputs
    assert store.save(STUDY, term, StepResult(b"state", tuple(each.number for each in held)))
    store.tidy(0)
    left = on_disk(path)
    assert not any(each in left for each in secret)
    assert Path(f"{path}-wal").stat().st_size == 0


def test_ended_study_is_erased_from_disk_except_unexpired_nonces(
    store: SqliteStore, path: Path
) -> None:
    store.enrol(STUDY, NewEnrolment(b"a key", ticket=digest("ticket")))
    store.accept(
        STUDY,
        [Submission("", b"payload", digest("name"), digest("payload"), b"a nonce of 16 b.")],
        FAR,
    )
    term = store.lease(STUDY, "a", 0, 10)
    assert term is not None
    assert store.save(STUDY, term, StepResult(b"the state of some machine"))
    gone = [digest("ticket"), digest("name"), digest("payload"), b"the state of some machine"]
    assert all(each in on_disk(path) for each in gone)
    assert store.end(STUDY, StudyOutcome("done", b"the result"))
    store.tidy(0)
    left = on_disk(path)
    assert [each in left for each in gone] == [False] * 4
    assert b"the result" in left
    assert b"a nonce of 16 b." in left
    store.tidy(FAR + 60_000)
    assert b"a nonce of 16 b." not in on_disk(path)


def test_tidied_file_does_not_link_tickets_to_enrolments(store: SqliteStore, path: Path) -> None:
    """Rows of a table without row numbers lie inside a page as they came, until they are written
    anew.
    """
    keys, tickets = ([digest(f"{what} {i}") for i in range(20)] for what in ("key", "ticket"))

    def places(digests: list[bytes], left: bytes) -> list[bytes]:
        assert {left.count(each) for each in digests} == {1}
        return sorted(digests, key=left.index, reverse=True)

    def pages_of(table: str, left: bytes) -> bytes:
        with closing(sqlite3.connect(path)) as db:
            (root,) = db.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
            ).fetchone()
        return left[4096 * (root - 1) : 4096 * root]

    for key, ticket in zip(keys, tickets, strict=True):
        store.enrol(STUDY, NewEnrolment(key, ticket=ticket))
    stored = [hashlib.sha256(key).digest() for key in keys]
    store._clear_disk()
    left = path.read_bytes()
    assert (
        places(stored, pages_of("enrolment", left)),
        places(tickets, pages_of("ticket", left)),
    ) == (stored, tickets)
    store.tidy(0)
    left = path.read_bytes()
    assert (
        places(stored, pages_of("enrolment", left)),
        places(tickets, pages_of("ticket", left)),
    ) == (sorted(stored), sorted(tickets))
    assert not any(key in on_disk(path) for key in keys)
    # A later enrolment does not stay behind all others for long.
    store.enrol(STUDY, NewEnrolment(b"one more", ticket=min(tickets)[:-1]))
    store.tidy(0)
    assert places(sorted(tickets), pages_of("ticket", path.read_bytes()))[0] == min(tickets)


def test_tidy_does_not_wait_for_readers(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM study").fetchall()
        store.count_rejections(STUDY, "MSG-001")
        store.tidy(0)
        assert Path(f"{path}-wal").stat().st_size > 0
    store.tidy(0)
    assert Path(f"{path}-wal").stat().st_size == 0


def test_reader_does_not_wait_for_writer(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert store.find_last_number(STUDY) == 0
        writer.execute("ROLLBACK")


def test_store_reports_locked_or_closed_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "BUSY_SECONDS", 0.0)
    with SqliteStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as writer:
        store.publish(StudyRecord(STUDY, b"m", 0, 1))
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"STORE-001.*SQLITE_BUSY"):
            store.count_rejections(STUDY, "MSG-001")
        writer.execute("ROLLBACK")
        store.count_rejections(STUDY, "MSG-001")
    with pytest.raises(StoreError, match="STORE-001"):
        store.count_rejections(STUDY, "MSG-001")


def test_close_during_read_leaves_no_log(store: SqliteStore, path: Path) -> None:
    with store._read_transaction() as session:
        store.close()
        assert session.fetch_rows("SELECT digest FROM study") == [(STUDY,)]
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]
