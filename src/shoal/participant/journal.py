"""The participant's journal: the studies that it agreed to, and the state of each.

The session records consent and enrolment here, and the driver saves the peer's state. The journal
is in the same SQLite file as the ledger.

The result of an input is saved in one transaction: the peer's state, the number of the message that
was processed, the messages to send, alarms and joint computations. A change must keep that the
message is acknowledged, and anything is sent, only after that. The bytes of answers are not here,
but in the ledger.
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
from shoal.participant.consent import other_coordinator_error, other_role_error, study_changed_error
from shoal.participant.ledger_storage import open_ledger_file, translate_ledger_errors
from shoal.protocols.driver import OutgoingMessage
from shoal.protocols.effects import AGGREGATOR
from shoal.sqlite import transaction
from shoal.text import escape_text

Role = Literal["sharer", "reader"]
"""A sharer answers. A reader of a PFDS study reads what others share, and sends nothing."""

ParticipationStatus = Literal["previewed", "agreed", "finished", "over", "aborted", "left"]
"""Status of a study.

``previewed``
    The participant has not agreed. Earlier versions recorded this, with stored answers.
``agreed``
    The participant has agreed, and takes part.
``finished``
    All questions are answered.
``over``
    The study ended before it asked all questions.
``aborted``
    The peer gave up.
``left``
    The participant has left the study, or agreed to another version of it.
"""

JOINED_STATUSES: tuple[ParticipationStatus, ...] = ("agreed", "finished", "over", "aborted")
"""Statuses of a study that was agreed to and not left."""


@dataclass(frozen=True, slots=True)
class JoinedStudy:
    """A study in the journal.

    Parameters
    ----------
    study
        The digest in hexadecimal.
    url, key
        The coordinator's current address, and its key.
    recipient
        The coordinator's first address, which the ledger records as the recipient.
    source
        Name of the participant's data.
    ticket
        Random bytes that represent the participant in a study with tickets; empty in others.
    invitation
        The code that the participant was invited with.
    name, position
        Name and position that the coordinator assigned at enrolment.
    standing
        Status of the study.
    reason
        Why the peer gave up.
    ended
        Status of a study that had ended before the participant left it.
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
    standing: ParticipationStatus = "previewed"
    reason: str | None = None
    ended: ParticipationStatus | None = None


@dataclass(frozen=True, slots=True)
class SavedPeerState:
    """The saved state of a peer, from which a restarted process resumes.

    Parameters
    ----------
    cursor
        Number of the last message that was processed.
    messages
        Messages to send by number, in order.
    alarms
        Times in milliseconds since 1970.
    tasks
        Joint computations that have started and not ended.
    """

    state: bytes | None = None
    cursor: int = 0
    messages: tuple[tuple[int, OutgoingMessage], ...] = ()
    alarms: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JournalUpdate:
    """The result of one input, saved in one transaction.

    Parameters
    ----------
    state
        The peer's state after the input.
    cursor
        Number of the message that was processed; None for other inputs.
    messages
        Messages to send.
    dropped_question
        A question with messages that must not leave any more.
    delivered_numbers
        Numbers of messages that were delivered.
    alarms, fired_alarms
        New alarms and alarms that have fired, in milliseconds since 1970.
    started_tasks, ended_tasks
        Joint computations.
    status, reason
        New status of the study, if it has changed. If it is ``aborted``, all messages, alarms and
        tasks are dropped.
    """

    state: bytes = field(repr=False)
    cursor: int | None = None
    messages: tuple[OutgoingMessage, ...] = ()
    dropped_question: str | None = None
    delivered_numbers: tuple[int, ...] = ()
    alarms: tuple[int, ...] = ()
    fired_alarms: tuple[int, ...] = ()
    started_tasks: tuple[str, ...] = ()
    ended_tasks: tuple[str, ...] = ()
    status: ParticipationStatus | None = None
    reason: str | None = None


