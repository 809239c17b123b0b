"""PostgreSQL store: connections and errors.

Several processes on several machines may share it; `open_store` opens it. DDML's model instances
may be in the same database (`shoal.coordinator.ddml.instances.postgres`). `PostgresPool` makes
connections with the settings that durability needs, and creates the tables once.

Messages of the database are never shown: they may quote a row, an address or a password.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.coordinator.store.sql import SqlStore, read_migrations
from shoal.coordinator.store.statements import EMPTIED_TABLES
from shoal.errors import StoreError, format_upgrade_command, require_extra

if TYPE_CHECKING:
    import psycopg


_CHECK = "Check the database. Clients resend requests that were not acknowledged."
_PASSWORD = (
    "Put the right one into ~/.pgpass, or give it in the address: "
    "postgresql://USER:PASSWORD@HOST/DATABASE"
)

_BY_STATE = {
    "25006": (
        "it is read-only",
        "Give the address of the primary server, not of a replica.",
    ),
    "42501": (
        "the user may not create tables in it",
        "GRANT CREATE ON SCHEMA public TO the user; or give a database that the user owns.",
    ),
    "53100": ("its disk is full", _CHECK),
    "53300": (
        "it has too many connections",
        "Increase max_connections of the server, or give the coordinator fewer --workers.",
    ),
    "55P03": ("a row stayed locked for too long", _CHECK),
    "57014": ("it took too long", _CHECK),
    "57P01": ("its server is stopping", _CHECK),
}

_BY_WORDS = (
    (
        "pg_hba.conf",
        "its pg_hba.conf does not allow this user to connect from this machine",
        "Add a line for this user, database and machine to pg_hba.conf.",
    ),
    (
        "password authentication failed",
        "user or password is wrong",
        _PASSWORD,
    ),
    ("no password supplied", "it needs a password, and none is given", _PASSWORD),
    ("database", "there is no database of this name", "Create it first: createdb NAME"),
    (
        "role",
        "it does not allow this user to log in",
        "Give the name of a role that may log in: postgresql://USER@HOST/DATABASE",
    ),
    (
        "resolve host",
        "there is no host of this name",
        "Check the address: postgresql://USER@HOST:PORT/DATABASE",
    ),
    (
        "Is the server running",
        "no server answers at this address",
        "Start it, or check the address: postgresql://USER@HOST:PORT/DATABASE",
    ),
    ("timeout", "no server answers at this address", "Check the address and the network."),
    ("closed the connection", "its server closed the connection", _CHECK),
    ("starting up", "it is starting", "Try again in a moment."),
    (
        "SSL",
        "server and address do not agree about TLS",
        "Check sslmode in the address, and ssl of the server.",
    ),
)
"""Reasons why a connection failed: libpq has no code for these, only text. The first text that
matches counts.
"""


def make_store_error(error: psycopg.Error) -> StoreError:
    """Return ``STORE-001`` for an error of the database."""
    reason, fix = _find_reason(error)
    if reason is not None:
        return StoreError(
            "STORE-001", f"The PostgreSQL database cannot be used: {reason}.", fix=fix
        )
    return StoreError(
        "STORE-001",
        f"The PostgreSQL database cannot be used: {error.sqlstate or type(error).__name__}.",
        why="It cannot be reached, has no space, rejects the user, or a row stayed locked for too "
        "long.",
        fix=_CHECK,
    )


def _find_reason(error: psycopg.Error) -> tuple[str | None, str]:
    if error.sqlstate is not None:
        return _BY_STATE.get(error.sqlstate, (None, _CHECK))
    if type(error).__name__ == "ProgrammingError":
        return "its address cannot be read", "Give postgresql://USER@HOST:PORT/DATABASE"
    # The first line has the address, and its parts could be any of these words.
    text = str(error).rpartition(" failed: ")[2]
    return next(
        ((reason, fix) for words, reason, fix in _BY_WORDS if words in text), (None, _CHECK)
    )


_MOST_CONNECTIONS = 8
"""Most connections of one pool; further threads wait for one."""

_LOCK = int.from_bytes(b"shoal")
"""The advisory lock of processes that create tables."""

_CONNECT_SECONDS = 5
_SILENT_MILLISECONDS = 10_000
_SETTINGS = """
    SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit') IN ('off', 'local');
    SET lock_timeout = '10s';
    SET statement_timeout = '30s';
    SET idle_in_transaction_session_timeout = '30s';
    SET client_min_messages = error
