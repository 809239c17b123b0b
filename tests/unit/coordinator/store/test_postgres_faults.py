"""Why a PostgreSQL database cannot be used: what a real server says becomes a sentence without a name or a password in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from servers import Postgres, free_port, postgres
from shoal.coordinator.store.postgres_faults import fault
from shoal.coordinator.store.postgres_link import Link
from shoal.errors import StoreError

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
        Link(url)
    assert refused.value.code == "STORE-001" and refused.value.fix
    assert "hidden" not in str(refused.value)
    return refused.value.what.removeprefix("The PostgreSQL database cannot be used: ")


@pytest.mark.parametrize(
    ("user", "database", "reason"),
    [
        ("shoal:hidden", "postgres", "this user and this password do not belong together."),
        ("shoal", "postgres", "it wants a password, and there is none."),
        ("shoal:right", "hidden_none", "there is no database of this name."),
        ("shoal:right", "hidden_no", "its pg_hba.conf does not let this user in from here."),
        ("shoal:right", "hidden_other", "its pg_hba.conf does not let this user in from here."),
        ("hidden_idle:right", "postgres", "it does not let this user in."),
        ("hidden_poor:right", "postgres", "this user may not make tables in it."),
        ("shoal:right", "postgres?sslmode=require", "it and the address do not agree about TLS."),
        ("shoal:right", "postgres?hidden=1", "its address cannot be read."),
    ],
)
def test_what_a_server_refuses(user: str, database: str, reason: str, strict: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    assert said(ADDRESS.format(user=user, port=strict.port, database=database)) == reason


def test_what_is_not_there() -> None:
    assert said(ADDRESS.format(user="hidden", port=free_port(), database="hidden")) == "no server answers there."
    assert said("postgresql://hidden@/hidden?host=/hidden") == "no server answers there."
    assert said("postgresql://hidden.invalid/hidden") == "there is no host of this name."
    assert said("postgresql://hidden@[hidden") == "its address cannot be read."


def test_the_rest_keeps_its_code() -> None:
    known, unknown, silent = (
        psycopg.errors.DiskFull("hidden"),
        psycopg.errors.DivisionByZero("hidden"),
        psycopg.OperationalError("hidden"),
    )
    assert "its disk is full" in fault(known).what
    assert "22012" in fault(unknown).what and fault(unknown).why is not None
    assert "OperationalError" in fault(silent).what
    assert not any("hidden" in str(fault(error)) for error in (known, unknown, silent))