_CHANGED_KEY_FIX = (
    "Ask the study's analyst, by e-mail or telephone, whether the key was changed. If so, join "
    "under a different address."
)
_COLUMNS = tuple(one.name for one in fields(JoinedStudy))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM studies"
_UPSERT_CHANGES = ", ".join(
    f"{name} = excluded.{name}"
    for name in ("url", "role", "invitation", "name", "position", "standing")
)
_UPSERT = (
    f"INSERT INTO studies ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT (study) DO UPDATE SET {_UPSERT_CHANGES}"
)
_LEAVE = """
    UPDATE studies SET standing = 'left', ended =
    CASE WHEN standing IN ('finished', 'over', 'aborted') THEN standing ELSE ended END
    WHERE study = ?
"""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def find_agreed_versions(studies: Iterable[JoinedStudy], joined: JoinedStudy) -> list[JoinedStudy]:
    """Return other studies with the same title and address that the participant agreed to."""
    found = [
        one
        for one in studies
        if (one.url, one.title, one.standing) == (joined.url, joined.title, "agreed")
    ]
    return [one for one in found if one.study != joined.study]


def _read_studies(db: sqlite3.Connection) -> list[JoinedStudy]:
    return [JoinedStudy(*row) for row in db.execute(f"{_SELECT} ORDER BY rowid")]


def _has_begun(db: sqlite3.Connection, joined: JoinedStudy) -> bool:
    """Return whether the participant has done more than preview a study, now or earlier."""
    has_state = (
        db.execute("SELECT 1 FROM machines WHERE study = ?", (joined.study,)).fetchone() is not None
    )
    return joined.standing not in ("previewed", "left") or joined.name is not None or has_state


