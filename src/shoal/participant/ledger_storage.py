"""The SQLite file of a participant: path, creation, migrations, format and error codes.

`shoal.participant.ledger_file` and `shoal.participant.journal` open the same file with
`open_ledger_file`. The commands find it with `find_ledger_path`.

A change must keep:

- A new file appears under its name when it is complete, and never replaces another file.
- Every failure of SQLite or of the file system has an error code. A file that cannot be read never
  counts as an empty ledger.
- Only the owner can read the file and its directory.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, NamedTuple

from shoal.clock import Clock
from shoal.errors import IntegrityError, ShoalError, StoreError, format_upgrade_command
from shoal.privacy.ledger.limits import DEFAULT_LIMITS
from shoal.privacy.ledger.records import LedgerRecord, LedgerRow, LimitRecord, OpeningRecord
from shoal.privacy.ledger.state import LedgerState, rolled_back_error
from shoal.sqlite import (
    DatabaseErrors,
    connect,
    create_database,
    open_database,
    sync_directory,
)

_BUSY_SECONDS = 30.0
_APPLICATION_ID = int.from_bytes(b"SHOL")
_PRAGMAS = (
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "synchronous = EXTRA",
    "fullfsync = ON",
    "secure_delete = ON",
    # With a rollback journal the file alone is the ledger after each transaction: it can be copied
    # and moved.
    "journal_mode = DELETE",
)
_MIN_SEQ = -(1 << 63)
_SCRIPTS = ("ledger.sql", "journal.sql", "tokens.sql", "budgets.sql")
"""The migrations: each makes a version of the one before it."""


def find_ledger_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``SHOAL_LEDGER``, or ``shoal/ledger.db`` in the user's data directory."""
    if environ.get("SHOAL_LEDGER"):
        return Path(environ["SHOAL_LEDGER"])
    data, home = environ.get("XDG_DATA_HOME", ""), environ.get("HOME", "")
    # The XDG specification says that relative paths are ignored.
    if not (data.startswith("/") or home.startswith("/")):
        raise StoreError(
            "LEDGER-001",
            "The ledger has no default path: HOME is not set.",
            fix="Give a path: --ledger PATH, or SHOAL_LEDGER.",
        )
    return (
        (Path(data) if data.startswith("/") else Path(home) / ".local" / "share")
        / "shoal"
        / "ledger.db"
    )


class _LedgerFormat(NamedTuple):
    """Application id, version and tables, which distinguish a ledger from other databases."""

    application_id: int
    version: int
    tables: tuple[tuple[str | None, ...], ...]


class FileIdentity(NamedTuple):
    """Device and inode of a file: they change if another file is moved to its path."""

    device: int
    inode: int


def open_ledger_file(path: Path, clock: Clock) -> tuple[sqlite3.Connection, FileIdentity]:
    """Open a ledger, or create it with the default limits, and migrate it.

    Only the thread that opens the connection may use it.
    """
    with translate_ledger_errors(path):
        if not path_exists(path):
            create_ledger(path, clock)
        # Read before the file is opened: a file that is moved here later has another identity.
        identity = read_file_identity(path)
        db = open_database(
            path,
            _APPLICATION_ID,
            _read_scripts(),
            _ERRORS,
            connect_ledger,
            check=lambda db: check_ledger_format(db, path, is_older_allowed=True),
            must_exist=True,
        )
        return db, identity


def connect_ledger(path: Path) -> sqlite3.Connection:
    """Connect to an existing ledger, for the calling thread only."""
    return connect(path, _PRAGMAS, _BUSY_SECONDS, is_shared=False)


