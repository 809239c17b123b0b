"""The PostgreSQL instance store: locks, lost connections, and reuse of space."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np
import psycopg
import pytest

from shoal.coordinator.ddml.instances.base import MergeOutcome, PendingUpdate
from shoal.coordinator.ddml.instances.postgres import PostgresInstanceStore
from shoal.coordinator.store import open_store
from shoal.errors import StoreError
from tests.support.servers import postgres
from tests.support.stores import databases

STUDY = "5" * 64
K, P = 2, 5_000


@pytest.fixture(scope="module")
def new_database() -> Iterator[Callable[[], str]]:
    with databases() as new:
        yield new


@pytest.fixture
def url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
def store(url: str) -> Iterator[PostgresInstanceStore]:
    with PostgresInstanceStore(url) as made:
        made.create(STUDY, np.zeros((K, P), np.int32))
        yield made


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's connection."""
    with psycopg.connect(url, autocommit=True) as db:
        yield db


def model(value: int) -> bytes:
    return np.full(P, value, "<i4").tobytes()


def name(i: int) -> bytes:
    return i.to_bytes(16, "big")


def in_thread(work: Callable[[], MergeOutcome]) -> tuple[Thread, list[MergeOutcome]]:
    answers: list[MergeOutcome] = []
    thread = Thread(target=lambda: answers.append(work()))
    thread.start()
    return thread, answers


