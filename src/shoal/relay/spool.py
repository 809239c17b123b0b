"""The spool: sealed packets on disk until the coordinator has received them.

The relay's handlers put packets in; `BatchReleaser` makes batches and deletes what was delivered.
A packet is in one of four states:

waiting
    Received, and not part of a batch yet.
assigned
    Part of a batch. One shuffle of the batch has decided in which part of it the packet is sent.
    The relay resends a part, also after a crash, until the coordinator answers.
shown
    Was in a part that the coordinator has answered. If the coordinator refused the part, the packet
    waits and may be sent again. If it acknowledged the packet, or found it invalid, the packet is
    deleted and overwritten in the file; its digest stays.
deleted
    Too late to count: deleted together with its digest.

A change must keep: shown packets never count towards the minimum size of another batch. A
coordinator could otherwise refuse a batch, or request all of it again, get the same packets with
one more, and so learn who sent that packet. Digests therefore stay until their phase is over: the
spool recognises a packet that arrives again.

``spool.sql`` describes the columns. The primary key (``place``) of a row is random, but a page also
keeps the order in which its rows were written. `Spool.rewrite_sorted` rewrites the file in the
order of keys and empties SQLite's log; the relay calls it soon after packets arrive.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from shoal.clock import from_milliseconds, to_milliseconds
from shoal.entropy import Entropy
from shoal.errors import StoreError, format_upgrade_command
from shoal.sqlite import DatabaseErrors, connect, name_error, open_database, transaction
from shoal.study.schedule import PhaseWindow
from shoal.text import escape_text
from shoal.transport.packets import split_evenly

T = TypeVar("T")

SpoolOutcome = Literal["kept", "repeated", "full"]
"""The outcome for a packet: written to disk; already in the spool; no room."""

PLACE_BYTES = 16
MAX_REWRITE_BYTES = 1 << 28
"""`Spool.rewrite_sorted` rewrites the file if its packets have at most this many bytes."""

_WAITING = "study = ? AND phase = ? AND part IS NULL AND sealed IS NOT NULL"
_CLEARED = "part = NULL, is_shown = TRUE, sealed = NULL"
_IS_RESENDABLE = """
    is_again AND NOT EXISTS (
        SELECT 1 FROM packets
        WHERE packets.study = phases.study AND packets.phase = phases.phase AND part IS NOT NULL
    )
"""

_ASK_COLUMN = "ALTER TABLE phases ADD COLUMN ask BLOB;"
"""Second version of the file: the digest of the opening of a phase."""
_APPLICATION_ID = int.from_bytes(b"SHOR")
_BUSY_SECONDS = 5.0
_PRAGMAS = (
    "trusted_schema = OFF",
    "secure_delete = ON",
    "synchronous = FULL",
    # Truncate the log when it restarts: no frame of an earlier round stays behind its end.
    "journal_size_limit = 0",
    # No part of a packet is written to another file, as a sort would do.
    "temp_store = MEMORY",
    # Two relays with one spool would each release a part of the packets.
    "locking_mode = EXCLUSIVE",
)


class _SpoolErrors(DatabaseErrors):
    """The errors of a spool's file."""

    translated: ClassVar[tuple[type[Exception], ...]] = (sqlite3.Error, OSError, ValueError)

    def wrong_format(self, path: Path) -> StoreError:
        return StoreError(
            "RELAY-002",
            f"{escape_text(str(path))} is not a relay's spool.",
            fix="Give a path where there is no file yet: --spool PATH",
        )

    def newer_version(self, path: Path, version: int, newest: int) -> StoreError:
        upgrade_command = format_upgrade_command()
        return StoreError(
            "RELAY-002",
            f"The spool {escape_text(str(path))} has version {version}; this version of shoal "
            f"reads up to version {newest}.",
            fix=f"Use the newer version of shoal that wrote it: {upgrade_command}",
        )

    def unusable(self, path: Path, error: Exception) -> StoreError:
        number = getattr(error, "sqlite_errorcode", None)
        if number == sqlite3.SQLITE_NOTADB:
            return self.wrong_format(path)
        if number == sqlite3.SQLITE_BUSY:
            return StoreError(
                "RELAY-002",
                f"Another process has the spool {escape_text(str(path))}.",
                fix="Stop the other relay first, or give another --spool.",
            )
        return StoreError(
            "RELAY-002",
            f"The spool {escape_text(str(path))} cannot be used: {name_error(error)}.",
            why="The disk is full or failing, or the file may not be written.",
            fix="Check the file and its disk. Senders resend packets that were not acknowledged.",
        )


