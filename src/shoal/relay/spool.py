"""The spool: sealed packets on the disk, from when their senders are told that they are there until the coordinator has them.

========  ===============================================================================================================
waiting   came, and is not part of a batch yet
parted    belongs to a batch: which part of it, it was told by the one shuffle of that batch. A part is sent again, after a
          crash too, until it is answered
shown     was in a part that was answered. Refused, it waits, and may go again; acknowledged, or found to be rubbish, it is
          deleted and overwritten in the file, but for its digest
gone      too late to count: deleted, digest and all
========  ===============================================================================================================

What is shown can make no second batch large enough: a coordinator that refuses a batch, or has all of it sent again, would get the same
with one packet more, and so would know whose that is. Therefore digests stay until their phase is over: a packet that comes again is known.

What a row says is in ``spool.sql``. A row's place is drawn at random, but a page has its rows also in the order in which they were written;
`Spool.tidy` writes the file anew in the order of places, and empties SQLite's log. It is called soon after packets came.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar

from shoal.entropy import Entropy
from shoal.relay.spool_file import in_sentences, open_file, transaction
from shoal.study.anonymity import Window
from shoal.transport.batches import even_parts

T = TypeVar("T")

Kept = Literal["kept", "repeated", "full"]
"""What became of a packet: it is on the disk; it was there already; there is no room."""

PLACE_BYTES = 16
MOST_REWRITTEN = 1 << 28
"""Bytes of packets up to which the file is written anew."""

_WAITING = "study = ? AND phase = ? AND part IS NULL AND sealed IS NOT NULL"
_FORGOTTEN = "part = NULL, is_shown = TRUE, sealed = NULL"
_IS_AGAIN = """
    is_again AND NOT EXISTS (
        SELECT 1 FROM packets WHERE packets.study = phases.study AND packets.phase = phases.phase AND part IS NOT NULL
    )
"""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class Sealed(NamedTuple):
    """A sealed packet as it came: for which study, in which phase, and how many of the study are kept at most."""

    study: str
    phase: int
    sealed: bytes
    most: int


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a study as a spool knows it; of its two releases, so many are settled."""

    number: int
    window: Window
    settled: int = 0


@dataclass
class _Count:
    """How many packets of a study there are, and how many bytes of all studies."""

    of: dict[str, int] = field(default_factory=dict)
    n_bytes: int = 0

    def add(self, study: str, n: int, n_bytes: int) -> None:
        self.of[study] = self.of.get(study, 0) + n
        self.n_bytes += n_bytes


