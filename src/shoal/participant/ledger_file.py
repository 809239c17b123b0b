"""The ledger and outbox in SQLite.

The participant's session, driver and journal, and ``shoal ledger``, open this file. `LedgerState`
has the rules; this module stores its records, and the bytes of each release, in one file
(`shoal.participant.ledger_storage`).

Each change is one transaction that is on the disk before the call returns. The order of calls is
therefore the order on the disk, and a change must keep it:

    reserve  ->  draw  ->  store  ->  mark_sending  ->  send the bytes  ->  mark_sent

After a crash between any two of them, `LedgerFile.list_pending` lists what is left to do. A
reserved release is drawn again: the first draw was lost before anyone saw it. A stored or sending
release is sent again, with the same bytes. A release is marked as sending before its bytes leave.

The whole chain of records is checked when the file is opened, and records of other processes are
checked before each call. Memory contains only what was read back from the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.clock import Clock
from shoal.errors import IntegrityError, LocalProtocolError, StoreError, UsageError
from shoal.participant.ledger_storage import (
    append_record,
    apply_new_rows,
    check_ledger_format,
    damaged_ledger_error,
    open_ledger_file,
    read_file_identity,
    translate_ledger_errors,
)
from shoal.privacy.events import Event
from shoal.privacy.ledger.charges import StudyBudget
from shoal.privacy.ledger.limits import Limit, LimitUsage
from shoal.privacy.ledger.records import (
    DateRecord,
    LedgerHead,
    LedgerRecord,
    LedgerRelease,
    LimitRecord,
    ReleaseKey,
    ReleaseState,
    ReserveRecord,
    StoreRecord,
    TransitionRecord,
)
from shoal.privacy.ledger.state import SPENT_STATES, LedgerEntry, LedgerState, LedgerTotal
from shoal.protocols.ledger import Account
from shoal.sqlite import transaction

MAX_PAYLOAD_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class ReservedRelease:
    """A release with a reserved cost: draw it, and call `LedgerFile.store`."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """A release that was drawn before, with the only bytes that it will ever have."""

    entry: LedgerEntry
    payload: bytes


class LedgerFile:
    """The ledger in a file, which is created if it does not exist.

    Parameters
    ----------
    path
        The file. Its directory is created too; only their owner can read them.
    clock
        Dates the records, and determines the current period of each limit.

    Privacy
    -------
    Every release of a participant passes through this class. `reserve` refuses a release that would
    exceed a limit, `store` keeps the only draw that there will ever be, and `mark_sending` returns
    the bytes and counts them as spent for ever.

    Examples
    --------
    >>> import tempfile
    >>> from shoal.clock import ManualClock
    >>> from shoal.privacy.events import LOCAL_PERSON
    >>> price = Event("random-response", {}, LOCAL_PERSON, 1.0)
    >>> with (
    ...     tempfile.TemporaryDirectory() as folder,
    ...     LedgerFile(Path(folder) / "ledger.db", ManualClock()) as ledger,
    ... ):
    ...     asked = ledger.reserve(
    ...         "d1", "q1", price, source="me.csv", recipient="https://x.org", title="Sleep"
    ...     )
    ...     ledger.store("d1", "q1", b"noisy")
    ...     ledger.mark_sending("d1", "q1"), ledger.totals()[0].spent
    (b'noisy', 1000000000000)
    """

    def __init__(self, path: Path | str, clock: Clock) -> None:
        self.path = Path(path).absolute()
        self._clock = clock
        self._owner = os.getpid()
        self._ledger_state = LedgerState()
        self._db, self._file_identity = open_ledger_file(self.path, clock)
        try:
            self._upgrade()
        except BaseException:
            self._db.close()
            raise

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

    def account(
        self,
        study: bytes,
        source: str,
        recipient: str,
        title: str,
        budget: StudyBudget | None = None,
    ) -> Account:
        """Return the ledger opened for one study, given by its digest, and one data source."""
        return Account(self, study, source, recipient, title, budget)

    def reserve(
        self,
        study: str,
        question: str,
        event: Event,
        *,
        source: str,
        recipient: str,
        title: str,
        budget: StudyBudget | None = None,
    ) -> ReservedRelease | StoredRelease:
        """Reserve the cost of a release, or resume a release.

        Parameters
        ----------
        study, question
            Digest of the manifest, and question; together they identify the release.
        event
            The release, as the participant's own code prices it.
        source, recipient, title
            Which data it is about, who receives it, and the study's title.
        budget
            The budget of the whole study, if rho is composed within it.

        Returns
        -------
        ReservedRelease or StoredRelease
            `ReservedRelease`: draw and store. `StoredRelease`: the draw was made before; use it.

        Raises
        ------
        BudgetError
            The release would exceed a limit (nothing is written); or the question was reserved
            before with another price, source or recipient; or it was voided.
        StoreError
            ``LEDGER-012``: the clock is more than 30 days ahead of the last record; see
            `confirm_date`.
        """
        release = LedgerRelease(study, question, event, source, recipient, title, budget)
        with self._begin_write():
            entry = self._ledger_state.find_entry(release)
            if entry is None:
                now = self._clock.now()
                self._ledger_state.refuse_if_ahead(now)
                self._ledger_state.refuse_if_over(release, now)
                self._append_record(ReserveRecord(now, release))
                return ReservedRelease(LedgerEntry.make_reserved(now, release))
            return (
                ReservedRelease(entry)
                if entry.state is ReleaseState.RESERVED
                else StoredRelease(entry, self._read_payload(entry))
            )

    def store(self, study: str, question: str, payload: bytes) -> None:
        """Store the drawn bytes and their record in one transaction.

        Storing the same bytes again does nothing; other bytes are refused.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise UsageError(
                "LEDGER-009",
                f"A release of {len(payload)} bytes cannot be stored; the limit is "
                f"{MAX_PAYLOAD_BYTES} bytes.",
            )
        digest = hashlib.sha256(payload).digest()
        with self._begin_write():
            entry = self._find_entry(ReleaseKey(study, question))
            if entry.digest == digest and entry.state is not ReleaseState.VOIDED:
                return
            self._append_record(
                StoreRecord(self._clock.now(), ReleaseKey(study, question), digest, len(payload))
            )
            self._db.execute("INSERT INTO outbox VALUES (?, ?, ?)", (study, question, payload))

    def mark_sending(self, study: str, question: str) -> bytes:
        """Count a stored release as spent for ever, and return the bytes to send.

        A retry returns the same bytes.

        Raises
        ------
        BudgetError
            The release was voided, or would exceed a limit that was lowered since. It must not be
            sent.
        StoreError
            ``LEDGER-012``: the clock is more than 30 days ahead of the last record.
        """
        with self._begin_write():
            entry = self._find_entry(ReleaseKey(study, question))
            self._ledger_state.refuse_if_voided(entry)
            payload = self._read_payload(entry)
            if entry.state not in SPENT_STATES:
                now = self._clock.now()
                self._ledger_state.refuse_if_ahead(now)
                self._ledger_state.refuse_sending_if_over(entry, now)
                self._append_record(TransitionRecord(now, entry.release.key, ReleaseState.SENDING))
            return payload

    def mark_sent(self, study: str, question: str) -> None:
        """Record that the recipient has acknowledged a release."""
        self._set_entry_state(study, question, ReleaseState.SENT)

    def void(self, study: str, question: str) -> None:
        """Cancel a release of which nothing was sent.

        Its cost is free again, its bytes are deleted, and its question stays unanswered.
        """
        self._set_entry_state(
            study,
            question,
            ReleaseState.VOIDED,
            "DELETE FROM outbox WHERE study = ? AND question = ?",
        )

    def find_entry(self, study: str, question: str) -> LedgerEntry:
        """Return one release with its state."""
        with self._begin_read():
            return self._find_entry(ReleaseKey(study, question))

    def read_payload(self, study: str, question: str) -> bytes:
        """Return the stored bytes of a release, for a preview."""
        with self._begin_read():
            return self._read_payload(self._find_entry(ReleaseKey(study, question)))

    def list_pending(self) -> tuple[LedgerEntry, ...]:
        """Return the releases to draw (reserved) or to send (stored, sending)."""
        return tuple(
            entry
            for entry in self.entries()
            if entry.state not in (ReleaseState.SENT, ReleaseState.VOIDED)
        )

    def list_unsent(self, study: str) -> dict[str, bytes]:
        """Return the stored bytes of each answer that is not acknowledged, by question."""
        with self._begin_read():
            entries = [
                entry for entry in self._ledger_state.entries.values() if entry.study == study
            ]
            return {
                entry.release.question: self._read_payload(entry)
                for entry in entries
                if entry.state in (ReleaseState.STORED, ReleaseState.SENDING)
            }

    def list_history(self) -> tuple[LedgerEntry, ...]:
        """Return what was sent, or may have been, in the order of `mark_sending`."""
        return tuple(
            sorted(
                (entry for entry in self.entries() if entry.state in SPENT_STATES),
                key=attrgetter("spent_at"),
            )
        )

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return every release, voided ones included, in the order of `reserve`."""
        with self._begin_read():
            return tuple(self._ledger_state.entries.values())

    def totals(self) -> tuple[LedgerTotal, ...]:
        """Return what is spent and reserved per data source, unit and neighbouring relation."""
        with self._begin_read():
            return self._ledger_state.compute_totals()

    def limits(self) -> tuple[LimitUsage, ...]:
        """Return every limit, and how much of it is used now."""
        with self._begin_read():
            return self._ledger_state.list_usage(self._clock.now())

    def set_limit(self, limit: Limit) -> None:
        """Set a limit, and replace the one with the same scope.

        A limit that caps neither epsilon nor releases removes it.
        """
        with self._begin_write():
            self._append_record(LimitRecord(self._clock.now(), limit))

    def check_clock(self) -> None:
        """Raise ``LEDGER-012`` if the clock is more than 30 days ahead of the last record."""
        with self._begin_read():
            self._ledger_state.refuse_if_ahead(self._clock.now())

    def confirm_date(self) -> None:
        """Record that the owner has confirmed the date of the clock, if that is needed."""
        with self._begin_write():
            now = self._clock.now()
            if self._ledger_state.is_clock_ahead(now):
                self._append_record(DateRecord(now))

    def read_head(self) -> LedgerHead:
        """Return number and hash of the last record, for the owner to note elsewhere.

        `verify` compares the ledger with a head that was noted.
        """
        with self._begin_read():
            return self._ledger_state.head

    def verify(self, head: str | None = None) -> LedgerHead:
        """Check the format, every record and every stored byte again, and compare with a head.

        A hash chain shows that records were changed, lost or exchanged. Someone who can write the
        file can also rewrite all of it, or replace it by an older copy, with an intact chain: only
        a head that was noted elsewhere shows that.
        """
        with self._begin_read():
            check_ledger_format(self._db, self.path)
            ledger_state = LedgerState()
            apply_new_rows(self._db, ledger_state, self.path)
            self._check_outbox(ledger_state)
            if head is not None:
                ledger_state.check_head(head)
            return ledger_state.head

    def _upgrade(self) -> None:
        """Read the file; add the limit on all units together to a file of an earlier version."""
        with self._begin_read():
            is_complete = self._ledger_state.make_common_limit() is None
        if is_complete:
            return
        with self._begin_write():
            limit = self._ledger_state.make_common_limit()
            if limit is not None:
                self._append_record(LimitRecord(self._clock.now(), limit))

    def _set_entry_state(
        self, study: str, question: str, state: ReleaseState, also: str | None = None
    ) -> None:
        key = ReleaseKey(study, question)
        with self._begin_write():
            if self._find_entry(key).state is state:
                return
            self._append_record(TransitionRecord(self._clock.now(), key, state))
            if also:
                self._db.execute(also, key)

    def _find_entry(self, key: ReleaseKey) -> LedgerEntry:
        if key not in self._ledger_state.entries:
            raise LocalProtocolError(
                "LEDGER-008",
                f"Question {key.question!r:.60} of this study was never reserved.",
                fix="Reserve it first.",
            )
        return self._ledger_state.entries[key]

    def _read_payload(self, entry: LedgerEntry) -> bytes:
        if entry.digest is None or entry.state is ReleaseState.VOIDED:
            raise LocalProtocolError(
                "LEDGER-008",
                f"Question {entry.release.question} is {entry.state} and has no stored bytes.",
            )
        found = self._db.execute(
            "SELECT bytes FROM outbox WHERE study = ? AND question = ?", entry.release.key
        ).fetchone()
        if (
            found is None
            or not isinstance(found[0], bytes)
            or hashlib.sha256(found[0]).digest() != entry.digest
        ):
            raise IntegrityError(
                "LEDGER-006",
                f"The stored bytes of question {entry.release.question} of study "
                f"{entry.release.title} are not those that were drawn.",
                why="The file was changed by something other than shoal, or the disk is failing. "
                "The answer is not sent, and not drawn again.",
                fix="Restore a backup that contains the last head that you noted (shoal ledger "
                "verify --head).",
            )
        return found[0]

    def _check_outbox(self, ledger_state: LedgerState) -> None:
        drawn = {
            key: entry
            for key, entry in ledger_state.entries.items()
            if entry.digest is not None and entry.state is not ReleaseState.VOIDED
        }
        stray = [
            key
            for key in self._db.execute("SELECT study, question FROM outbox")
            if key not in drawn
        ]
        if stray:
            raise damaged_ledger_error(
                self.path, f"its outbox has {len(stray)} items without a record"
            )
        for entry in drawn.values():
            self._read_payload(entry)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        """Begin a transaction on the opened file, and apply the records of other processes."""
        if os.getpid() != self._owner:
            raise LocalProtocolError(
                "LEDGER-011",
                "A ledger that was opened in one process was used in its child process.",
                why="SQLite's locks do not survive a fork: parent and child could both write.",
                fix="Open the ledger again in the child.",
            )
        with translate_ledger_errors(self.path), transaction(self._db, begin):
            if read_file_identity(self.path) != self._file_identity:
                raise StoreError(
                    "LEDGER-001",
                    f"The ledger {self.path} was moved or replaced while it was in use.",
                    why="A record written now would be missing from the file at that path.",
                    fix="Put the newest file back in its place, and start again.",
                )
            apply_new_rows(self._db, self._ledger_state, self.path)
            yield

    def _begin_read(self) -> AbstractContextManager[None]:
        return self._transaction("BEGIN")

    def _begin_write(self) -> AbstractContextManager[None]:
        # With the write lock taken first, no other process can spend between the check of a limit
        # and the record.
        return self._transaction("BEGIN IMMEDIATE")

    def _append_record(self, record: LedgerRecord) -> None:
        append_record(self._db, self._ledger_state, record)
