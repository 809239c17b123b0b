"""The PostgreSQL store: connections, tables, and the order of rows."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any

import psycopg
import pytest

from shoal.coordinator.store import postgres as postgres_link
from shoal.coordinator.store.base import NewEnrolment, StudyRecord, Submission
from shoal.coordinator.store.postgres import PostgresPool, PostgresStore
from shoal.coordinator.store.sql import read_migrations
from shoal.errors import RemoteProtocolError, StoreError, UsageError
from tests.support.servers import Postgres, postgres

STUDY = "5" * 64
FAR = 1 << 50


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def url(server: Postgres) -> str:
    return server.new_database()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with PostgresStore(url) as made:
        made.publish(StudyRecord(STUDY, b"m", 0, 1))
        yield made


def found(url: str, query: str) -> list[Any]:
    with psycopg.connect(url) as db:
        return [row[0] for row in db.execute(query.encode())]


def later_version(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    known = read_migrations("postgres")
    monkeypatch.setattr(postgres_link, "read_migrations", lambda database: (*known, *scripts))


def test_connection_has_settings_for_durability(url: str) -> None:
    link = PostgresPool(f"{url}%20-csynchronous_commit%3Doff")
    with link.autocommit() as db:
        settings = {
            "synchronous_commit": "on",
            "lock_timeout": "10s",
            "idle_in_transaction_session_timeout": "30s",
        }
        assert {name: db.execute(f"SHOW {name}".encode()).fetchone() for name in settings} == {
            name: (to,) for name, to in settings.items()
        }
    link.close()


def test_pool_reuses_connections_up_to_limit(url: str) -> None:
    link, pids = PostgresPool(url), []

    def work() -> None:
        for _ in range(5):
            with link.transaction("BEGIN") as db:
                pids.append(db.info.backend_pid)

    threads = [Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 100
    assert len(set(pids)) <= 8
    with link.autocommit() as db:
        link.close()
        assert not db.closed
    assert db.closed


def test_error_rolls_back_and_keeps_connection(store: PostgresStore) -> None:
    pids = []
    for fault in (RemoteProtocolError("HOST-001", "none"), StoreError("STORE-001", "none")):
        with pytest.raises(type(fault)), store._pool.transaction("BEGIN") as db:
            pids.append(db.info.backend_pid)
            db.execute("DELETE FROM standing")
            raise fault
    with (
        pytest.raises(StoreError, match=r"STORE-001.*42601"),
        store._pool.transaction("BEGIN") as db,
    ):
        pids.append(db.info.backend_pid)
        db.execute("DELETE FROM standing")
        db.execute("this is no SQL")
    assert store.find_last_number(STUDY) == 0
    assert len(set(pids)) == 1


def test_open_rejects_newer_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later_version(
            later,
            "CREATE TABLE more (n BIGINT)",
            "INSERT INTO more VALUES (7); INSERT INTO more VALUES (8)",
        )
        for _ in range(2):
            PostgresPool(url).close()
        assert found(url, "SELECT n FROM more") == [7, 8]
    with pytest.raises(StoreError, match=r"STORE-003.*version 5.*up to version 3"):
        PostgresPool(url)


def test_failed_migration_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PostgresPool(url).close()
    later_version(monkeypatch, "CREATE TABLE more (n BIGINT)", "CREATE TABLE study (n BIGINT)")
    with pytest.raises(StoreError, match="STORE-001"):
        PostgresPool(url)
    assert found(url, "SELECT version FROM shoal_store") == [3]
    assert (
        found(
            url,
            "SELECT 1 FROM pg_tables WHERE tablename = 'more' AND schemaname = current_schema()",
        )
        == []
    )


def test_errors_quote_neither_address_nor_rows(server: Postgres, store: PostgresStore) -> None:
    for address in (
        f"postgresql://shoal:hidden@127.0.0.1:{server.port}/hidden",
        "postgresql://u:hidden@[hidden",
        "postgresql://u:hidden@:x/",
    ):
        with pytest.raises(StoreError, match="STORE-001") as caught:
            PostgresStore(address)
        assert "hidden" not in str(caught.value)
    with pytest.raises(StoreError, match="STORE-001") as caught:
        store.accept(STUDY, [Submission("hidden\x00", b"hidden")], FAR)
    assert "hidden" not in str(caught.value)
    assert store.load(STUDY, 0, 1).inputs == ()


def test_open_reports_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"USAGE-002"):
        PostgresStore("postgresql://127.0.0.1/x")


def test_tidied_tables_do_not_link_tickets_to_enrolments(store: PostgresStore, url: str) -> None:
    keys, tickets = (
        [hashlib.sha256(f"{what} {i}".encode()).digest() for i in range(20)]
        for what in ("key", "ticket")
    )
    for key, ticket in zip(keys, tickets, strict=True):
        store.enrol(STUDY, NewEnrolment(key, ticket=ticket))
    assert found(
        url, "SELECT count(*) FROM ticket JOIN enrolment ON ticket.xmin = enrolment.xmin"
    ) == [20]
    assert found(url, "SELECT digest FROM ticket ORDER BY ctid") == tickets
    store.tidy(0)
    assert (
        len(set(found(url, "SELECT xmin FROM ticket") + found(url, "SELECT xmin FROM enrolment")))
        == 1
    )
    assert found(url, "SELECT digest FROM ticket ORDER BY ctid") == sorted(tickets)
    assert found(url, "SELECT key_digest FROM enrolment ORDER BY ctid") == sorted(
        hashlib.sha256(key).digest() for key in keys
    )


def test_tidy_skips_tables_of_other_tidy(store: PostgresStore, url: str) -> None:
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE held IN SHARE UPDATE EXCLUSIVE MODE")
        store.tidy(0)
