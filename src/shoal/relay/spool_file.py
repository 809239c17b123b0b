"""The file of a spool: made at once or not at all, one relay's alone, and every fault of it a sentence."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from shoal.errors import StoreError
from shoal.names import shown

_APPLICATION, _VERSION = int.from_bytes(b"SHOR"), 1
_BUSY_SECONDS = 5.0
_SETTINGS = (
    "trusted_schema = OFF",
    "secure_delete = ON",
    "synchronous = FULL",
    # The log is cut when it begins anew: no frame of an earlier round stays behind its end.
    "journal_size_limit = 0",
    # Nothing of a packet is written anywhere else, as a sort would do.
    "temp_store = MEMORY",
    # Two relays with one spool would each release a part of what came.
    "locking_mode = EXCLUSIVE",
)


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to a spool's file, which is made where there is none, and which no other process can open until it is closed."""
    with in_sentences(path):
        if not path.exists():
            _create(path)
        db = _connect(path)
        try:
            _check_form(db, path)
            db.execute("BEGIN EXCLUSIVE")
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """What is done in it is done wholly, and on the disk, or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


@contextmanager
def in_sentences(path: Path) -> Iterator[None]:
    """Turn every fault of SQLite and of the file system into an error with a code."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        number = getattr(error, "sqlite_errorcode", None)
        if number == sqlite3.SQLITE_NOTADB:
            raise _not_a_spool(path) from None
        if number == sqlite3.SQLITE_BUSY:
            what = f"Another process has the spool {shown(str(path))}."
            raise StoreError("RELAY-002", what, fix="Let it go on, or end it first; or give another --spool.") from None
        # SQLite's own words may quote the file.
        name = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__
        raise StoreError(
            "RELAY-002",
            f"The spool {shown(str(path))} cannot be used: {name}.",
            why="The disk is full or failing, or the file may not be written.",
            fix="See to the file and its disk. What was not acknowledged will come again.",
        ) from None


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for setting in _SETTINGS:
            db.execute(f"PRAGMA {setting}").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _create(path: Path) -> None:
    """Make an empty spool; it appears under its name when it is whole, or, if another process is faster, not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        with closing(_connect(Path(name))) as db:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
            db.executescript((files("shoal.relay") / "spool.sql").read_text(encoding="utf-8"))
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute(f"PRAGMA user_version = {_VERSION}")
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


def _check_form(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise _not_a_spool(path)
    if version > _VERSION:
        raise StoreError(
            "RELAY-002",
            f"The spool {shown(str(path))} is of version {version}; this shoal reads up to version {_VERSION}.",
            fix="Use the newer shoal that wrote it: pip install --upgrade shoal",
        )


def _not_a_spool(path: Path) -> StoreError:
    return StoreError(
        "RELAY-002", f"{shown(str(path))} is not a relay's spool.", fix="Give a path where there is no file yet: --spool PATH"
    )
