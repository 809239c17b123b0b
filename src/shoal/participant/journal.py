"""The participant's journal: what it agreed to, and how far it has come, in the same SQLite file as its ledger.

What came of an input is saved in one transaction: the peer's state, the letter that was taken, the letters to send, wake-up times and
joint computations. Only then is the letter acknowledged and anything sent. An answer's bytes are not here, but in the ledger.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from shoal.clock import Clock
from shoal.errors import RemoteProtocolError, StoreError
from shoal.names import shown
from shoal.participant.ledger_db import check_form, connect, create, identity, in_sentences, is_there, upgrade
from shoal.participant.objections import has_changed, in_another_role, met_elsewhere
from shoal.protocols.effects import AGGREGATOR
from shoal.protocols.settle import Outbound

Role = Literal["sharer", "reader"]
"""Whether a participant answers; a reader of a PFDS study takes what others share, and asks for nothing."""

Standing = Literal["previewed", "agreed", "finished", "over", "aborted", "left"]
"""Of a study: looked at; agreed to; answered to the end; ended without needing more; given up; left or agreed to anew in another form."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A study as the participant has met it.

    Parameters
    ----------
    study, url, key, manifest
        The digest in hexadecimal, where it is served, the coordinator's key, and the manifest's bytes.
    recipient
        Where it was served first: what the ledger calls its recipient.
    title, source, role
        What it is called, which data it is about, and what the participant does in it.
    ticket
        Random bytes that stand for the participant where it answers anonymously by tickets; empty where not.
    invitation, name, position
        The code that it was invited with; the name and the place that it has by enrolment.
    standing, reason
        How it stands, and why it was given up.
    ended
        How it had ended already when it was left.
    """

    study: str
    url: str
    recipient: str
    key: bytes
    manifest: bytes = field(repr=False)
    title: str
    source: str
    role: Role = "sharer"
    ticket: bytes = field(default=b"", repr=False)
    invitation: str | None = field(default=None, repr=False)
    name: str | None = None
    position: int | None = None
    standing: Standing = "previewed"
    reason: str | None = None
    ended: Standing | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a peer stands: what is left to be sent by number, in order, and all that has to be taken up after a restart."""

    state: bytes | None = None
    cursor: int = 0
    letters: tuple[tuple[int, Outbound], ...] = ()
    alarms: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What came of an input, to be saved together.

    Parameters
    ----------
    state
        The peer's state after it.
    cursor
        The number of the letter that it was; None for another input.
    letters, dropped, struck
        What is to be sent; a question whose letters may not leave any more; and the numbers of letters that were delivered.
    alarms, rung
        Times to wake at, and times that have passed: milliseconds.
    begun, over
        Joint computations.
    standing, reason
        How the study stands now, where that has changed. Of one that is given up, all that was to be done is dropped.
    """

    state: bytes = field(repr=False)
    cursor: int | None = None
    letters: tuple[Outbound, ...] = ()
    dropped: str | None = None
    struck: tuple[int, ...] = ()
    alarms: tuple[int, ...] = ()
    rung: tuple[int, ...] = ()
    begun: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    standing: Standing | None = None
    reason: str | None = None


_ANOTHER_KEY = "Ask its analyst, by another way than this one, whether the key was changed; if so, take part under another address."
_COLUMNS = tuple(one.name for one in fields(Joined))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM studies"
_CHANGES = ", ".join(f"{name} = excluded.{name}" for name in ("url", "role", "invitation", "name", "position", "standing"))
_WRITE = (
    f"INSERT INTO studies ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT (study) DO UPDATE SET {_CHANGES}"
)
_LEAVE = """
    UPDATE studies SET standing = 'left', ended = CASE WHEN standing IN ('finished', 'over', 'aborted') THEN standing ELSE ended END
    WHERE study = ?
