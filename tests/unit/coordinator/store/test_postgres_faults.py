"""Errors of a real PostgreSQL server become sentences without names or passwords."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from shoal.coordinator.store.postgres import PostgresPool, make_store_error
from shoal.errors import StoreError
from tests.support.servers import Postgres, free_port, postgres

ACCESS = """
host hidden_no all 127.0.0.1/32 reject
host postgres,hidden_none shoal,hidden_poor,hidden_idle 127.0.0.1/32 scram-sha-256
host hidden_door shoal 127.0.0.1/32 trust
"""
ADDRESS = "postgresql://{user}@127.0.0.1:{port}/{database}"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that wants passwords."""
    with postgres() as running:
        with psycopg.connect(running.url, autocommit=True) as db:
            db.execute("ALTER ROLE shoal PASSWORD 'right'")
            db.execute("CREATE ROLE hidden_poor LOGIN PASSWORD 'right'")
            db.execute("CREATE ROLE hidden_idle NOLOGIN PASSWORD 'right'")
        (running.folder / "data" / "pg_hba.conf").write_text(ACCESS)
        os.kill(running.pid, signal.SIGHUP)
        yield running


@pytest.fixture(scope="module")
def strict(server: Postgres) -> Postgres:
    """The same, once it has heard of it."""
    while True:
        try:
            psycopg.connect(server.url).close()
        except psycopg.OperationalError:
            return server


def said(url: str) -> str:
    with pytest.raises(StoreError) as refused:
        PostgresPool(url)
    assert refused.value.code == "STORE-001" and refused.value.fix
    assert "hidden" not in str(refused.value)
    return refused.value.what.removeprefix("The PostgreSQL database cannot be used: ")


@pytest.mark.parametrize(
    ("user", "database", "reason"),
    [
        ("shoal:hidden", "postgres", "user or password is wrong."),
        ("shoal", "postgres", "it needs a password, and none is given."),
        ("shoal:right", "hidden_none", "there is no database of this name."),
        (
            "shoal:right",
            "hidden_no",
            "its pg_hba.conf does not allow this user to connect from this machine.",
        ),
        (
            "shoal:right",
            "hidden_other",
            "its pg_hba.conf does not allow this user to connect from this machine.",
        ),
        ("hidden_idle:right", "postgres", "it does not allow this user to log in."),
        ("hidden_poor:right", "postgres", "the user may not create tables in it."),
        ("shoal:right", "postgres?sslmode=require", "server and address do not agree about TLS."),
        ("shoal:right", "postgres?hidden=1", "its address cannot be read."),
    ],
)
def test_store_error_states_reason_of_server(
    user: str, database: str, reason: str, strict: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    assert said(ADDRESS.format(user=user, port=strict.port, database=database)) == reason


def test_store_error_states_unreachable_server() -> None:
    assert (
        said(ADDRESS.format(user="hidden", port=free_port(), database="hidden"))
        == "no server answers at this address."
    )
    assert said("postgresql://hidden@/hidden?host=/hidden") == "no server answers at this address."
    assert said("postgresql://hidden.invalid/hidden") == "there is no host of this name."
    assert said("postgresql://hidden@[hidden") == "its address cannot be read."


def test_store_error_contains_other_sqlstates() -> None:
    known, unknown, silent = (
        psycopg.errors.DiskFull("hidden"),
        psycopg.errors.DivisionByZero("hidden"),
        psycopg.OperationalError("hidden"),
    )
    assert "its disk is full" in make_store_error(known).what
    assert "22012" in make_store_error(unknown).what and make_store_error(unknown).why is not None
    assert "OperationalError" in make_store_error(silent).what
    assert not any("hidden" in str(make_store_error(error)) for error in (known, unknown, silent))
