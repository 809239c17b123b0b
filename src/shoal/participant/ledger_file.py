"""The participant's ledger and outbox: one SQLite file that survives a crash at any moment.

Every change is one transaction that is on the disk before the call returns, so the order of calls is the order on the disk:

    reserve  ->  draw  ->  store  ->  mark_sending  ->  the bytes go out  ->  mark_sent

After a crash between any two of them `pending` says what to do: a reserved release is drawn again (the first draw was lost
unseen), a stored or sending one is sent again with the same bytes. Whatever may have left was marked as sending before.

The whole chain of records is checked when the file is opened, and what other processes have added before each call.
Memory holds only what was read back from the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.clock import Clock
from shoal.errors import IntegrityError, LocalProtocolError, StoreError, UsageError
from shoal.participant.ledger_db import altered, append, check_form, connect, create, fold, identity, in_sentences, is_there, upgrade
from shoal.privacy.events import Event
from shoal.privacy.ledger import SPENT, Books, Entry, Total
from shoal.privacy.limits import Limit, Usage
from shoal.privacy.records import Head, Key, LimitSet, Move, Record, Release, Reserve, State, Store

MAX_PAYLOAD = 1 << 28


@dataclass(frozen=True, slots=True)
class Reserved:
    """The cost is held: draw, and `LedgerFile.store` what was drawn."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Stored:
    """The release was drawn before: these are its bytes, and there will be no others."""

    entry: Entry
    payload: bytes


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the ledger is: ``SHOAL_LEDGER``, else ``shoal/ledger.db`` in the user's data directory."""
    if environ.get("SHOAL_LEDGER"):
        return Path(environ["SHOAL_LEDGER"])
    data, home = environ.get("XDG_DATA_HOME", ""), environ.get("HOME", "")
    # The XDG specification has relative paths ignored.
    if not (data.startswith("/") or home.startswith("/")):
        raise StoreError(
            "LEDGER-001", "There is no place for the ledger: HOME is not set.", fix="Give one: --ledger PATH, or SHOAL_LEDGER."
        )
    return (Path(data) if data.startswith("/") else Path(home) / ".local" / "share") / "shoal" / "ledger.db"