"""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def forms_agreed_to(studies: Iterable[Joined], joined: Joined) -> list[Joined]:
    """Studies of the same title at the same address that were agreed to, and are not this one."""
    found = [one for one in studies if (one.url, one.title, one.standing) == (joined.url, joined.title, "agreed")]
    return [one for one in found if one.study != joined.study]


def _all(db: sqlite3.Connection) -> list[Joined]:
    return [Joined(*row) for row in db.execute(f"{_SELECT} ORDER BY rowid")]


def _is_begun(db: sqlite3.Connection, known: Joined) -> bool:
    """Whether more was done in a study than to look at it, now or before it was left."""
    has_state = db.execute("SELECT 1 FROM machines WHERE study = ?", (known.study,)).fetchone() is not None
    return known.standing not in ("previewed", "left") or known.name is not None or has_state


class Journal:
    """The journal in the file of a ledger, created where there is none.

    Parameters
    ----------
    path, clock
        As `LedgerFile` takes them.

    Examples
    --------
    >>> import tempfile
    >>> from shoal.clock import ManualClock
    >>> with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "ledger.db", ManualClock()) as journal:
    ...     journal.studies(), journal.load("d1").letters
    ((), ())
    """

    def __init__(self, path: Path | str, clock: Clock) -> None:
        self.path, self._clock = Path(path).absolute(), clock
        with in_sentences(self.path):
            if not is_there(self.path):
                create(self.path, clock)
            identity(self.path)
            self._db = connect(self.path)
        try:
            with in_sentences(self.path):
                upgrade(self._db)
                check_form(self._db, self.path)
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing is lost if this never happens."""
        self._db.close()

    @contextmanager
    def hold(self, study: str) -> Iterator[None]:
        """Be the only one, among all processes and in this one, that takes part in a study with this journal; for as long as it lives."""
        with in_sentences(self.path):
            # One file may have several names, and has one lock.
            handle = os.open(f"{os.path.realpath(self.path)}-{study[:16]}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                what = f"Another process takes part in the study {study[:12]} with the ledger {self.path}."
                raise StoreError("LEDGER-003", what, fix="Let it go on, or end it first.") from None
            yield

    def seed(self) -> bytes | None:
        """The participant's secret; None where there is none yet."""
        found = self._rows("SELECT seed FROM identity")
        return found[0][0] if found else None

    def keep_seed(self, offered: bytes) -> bytes:
        """The participant's secret: what is there, or else what is offered, which is then kept for ever."""
        with self.change() as db:
            db.execute("INSERT OR IGNORE INTO identity VALUES (1, ?)", (offered,))
            (seed,) = db.execute("SELECT seed FROM identity").fetchone()
            return bytes(seed)

    def pinned(self, url: str) -> bytes | None:
        """The key under which the coordinator at an address was met first."""
        found = self._rows("SELECT key FROM coordinators WHERE url = ?", url)
        return bytes(found[0][0]) if found else None

    def studies(self) -> tuple[Joined, ...]:
        """All that were met."""
        with self.look() as db:
            return tuple(_all(db))

    def study(self, study: str) -> Joined | None:
        """One of them."""
        found = self._rows(f"{_SELECT} WHERE study = ?", study)
        return Joined(*found[0]) if found else None

    def enter(self, joined: Joined, *, is_reviewed: bool = False) -> Joined:
        """Write down a study that the participant looks at or agrees to; what is known of it already stays.

        Parameters
        ----------
        joined
            The study. Under ``agreed`` it may be one that was looked at before, or left; then the participant enrols anew, unless all was
            over before it left.
        is_reviewed
            Whether the participant has read it again, after another form of it was agreed to, which is left by that.

        Raises
        ------
        RemoteProtocolError
            ``AUTH-004``: the coordinator has another key than when it was met first.
        ConsentError
            ``CONSENT-001``: the same study was met at another coordinator, or in another role; or another form of it was agreed to here.
        """
        # In one transaction: of two processes that agree at once the second finds what the first has written, and keeps its ticket.
        with self.change() as db:
            studies = {one.study: one for one in _all(db)}
            known, changed = studies.get(joined.study), forms_agreed_to(studies.values(), joined)
            (pinned,) = db.execute("SELECT key FROM coordinators WHERE url = ?", (joined.url,)).fetchone() or (joined.key,)
            if pinned != joined.key:
                what = f"The coordinator at {shown(joined.url)} has another key than before."
                raise RemoteProtocolError("AUTH-004", what, fix=_ANOTHER_KEY)
            if known is not None and known.key != joined.key:
                raise met_elsewhere(known, joined.url)
            if changed and not is_reviewed:
                raise has_changed(changed[0], joined.study)
            if known is not None and known.role != joined.role and _is_begun(db, known):
                raise in_another_role(known)
            is_new = joined.standing == "agreed" and (known is None or known.standing in ("previewed", "left"))
            if known is not None:
                invitation = joined.invitation or known.invitation
                standing = (known.ended or "agreed") if is_new else known.standing
                joined = replace(known, url=joined.url, role=joined.role, invitation=invitation, standing=standing)
                if standing == "agreed" and known.standing == "left":
                    joined = replace(joined, name=None, position=None)
            db.execute("INSERT OR IGNORE INTO coordinators VALUES (?, ?)", (joined.url, joined.key))
            db.executemany(_LEAVE, [(one.study,) for one in changed])
            db.execute(_WRITE, astuple(joined))
            if is_new:
                now = (self._clock.now() - _EPOCH) // _MILLISECOND
                db.execute("INSERT INTO consents VALUES (?, ?, ?)", (joined.study, joined.url, now))
            return joined

    def consents(self, study: str) -> tuple[tuple[str, datetime], ...]:
        """Where and when a study was agreed to, each time."""
        rows = self._rows("SELECT url, at FROM consents WHERE study = ? ORDER BY rowid", study)
        return tuple((url, _EPOCH + at * _MILLISECOND) for url, at in rows)

    def enrolled(self, study: str, name: str, position: int | None) -> None:
        """Note the name and the place that a participant has."""
        self._write("UPDATE studies SET name = ?, position = ? WHERE study = ?", name, position, study)

    def invited(self, study: str, invitation: str) -> None:
        """Note the code of an invitation that was given later."""
        self._write("UPDATE studies SET invitation = ? WHERE study = ?", invitation, study)

    def stand(self, study: str, standing: Standing) -> None:
        """Note how a study stands; of one that is left, also how it had ended, if it had."""
        if standing == "left":
            self._write(_LEAVE, study)
        else:
            self._write("UPDATE studies SET standing = ? WHERE study = ?", standing, study)

    def load(self, study: str) -> Saved:
        """Where the peer stands."""
        with self.look() as db:
            state, cursor = db.execute("SELECT state, cursor FROM machines WHERE study = ?", (study,)).fetchone() or (None, 0)
            letters = db.execute("SELECT number, payload, question FROM letters WHERE study = ? ORDER BY number", (study,)).fetchall()
            alarms = db.execute("SELECT at FROM alarms WHERE study = ? ORDER BY at", (study,)).fetchall()
            tasks = db.execute("SELECT task FROM tasks WHERE study = ? ORDER BY task", (study,)).fetchall()
        return Saved(
            state,
            cursor,
            tuple((number, Outbound(AGGREGATOR, payload or b"", question)) for number, payload, question in letters),
            tuple(at for (at,) in alarms),
            tuple(task for (task,) in tasks),
        )

    def save(self, study: str, step: Step) -> tuple[int, ...]:
        """Save what came of an input; the numbers of its letters. `StoreError` where that cannot be: then nothing has changed."""
        with self.change() as db:
            db.execute(
                "INSERT INTO machines VALUES (?1, ?2, max(0, ifnull(?3, 0)))"
                " ON CONFLICT (study) DO UPDATE SET state = ?2, cursor = max(cursor, ifnull(?3, 0))",
                (study, step.state, step.cursor),
            )
            db.execute("DELETE FROM letters WHERE study = ? AND question = ?", (study, step.dropped))
            self._strike(db, study, step.struck)
            db.executemany("DELETE FROM alarms WHERE study = ? AND at = ?", [(study, at) for at in step.rung])
            db.executemany("INSERT OR IGNORE INTO alarms VALUES (?, ?)", [(study, at) for at in step.alarms])
            db.executemany("INSERT OR IGNORE INTO tasks VALUES (?, ?)", [(study, task) for task in step.begun])
            db.executemany("DELETE FROM tasks WHERE study = ? AND task = ?", [(study, task) for task in step.over])
            if step.standing is not None:
                db.execute("UPDATE studies SET standing = ?, reason = ? WHERE study = ?", (step.standing, step.reason, study))
            if step.standing == "aborted":
                for table in ("letters", "alarms", "tasks"):
                    db.execute(f"DELETE FROM {table} WHERE study = ?", (study,))
            return tuple(self._post(db, study, letter) for letter in step.letters)

    def delivered(self, study: str, *numbers: int) -> None:
        """Strike letters that were acknowledged, or that the other side does not want."""
        with self.change() as db:
            self._strike(db, study, numbers)

    def _strike(self, db: sqlite3.Connection, study: str, numbers: Iterable[int]) -> None:
        db.executemany("DELETE FROM letters WHERE study = ? AND number = ?", [(study, number) for number in numbers])

    def _post(self, db: sqlite3.Connection, study: str, letter: Outbound) -> int:
        payload = letter.payload if letter.question is None else None
        written = db.execute("INSERT INTO letters (study, payload, question) VALUES (?, ?, ?)", (study, payload, letter.question))
        assert written.lastrowid is not None
        return written.lastrowid

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self.look() as db:
            return db.execute(query, values).fetchall()

    def _write(self, query: str, *values: object) -> None:
        with self.change() as db:
            db.execute(query, values)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with in_sentences(self.path):
            self._db.execute(begin)
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def look(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction that reads."""
        return self._transaction("BEGIN")

    def change(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction that writes: what it did is on the disk once it has ended, or nothing of it is."""
        return self._transaction("BEGIN IMMEDIATE")
