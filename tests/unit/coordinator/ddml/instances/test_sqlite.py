"""The SQLite instance store as a file: rejected files, locks, and traces on the disk."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from shoal.coordinator.ddml.instances import sqlite
from shoal.coordinator.ddml.instances.sqlite import SqliteInstanceStore
from shoal.coordinator.store import sqlite as store_file
from shoal.errors import StoreError

STUDY = "5" * 64
K, P = 2, 5_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordinator.db"


def begun(path: Path) -> SqliteInstanceStore:
    store = SqliteInstanceStore(path)
    store.create(STUDY, np.zeros((K, P), np.int32))
    return store


def model(value: int) -> bytes:
    return np.full(P, value, "<i4").tobytes()


def name(i: int) -> bytes:
    return b"id of %10d" % i


def on_disk(path: Path) -> bytes:
    """All that the store has in its directory."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))


def log_of(path: Path) -> Path:
    return path.with_name("coordinator.db-wal")


def test_reopened_store_has_its_instances(path: Path) -> None:
    with begun(path) as store:
        store.merge(STUDY, 1, name(1), 0, model(7), 1.0)
    with SqliteInstanceStore(str(path)) as store:
        assert store.find_shape(STUDY) == (K, P)
        assert store.draw(STUDY, 1) == (1, model(7))
        assert store.merge(STUDY, 1, name(1), 0, model(7), 1.0).outcome == "repeated"
    assert [file.name for file in path.parent.iterdir()] == ["coordinator.db"]


def test_file_is_readable_by_owner_only(path: Path) -> None:
    with begun(path) as store:
        store.merge(STUDY, 0, name(1), 0, model(7), 1.0)
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_open_rejects_other_file(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE ddml (k)")
    with pytest.raises(StoreError, match=r"STORE-003.*not a coordinator's store"):
        SqliteInstanceStore(path)


def test_open_rejects_unusable_path(path: Path) -> None:
    with pytest.raises(StoreError, match="STORE-001"):
        SqliteInstanceStore(path / "below" / "coordinator.db")
    with pytest.raises(StoreError, match="STORE-001"):
        SqliteInstanceStore(path.parent)


def test_reader_does_not_wait_for_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.0)
    with begun(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE ddml_instance SET weights = ?", (model(66),))
        assert store.draw(STUDY, 0) == (0, model(0))
        assert (store.load_instances(STUDY) == 0).all()
        assert store.scrub() == "blocked"
        with pytest.raises(StoreError, match=r"STORE-001.*SQLITE_BUSY"):
            store.merge(STUDY, 0, name(1), 0, model(7), 1.0)
        writer.execute("COMMIT")
        assert store.draw(STUDY, 0) == (0, model(66))
        assert store.merge(STUDY, 0, name(1), 0, model(7), 1.0).outcome == "merged"


def test_writer_does_not_wait_for_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.0)
    with begun(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        before = reader.execute("SELECT weights FROM ddml_instance").fetchall()
        for i in range(200):
            store.merge(STUDY, 0, name(i), 0, model(i), 1.0)
        assert store.scrub() == "blocked"
        assert reader.execute("SELECT weights FROM ddml_instance").fetchall() == before
        reader.execute("ROLLBACK")
        assert store.scrub() == "done"
    assert not log_of(path).exists()


def test_scrub_waits_for_reader(path: Path) -> None:
    reading = Event()

    def read() -> None:
        with (
            closing(sqlite3.connect(path, isolation_level=None)) as reader,
            closing(sqlite3.connect(path, timeout=0)) as prober,
        ):
            reader.execute("BEGIN")
            reader.execute("SELECT weights FROM ddml_instance").fetchone()
            reading.set()
            # A scrub blocks writers while it waits; it is waiting when a writer cannot
            # begin.
            while True:
                try:
                    prober.execute("BEGIN IMMEDIATE")
                    prober.rollback()
                except sqlite3.OperationalError:
                    return

    with begun(path) as store:
        thread = Thread(target=read)
        thread.start()
        reading.wait()
        store.merge(STUDY, 0, name(1), 0, model(7), 1.0)
        assert store.scrub(30.0) == "done"
        assert log_of(path).stat().st_size == 0
        thread.join()


def test_scrub_waits_for_other_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself refuses at once where the lock of those who write the log back is taken, byte
    121 of its shared memory.
    """
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX, "
        "1, 121); print('held', flush=True); input()"
    )
    with begun(path) as store:
        store.merge(STUDY, 0, name(1), 0, model(7), 1.0)
        command = [sys.executable, "-c", hold, f"{path}-shm"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert store.scrub() == "blocked"
            monkeypatch.setattr(sqlite.time, "sleep", lambda seconds: holder.communicate("done\n"))
            assert store.scrub(30.0) == "done"
        assert log_of(path).stat().st_size == 0


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_scrub_keeps_present_instances(path: Path, part: float) -> None:
    marks = [0x51A90000 + i for i in range(8)]
    with begun(path) as store:
        versions = []
        for i, mark in enumerate(marks):
            store.merge(STUDY, 0, name(i), 0, model(mark), part)
            versions.append(store.draw(STUDY, 0).weights[:400])
        assert all(version in log_of(path).read_bytes() for version in versions)
        assert store.scrub() == "done"
        assert log_of(path).stat().st_size == 0
        left = on_disk(path)
        assert [version in left for version in versions] == [False] * 7 + [True]


def test_deleted_names_are_erased_from_disk(path: Path) -> None:
    with begun(path) as store:
        for i in range(600):
            store.merge(STUDY, 0, name(i), i // 200, model(i), 1.0)
        store.forget(STUDY, 2)
        store.scrub()
        left = on_disk(path)
        assert not any(name(i) in left for i in range(400))
        assert all(name(i) in left for i in range(400, 600))


def test_log_stays_short_without_scrub(path: Path) -> None:
    page, frame = 4096, 4096 + 24
    lengths = []
    with begun(path) as store:
        for i in range(500):
            store.merge(STUDY, i % K, name(i), 0, model(1_000_000 + i), 1.0)
            lengths.append(log_of(path).stat().st_size)
        one_merge = (P * 4 // page + 10) * frame
        assert 2 * store_file.LOG_PAGES * frame < 500 * P * 4
        assert max(lengths) <= store_file.LOG_PAGES * frame + one_merge
        # Nothing is left of a round of the log when the next has begun: it is cut, not overwritten
        # bit by bit.
        after_cuts = [later for earlier, later in pairwise(lengths) if later < earlier]
        assert len(after_cuts) >= 2
        assert max(after_cuts) <= one_merge
        left = on_disk(path)
        assert not any(model(1_000_000 + i)[:400] in left for i in range(200))
