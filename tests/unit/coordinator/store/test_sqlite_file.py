"""A coordinator's file: whole or not there, its owner's alone, brought to the newest version, and no other file is touched."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Barrier, Thread

import pytest

from shoal.coordinator.store import sqlite_file
from shoal.coordinator.store.migrations import migrations
from shoal.coordinator.store.sqlite_file import open_file
from shoal.errors import StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def asked(db: sqlite3.Connection, pragma: str) -> object:
    return db.execute(f"PRAGMA {pragma}").fetchone()[0]


def later_version(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    known = migrations("sqlite")
    monkeypatch.setattr(sqlite_file, "migrations", lambda database: (*known, *scripts))


def test_a_file_is_made_with_the_settings_that_it_needs(path: Path) -> None:
    with closing(open_file(path, "FULL")) as db:
        assert asked(db, "application_id") == int.from_bytes(b"SHOC")
        assert asked(db, "user_version") == len(migrations("sqlite"))
        assert asked(db, "journal_mode") == "wal"
        assert asked(db, "synchronous") == 2
        assert asked(db, "secure_delete") == 1
        assert path.stat().st_mode & 0o777 == 0o600
        db.execute("INSERT INTO secret VALUES (1, x'00', x'01')")
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]
    with closing(open_file(path, "NORMAL")) as db:
        assert asked(db, "synchronous") == 1
        assert db.execute("SELECT count(*) FROM secret").fetchone() == (1,)


def test_a_file_that_could_not_be_made_is_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later_version(monkeypatch, "CREATE TABLE more (n INTEGER);\nCREATE TABLE study (n INTEGER);\n")
    with pytest.raises(StoreError, match="STORE-001"):
        open_file(path, "FULL")
    assert list(path.parent.iterdir()) == []


def test_whoever_is_slower_takes_the_file_that_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = sqlite_file._create

    def late(wanted: Path) -> None:
        make(wanted)
        with closing(open_file(wanted, "FULL")) as db:
            db.execute("INSERT INTO secret VALUES (1, x'00', x'01')")
        make(wanted)

    monkeypatch.setattr(sqlite_file, "_create", late)
    with closing(open_file(path, "FULL")) as db:
        assert db.execute("SELECT count(*) FROM secret").fetchone() == (1,)


@pytest.mark.parametrize("content", [b"", b"some other file" * 300])
def test_another_file_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match="STORE-003"):
        open_file(path, "FULL")
    assert path.read_bytes() == content


def test_another_database_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (n INTEGER)")
    with pytest.raises(StoreError, match=r"STORE-003.*not a coordinator's store"):
        open_file(path, "FULL")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_a_newer_store_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later_version(later, "CREATE TABLE more (n INTEGER);")
        open_file(path, "FULL").close()
    with pytest.raises(StoreError, match=r"STORE-003.*version 3.*up to version 2"):
        open_file(path, "FULL")


def test_an_older_store_is_brought_up_to_date_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_file(path, "FULL")) as db:
        db.execute("INSERT INTO secret VALUES (1, x'00', x'01')")
    later_version(
        monkeypatch,
        "-- one; two\nCREATE TABLE more (\n    n INTEGER\n);\n",
        "INSERT INTO more VALUES (7); -- seven\nINSERT INTO more VALUES (8);",
    )
    barrier, found = Barrier(4), []

    def work() -> None:
        barrier.wait()
        with closing(open_file(path, "FULL")) as db:
            found.append((asked(db, "user_version"), db.execute("SELECT n FROM more ORDER BY n").fetchall()))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(4, [(7,), (8,)])] * 4


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file(path, "FULL").close()
    with monkeypatch.context() as later:
        later_version(later, "CREATE TABLE more (n INTEGER);", "CREATE TABLE study (n INTEGER);")
        with pytest.raises(StoreError, match="STORE-001"):
            open_file(path, "FULL")
    with closing(open_file(path, "FULL")) as db:
        assert asked(db, "user_version") == len(migrations("sqlite"))
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'more'").fetchone() == (0,)


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    for path in (tmp_path / "no folder" / "store.db", tmp_path):
        with pytest.raises(StoreError, match="STORE-001"):
            open_file(path, "FULL")
