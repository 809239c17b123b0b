"""The SQLite store: traces of deleted data, and the order of rows."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from statistics import NormalDist

import pytest

from shoal.coordinator.store import rewriting
from shoal.coordinator.store import sqlite as sqlite_module
from shoal.coordinator.store.base import (
    NewEnrolment,
    NewRegistration,
    StepResult,
    StudyOutcome,
    StudyRecord,
    Submission,
)
from shoal.coordinator.store.sql import read_migrations
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.errors import RemoteProtocolError, StoreError

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


SCOPED = StudyRecord("6" * 64, b"m", 0, 1, scope=digest("scope"))


ALPHA = 1e-9
"""Chance that the next test fails although positions do not depend on the order of arrival."""


def compute_order_score(pages: list[list[tuple[int, bool]]]) -> float:
    """Return how far positions of late rows differ from others, in standard deviations.

    It is the statistic of Mann and Whitney, summed over pages. A page is a list of positions, each
    with whether its row came late.
    """
    total = variance = 0.0
    for page in pages:
        late, early = ([at for at, is_late in page if is_late is which] for which in (True, False))
        total += sum((one > two) - (one < two) for one in late for two in early)
        variance += len(late) * len(early) * (len(page) + 1) / 3
    return float(total / variance**0.5)


def test_slices_leave_no_order_of_arrival_in_pages(store: SqliteStore, path: Path) -> None:
    """A tenth of the members registers after the others have been rewritten."""
    store.publish(SCOPED)
    keys = [digest(f"member {i}") for i in range(55_000)]
    late = set(keys[50_000:])

    def add(some: Collection[bytes]) -> None:
        # Registering one by one would take a minute.
        with closing(sqlite3.connect(path)) as db, db:
            rows = [(SCOPED.scope, key) for key in some]
            db.executemany("INSERT INTO commitment VALUES (?, ?)", rows)
            db.execute("UPDATE standing SET n_unsorted = 1")

    def read_pages() -> list[list[tuple[int, bool]]]:
        """Return the positions of the keys in each leaf page; cells are found by pointers."""
        store._clear_disk()
        data, pages = path.read_bytes(), []
        for start in range(0, len(data), 4096):
            page = data[start : start + 4096]
            n = int.from_bytes(page[3:5], "big") if page[0] == 10 else 0
            places = [int.from_bytes(page[8 + 2 * i : 10 + 2 * i], "big") for i in range(n)]
            found = [
                (at, key in late)
                for at in places
                if (key := page[at : at + 80].partition(SCOPED.scope)[2][:32]) in keys_set
            ]
            pages.append(found)
        return [page for page in pages if page]

    keys_set, threshold = set(keys), NormalDist().inv_cdf(1 - ALPHA / 2)
    add(keys_set - late)
    store.tidy(0)
    add(late)
    assert abs(compute_order_score(read_pages())) > threshold, "the mutant: no rewrite"
    store.tidy(0)
    after = read_pages()
    assert sum(map(len, after)) > 0.9 * len(keys)
    assert abs(compute_order_score(after)) < threshold


def test_open_migrates_registrations_of_older_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = read_migrations("sqlite")[:2]
    with monkeypatch.context() as earlier:
        earlier.setattr(sqlite_module, "read_migrations", lambda _: older)
        with closing(sqlite_module.open_store_file(path, "FULL")) as db:
            db.execute(
                "INSERT INTO study (number, digest, manifest, opened, patience, by_invitation, "
                "queries, scope) VALUES (1, ?, x'00', 0, 1, 0, x'', ?)",
                (SCOPED.digest, SCOPED.scope),
            )
            db.execute("INSERT INTO standing (study, is_mixed) VALUES (1, 0)")
            # Before version 3 one commitment could register several keys.
            db.executemany(
                "INSERT INTO registration VALUES (?, ?, ?, x'05')",
                [(SCOPED.scope, digest(f"{i}"), digest("c")) for i in range(3)],
            )
    with SqliteStore(path) as store:
        assert store.count_members(SCOPED.digest) == len(store.list_members(SCOPED.digest)) == 3
        assert (
            store.register(SCOPED.digest, NewRegistration(digest("1"), digest("c")))[1] == b"\x05"
        )
        with pytest.raises(RemoteProtocolError, match="ENROL-002"):
            store.register(SCOPED.digest, NewRegistration(b"another", digest("c")))
        paused: list[float] = []
        monkeypatch.setattr(rewriting, "SLICE_ROWS", 3)
        monkeypatch.setattr(rewriting, "OVERLAP_ROWS", 1)
        store.tidy(0, lambda seconds: paused.append(seconds) is not None)
        assert paused, "the rows were not in order, and still had to be rewritten"


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
