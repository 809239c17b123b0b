"""A coordinator's store in one SQLite file, for several processes of one machine."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from shoal.coordinator.store.sql import SqlStore
from shoal.coordinator.store.sqlite_file import BUSY_SECONDS, connect, in_sentences, open_file


class _SqliteSession:
    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._cursor.execute(query, values).fetchall()

    def change(self, statement: str, *values: object) -> int:
        return self._cursor.execute(statement, values).rowcount

    def change_many(self, statement: str, values: Sequence[tuple[object, ...]]) -> int:
        return self._cursor.executemany(statement, values).rowcount if values else 0


class SqliteStore(SqlStore):
    """A store in a file, which is made where there is none. DDML's model instances may lie in the same file.

    Parameters
    ----------
    path
        The file. Its owner alone can read it.

    Notes
    -----
    Threads may share it: those who write come one after another, those who read never wait.

    What was acknowledged is on the disk (``synchronous = FULL``). What was deleted is overwritten with zeros in the file at once
    (``secure_delete``). The write-ahead log ``PATH-wal`` has it until it begins anew, after 1,000 pages or some 4 MB, or is emptied by
    `tidy` or by the last process that closes the file. What the file system, a solid-state disk or a backup keeps of blocks that were
    given up is beyond SQLite. Until the next `tidy`, the log and the places of rows in a page tell which ticket came with which enrolment.

    Examples
    --------
    >>> import tempfile
    >>> from shoal.coordinator.store.base import Hosted
    >>> with tempfile.TemporaryDirectory() as folder, SqliteStore(f"{folder}/store.db") as store:
    ...     store.publish(Hosted("7f" * 32, b"a manifest", opened=0, patience=1000, seats=("holder-0",)))
    ...     store.enrol("7f" * 32, b"a key", None, None, None)
    True
    'holder-0'
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path = Path(path).absolute()
        self._writer = open_file(self.path, "FULL")
        self._writing_lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._is_closed = False

    def close(self) -> None:
        """Close the file; the last to do so leaves no log behind."""
        with self._writing_lock:
            self._is_closed = True
            self._writer.close()
            while self._readers:
                self._readers.pop().close()

    @contextmanager
    def _reading(self) -> Iterator[_SqliteSession]:
        with in_sentences(self.path):
            db = self._reader()
            try:
                with _transaction(db, "BEGIN") as session:
                    yield session
            finally:
                if self._is_closed:
                    db.close()
                else:
                    self._readers.append(db)

    def _reader(self) -> sqlite3.Connection:
        try:
            return self._readers.pop()
        except IndexError:
            return connect(self.path, "FULL")

    @contextmanager
    def _writing(self) -> Iterator[_SqliteSession]:
        with in_sentences(self.path), self._writing_lock, _transaction(self._writer, "BEGIN IMMEDIATE") as session:
            yield session

    def _clear_disk(self) -> None:
        """Empty the write-ahead log; where others are in the way, the next time will do."""
        with in_sentences(self.path), self._writing_lock:
            self._writer.execute("PRAGMA busy_timeout = 0")
            try:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._writer.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")


@contextmanager
def _transaction(db: sqlite3.Connection, begin: str) -> Iterator[_SqliteSession]:
    db.execute(begin)
    try:
        with closing(db.cursor()) as cursor:
            yield _SqliteSession(cursor)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