_ERRORS = _SpoolErrors()


class SealedPacket(NamedTuple):
    """A sealed packet as it was received."""

    study: str
    phase: int
    sealed: bytes
    limit: int
    """The most packets of the study that the spool keeps."""


@dataclass(frozen=True, slots=True)
class SpooledPhase:
    """A phase of a study, as the spool has recorded it."""

    number: int
    window: PhaseWindow
    n_batches: int = 0
    """How many of its two batches were made."""
    ask: bytes | None = None
    """SHA-256 of the first signed opening that was read."""


@dataclass
class _PacketCounts:
    """Number of packets of each study, and of bytes of all studies."""

    by_study: dict[str, int] = field(default_factory=dict)
    n_bytes: int = 0

    def add(self, study: str, n: int, n_bytes: int) -> None:
        self.by_study[study] = self.by_study.get(study, 0) + n
        self.n_bytes += n_bytes


class Spool:
    """A spool in a SQLite file, which is created if it does not exist.

    Threads may share a spool; processes may not.

    Parameters
    ----------
    path
        The file. Only its owner can read it.
    entropy
        Draws the keys of rows, and shuffles.
    max_bytes
        The most bytes of packets that it keeps, of all studies together.

    Raises
    ------
    StoreError
        ``RELAY-002``: the file cannot be opened, is not a spool, or another relay has it. Every
        method may raise this error.

    Examples
    --------
    >>> import tempfile
    >>> from shoal.entropy import SystemEntropy
    >>> with (
    ...     tempfile.TemporaryDirectory() as folder,
    ...     Spool(Path(folder) / "spool.db", SystemEntropy()) as spool,
    ... ):
    ...     spool.put(
    ...         [
    ...             SealedPacket("7f" * 32, 0, b"a packet", 10),
    ...             SealedPacket("7f" * 32, 0, b"a packet", 10),
    ...         ]
    ...     )
    ['kept', 'repeated']
    """

    def __init__(self, path: Path | str, entropy: Entropy, max_bytes: int = 1 << 33) -> None:
        self.path, self._entropy, self._max_bytes = Path(path).absolute(), entropy, max_bytes
        self._lock, self._count = threading.Lock(), _PacketCounts()
        self._has_new = True
        self._db = _open_spool_file(self.path)
        with _ERRORS.translate(self.path):
            self._count = _count_packets(self._db, "TRUE")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Nothing is lost if the process ends without this."""
        with self._lock:
            self._db.close()

    def put(self, packets: Sequence[SealedPacket]) -> list[SpoolOutcome]:
        """Write packets to disk, and return the outcome for each."""
        outcomes: list[SpoolOutcome] = []
        added = _PacketCounts()
        with self._begin_write() as db:
            for one in packets:
                digest = _hash_packet(one.sealed)
                known = db.execute(
                    "SELECT sealed IS NOT NULL FROM packets WHERE study = ? AND digest = ?",
                    (one.study, digest),
                ).fetchone()
                if known == (True,):
                    outcomes.append("repeated")
                elif not self._has_room(one, added):
                    outcomes.append("full")
                else:
                    _write_packet(
                        db, one, digest, None if known else self._entropy.bytes(PLACE_BYTES)
                    )
                    added.add(one.study, 1, len(one.sealed))
                    outcomes.append("kept")
        self._update_counts(added)
        return outcomes

    def count_waiting(self, study: str, phase: int) -> int:
        """Return the number of packets of a phase that are not part of a batch yet."""
        query = f"SELECT count(*) FROM packets WHERE {_WAITING}"
        return int(self._query(query, study, phase)[0][0])

    def record_phase(self, study: str, phase: int, window: PhaseWindow) -> None:
        """Record the window of a phase, unless one is recorded already."""
        with self._begin_write() as db:
            times = (to_milliseconds(window.opened), to_milliseconds(window.closes))
            db.execute(
                "INSERT OR IGNORE INTO phases (study, phase, opened, closes) VALUES (?, ?, ?, ?)",
                (study, phase, *times),
            )

    def record_ask(self, study: str, phase: int, digest: bytes) -> bool:
        """Record the digest of the opening of a phase; return False if another one is recorded."""
        key = (study, phase)
        with self._begin_write() as db:
            db.execute(
                "UPDATE phases SET ask = ? WHERE study = ? AND phase = ? AND ask IS NULL",
                (digest, *key),
            )
            found = db.execute("SELECT ask FROM phases WHERE study = ? AND phase = ?", key)
            return bool(found.fetchone() == (digest,))

    def list_phases(self, study: str) -> tuple[SpooledPhase, ...]:
        """Return the recorded phases of a study, in order."""
        rows = self._query(
            "SELECT phase, opened, closes, settled, ask FROM phases WHERE study = ? ORDER BY phase",
            study,
        )
        return tuple(
            SpooledPhase(
                n, PhaseWindow(from_milliseconds(opened), from_milliseconds(closes)), settled, ask
            )
            for n, opened, closes, settled, ask in rows
        )

    def make_batch(self, study: str, phase: int, n_batches: int, least: int, most: int) -> int:
        """Make one batch of all waiting packets of a phase, and return its size.

        If fewer than ``least`` of them are new to the coordinator, the batch has only packets that
        the coordinator was shown before.

        Parameters
        ----------
        n_batches
            The number of batches of the phase, with this one. If that number was made already,
            nothing is done.
        least
            The fewest new packets in a batch.
        most
            The most packets in a part of a batch.
        """
        with self._begin_write() as db:
            update = (
                "UPDATE phases SET settled = ?1 WHERE study = ?2 AND phase = ?3 AND settled < ?1"
            )
            if not db.execute(update, (n_batches, study, phase)).rowcount:
                return 0
            new, shown = (
                _list_places(db, study, phase, is_shown=is_shown) for is_shown in (False, True)
            )
            places = new + shown if len(new) >= least else shown
            self._assign_parts(db, study, places, most)
            return len(places)

    def make_resend_batch(self, study: str, most: int) -> int:
        """Make one batch of the valid packets of refused parts, and return its size.

        The batch is made when no part of its phase is left to send.
        """
        query = f"SELECT phase FROM phases WHERE study = ? AND {_IS_RESENDABLE}"
        phases = [phase for (phase,) in self._query(query, study)]
        n = 0
        for phase in phases:
            with self._begin_write() as db:
                db.execute(
                    "UPDATE phases SET is_again = FALSE WHERE study = ? AND phase = ?",
                    (study, phase),
                )
                places = _list_places(db, study, phase, is_shown=True)
                self._assign_parts(db, study, places, most)
                n += len(places)
        return n

    def list_parts(self, study: str) -> tuple[int, ...]:
        """Return the numbers of the parts that are to be sent."""
        rows = self._query(
            "SELECT DISTINCT part FROM packets WHERE study = ? AND part IS NOT NULL ORDER BY part",
            study,
        )
        return tuple(part for (part,) in rows)

    def read_part(self, study: str, part: int) -> list[bytes]:
        """Return the packets of a part, shuffled."""
        found = [
            sealed
            for (sealed,) in self._query(
                "SELECT sealed FROM packets WHERE study = ? AND part = ? ORDER BY place",
                study,
                part,
            )
        ]
        shuffle_list(found, self._entropy)
        return found

    def drop_part(self, study: str, part: int) -> None:
        """Delete the packets of an acknowledged part; keep their digests."""
        with self._begin_write() as db:
            deleted = _count_packets(db, "study = ? AND part = ?", study, part)
            db.execute(f"UPDATE packets SET {_CLEARED} WHERE study = ? AND part = ?", (study, part))
        self._update_counts(deleted, -1)

    def return_part(self, study: str, part: int, invalid: Sequence[bytes] = ()) -> None:
        """Let the packets of a refused part wait again.

        Of invalid packets only the digests stay; `make_resend_batch` sends the rest.
        """
        deleted = _PacketCounts()
        with self._begin_write() as db:
            if invalid:
                of_part = "SELECT phase FROM packets WHERE study = ?1 AND part = ?2"
                db.execute(
                    f"UPDATE phases SET is_again = TRUE WHERE study = ?1 AND phase IN ({of_part})",
                    (study, part),
                )
            for one in invalid:
                clear = f"UPDATE packets SET {_CLEARED} WHERE study = ? AND digest = ? AND part = ?"
                n = db.execute(clear, (study, _hash_packet(one), part)).rowcount
                deleted.add(study, n, n * len(one))
            db.execute(
                "UPDATE packets SET part = NULL, is_shown = TRUE WHERE study = ? AND part = ?",
                (study, part),
            )
        self._update_counts(deleted, -1)

    def drop_late(self, study: str, phase: int) -> None:
        """Delete the waiting packets of a phase and of earlier ones: they are too late to count."""
        with self._begin_write() as db:
            deleted = _delete_packets(db, "study = ? AND phase <= ? AND part IS NULL", study, phase)
        self._update_counts(deleted, -1)

    def drop_study(self, study: str) -> None:
        """Delete all packets and phases of a study that has ended."""
        with self._begin_write() as db:
            deleted = _delete_packets(db, "study = ?", study)
            db.execute("DELETE FROM phases WHERE study = ?", (study,))
            db.execute("INSERT OR IGNORE INTO ended VALUES (?)", (study,))
        self._update_counts(deleted, -1)

    def has_ended(self, study: str) -> bool:
        """Return whether the study was deleted, and with it which packets were shown."""
        return bool(self._query("SELECT 1 FROM ended WHERE study = ?", study))

    def list_studies(self) -> tuple[str, ...]:
        """Return the studies that have packets or phases."""
        return tuple(
            study
            for (study,) in self._query(
                "SELECT study FROM packets UNION SELECT study FROM phases ORDER BY study"
            )
        )

    def pin_key(self, key: bytes) -> bytes:
        """Return the coordinator's pinned key; pin this one if there is none."""
        with self._begin_write() as db:
            db.execute("INSERT OR IGNORE INTO coordinator VALUES (1, ?)", (key,))
            return bytes(db.execute("SELECT key FROM coordinator").fetchone()[0])

    def rewrite_sorted(self) -> bool:
        """Rewrite the file in the order of its keys, and empty the log.

        Return False if nothing has changed since the last time.

        Notes
        -----
        SQLite builds the new file in memory, so that no copy is left on the disk. If the packets
        have more than `MAX_REWRITE_BYTES` bytes, only the log is emptied: someone who takes the
        disk away can then see in which order the packets arrived, until they have left.
        """
        if not self._has_new:
            return False
        with _ERRORS.translate(self.path), self._lock:
            self._has_new = False
            if self._count.n_bytes <= MAX_REWRITE_BYTES:
                self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return True

    def _has_room(self, one: SealedPacket, added: _PacketCounts) -> bool:
        n = self._count.by_study.get(one.study, 0) + added.by_study.get(one.study, 0)
        return (
            n < one.limit
            and self._count.n_bytes + added.n_bytes + len(one.sealed) <= self._max_bytes
        )

    def _update_counts(self, change: _PacketCounts, sign: int = 1) -> None:
        """Add committed changes to the counts."""
        with self._lock:
            for study, n in change.by_study.items():
                self._count.add(study, sign * n, 0)
            self._count.n_bytes += sign * change.n_bytes
            self._has_new = True

    def _assign_parts(self, db: Connection, study: str, places: list[bytes], most: int) -> None:
        """Shuffle packets, and record in which part of a batch each of them is sent."""
        shuffle_list(places, self._entropy)
        (first,) = db.execute(
            "SELECT ifnull(max(part), -1) + 1 FROM packets WHERE study = ?", (study,)
        ).fetchone()
        at = 0
        for part, size in enumerate(split_evenly(len(places), most), start=first):
            db.executemany(
                "UPDATE packets SET part = ? WHERE place = ?",
                [(part, place) for place in places[at : at + size]],
            )
            at += size

    def _query(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with _ERRORS.translate(self.path), self._lock:
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _begin_write(self) -> Iterator[Connection]:
        with _ERRORS.translate(self.path), self._lock, transaction(self._db) as db:
            yield db


def _open_spool_file(path: Path) -> Connection:
    """Open a spool's file, so that no other process can open it; create it if there is none."""
    schema = (files("shoal.relay") / "spool.sql").read_text(encoding="utf-8")
    migrations = (schema, _ASK_COLUMN)
    db = open_database(path, _APPLICATION_ID, migrations, _ERRORS, _connect_spool)
    with _ERRORS.translate(path):
        try:
            with transaction(db, "BEGIN EXCLUSIVE"):
                return db
        except BaseException:
            db.close()
            raise


def _connect_spool(path: Path) -> Connection:
    return connect(path, _PRAGMAS, _BUSY_SECONDS)


def shuffle_list(items: list[T], entropy: Entropy) -> None:
    """Shuffle a list in place: every order is equally likely (Fisher-Yates)."""
    for i in range(len(items) - 1, 0, -1):
        j = entropy.below(i + 1)
        items[i], items[j] = items[j], items[i]


def _write_packet(db: Connection, one: SealedPacket, digest: bytes, place: bytes | None) -> None:
    """Insert a packet under a new key, or add it to the row that has its digest."""
    if place is None:
        db.execute(
            "UPDATE packets SET sealed = ?, phase = ? WHERE study = ? AND digest = ?",
            (one.sealed, one.phase, one.study, digest),
        )
    else:
        columns = "place, study, phase, digest, sealed"
        db.execute(
            f"INSERT INTO packets ({columns}) VALUES (?, ?, ?, ?, ?)",
            (place, one.study, one.phase, digest, one.sealed),
        )


def _list_places(db: Connection, study: str, phase: int, *, is_shown: bool) -> list[bytes]:
    """Return the keys of the waiting packets of a phase that were, or were not, shown."""
    query = f"SELECT place FROM packets WHERE {_WAITING} AND is_shown = ? ORDER BY place"
    return [place for (place,) in db.execute(query, (study, phase, is_shown))]


def _count_packets(db: Connection, where: str, *values: object) -> _PacketCounts:
    """Count the packets of the rows that fit a condition."""
    found = _PacketCounts()
    query = (
        "SELECT study, count(sealed), ifnull(sum(length(sealed)), 0) FROM packets WHERE "
        f"{where} GROUP BY study"
    )
    for row in db.execute(query, values).fetchall():
        found.add(*row)
    return found


def _delete_packets(db: Connection, where: str, *values: object) -> _PacketCounts:
    """Delete the rows that fit a condition, and count their packets."""
    found = _count_packets(db, where, *values)
    db.execute(f"DELETE FROM packets WHERE {where}", values)
    return found


def _hash_packet(sealed: bytes) -> bytes:
    return hashlib.sha256(sealed).digest()