class LedgerFile:
    """The ledger in a file, created where there is none.

    Parameters
    ----------
    path
        The file. Its directory is created too; both can be read by their owner alone.
    clock
        Dates the records, and says which period is the present one.

    Privacy
    -------
    All that leaves a participant passes through here: `reserve` refuses what goes over a limit, `store` keeps the one draw there will
    ever be, and `mark_sending` hands out the bytes and counts them as spent for ever.

    Examples
    --------
    >>> import tempfile
    >>> from shoal.clock import ManualClock
    >>> from shoal.privacy.events import LOCAL_PERSON
    >>> price = Event("random-response", {}, LOCAL_PERSON, 1.0)
    >>> with tempfile.TemporaryDirectory() as folder, LedgerFile(Path(folder) / "ledger.db", ManualClock()) as ledger:
    ...     asked = ledger.reserve("d1", "q1", price, source="me.csv", recipient="https://x.org", title="Sleep")
    ...     ledger.store("d1", "q1", b"noisy")
    ...     ledger.mark_sending("d1", "q1"), ledger.totals()[0].spent
    (b'noisy', 1000000000000)
    """

    def __init__(self, path: Path | str, clock: Clock) -> None:
        self.path = Path(path).absolute()
        self._clock = clock
        self._owner = os.getpid()
        self._books = Books()
        with in_sentences(self.path):
            if not is_there(self.path):
                create(self.path, clock)
            self._identity = identity(self.path)
            self._db = connect(self.path)
        try:
            with in_sentences(self.path):
                upgrade(self._db)
                check_form(self._db, self.path)
            self.head()
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

    def reserve(self, study: str, question: str, event: Event, *, source: str, recipient: str, title: str) -> Reserved | Stored:
        """Hold the cost of a release, or resume one that was begun.

        Parameters
        ----------
        study, question
            Digest of the manifest, and question; together they name the release once and for all.
        event
            The release as the participant's own code prices it.
        source, recipient, title
            Which data it is about, to whom it goes, and the study's title for people.

        Returns
        -------
        Reserved or Stored
            `Reserved`: draw and store. `Stored`: the draw was made before, and is to be used.

        Raises
        ------
        BudgetError
            A limit would be passed (nothing is written), or the question was reserved before on other terms, or voided.
        """
        release = Release(study, question, event, source, recipient, title)
        with self._change():
            entry = self._books.find(release)
            if entry is None:
                now = self._clock.now()
                self._books.refuse_if_over(event, source, now)
                self._append(Reserve(now, release))
                return Reserved(Entry.reserved(now, release))
            return Reserved(entry) if entry.state is State.RESERVED else Stored(entry, self._payload(entry))

    def store(self, study: str, question: str, payload: bytes) -> None:
        """Keep what was drawn: bytes and record in one transaction. Storing the same bytes again does nothing; others are refused."""
        if len(payload) > MAX_PAYLOAD:
            raise UsageError("LEDGER-009", f"A release of {len(payload)} bytes cannot be stored; at most {MAX_PAYLOAD} can.")
        digest = hashlib.sha256(payload).digest()
        with self._change():
            entry = self._entry(Key(study, question))
            if entry.digest == digest and entry.state is not State.VOIDED:
                return
            self._append(Store(self._clock.now(), Key(study, question), digest, len(payload)))
            self._db.execute("INSERT INTO outbox VALUES (?, ?, ?)", (study, question, payload))

    def mark_sending(self, study: str, question: str) -> bytes:
        """Count a stored release as spent for ever, and return the bytes that may go out now; for a retry, the same bytes again.

        Raises
        ------
        BudgetError
            The release was voided, or would go over a limit that was lowered since; nothing may go out.
        """
        with self._change():
            entry = self._entry(Key(study, question))
            self._books.refuse_if_voided(entry)
            payload = self._payload(entry)
            if entry.state not in SPENT:
                now = self._clock.now()
                self._books.refuse_to_send(entry, now)
                self._append(Move(now, entry.release.key, State.SENDING))
            return payload

    def mark_sent(self, study: str, question: str) -> None:
        """Note that the recipient has acknowledged a release."""
        self._move(study, question, State.SENT)

    def void(self, study: str, question: str) -> None:
        """Give up a release of which nothing was sent: its cost is free again, its bytes are deleted, its question stays unanswered."""
        self._move(study, question, State.VOIDED, "DELETE FROM outbox WHERE study = ? AND question = ?")

    def entry(self, study: str, question: str) -> Entry:
        """One release and how far it has come."""
        with self._look():
            return self._entry(Key(study, question))

    def payload(self, study: str, question: str) -> bytes:
        """The stored bytes of a release, for a preview."""
        with self._look():
            return self._payload(self._entry(Key(study, question)))

    def pending(self) -> tuple[Entry, ...]:
        """What was begun and is neither sent nor voided: to be drawn (reserved) or sent (stored, sending)."""
        return tuple(entry for entry in self.entries() if entry.state not in (State.SENT, State.VOIDED))

    def unsent(self, study: str) -> dict[str, bytes]:
        """A study's answers that are drawn and not acknowledged: question -> the bytes to send, or to send again."""
        with self._look():
            entries = [entry for entry in self._books.entries.values() if entry.study == study]
            return {entry.release.question: self._payload(entry) for entry in entries if entry.state in (State.STORED, State.SENDING)}

    def history(self) -> tuple[Entry, ...]:
        """What was sent, or may have been: in the order in which it was marked as sending."""
        return tuple(sorted((entry for entry in self.entries() if entry.state in SPENT), key=attrgetter("spent_at")))

    def entries(self) -> tuple[Entry, ...]:
        """Every release, in the order in which they were reserved; the voided ones too."""
        with self._look():
            return tuple(self._books.entries.values())

    def totals(self) -> tuple[Total, ...]:
        """What is spent and held in all, per data source, unit and neighbouring relation."""
        with self._look():
            return self._books.totals()

    def limits(self) -> tuple[Usage, ...]:
        """Every limit, and how much of it is used at present."""
        with self._look():
            return self._books.usage(self._clock.now())

    def left(self, event: Event, source: str) -> int:
        """How much a release like this one may cost at present, in grains: for the label, before anything is reserved."""
        with self._look():
            return self._books.left(event, source, self._clock.now())

    def set_limit(self, limit: Limit) -> None:
        """Set a limit in place of one about the same; one that caps neither epsilon nor releases removes it."""
        with self._change():
            self._append(LimitSet(self._clock.now(), limit))

    def head(self) -> Head:
        """The last record's number and hash. Note it elsewhere; `verify` compares."""
        with self._look():
            return self._books.head

    def verify(self, head: str | None = None) -> Head:
        """Read everything again: the file's form, every record, every stored byte; and compare with a head noted earlier.

        A hash chain shows that records were changed, lost or exchanged. Somebody who can write the file can also rewrite
        all of it, or put an older copy in its place, and have a chain that is whole: only a head that was kept elsewhere shows that.
        """
        with self._look():
            check_form(self._db, self.path)
            books = Books()
            fold(self._db, books, self.path)
            self._check_outbox(books)
            if head is not None:
                books.check_head(head)
            return books.head

    def _move(self, study: str, question: str, state: State, also: str | None = None) -> None:
        key = Key(study, question)
        with self._change():
            if self._entry(key).state is state:
                return
            self._append(Move(self._clock.now(), key, state))
            if also:
                self._db.execute(also, key)

    def _entry(self, key: Key) -> Entry:
        if key not in self._books.entries:
            raise LocalProtocolError(
                "LEDGER-008", f"Question {key.question!r:.60} of this study was never reserved.", fix="Reserve it first."
            )
        return self._books.entries[key]

    def _payload(self, entry: Entry) -> bytes:
        if entry.digest is None or entry.state is State.VOIDED:
            raise LocalProtocolError("LEDGER-008", f"Question {entry.release.question} is {entry.state} and has no stored bytes.")
        found = self._db.execute("SELECT bytes FROM outbox WHERE study = ? AND question = ?", entry.release.key).fetchone()
        if found is None or not isinstance(found[0], bytes) or hashlib.sha256(found[0]).digest() != entry.digest:
            raise IntegrityError(
                "LEDGER-006",
                f"The stored bytes of question {entry.release.question} of study {entry.release.title} are not those that were drawn.",
                why="The file was changed by something other than shoal, or the disk is failing.",
                fix="They are not sent, and not drawn again. Restore a backup that has your last noted head (shoal ledger verify --head).",
            )
        return found[0]

    def _check_outbox(self, books: Books) -> None:
        drawn = {key: entry for key, entry in books.entries.items() if entry.digest is not None and entry.state is not State.VOIDED}
        stray = [key for key in self._db.execute("SELECT study, question FROM outbox") if key not in drawn]
        if stray:
            raise altered(self.path, f"its outbox has {len(stray)} items that no record speaks of")
        for entry in drawn.values():
            self._payload(entry)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        """A transaction on the file that was opened, with all its records folded in."""
        if os.getpid() != self._owner:
            raise LocalProtocolError(
                "LEDGER-011",
                "A ledger that was opened in one process is used in a child of it.",
                why="SQLite's locks do not survive a fork: parent and child could both write.",
                fix="Open the ledger anew in the child.",
            )
        with in_sentences(self.path):
            self._db.execute(begin)
            try:
                if identity(self.path) != self._identity:
                    raise StoreError(
                        "LEDGER-001",
                        f"The ledger {self.path} was moved or replaced while it was in use.",
                        why="What would be written now could not be found again under its name.",
                        fix="Put the newest file back in its place, and start again.",
                    )
                fold(self._db, self._books, self.path)
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _look(self) -> AbstractContextManager[None]:
        return self._transaction("BEGIN")

    def _change(self) -> AbstractContextManager[None]:
        # Taking the write lock first makes checking a limit and spending against it one step among all processes.
        return self._transaction("BEGIN IMMEDIATE")

    def _append(self, record: Record) -> None:
        append(self._db, self._books, record)