def wait_for_a_waiter(other: psycopg.Connection[Any]) -> None:
    """Until somebody waits for a lock in this database."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
        "current_database()"
    )
    while not other.execute(query).fetchone()[0]:  # type: ignore[index]
        # Inside a transaction the view is frozen at the first look.
        other.execute("SELECT pg_stat_clear_snapshot()")


def test_instances_share_database_with_store(url: str) -> None:
    with open_store(url) as coordinator, PostgresInstanceStore(url) as store:
        store.create(STUDY, np.zeros((K, P), np.int32))
        assert coordinator.list_studies() == ()
    with PostgresInstanceStore(url) as store:
        assert store.find_shape(STUDY) == (K, P)


def test_draw_does_not_wait_for_merge(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    with other.transaction():
        other.execute("SELECT 1 FROM ddml FOR UPDATE")
        other.execute("UPDATE ddml_instance SET weights = %s", (model(66),))
        other.execute("UPDATE ddml SET n_merged = 1")
        assert store.draw(STUDY, 0) == (0, model(0))
        assert (store.load_instances(STUDY) == 0).all()
        assert store.count_merged(STUDY) == 0
    assert store.draw(STUDY, 0) == (1, model(66))


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_merge_reads_instance_after_waiting_for_lock(
    store: PostgresInstanceStore, other: psycopg.Connection[Any], part: float
) -> None:
    """Its count and its blend are from after the wait, not from when it was asked for."""
    with other.transaction():
        other.execute("SELECT 1 FROM ddml FOR UPDATE")
        thread, answers = in_thread(lambda: store.merge(STUDY, 0, name(1), 0, model(100), part))
        wait_for_a_waiter(other)
        other.execute("UPDATE ddml_instance SET weights = %s WHERE slot = 0", (model(200),))
        other.execute("UPDATE ddml SET n_merged = 7")
    thread.join()
    assert answers == [("merged", 8)]
    assert store.draw(STUDY, 0) == (8, model(150 if part == 0.5 else 100))


def test_merge_is_stale_if_names_are_deleted_during_wait(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    store.merge(STUDY, 0, name(1), 3, model(1), 1.0)
    with other.transaction():
        other.execute("UPDATE ddml SET kept_from = 4")
        other.execute("DELETE FROM ddml_update WHERE epoch < 4")
        thread, answers = in_thread(lambda: store.merge(STUDY, 0, name(1), 3, model(9), 1.0))
        wait_for_a_waiter(other)
    thread.join()
    assert answers == [("stale", 1)]
    assert store.draw(STUDY, 0) == (1, model(1))
    assert not store.has_update(STUDY, name(1), 3)


def test_ended_connection_is_replaced(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    for i in range(3):
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND datname = current_database()"
        )
        assert store.merge(STUDY, 0, name(i), 0, model(i), 1.0) == ("merged", i + 1)


def test_failed_merge_changes_nothing(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    """All of a batch or none: here its transaction is ended while it waits."""
    many = [PendingUpdate(i % K, name(i), 0, model(5)) for i in range(4)]
    errors: list[StoreError] = []

    def work() -> None:
        try:
            store.merge_many(STUDY, many, 0.5)
        except StoreError as error:
            errors.append(error)

    with other.transaction():
        other.execute("SELECT 1 FROM ddml_instance WHERE slot = 1 FOR UPDATE")
        thread = Thread(target=work)
        thread.start()
        wait_for_a_waiter(other)
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )
        thread.join()
    assert [error.code for error in errors] == ["STORE-001"]
    assert store.count_merged(STUDY) == 0
    assert (store.load_instances(STUDY) == 0).all()
    assert [outcome for outcome, _ in store.merge_many(STUDY, many, 0.5)] == ["merged"] * 4


def test_store_works_after_database_restart() -> None:
    with postgres() as server, PostgresInstanceStore(server.url) as store:
        store.create(STUDY, np.zeros((K, P), np.int32))
        store.merge(STUDY, 1, name(1), 0, model(7), 1.0)
        server.kill()
        for call in (
            lambda: store.draw(STUDY, 1),
            lambda: store.merge(STUDY, 1, name(2), 0, model(8), 1.0),
        ):
            with pytest.raises(StoreError, match="STORE-001") as error:
                call()
            assert str(server.port) not in str(error.value)
        server.restart()
        assert store.draw(STUDY, 1) == (1, model(7))
        assert store.merge(STUDY, 1, name(1), 0, model(7), 1.0) == ("repeated", 1)


def test_missing_instance_raises_store_error(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    other.execute("DELETE FROM ddml_instance WHERE slot = 1")
    with pytest.raises(StoreError, match="STORE-002"):
        store.draw(STUDY, 1)
    with pytest.raises(StoreError, match="STORE-002"):
        store.merge(STUDY, 1, name(1), 0, model(1), 0.5)
    assert store.count_merged(STUDY) == 0


def test_scrub_releases_space_of_earlier_versions(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    other.execute(
        "ALTER TABLE ddml_instance SET (autovacuum_enabled = false, toast.autovacuum_enabled = "
        "false)"
    )

    def after_merges(first: int, *, scrubbing: bool) -> int:
        for i in range(first, first + 60):
            store.merge(STUDY, i % K, name(i), 0, model(i), 1.0)
            if scrubbing and i % 10 == 0:
                assert store.scrub() == "begun"
        return int(other.execute("SELECT pg_table_size('ddml_instance')").fetchone()[0])  # type: ignore[index]

    assert store.scrub() == "begun"
    short = after_merges(0, scrubbing=True)
    assert short < 25 * 4 * P
    assert after_merges(60, scrubbing=False) > 50 * 4 * P


def test_scrub_waits_for_other_scrub(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    answers: list[str] = []
    with other.transaction():
        other.execute("LOCK TABLE ddml_instance IN SHARE UPDATE EXCLUSIVE MODE")
        assert store.scrub() == "blocked"
        thread = Thread(target=lambda: answers.append(store.scrub(20.0)))
        thread.start()
        wait_for_a_waiter(other)
        assert store.draw(STUDY, 0) == (0, model(0))
        assert store.merge(STUDY, 0, name(1), 0, model(1), 1.0).outcome == "merged"
    thread.join()
    assert answers == ["begun"]
    with store._pool.autocommit() as db:
        assert db.execute("SHOW lock_timeout").fetchone() == ("10s",)


def test_scrub_does_not_wait_for_merges(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    with other.transaction():
        other.execute("SELECT 1 FROM ddml, ddml_instance FOR UPDATE")
        assert store.scrub() == "begun"


def test_scrub_returns_blocked_after_timeout(
    store: PostgresInstanceStore, other: psycopg.Connection[Any]
) -> None:
    with store._pool.autocommit() as db:
        db.execute(
            "SET statement_timeout = 1; SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1"
        )
    for i in range(4):
        other.execute("UPDATE ddml_instance SET weights = %s", (model(i),))
    assert store.scrub() == "blocked"
