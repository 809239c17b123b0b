"""A store in a SQLite file.

The processes of one machine may share it; `open_store` opens it. DDML's model instances may be in
the same file (`shoal.coordinator.ddml.instances.sqlite`).

A change must keep: data is on the disk before a write returns, and deleted data is overwritten.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from shoal.coordinator.store.sql import SqlStore, read_migrations
from shoal.errors import StoreError, format_upgrade_command
from shoal.sqlite import DatabaseErrors, connect, name_error, open_database, transaction

BUSY_SECONDS = 30.0
LOG_PAGES = 1000

Synchronous = Literal["NORMAL", "FULL"]
"""``FULL``: a committed transaction survives a power cut. ``NORMAL``: it survives the death of any
process, and the next commit with ``FULL`` makes it durable.
"""

_APPLICATION_ID = int.from_bytes(b"SHOC")
_PRAGMAS = (
    "trusted_schema = OFF",
    "secure_delete = ON",
    f"wal_autocheckpoint = {LOG_PAGES}",
    # Truncate the log when it restarts: no frame of an earlier round stays behind its end.
    "journal_size_limit = 0",
)


class _StoreErrors(DatabaseErrors):
    """The errors of a coordinator's SQLite file."""

    def wrong_format(self, path: Path) -> StoreError:
        return StoreError(
            "STORE-003",
            f"{path} is not a coordinator's store.",
            fix="Give a path where there is no file yet.",
        )

    def newer_version(self, path: Path, version: int, newest: int) -> StoreError:
        upgrade_command = format_upgrade_command()
        return StoreError(
            "STORE-003",
            f"The store {path} has version {version}; this version of shoal reads up to version "
            f"{newest}.",
            fix=f"Use the newer version of shoal that wrote it: {upgrade_command}",
        )

    def unusable(self, path: Path, error: Exception) -> StoreError:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            return self.wrong_format(path)
        return StoreError(
            "STORE-001",
            f"The store {path} cannot be used: {name_error(error)}.",
            why="The disk is full or failing, the file may not be written, or another process "
            "keeps it locked.",
            fix="Check the file and its disk. Clients resend requests that were not acknowledged.",
        )


_ERRORS = _StoreErrors()


def open_store_file(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """Open a coordinator's file; create it, readable by its owner alone, if there is none.

    One thread at a time may use the connection.
    """
    return open_database(
        path,
        _APPLICATION_ID,
        read_migrations("sqlite"),
        _ERRORS,
        partial(connect_store, synchronous=synchronous),
    )


def connect_store(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """Connect to a file that `open_store_file` has checked."""
    return connect(path, (*_PRAGMAS, f"synchronous = {synchronous}"), BUSY_SECONDS)


def translate_errors(path: Path) -> AbstractContextManager[None]:
    """Replace failures of SQLite and of the file system by errors with a code."""
    return _ERRORS.translate(path)


class _SqliteSession:
    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def fetch_rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._cursor.execute(query, values).fetchall()

    def execute(self, statement: str, *values: object) -> int:
        return self._cursor.execute(statement, values).rowcount

    def execute_many(self, statement: str, values: Sequence[tuple[object, ...]]) -> int:
        return self._cursor.executemany(statement, values).rowcount if values else 0


class SqliteStore(SqlStore):
    """A store in a file; the file is created if it does not exist.

    Parameters
    ----------
    path
        The file. Only its owner can read it.

    Notes
    -----
    Threads may share it: writers run one after another, readers never wait.

    Acknowledged data is on the disk (``synchronous = FULL``). Deleted data is overwritten with
    zeros in the file immediately (``secure_delete``). The write-ahead log ``PATH-wal`` has it until
    the log restarts, after 1,000 pages or about 4 MB, or is emptied by `tidy` or by the last
    process that closes the file. SQLite cannot erase copies of released blocks in the file system,
    a solid-state disk or a backup. Until the next `tidy`, the log and the positions of rows in a
    page show which ticket was written with which enrolment.

    Examples
    --------
    >>> import tempfile
    >>> from shoal.coordinator.store.base import NewEnrolment, StudyRecord
    >>> with tempfile.TemporaryDirectory() as folder, SqliteStore(f"{folder}/store.db") as store:
    ...     store.publish(
    ...         StudyRecord(
    ...             "7f" * 32, b"a manifest", opened=0, phase_timeout=1000, seats=("holder-0",)
    ...         )
    ...     )
    ...     store.enrol("7f" * 32, NewEnrolment(b"a key"))
    True
    'holder-0'
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path = Path(path).absolute()
        self._writer = open_store_file(self.path, "FULL")
        self._write_lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._is_closed = False

    def close(self) -> None:
        """Close the file; the last process that closes it deletes the log."""
        with self._write_lock:
            self._is_closed = True
            self._writer.close()
            while self._readers:
                self._readers.pop().close()

    @contextmanager
    def _read_transaction(self) -> Iterator[_SqliteSession]:
        with translate_errors(self.path):
            db = self._take_reader()
            try:
                with _open_session(db, "BEGIN") as session:
                    yield session
            finally:
                self._return_reader(db)

    def _return_reader(self, db: sqlite3.Connection) -> None:
        if self._is_closed:
            db.close()
        else:
            self._readers.append(db)

    def _take_reader(self) -> sqlite3.Connection:
        try:
            return self._readers.pop()
        except IndexError:
            return connect_store(self.path, "FULL")

    @contextmanager
    def _write_transaction(self) -> Iterator[_SqliteSession]:
        with (
            translate_errors(self.path),
            self._write_lock,
            _open_session(self._writer, "BEGIN IMMEDIATE") as session,
        ):
            yield session

    def _after_slice(self) -> None:
        """Copy the log to the file; otherwise the commit of some writer would have to do it."""
        with translate_errors(self.path):
            db = self._take_reader()
            try:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                self._return_reader(db)

    def _clear_disk(self) -> None:
        """Empty the write-ahead log, unless another process is using it now."""
        with translate_errors(self.path), self._write_lock:
            self._writer.execute("PRAGMA busy_timeout = 0")
            try:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._writer.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")


@contextmanager
def _open_session(db: sqlite3.Connection, begin: str) -> Iterator[_SqliteSession]:
    with transaction(db, begin), closing(db.cursor()) as cursor:
        yield _SqliteSession(cursor)