class Spool:
    """A spool in a SQLite file, which is made where there is none. Threads may share it; processes may not.

    Parameters
    ----------
    path
        The file. Its owner alone can read it.
    entropy
        Draws places and shuffles.
    most_bytes
        How many bytes of packets it keeps, of all studies together.

    Raises
    ------
    StoreError
        ``RELAY-002``: it cannot be opened, is another file than a spool, or another relay has it. Every method may raise it.

    Examples
    --------
    >>> import tempfile
    >>> from shoal.entropy import SystemEntropy
    >>> with tempfile.TemporaryDirectory() as folder, Spool(Path(folder) / "spool.db", SystemEntropy()) as spool:
    ...     spool.put([Sealed("7f" * 32, 0, b"a packet", 10), Sealed("7f" * 32, 0, b"a packet", 10)])
    ['kept', 'repeated']
    """

    def __init__(self, path: Path | str, entropy: Entropy, most_bytes: int = 1 << 33) -> None:
        self.path, self._entropy, self._most_bytes = Path(path).absolute(), entropy, most_bytes
        self._lock, self._count = threading.Lock(), _Count()
        self._has_new = True
        self._db = open_file(self.path)
        with in_sentences(self.path):
            self._count = _counted(self._db, "TRUE")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing is lost if this never happens."""
        with self._lock:
            self._db.close()

    def put(self, packets: Sequence[Sealed]) -> list[Kept]:
        """Keep packets; what became of each, once that is on the disk."""
        outcomes: list[Kept] = []
        added = _Count()
        with self._change() as db:
            for one in packets:
                digest = _digest(one.sealed)
                known = db.execute("SELECT sealed IS NOT NULL FROM packets WHERE study = ? AND digest = ?", (one.study, digest)).fetchone()
                if known == (True,):
                    outcomes.append("repeated")
                elif not self._has_room(one, added):
                    outcomes.append("full")
                else:
                    _put(db, one, digest, None if known else self._entropy.bytes(PLACE_BYTES))
                    added.add(one.study, 1, len(one.sealed))
                    outcomes.append("kept")
        self._adopt(added)
        return outcomes

    def n_waiting(self, study: str, phase: int) -> int:
        """How many packets of a phase belong to no batch yet."""
        asked = f"SELECT count(*) FROM packets WHERE {_WAITING}"
        return int(self._rows(asked, study, phase)[0][0])

    def keep_phase(self, study: str, phase: int, window: Window) -> None:
        """Note the time of a phase; what was first heard of it stays."""
        with self._change() as db:
            times = (_milliseconds(window.opened), _milliseconds(window.closes))
            db.execute("INSERT OR IGNORE INTO phases (study, phase, opened, closes) VALUES (?, ?, ?, ?)", (study, phase, *times))

    def phases(self, study: str) -> tuple[Phase, ...]:
        """All phases of a study that were heard of, in order."""
        rows = self._rows("SELECT phase, opened, closes, settled FROM phases WHERE study = ? ORDER BY phase", study)
        return tuple(Phase(n, Window(_moment(opened), _moment(closes)), settled) for n, opened, closes, settled in rows)

    def settle(self, study: str, phase: int, settled: int, least: int, most: int) -> int:
        """Make one batch of all packets of a phase that wait; that this was settled is noted with it.

        Where fewer than so many of them are new to the coordinator these are left out, and what it has been shown goes by itself.

        Parameters
        ----------
        study, phase
            Which packets.
        settled
            How many releases of the phase are settled by this. Nothing is done where as many are.
        least, most
            The fewest packets that a batch has beside those that were shown, if any, and the most of a part of it.

        Returns
        -------
        int
            How many packets are in the batch.
        """
        with self._change() as db:
            noted = "UPDATE phases SET settled = ?1 WHERE study = ?2 AND phase = ?3 AND settled < ?1"
            if not db.execute(noted, (settled, study, phase)).rowcount:
                return 0
            new, shown = (_places(db, study, phase, is_shown=is_shown) for is_shown in (False, True))
            places = new + shown if len(new) >= least else shown
            self._cut(db, study, places, most)
            return len(places)

    def settle_again(self, study: str, most: int) -> int:
        """Make one batch of what was refused together with rubbish, without that, once no part of its phase is on its way.

        How many packets are in it.
        """
        asked = f"SELECT phase FROM phases WHERE study = ? AND {_IS_AGAIN}"
        phases = [phase for (phase,) in self._rows(asked, study)]
        n = 0
        for phase in phases:
            with self._change() as db:
                db.execute("UPDATE phases SET is_again = FALSE WHERE study = ? AND phase = ?", (study, phase))
                places = _places(db, study, phase, is_shown=True)
                self._cut(db, study, places, most)
                n += len(places)
        return n

    def parts(self, study: str) -> tuple[int, ...]:
        """The parts of batches that are to be sent."""
        rows = self._rows("SELECT DISTINCT part FROM packets WHERE study = ? AND part IS NOT NULL ORDER BY part", study)
        return tuple(part for (part,) in rows)

    def part(self, study: str, part: int) -> list[bytes]:
        """The packets of a part, shuffled."""
        found = [sealed for (sealed,) in self._rows("SELECT sealed FROM packets WHERE study = ? AND part = ? ORDER BY place", study, part)]
        shuffle(found, self._entropy)
        return found

    def drop_part(self, study: str, part: int) -> None:
        """Delete what was acknowledged, but for the digests."""
        with self._change() as db:
            gone = _counted(db, "study = ? AND part = ?", study, part)
            db.execute(f"UPDATE packets SET {_FORGOTTEN} WHERE study = ? AND part = ?", (study, part))
        self._adopt(gone, -1)

    def return_part(self, study: str, part: int, rubbish: Sequence[bytes] = ()) -> None:
        """Have what was not taken wait again; of what is rubbish in it, the digests alone stay, and the rest is for `settle_again`."""
        gone = _Count()
        with self._change() as db:
            if rubbish:
                of_part = "SELECT phase FROM packets WHERE study = ?1 AND part = ?2"
                db.execute(f"UPDATE phases SET is_again = TRUE WHERE study = ?1 AND phase IN ({of_part})", (study, part))
            for one in rubbish:
                forget = f"UPDATE packets SET {_FORGOTTEN} WHERE study = ? AND digest = ? AND part = ?"
                n = db.execute(forget, (study, _digest(one), part)).rowcount
                gone.add(study, n, n * len(one))
            db.execute("UPDATE packets SET part = NULL, is_shown = TRUE WHERE study = ? AND part = ?", (study, part))
        self._adopt(gone, -1)

    def drop_late(self, study: str, phase: int) -> None:
        """Delete what waits of a phase, and of those before it: it cannot count any more."""
        with self._change() as db:
            gone = _deleted(db, "study = ? AND phase <= ? AND part IS NULL", study, phase)
        self._adopt(gone, -1)

    def drop_study(self, study: str) -> None:
        """Delete everything of a study, which has ended for good."""
        with self._change() as db:
            gone = _deleted(db, "study = ?", study)
            db.execute("DELETE FROM phases WHERE study = ?", (study,))
            db.execute("INSERT OR IGNORE INTO ended VALUES (?)", (study,))
        self._adopt(gone, -1)

    def has_ended(self, study: str) -> bool:
        """Whether everything of a study was deleted: nothing is known any more of what was shown of it."""
        return bool(self._rows("SELECT 1 FROM ended WHERE study = ?", study))

    def studies(self) -> tuple[str, ...]:
        """The studies of which there is anything."""
        return tuple(study for (study,) in self._rows("SELECT study FROM packets UNION SELECT study FROM phases ORDER BY study"))

    def pinned(self, key: bytes) -> bytes:
        """The coordinator's key as it was first met, which is this one where none was met before."""
        with self._change() as db:
            db.execute("INSERT OR IGNORE INTO coordinator VALUES (1, ?)", (key,))
            return bytes(db.execute("SELECT key FROM coordinator").fetchone()[0])

    def tidy(self) -> bool:
        """Write the file anew, in the order of places, and empty the log; False where nothing has changed since.

        Notes
        -----
        The new file is made in memory, so that no copy is left on the disk. A spool of more than `MOST_REWRITTEN` bytes is therefore left
        as it is, but for the log: who takes the disk away can see in which order its packets came, until they have left.
        """
        if not self._has_new:
            return False
        with in_sentences(self.path), self._lock:
            self._has_new = False
            if self._count.n_bytes <= MOST_REWRITTEN:
                self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return True

    def _has_room(self, one: Sealed, added: _Count) -> bool:
        n = self._count.of.get(one.study, 0) + added.of.get(one.study, 0)
        return n < one.most and self._count.n_bytes + added.n_bytes + len(one.sealed) <= self._most_bytes

    def _adopt(self, change: _Count, sign: int = 1) -> None:
        """Count what is committed."""
        with self._lock:
            for study, n in change.of.items():
                self._count.add(study, sign * n, 0)
            self._count.n_bytes += sign * change.n_bytes
            self._has_new = True

    def _cut(self, db: Connection, study: str, places: list[bytes], most: int) -> None:
        """Shuffle packets, and note in which part of a batch each of them goes."""
        shuffle(places, self._entropy)
        (first,) = db.execute("SELECT ifnull(max(part), -1) + 1 FROM packets WHERE study = ?", (study,)).fetchone()
        at = 0
        for part, size in enumerate(even_parts(len(places), most), start=first):
            db.executemany("UPDATE packets SET part = ? WHERE place = ?", [(part, place) for place in places[at : at + size]])
            at += size

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with in_sentences(self.path), self._lock:
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _change(self) -> Iterator[Connection]:
        with in_sentences(self.path), self._lock, transaction(self._db) as db:
            yield db


