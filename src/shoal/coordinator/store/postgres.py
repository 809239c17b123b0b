"""A coordinator's store in PostgreSQL, for several processes on several machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.coordinator.store.postgres_link import Link
from shoal.coordinator.store.sql import SqlStore
from shoal.coordinator.store.statements import EMPTIED

if TYPE_CHECKING:
    import psycopg

_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_VACUUMED = ", ".join(("secret", "standing", "enrolment", "registration", "letter", "nonce", *EMPTIED))


class _PostgresSession:
    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._cursor.execute(_translated(query), values).fetchall()

    def change(self, statement: str, *values: object) -> int:
        return self._cursor.execute(_translated(statement), values).rowcount

    def change_many(self, statement: str, values: Sequence[tuple[object, ...]]) -> int:
        if not values:
            return 0
        self._cursor.executemany(_translated(statement), values)
        return self._cursor.rowcount


class PostgresStore(SqlStore):
    """A store in a database of its own.

    Parameters
    ----------
    url
        ``postgresql://[user[:password]@]host[:port]/database``.

    Notes
    -----
    Threads may share it. What was acknowledged is on the disk, if the server's ``fsync`` is on, as it is unless somebody turned it off.
    Two who write to one study come one after another, by the lock on its row in ``standing``, so that no stricter isolation is needed.

    What PostgreSQL leaves on the disk is its own: what was deleted stays in the tables' pages until they are used again, also after
    `tidy`, which vacuums them, and in the write-ahead log until its segments are recycled or, where they are archived, for as long as the
    archive is kept. Log no statements (``log_statement = none``, ``log_min_duration_statement = -1``, as installed): their values would
    be in the server's log.
    """

    row_lock: ClassVar[str] = " FOR UPDATE"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._link = Link(url)

    def close(self) -> None:
        self._link.close()

    @contextmanager
    def _reading(self) -> Iterator[_PostgresSession]:
        with self._link.transaction(_READ) as db, db.cursor() as cursor:
            yield _PostgresSession(cursor)

    @contextmanager
    def _writing(self) -> Iterator[_PostgresSession]:
        with self._link.transaction(_WRITE) as db, db.cursor() as cursor:
            yield _PostgresSession(cursor)

    def _clear_disk(self) -> None:
        with self._link.alone() as db:
            # A table that another process is vacuuming is left to it.
            db.execute(f"VACUUM (SKIP_LOCKED) {_VACUUMED}")


@cache
def _translated(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()
