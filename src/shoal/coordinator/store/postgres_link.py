"""Connections to a coordinator's PostgreSQL database: with the settings that durability needs, tables made once, faults as sentences."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from shoal.coordinator.store.migrations import migrations
from shoal.coordinator.store.postgres_faults import fault
from shoal.errors import StoreError, UsageError

if TYPE_CHECKING:
    import psycopg

_MOST = 8
"""Most connections of one link; whoever comes later waits for one."""

_LOCK = int.from_bytes(b"shoal")
"""The advisory lock of those who make tables."""

_CONNECT_SECONDS = 5
_SILENT_MILLISECONDS = 10_000
_SETTINGS = """
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local');
    SET lock_timeout = '10s';
    SET statement_timeout = '30s';
    SET idle_in_transaction_session_timeout = '30s';
    SET client_min_messages = error
"""


class Link:
    """Up to eight connections to a database; threads may share it.

    Parameters
    ----------
    url
        ``postgresql://[user[:password]@]host[:port]/database``, a database of the coordinator's own. Its tables are made where they are
        not there.

    Notes
    -----
    A connection that has broken is found out when a transaction begins on it, before anything is asked: then a new one is tried. Where one
    breaks later, nobody knows whether the transaction came to its end, and the caller is told.
    """

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise UsageError(
                "USAGE-002", "PostgreSQL needs a library that is not installed.", fix="pip install 'shoal[postgres]'"
            ) from None
        self._url = url
        self._psycopg = psycopg
        self._idle: list[psycopg.Connection[Any]] = []
        self._places = threading.BoundedSemaphore(_MOST)
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
        """A transaction on some connection: it ends where it is left, and is undone where it is left by an error."""
        with self._borrowed(begin) as db:
            yield db
            db.execute("COMMIT")

    @contextmanager
    def alone(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection without a transaction, for what must not run inside one."""
        with self._borrowed("SELECT 1") as db:
            yield db

    @contextmanager
    def _borrowed(self, first: str) -> Iterator[psycopg.Connection[Any]]:
        with self._in_sentences(), self._places:
            db = self._begun(first)
            try:
                yield db
            finally:
                with suppress(self._psycopg.Error):
                    db.rollback()
                if self._is_closed or db.closed:
                    db.close()
                else:
                    self._idle.append(db)

    def _begun(self, first: str) -> psycopg.Connection[Any]:
        """A connection on which a first statement went well; a new one where those that wait have broken."""
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
            self._url, autocommit=True, connect_timeout=_CONNECT_SECONDS, tcp_user_timeout=_SILENT_MILLISECONDS, application_name="shoal"
        )
        try:
            db.execute(_SETTINGS)
            db.execute(first)
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def _in_sentences(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            raise fault(error) from None


def _migrate(db: psycopg.Connection[Any]) -> None:
    """Bring the tables to the newest version; of several processes one does it, while the others wait."""
    db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    db.execute("CREATE TABLE IF NOT EXISTS shoal_store (version BIGINT NOT NULL)")
    found = db.execute("SELECT version FROM shoal_store").fetchone()
    version, scripts = found[0] if found else 0, migrations("postgres")
    if version > len(scripts):
        raise StoreError(
            "STORE-003",
            f"The store in the database is of version {version}; this shoal reads up to version {len(scripts)}.",
            fix="Use the newer shoal that wrote it: pip install --upgrade shoal",
        )
    for script in scripts[version:]:
        db.execute(script.encode())
    if version < len(scripts):
        db.execute("DELETE FROM shoal_store")
        db.execute("INSERT INTO shoal_store (version) VALUES (%s)", (len(scripts),))