def shuffle(items: list[T], entropy: Entropy) -> None:
    """Put a list into an order of which all are equally likely (Fisher and Yates)."""
    for i in range(len(items) - 1, 0, -1):
        j = entropy.below(i + 1)
        items[i], items[j] = items[j], items[i]


def _put(db: Connection, one: Sealed, digest: bytes, place: bytes | None) -> None:
    """Write a packet at a place; one of which there is the digest, where that is."""
    if place is None:
        db.execute("UPDATE packets SET sealed = ?, phase = ? WHERE study = ? AND digest = ?", (one.sealed, one.phase, one.study, digest))
    else:
        columns = "place, study, phase, digest, sealed"
        db.execute(f"INSERT INTO packets ({columns}) VALUES (?, ?, ?, ?, ?)", (place, one.study, one.phase, digest, one.sealed))


def _places(db: Connection, study: str, phase: int, *, is_shown: bool) -> list[bytes]:
    """Where the packets of a phase are that wait: those that were shown, or those that were not."""
    asked = f"SELECT place FROM packets WHERE {_WAITING} AND is_shown = ? ORDER BY place"
    return [place for (place,) in db.execute(asked, (study, phase, is_shown))]


def _counted(db: Connection, where: str, *values: object) -> _Count:
    """How many packets there are of some rows."""
    found = _Count()
    asked = f"SELECT study, count(sealed), ifnull(sum(length(sealed)), 0) FROM packets WHERE {where} GROUP BY study"
    for row in db.execute(asked, values).fetchall():
        found.add(*row)
    return found


def _deleted(db: Connection, where: str, *values: object) -> _Count:
    """Delete rows; how many packets there were."""
    found = _counted(db, where, *values)
    db.execute(f"DELETE FROM packets WHERE {where}", values)
    return found


def _digest(sealed: bytes) -> bytes:
    return hashlib.sha256(sealed).digest()


def _milliseconds(when: datetime) -> int:
    return (when - _EPOCH) // _MILLISECOND


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND
