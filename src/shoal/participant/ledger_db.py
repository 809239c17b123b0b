"""The ledger's SQLite file as a file: made at once or not at all, opened with care, and every fault of it a sentence."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from shoal.clock import Clock
from shoal.errors import IntegrityError, ShoalError, StoreError
from shoal.privacy.ledger import Books, rolled_back
from shoal.privacy.limits import DEFAULT_LIMITS
from shoal.privacy.records import LimitSet, Opened, Record, Row

_BUSY_SECONDS = 30.0
_SETTINGS = ("trusted_schema = OFF", "cell_size_check = ON", "synchronous = EXTRA", "fullfsync = ON", "secure_delete = ON")
_LOWEST = -(1 << 63)
_SCRIPTS = ("ledger.sql", "journal.sql", "tokens.sql")
"""What made each version of the one before it, the first of nothing."""


class _Form(NamedTuple):
    """What tells a ledger from other databases."""

    application_id: int
    version: int
    tables: tuple[tuple[str | None, ...], ...]


def connect(path: Path) -> sqlite3.Connection:
    """Open a file that exists, so that a transaction that has ended is on the disk."""
    db = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        for setting in _SETTINGS:
            db.execute(f"PRAGMA {setting}")
        # With a rollback journal the file alone is the ledger once a transaction has ended: it can be copied and moved.
        db.execute("PRAGMA journal_mode = DELETE").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def create(path: Path, clock: Clock) -> None:
    """Make a ledger with the default limits; it appears under its name when it is whole, or, if another process is faster, not at all.

    So an empty or half-made ledger is never one that shoal has left behind.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        with closing(connect(Path(name))) as db:
            db.executescript(f"BEGIN; {_schema(0)} INSERT INTO head VALUES (0, x''); COMMIT;")
            db.execute("BEGIN IMMEDIATE")
            books = Books()
            records: list[Record] = [Opened(clock.now()), *(LimitSet(clock.now(), limit) for limit in DEFAULT_LIMITS)]
            for record in records:
                append(db, books, record)
                fold(db, books, path)
            db.execute("COMMIT")
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        for left in (name, f"{name}-journal"):
            Path(left).unlink(missing_ok=True)
    for folder in {path.parent, *(folder.parent for folder in missing)}:
        _sync(folder)


def append(db: sqlite3.Connection, books: Books, record: Record) -> None:
    """Write the next record, if it may follow; the books learn of it when they are folded again."""
    row = books.seal(record)
    db.execute("INSERT INTO log (seq, prev, hash, body) VALUES (?, ?, ?, ?)", row)
    db.execute("UPDATE head SET seq = ?, hash = ?", (row.seq, row.hash))


def fold(db: sqlite3.Connection, books: Books, path: Path) -> None:
    """Check and fold in the rows that the books do not know yet."""
    known = books.head
    query = db.execute("SELECT seq, prev, hash, body FROM log WHERE seq >= ? ORDER BY seq", (known.seq or _LOWEST,))
    # A query that is left unfinished would keep the file locked for as long as somebody looks at the error.
    with closing(query) as rows:
        if known.seq:
            last = rows.fetchone()
            if last is None or (last[0], last[2]) != known:
                raise rolled_back(
                    f"The ledger {path} was overwritten while it was open: it no longer has the record {known.seq} that it had."
                )
        for row in rows:
            books.apply(Row(*row))
    if db.execute("SELECT seq, hash FROM head").fetchall() != [books.head]:
        raise altered(path, f"its records do not end where they should, at record {books.head.seq}")


def upgrade(db: sqlite3.Connection) -> None:
    """Bring a whole ledger of an earlier version up to the present one, in one transaction. Anything else is left for `check_form`."""
    form = _form(db)
    if form.version < len(_SCRIPTS) and form == _expected_form(form.version):
        db.executescript(f"BEGIN IMMEDIATE; {_schema(form.version)} COMMIT;")


