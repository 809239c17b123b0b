"""Open, create and migrate SQLite files; map SQLite errors to error codes.

The coordinator's store, the relay's spool and the participant's ledger are such files. Each passes
its application id, its migrations, its errors and a function that connects with its own pragmas.

A file of version n has had the first n migrations. A change must keep:

- A new file appears under its name complete or not at all, and never replaces another file.
- A file with another application id, or of a newer version, is not written to.
- Migrations run in one transaction. If two processes open an old file, only one migrates it.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from shoal.errors import ShoalError

Connect = Callable[[Path], sqlite3.Connection]
"""Opens an existing file with the pragmas of its kind."""


class DatabaseErrors(ABC):
    """The errors of one kind of SQLite file."""

    translated: ClassVar[tuple[type[Exception], ...]] = (sqlite3.Error, OSError)
    """The exceptions that `translate` replaces."""

    @abstractmethod
    def wrong_format(self, path: Path) -> ShoalError:
        """Return the error for a file of another kind."""

    @abstractmethod
    def unusable(self, path: Path, error: Exception) -> ShoalError:
        """Return the error for a failure of SQLite or of the file system."""

    @abstractmethod
    def newer_version(self, path: Path, version: int, newest: int) -> ShoalError:
        """Return the error for a file that a newer version of shoal has written."""

    @contextmanager
    def translate(self, path: Path) -> Iterator[None]:
        """Replace failures of SQLite and of the file system by errors with a code."""
        try:
            yield
        except self.translated as error:
            raise self.unusable(path, error) from None


def name_error(error: Exception) -> str:
    """Return the name of a failure, without SQLite's message, which may quote the file."""
    return (
        getattr(error, "sqlite_errorname", None)
        or getattr(error, "strerror", None)
        or type(error).__name__
    )


def connect(
    path: Path, pragmas: Sequence[str], busy_seconds: float, *, is_shared: bool = True
) -> sqlite3.Connection:
    """Connect to an existing file.

    Parameters
    ----------
    pragmas
        Settings, such as ``synchronous = FULL``, in the order in which they are made.
    busy_seconds
        How long to wait for the locks of other connections.
    is_shared
        Whether several threads may use the connection, one at a time.
    """
    db = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=not is_shared,
    )
    try:
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def open_database(
    path: Path,
    application_id: int,
    migrations: Sequence[str],
    errors: DatabaseErrors,
    connect: Connect,
    *,
    check: Callable[[sqlite3.Connection], None] | None = None,
    must_exist: bool = False,
) -> sqlite3.Connection:
    """Open a file, create it if it does not exist, and migrate it to the newest version.

    Parameters
    ----------
    migrations
        SQL scripts; the file's version is the number of those that it has had.
    connect
        Opens an existing file with the pragmas of its kind.
    check
        Checks the file further before it is migrated.
    must_exist
        Whether to fail, instead of creating it, if there is no file.

    Raises
    ------
    ShoalError
        The file cannot be opened, is of another kind or of a newer version.
    """
    with errors.translate(path):
        if not (must_exist or path.exists()):
            create_database(path, application_id, migrations, connect)
        db = connect(path)
        try:
            version = _check_format(db, path, application_id, len(migrations), errors)
            if check is not None:
                check(db)
            if version < len(migrations):
                _migrate(db, application_id, migrations)
        except BaseException:
            db.close()
            raise
        return db


def create_database(
    path: Path,
    application_id: int,
    migrations: Sequence[str],
    connect: Connect,
    *,
    journal_mode: str = "WAL",
    fill: Callable[[sqlite3.Connection], None] = lambda _: None,
) -> None:
    """Create a file of the newest version, unless another process creates it first.

    Parameters
    ----------
    fill
        Writes the first rows.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        with closing(connect(Path(name))) as db:
            db.execute(f"PRAGMA journal_mode = {journal_mode}").fetchone()
            _migrate(db, application_id, migrations)
            with transaction(db):
                fill(db)
        # Unlike a rename, a link does not replace an existing file.
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(name + suffix).unlink(missing_ok=True)
    sync_directory(path.parent)


@contextmanager
def transaction(
    db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE"
) -> Iterator[sqlite3.Connection]:
    """Run statements as one transaction: commit at the end, roll back on any exception."""
    db.execute(begin)
    try:
        yield db
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def sync_directory(folder: Path) -> None:
    """Make the names in a directory survive a power cut, if the file system can do this."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _check_format(
    db: sqlite3.Connection, path: Path, application_id: int, newest: int, errors: DatabaseErrors
) -> int:
    """Raise if a file is of another kind or of a newer version; return its version."""
    (stored_id,) = db.execute("PRAGMA application_id").fetchone()
    version = _read_version(db)
    if stored_id != application_id:
        raise errors.wrong_format(path)
    if version > newest:
        raise errors.newer_version(path, version, newest)
    return version


def _migrate(db: sqlite3.Connection, application_id: int, migrations: Sequence[str]) -> None:
    """Run the migrations that a file has not had.

    The version is read inside the transaction: another process may have migrated the file.
    """
    with transaction(db):
        for script in migrations[_read_version(db) :]:
            for statement in _split_statements(script):
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {application_id}")
        db.execute(f"PRAGMA user_version = {len(migrations)}")


def _split_statements(script: str) -> Iterator[str]:
    """Yield the statements of a script.

    The sqlite3 module would end the transaction before it runs a whole script.
    """
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _read_version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
