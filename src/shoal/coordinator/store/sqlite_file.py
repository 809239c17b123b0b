"""A coordinator's SQLite file as a file: made at once or not at all, brought to the newest version, and every fault of it a sentence."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from shoal.coordinator.store.migrations import migrations
from shoal.errors import StoreError

BUSY_SECONDS = 30.0
LOG_PAGES = 1000

_APPLICATION = int.from_bytes(b"SHOC")
_SETTINGS = (
    "trusted_schema = OFF",
    "secure_delete = ON",
    f"wal_autocheckpoint = {LOG_PAGES}",
    # The log is cut when it begins anew: no frame of an earlier round stays behind its end.
    "journal_size_limit = 0",
)


def open_file(path: Path, synchronous: Literal["NORMAL", "FULL"]) -> sqlite3.Connection:
    """A connection to a coordinator's file, which is made where there is none; one thread at a time may use it.

    Parameters
    ----------
    path
        The file. Its owner alone can read it.
    synchronous
        ``FULL``: a transaction that has ended survives a power cut; ``NORMAL``: the death of any process, and what is written later with
        ``FULL`` makes it as durable.
    """
    with in_sentences(path):
        if not path.exists():
            _create(path)
        db = connect(path, synchronous)
        try:
            _check_form(db, path)
            if _version(db) < len(migrations("sqlite")):
                _migrate(db)
        except BaseException:
            db.close()
            raise
        return db


def connect(path: Path, synchronous: Literal["NORMAL", "FULL"]) -> sqlite3.Connection:
    """A connection to a file that is there and was checked before."""
    db = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for setting in (*_SETTINGS, f"synchronous = {synchronous}"):
            db.execute(f"PRAGMA {setting}")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def in_sentences(path: Path) -> Iterator[None]:
    """Turn every fault of SQLite and of the file system into an error with a code."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            raise _not_a_store(path) from None
        # SQLite's own words may quote the file.
        name = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__
        raise StoreError(
            "STORE-001",
            f"The store {path} cannot be used: {name}.",
            why="The disk is full or failing, the file may not be written, or another process keeps it locked.",
            fix="See to the file and its disk. What was not acknowledged will come again.",
        ) from None


def _create(path: Path) -> None:
    """Make an empty store; it appears under its name when it is whole, or, if another process is faster, not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        with closing(connect(Path(name), "FULL")) as db:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
            _migrate(db)
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        for left in (name, f"{name}-wal", f"{name}-shm"):
            Path(left).unlink(missing_ok=True)
    # The name itself survives a power cut, where the file system knows how.
    with suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _migrate(db: sqlite3.Connection) -> None:
    """Bring a file to the newest version, in one transaction; whoever waited for another process finds nothing left to do."""
    db.execute("BEGIN IMMEDIATE")
    try:
        scripts = migrations("sqlite")
        for script in scripts[_version(db) :]:
            for statement in _statements(script):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(scripts)}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _statements(script: str) -> Iterator[str]:
    """One by one: the sqlite3 module ends a transaction before it runs a whole script."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _check_form(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    version, newest = _version(db), len(migrations("sqlite"))
    if application != _APPLICATION:
        raise _not_a_store(path)
    if version > newest:
        raise StoreError(
            "STORE-003",
            f"The store {path} is of version {version}; this shoal reads up to version {newest}.",
            fix="Use the newer shoal that wrote it: pip install --upgrade shoal",
        )


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _not_a_store(path: Path) -> StoreError:
    return StoreError("STORE-003", f"{path} is not a coordinator's store.", fix="Give a path where there is no file yet.")