"""


class PostgresPool:
    """Up to eight connections to a database; threads may share it.

    Parameters
    ----------
    url
        ``postgresql://[user[:password]@]host[:port]/database``, a database for the coordinator
        alone. Missing tables are created.

    Notes
    -----
    A broken connection is detected when a transaction begins on it, and a new one is tried. If a
    connection breaks later, the outcome of the transaction is unknown, and the caller gets an
    error.
    """

    def __init__(self, url: str) -> None:
        require_extra("postgres", "psycopg", purpose="PostgreSQL")
        import psycopg

        self._url = url
        self._psycopg = psycopg
        self._idle: list[psycopg.Connection[Any]] = []
        self._slots = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._is_closed = False
        try:
            with self.transaction("BEGIN") as db:
                _migrate(db)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def transaction(self, begin: str) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection in a transaction; commit at the end, roll back after an error."""
        with self._borrow(begin) as db:
            yield db
            db.execute("COMMIT")

    @contextmanager
    def autocommit(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection without a transaction, for statements that need this."""
        with self._borrow("SELECT 1") as db:
            yield db

    @contextmanager
    def _borrow(self, first: str) -> Iterator[psycopg.Connection[Any]]:
        with self._translate_errors(), self._slots:
            db = self._connect(first)
            try:
                yield db
            finally:
                with suppress(self._psycopg.Error):
                    db.rollback()
                if self._is_closed or db.closed:
                    db.close()
                else:
                    self._idle.append(db)

    def _connect(self, first: str) -> psycopg.Connection[Any]:
        """Return a connection after a first statement; a new one if all idle ones are broken."""
        while True:
            try:
                db = self._idle.pop()
            except IndexError:
                break
            try:
                db.execute(first)
            except self._psycopg.OperationalError:
                db.close()
            else:
                return db
        db = self._psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=_CONNECT_SECONDS,
            tcp_user_timeout=_SILENT_MILLISECONDS,
            application_name="shoal",
        )
        try:
            db.execute(_SETTINGS)
            db.execute(first)
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            raise make_store_error(error) from None


def _migrate(db: psycopg.Connection[Any]) -> None:
    """Migrate the tables to the newest version; one process does it, and others wait."""
    db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    db.execute("CREATE TABLE IF NOT EXISTS shoal_store (version BIGINT NOT NULL)")
    found = db.execute("SELECT version FROM shoal_store").fetchone()
    version, scripts = found[0] if found else 0, read_migrations("postgres")
    if version > len(scripts):
        upgrade_command = format_upgrade_command()
        raise StoreError(
            "STORE-003",
            f"The store in the database has version {version}; this version of shoal reads up to "
            f"version {len(scripts)}.",
            fix=f"Use the newer version of shoal that wrote it: {upgrade_command}",
        )
    for script in scripts[version:]:
        db.execute(script.encode())
    if version < len(scripts):
        db.execute("DELETE FROM shoal_store")
        db.execute("INSERT INTO shoal_store (version) VALUES (%s)", (len(scripts),))


_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_VACUUMED = ", ".join(
    (
        *("secret", "standing", "enrolment", "registration", "commitment", "membership"),
        *("letter", "nonce", *EMPTIED_TABLES),
    )
)


class _PostgresSession:
    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    def fetch_rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._cursor.execute(_translate_placeholders(query), values).fetchall()

    def execute(self, statement: str, *values: object) -> int:
        return self._cursor.execute(_translate_placeholders(statement), values).rowcount

    def execute_many(self, statement: str, values: Sequence[tuple[object, ...]]) -> int:
        if not values:
            return 0
        self._cursor.executemany(_translate_placeholders(statement), values)
        return self._cursor.rowcount


class PostgresStore(SqlStore):
    """A store in a database that only the coordinator uses.

    Parameters
    ----------
    url
        ``postgresql://[user[:password]@]host[:port]/database``.

    Notes
    -----
    Threads may share it. Acknowledged data is on the disk, if the server's ``fsync`` is on (the
    default). The lock on a study's row in ``standing`` makes its writers run one after another, so
    no stricter isolation is needed.

    PostgreSQL leaves deleted data in the tables' pages until they are reused, even after `tidy`,
    which vacuums them; in the write-ahead log until its segments are recycled; and in archives of
    the log. Log no statements (``log_statement = none``, ``log_min_duration_statement = -1``, the
    defaults): their values would be in the server's log.
    """

    row_lock: ClassVar[str] = " FOR UPDATE"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._pool = PostgresPool(url)

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def _read_transaction(self) -> Iterator[_PostgresSession]:
        with self._pool.transaction(_READ) as db, db.cursor() as cursor:
            yield _PostgresSession(cursor)

    @contextmanager
    def _write_transaction(self) -> Iterator[_PostgresSession]:
        with self._pool.transaction(_WRITE) as db, db.cursor() as cursor:
            yield _PostgresSession(cursor)

    def _clear_disk(self) -> None:
        with self._pool.autocommit() as db:
            # Skip a table that another process is vacuuming.
            db.execute(f"VACUUM (SKIP_LOCKED) {_VACUUMED}")


@cache
def _translate_placeholders(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()