class Journal:
    """The journal in the file of a ledger, which is created if it does not exist.

    The parameters are those of `shoal.participant.ledger_file.LedgerFile`.

    Examples
    --------
    >>> import tempfile
    >>> from shoal.clock import ManualClock
    >>> with (
    ...     tempfile.TemporaryDirectory() as folder,
    ...     Journal(Path(folder) / "ledger.db", ManualClock()) as journal,
    ... ):
    ...     journal.list_studies(), journal.load("d1").messages
    ((), ())
    """

    def __init__(self, path: Path | str, clock: Clock) -> None:
        self.path, self._clock = Path(path).absolute(), clock
        self._db, _ = open_ledger_file(self.path, clock)

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
        self._db.close()

    @contextmanager
    def lock_study(self, study: str) -> Iterator[None]:
        """Lock a study of this journal, so that only one task of one process takes part in it.

        Raise ``LEDGER-003`` if it is locked already.
        """
        with translate_ledger_errors(self.path):
            # One file may have several names, and has one lock.
            handle = os.open(
                f"{os.path.realpath(self.path)}-{study[:16]}.lock",
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                0o600,
            )
        with os.fdopen(handle, "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    "LEDGER-003",
                    f"Another process takes part in the study {study[:12]} with the ledger "
                    f"{self.path}.",
                    fix="Let that process continue, or stop it first.",
                ) from None
            yield

    def read_seed(self) -> bytes | None:
        """Return the participant's secret seed; None if there is none yet."""
        found = self._query("SELECT seed FROM identity")
        return found[0][0] if found else None

    def store_seed(self, new_seed: bytes) -> bytes:
        """Store a secret seed unless there is one; return the stored seed, which never changes."""
        with self.begin_write() as db:
            db.execute("INSERT OR IGNORE INTO identity VALUES (1, ?)", (new_seed,))
            (seed,) = db.execute("SELECT seed FROM identity").fetchone()
            return bytes(seed)

    def find_pinned_key(self, url: str) -> bytes | None:
        """Return the key that the coordinator at an address had at the first contact."""
        found = self._query("SELECT key FROM coordinators WHERE url = ?", url)
        return bytes(found[0][0]) if found else None

    def list_studies(self) -> tuple[JoinedStudy, ...]:
        """Return all studies of the journal, oldest first."""
        with self.begin_read() as db:
            return tuple(_read_studies(db))

    def find_study(self, study: str) -> JoinedStudy | None:
        """Return one study; None if the journal does not have it."""
        found = self._query(f"{_SELECT} WHERE study = ?", study)
        return JoinedStudy(*found[0]) if found else None

    def record_study(self, joined: JoinedStudy, *, is_reviewed: bool = False) -> JoinedStudy:
        """Record a study that the participant previews or agrees to; earlier facts are kept.

        Parameters
        ----------
        joined
            The study. With status ``agreed`` it may have been previewed or left before. A
            participant who left enrols again, unless the study had ended before that.
        is_reviewed
            Whether the participant agreed to another version before and has read this one. The
            other version is then left.

        Raises
        ------
        RemoteProtocolError
            ``AUTH-004``: the coordinator has a different key than at the first contact.
        ConsentError
            ``CONSENT-001``: the journal has the same study of another coordinator or in the other
            role, or the participant agreed to another version of it here.
        """
        # One transaction: if two processes agree at the same time, the second one finds the record
        # of the first and keeps its ticket.
        with self.begin_write() as db:
            studies = {one.study: one for one in _read_studies(db)}
            known, changed = (
                studies.get(joined.study),
                find_agreed_versions(studies.values(), joined),
            )
            (pinned,) = db.execute(
                "SELECT key FROM coordinators WHERE url = ?", (joined.url,)
            ).fetchone() or (joined.key,)
            if pinned != joined.key:
                raise RemoteProtocolError(
                    "AUTH-004",
                    f"The coordinator at {escape_text(joined.url)} has a different key than "
                    "before.",
                    fix=_CHANGED_KEY_FIX,
                )
            if known is not None and known.key != joined.key:
                raise other_coordinator_error(known, joined.url)
            if changed and not is_reviewed:
                raise study_changed_error(changed[0], joined.study)
            if known is not None and known.role != joined.role and _has_begun(db, known):
                raise other_role_error(known)
            is_new = joined.standing == "agreed" and (
                known is None or known.standing in ("previewed", "left")
            )
            if known is not None:
                invitation = joined.invitation or known.invitation
                standing = (known.ended or "agreed") if is_new else known.standing
                joined = replace(
                    known,
                    url=joined.url,
                    role=joined.role,
                    invitation=invitation,
                    standing=standing,
                )
                if standing == "agreed" and known.standing == "left":
                    joined = replace(joined, name=None, position=None)
            db.execute("INSERT OR IGNORE INTO coordinators VALUES (?, ?)", (joined.url, joined.key))
            db.executemany(_LEAVE, [(one.study,) for one in changed])
            db.execute(_UPSERT, astuple(joined))
            if is_new:
                now = (self._clock.now() - _EPOCH) // _MILLISECOND
                db.execute("INSERT INTO consents VALUES (?, ?, ?)", (joined.study, joined.url, now))
            return joined

    def list_consents(self, study: str) -> tuple[tuple[str, datetime], ...]:
        """Return address and time of each consent to a study."""
        rows = self._query("SELECT url, at FROM consents WHERE study = ? ORDER BY rowid", study)
        return tuple((url, _EPOCH + at * _MILLISECOND) for url, at in rows)

    def record_enrolment(self, study: str, name: str, position: int | None) -> None:
        """Record the name and the position that the coordinator assigned."""
        self._execute(
            "UPDATE studies SET name = ?, position = ? WHERE study = ?", name, position, study
        )

    def record_invitation(self, study: str, invitation: str) -> None:
        """Record the code of an invitation that was given later."""
        self._execute("UPDATE studies SET invitation = ? WHERE study = ?", invitation, study)

    def set_status(self, study: str, status: ParticipationStatus) -> None:
        """Record the status of a study; ``left`` also keeps the status of a study that ended."""
        if status == "left":
            self._execute(_LEAVE, study)
        else:
            self._execute("UPDATE studies SET standing = ? WHERE study = ?", status, study)

    def load(self, study: str) -> SavedPeerState:
        """Return the saved state of the peer."""
        with self.begin_read() as db:
            state, cursor = db.execute(
                "SELECT state, cursor FROM machines WHERE study = ?", (study,)
            ).fetchone() or (None, 0)
            messages = db.execute(
                "SELECT number, payload, question FROM letters WHERE study = ? ORDER BY number",
                (study,),
            ).fetchall()
            alarms = db.execute(
                "SELECT at FROM alarms WHERE study = ? ORDER BY at", (study,)
            ).fetchall()
            tasks = db.execute(
                "SELECT task FROM tasks WHERE study = ? ORDER BY task", (study,)
            ).fetchall()
        return SavedPeerState(
            state,
            cursor,
            tuple(
                (number, OutgoingMessage(AGGREGATOR, payload or b"", question))
                for number, payload, question in messages
            ),
            tuple(at for (at,) in alarms),
            tuple(task for (task,) in tasks),
        )

    def save(self, study: str, update: JournalUpdate) -> tuple[int, ...]:
        """Save the result of an input; return the numbers of its messages.

        Raise `StoreError` if it cannot be saved; then nothing has changed.
        """
        with self.begin_write() as db:
            db.execute(
                "INSERT INTO machines VALUES (?1, ?2, max(0, ifnull(?3, 0)))"
                " ON CONFLICT (study) DO UPDATE SET state = ?2, cursor = max(cursor, ifnull(?3, "
                "0))",
                (study, update.state, update.cursor),
            )
            db.execute(
                "DELETE FROM letters WHERE study = ? AND question = ?",
                (study, update.dropped_question),
            )
            self._delete_messages(db, study, update.delivered_numbers)
            db.executemany(
                "DELETE FROM alarms WHERE study = ? AND at = ?",
                [(study, at) for at in update.fired_alarms],
            )
            db.executemany(
                "INSERT OR IGNORE INTO alarms VALUES (?, ?)", [(study, at) for at in update.alarms]
            )
            db.executemany(
                "INSERT OR IGNORE INTO tasks VALUES (?, ?)",
                [(study, task) for task in update.started_tasks],
            )
            db.executemany(
                "DELETE FROM tasks WHERE study = ? AND task = ?",
                [(study, task) for task in update.ended_tasks],
            )
            if update.status is not None:
                db.execute(
                    "UPDATE studies SET standing = ?, reason = ? WHERE study = ?",
                    (update.status, update.reason, study),
                )
            if update.status == "aborted":
                for table in ("letters", "alarms", "tasks"):
                    db.execute(f"DELETE FROM {table} WHERE study = ?", (study,))
            return tuple(self._insert_message(db, study, message) for message in update.messages)

    def remove_messages(self, study: str, *numbers: int) -> None:
        """Remove messages that the coordinator has acknowledged or refused."""
        with self.begin_write() as db:
            self._delete_messages(db, study, numbers)

    def _delete_messages(self, db: sqlite3.Connection, study: str, numbers: Iterable[int]) -> None:
        db.executemany(
            "DELETE FROM letters WHERE study = ? AND number = ?",
            [(study, number) for number in numbers],
        )

    def _insert_message(self, db: sqlite3.Connection, study: str, outgoing: OutgoingMessage) -> int:
        payload = outgoing.payload if outgoing.question is None else None
        written = db.execute(
            "INSERT INTO letters (study, payload, question) VALUES (?, ?, ?)",
            (study, payload, outgoing.question),
        )
        assert written.lastrowid is not None
        return written.lastrowid

    def _query(self, query: str, *values: object) -> list[Any]:
        with self.begin_read() as db:
            return db.execute(query, values).fetchall()

    def _execute(self, query: str, *values: object) -> None:
        with self.begin_write() as db:
            db.execute(query, values)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with translate_ledger_errors(self.path), transaction(self._db, begin) as db:
            yield db

    def begin_read(self) -> AbstractContextManager[sqlite3.Connection]:
        """Begin a transaction that reads."""
        return self._transaction("BEGIN")

    def begin_write(self) -> AbstractContextManager[sqlite3.Connection]:
        """Begin a transaction that writes; at its end, all of it is on the disk or none of it."""
        return self._transaction("BEGIN IMMEDIATE")