def create_ledger(path: Path, clock: Clock) -> None:
    """Create a ledger with the default limits, unless another process creates it first.

    It appears under its name when it is complete. shoal therefore never leaves an empty or
    incomplete ledger behind.
    """

    def write_first_records(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO head VALUES (0, x'')")
        ledger_state = LedgerState()
        records: list[LedgerRecord] = [
            OpeningRecord(clock.now()),
            *(LimitRecord(clock.now(), limit) for limit in DEFAULT_LIMITS),
        ]
        for record in records:
            append_record(db, ledger_state, record)
            apply_new_rows(db, ledger_state, path)

    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_database(
        path,
        _APPLICATION_ID,
        _read_scripts(),
        connect_ledger,
        journal_mode="DELETE",
        fill=write_first_records,
    )
    for folder in missing:
        sync_directory(folder.parent)


def append_record(db: sqlite3.Connection, ledger_state: LedgerState, record: LedgerRecord) -> None:
    """Write the next record, if the rules allow it; `apply_new_rows` then updates the state."""
    row = ledger_state.make_row(record)
    db.execute("INSERT INTO log (seq, prev, hash, body) VALUES (?, ?, ?, ?)", row)
    db.execute("UPDATE head SET seq = ?, hash = ?", (row.seq, row.hash))


def apply_new_rows(db: sqlite3.Connection, ledger_state: LedgerState, path: Path) -> None:
    """Check the rows that the state does not have yet, and apply them to it."""
    known = ledger_state.head
    query = db.execute(
        "SELECT seq, prev, hash, body FROM log WHERE seq >= ? ORDER BY seq",
        (known.seq or _MIN_SEQ,),
    )
    # An unfinished query would keep the file locked while a reference to the error exists.
    with closing(query) as rows:
        if known.seq:
            last = rows.fetchone()
            if last is None or (last[0], last[2]) != known:
                raise rolled_back_error(
                    f"The ledger {path} was overwritten while it was open: record {known.seq} is "
                    "missing or different."
                )
        for row in rows:
            ledger_state.apply(LedgerRow(*row))
    if db.execute("SELECT seq, hash FROM head").fetchall() != [ledger_state.head]:
        raise damaged_ledger_error(
            path, f"its records do not end where they should, at record {ledger_state.head.seq}"
        )


def check_ledger_format(
    db: sqlite3.Connection, path: Path, *, is_older_allowed: bool = False
) -> None:
    """Raise if a database is not a ledger of this version, or is damaged below its records.

    Parameters
    ----------
    is_older_allowed
        Whether the file may be an intact ledger of an older version, which can be migrated.
    """
    found, newest = _read_format(db), len(_SCRIPTS)
    if found.application_id != _APPLICATION_ID:
        raise _ERRORS.wrong_format(path)
    if found.version > newest:
        raise _ERRORS.newer_version(path, found.version, newest)
    version = found.version if is_older_allowed and found.version > 0 else newest
    if found != _make_expected_format(version):
        raise damaged_ledger_error(path, "its tables are not those of a ledger")
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damaged_ledger_error(path, "SQLite finds its pages damaged")


def path_exists(path: Path) -> bool:
    """Return whether a path exists.

    Raise if this cannot be determined: "no" would mean that nothing was spent.
    """
    with translate_ledger_errors(path):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except ValueError:
            raise StoreError(
                "LEDGER-001", f"{str(path)!r:.90} cannot be the path of a ledger."
            ) from None
        return True


def read_file_identity(path: Path) -> FileIdentity:
    """Return which file is at a path; raise if it is empty or not a regular file."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise StoreError(
            "LEDGER-001",
            f"The ledger {path} is {kind}.",
            fix="Give the path of a file: --ledger PATH, or SHOAL_LEDGER.",
        )
    if found.st_size == 0:
        raise damaged_ledger_error(path, "it is empty, and a ledger never is")
    return FileIdentity(found.st_dev, found.st_ino)


def damaged_ledger_error(path: Path, reason: str) -> IntegrityError:
    """Return the error for a file that differs from what was written."""
    return IntegrityError(
        "LEDGER-006",
        f"The ledger {path} is damaged: {reason}.",
        why="The file was cut short, changed by something other than shoal, or the disk is "
        "failing.",
        fix="Restore a backup that contains the last head that you noted (shoal ledger verify "
        "--head). Nothing is released until then.",
    )


def translate_ledger_errors(path: Path) -> AbstractContextManager[None]:
    """Replace failures of SQLite and of the file system by errors with a code."""
    return _ERRORS.translate(path)


_STORAGE_FIX = (
    "Check its permissions and its disk, or use another path: --ledger PATH, or SHOAL_LEDGER."
)


class _LedgerErrors(DatabaseErrors):
    """The errors of a ledger file."""

    translated: ClassVar[tuple[type[Exception], ...]] = (
        sqlite3.Error,
        OSError,
        UnicodeDecodeError,
    )

    def wrong_format(self, path: Path) -> StoreError:
        return StoreError(
            "LEDGER-004",
            f"{path} is not a ledger.",
            why="It is some other file, or the beginning of a ledger was overwritten.",
            fix="Give the path of a ledger, or of a file that does not exist yet: --ledger PATH, "
            "or SHOAL_LEDGER.",
        )

    def newer_version(self, path: Path, version: int, newest: int) -> StoreError:
        upgrade_command = format_upgrade_command()
        return StoreError(
            "LEDGER-005",
            f"The ledger {path} has version {version}; this version of shoal reads up to version "
            f"{newest}.",
            fix=f"Use the newer version of shoal that wrote it: {upgrade_command}",
        )

    def unusable(self, path: Path, error: Exception) -> ShoalError:
        if isinstance(error, sqlite3.Error):
            return _translate_sqlite_error(error, path)
        if isinstance(error, UnicodeDecodeError):
            # The sqlite3 module fails on an error message that quotes a damaged file.
            return damaged_ledger_error(path, "it has text that is not UTF-8")
        return StoreError(
            "LEDGER-001",
            f"The ledger {path} cannot be used: {getattr(error, 'strerror', None) or error}.",
            fix=_STORAGE_FIX,
        )


_ERRORS = _LedgerErrors()


def _translate_sqlite_error(error: sqlite3.Error, path: Path) -> ShoalError:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StoreError(
                "LEDGER-002",
                f"There is no room to write to the ledger {path}.",
                why="The disk is full. The ledger is unchanged, and nothing is sent that it has "
                "not counted.",
                fix="Free some disk space, and try again.",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(
                "LEDGER-003",
                f"Another process has kept the ledger {path} locked for {_BUSY_SECONDS:.0f} "
                "seconds.",
                fix="Wait for that process to end, or stop it, and try again.",
            )
        case sqlite3.SQLITE_NOTADB:
            return _ERRORS.wrong_format(path)
        case (
            sqlite3.SQLITE_CORRUPT
            | sqlite3.SQLITE_ERROR
            | sqlite3.SQLITE_CONSTRAINT
            | sqlite3.SQLITE_FORMAT
            | sqlite3.SQLITE_MISMATCH
        ):
            # SQLite's message may quote the file, which may contain anything.
            return damaged_ledger_error(path, f"SQLite cannot read it ({error.sqlite_errorname})")
        case 0 if isinstance(error, sqlite3.OperationalError):
            return damaged_ledger_error(path, "it has text that is not UTF-8")
        case _:
            return StoreError(
                "LEDGER-001",
                f"The ledger {path} cannot be used: {error}.",
                why="The ledger is unchanged, and nothing is sent that it has not counted.",
                fix=_STORAGE_FIX,
            )


def _read_format(db: sqlite3.Connection) -> _LedgerFormat:
    (application_id,), (version,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    return _LedgerFormat(
        application_id,
        version,
        tuple(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")),
    )


@cache
def _make_expected_format(version: int) -> _LedgerFormat:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript("".join(_read_scripts()[:version]))
        return _read_format(db)


@cache
def _read_scripts() -> tuple[str, ...]:
    return tuple(files("shoal.participant").joinpath(name).read_text("utf-8") for name in _SCRIPTS)
