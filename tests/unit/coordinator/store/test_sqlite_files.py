"""A coordinator's SQLite file: created atomically, private, migrated; other files stay."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Barrier, Thread

import pytest

from shoal import sqlite
from shoal.coordinator.store import sqlite as store_file
from shoal.coordinator.store.sql import read_migrations
from shoal.coordinator.store.sqlite import open_store_file
from shoal.errors import StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def read_pragma(db: sqlite3.Connection, pragma: str) -> object:
    return db.execute(f"PRAGMA {pragma}").fetchone()[0]


def add_migrations(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    known = read_migrations("sqlite")
    monkeypatch.setattr(store_file, "read_migrations", lambda database: (*known, *scripts))


def test_open_creates_private_file_with_required_settings(path: Path) -> None:
    with closing(open_store_file(path, "FULL")) as db:
        assert read_pragma(db, "application_id") == int.from_bytes(b"SHOC")
        assert read_pragma(db, "user_version") == len(read_migrations("sqlite"))
        assert read_pragma(db, "journal_mode") == "wal"
        assert read_pragma(db, "synchronous") == 2
        assert read_pragma(db, "secure_delete") == 1
        assert path.stat().st_mode & 0o777 == 0o600
        db.execute("INSERT INTO secret VALUES (1, x'00', x'01')")
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]
    with closing(open_store_file(path, "NORMAL")) as db:
        assert read_pragma(db, "synchronous") == 1
        assert db.execute("SELECT count(*) FROM secret").fetchone() == (1,)


def test_failed_creation_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_migrations(monkeypatch, "CREATE TABLE more (n INTEGER);\nCREATE TABLE study (n INTEGER);\n")
    with pytest.raises(StoreError, match="STORE-001"):
        open_store_file(path, "FULL")
    assert list(path.parent.iterdir()) == []


def test_create_keeps_file_of_faster_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = sqlite.create_database

    def create_twice(
        path: Path, application_id: int, migrations: Sequence[str], connect: sqlite.Connect
    ) -> None:
        create(path, application_id, migrations, connect)
        with closing(open_store_file(path, "FULL")) as db:
            db.execute("INSERT INTO secret VALUES (1, x'00', x'01')")
        create(path, application_id, migrations, connect)

    monkeypatch.setattr(sqlite, "create_database", create_twice)
    with closing(open_store_file(path, "FULL")) as db:
        assert db.execute("SELECT count(*) FROM secret").fetchone() == (1,)


@pytest.mark.parametrize("content", [b"", b"some other file" * 300])
def test_open_rejects_other_file_and_leaves_it_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match="STORE-003"):
        open_store_file(path, "FULL")
    assert path.read_bytes() == content


def test_open_rejects_other_database_and_leaves_it_unchanged(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (n INTEGER)")
    with pytest.raises(StoreError, match=r"STORE-003.*not a coordinator's store"):
        open_store_file(path, "FULL")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_open_rejects_newer_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        add_migrations(later, "CREATE TABLE more (n INTEGER);")
        open_store_file(path, "FULL").close()
    with pytest.raises(StoreError, match=r"STORE-003.*version 4.*up to version 3"):
        open_store_file(path, "FULL")


def test_open_migrates_older_store_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_store_file(path, "FULL")) as db:
        db.execute("INSERT INTO secret VALUES (1, x'00', x'01')")
    add_migrations(
        monkeypatch,
        "-- one; two\nCREATE TABLE more (\n    n INTEGER\n);\n",
        "INSERT INTO more VALUES (7); -- seven\nINSERT INTO more VALUES (8);",
    )
    barrier, found = Barrier(4), []

    def work() -> None:
        barrier.wait()
        with closing(open_store_file(path, "FULL")) as db:
            found.append(
                (
                    read_pragma(db, "user_version"),
                    db.execute("SELECT n FROM more ORDER BY n").fetchall(),
                )
            )

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(len(read_migrations("sqlite")) + 2, [(7,), (8,)])] * 4


def test_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store_file(path, "FULL").close()
    with monkeypatch.context() as later:
        add_migrations(later, "CREATE TABLE more (n INTEGER);", "CREATE TABLE study (n INTEGER);")
        with pytest.raises(StoreError, match="STORE-001"):
            open_store_file(path, "FULL")
    with closing(open_store_file(path, "FULL")) as db:
        assert read_pragma(db, "user_version") == len(read_migrations("sqlite"))
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'more'").fetchone() == (
            0,
        )


def test_open_rejects_unusable_path(tmp_path: Path) -> None:
    for path in (tmp_path / "no folder" / "store.db", tmp_path):
        with pytest.raises(StoreError, match="STORE-001"):
            open_store_file(path, "FULL")