def check_form(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is not a ledger, is of a newer version, or is damaged below the level of records."""
    form, expected = _form(db), _expected_form(len(_SCRIPTS))
    if form.application_id != expected.application_id:
        raise _not_a_ledger(path)
    if form.version > expected.version:
        raise StoreError(
            "LEDGER-005",
            f"The ledger {path} is of version {form.version}; this shoal reads up to version {expected.version}.",
            fix="Use the newer shoal that wrote it: pip install --upgrade shoal",
        )
    if form != expected:
        raise altered(path, "its tables are not those of a ledger")
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise altered(path, "SQLite finds its pages damaged")


def is_there(path: Path) -> bool:
    """Whether there is something under a path; where that cannot be found out, an error, since "no" would mean that nothing was spent."""
    with in_sentences(path):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except ValueError:
            raise StoreError("LEDGER-001", f"{str(path)!r:.90} cannot be the path of a ledger.") from None
        return True


def identity(path: Path) -> tuple[int, int]:
    """Which file a path leads to; an error for anything but a file with something in it."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise StoreError("LEDGER-001", f"The ledger {path} is {kind}.", fix="Give the path of a file: --ledger PATH, or SHOAL_LEDGER.")
    if found.st_size == 0:
        raise altered(path, "it is empty, which no ledger is from its first day")
    return found.st_dev, found.st_ino


def altered(path: Path, reason: str) -> IntegrityError:
    """The error for a file that is not as it was written."""
    return IntegrityError(
        "LEDGER-006",
        f"The ledger {path} is damaged: {reason}.",
        why="The file was cut short, changed by something other than shoal, or the disk is failing.",
        fix="Nothing is released until it is whole again: restore a backup that has your last noted head (shoal ledger verify --head).",
    )


@contextmanager
def in_sentences(path: Path) -> Iterator[None]:
    """Turn every fault of SQLite and of the file system into an error with a code."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(error, path) from None
    except UnicodeDecodeError:
        # The sqlite3 module itself stumbles over an error message that quotes a damaged file.
        raise altered(path, "it has text that is not UTF-8") from None
    except OSError as error:
        raise StoreError("LEDGER-001", f"The ledger {path} cannot be used: {error.strerror or error}.", fix=_OTHER_PLACE) from None


_OTHER_PLACE = "See to its permissions and its disk, or use another place: --ledger PATH, or SHOAL_LEDGER."


def _explain(error: sqlite3.Error, path: Path) -> ShoalError:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StoreError(
                "LEDGER-002",
                f"There is no room to write to the ledger {path}.",
                why="The disk is full. The ledger is as it was before, and nothing may be sent that it has not counted.",
                fix="Make room and try again.",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(
                "LEDGER-003",
                f"Another process has kept the ledger {path} locked for {_BUSY_SECONDS:.0f} seconds.",
                fix="Wait for it to end, or end it, and try again.",
            )
        case sqlite3.SQLITE_NOTADB:
            return _not_a_ledger(path)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_FORMAT | sqlite3.SQLITE_MISMATCH:
            # SQLite's own words may quote the file, which may hold anything.
            return altered(path, f"SQLite cannot make sense of it ({error.sqlite_errorname})")
        case 0 if isinstance(error, sqlite3.OperationalError):
            return altered(path, "it has text that is not UTF-8")
        case _:
            why = "The ledger is as it was before, and nothing may be sent that it has not counted."
            return StoreError("LEDGER-001", f"The ledger {path} cannot be used: {error}.", why=why, fix=_OTHER_PLACE)


def _not_a_ledger(path: Path) -> StoreError:
    return StoreError(
        "LEDGER-004",
        f"{path} is not a ledger.",
        why="It is some other file, or the beginning of a ledger was overwritten.",
        fix="Give the path of a ledger, or of a file that does not exist yet: --ledger PATH, or SHOAL_LEDGER.",
    )


def _form(db: sqlite3.Connection) -> _Form:
    (application_id,), (version,) = (db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version"))
    return _Form(application_id, version, tuple(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")))


@cache
def _expected_form(version: int) -> _Form:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_schema(0, version))
        return _form(db)


@cache
def _schema(after: int, upto: int = len(_SCRIPTS)) -> str:
    """What makes the later of two versions of the earlier one; version 0 is an empty database."""
    return "".join(files("shoal.participant").joinpath(name).read_text("utf-8") for name in _SCRIPTS[after:upto])


def _sync(folder: Path) -> None:
    """Have the names in a directory survive a power cut, where the file system knows how."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
