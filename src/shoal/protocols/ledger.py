"""What a driver needs of a peer's ledger, and one in memory for simulations.

The states of a release, and what they mean, are those of `shoal.privacy.ledger`: reserved, stored, sending, sent, voided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shoal.clock import Clock, ManualClock
from shoal.errors import LocalProtocolError
from shoal.privacy.events import Event, Unit
from shoal.privacy.ledger import SPENT, Books, Entry, Total
from shoal.privacy.limits import Limit, Period
from shoal.privacy.records import Key, LimitSet, Move, Opened, Release, Reserve, State, Store
from shoal.privacy.rounding import DELTA_GRAINS, grains_down


@runtime_checkable
class Drawn(Protocol):
    """What `Ledger.reserve` returns for a question whose answer was drawn before: there will be no other."""

    @property
    def payload(self) -> bytes:
        """The stored bytes."""
        ...


class Ledger(Protocol):
    """A peer's memory of what it has spent and answered. Each call is durable when it returns.

    A release is named by the study's digest, in hexadecimal digits, and the question. The participant's own ledger is
    ``shoal.participant.ledger_file.LedgerFile``.
    """

    def reserve(self, study: str, question: str, event: Event, *, source: str, recipient: str, title: str) -> object:
        """Hold the cost and return anything; or return what was `Drawn` before. `BudgetError` where the ledger refuses."""
        ...

    def store(self, study: str, question: str, payload: bytes) -> None:
        """Fix the bytes of the answer; the same ones again do nothing, and `LocalProtocolError` refuses others."""
        ...

    def mark_sending(self, study: str, question: str) -> bytes:
        """Count the answer as spent for ever, and return the bytes that may leave: the same ones at every call.

        `BudgetError` where it may not leave any more: it was voided, or a limit was lowered since.
        """
        ...

    def mark_sent(self, study: str, question: str) -> None:
        """The other side has acknowledged the answer."""
        ...

    def unsent(self, study: str) -> Mapping[str, bytes]:
        """Answers that are stored or sending, and not acknowledged: question -> the stored bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Account:
    """A ledger opened for one study and one data source.

    Parameters
    ----------
    ledger, study
        Where it is written, and the digest of the study's manifest.
    source, recipient, title
        Which data it is about, who receives the answers, and what the study is called, for the participant's history.
    """

    ledger: Ledger
    study: bytes
    source: str
    recipient: str
    title: str

    def reserve(self, question: str, event: Event) -> object:
        return self.ledger.reserve(self.study.hex(), question, event, source=self.source, recipient=self.recipient, title=self.title)

    def store(self, question: str, payload: bytes) -> None:
        self.ledger.store(self.study.hex(), question, payload)

    def mark_sending(self, question: str) -> bytes:
        return self.ledger.mark_sending(self.study.hex(), question)

    def mark_sent(self, question: str) -> None:
        self.ledger.mark_sent(self.study.hex(), question)

    def unsent(self) -> Mapping[str, bytes]:
        return self.ledger.unsent(self.study.hex())


@dataclass(frozen=True, slots=True)
class MemoryStored:
    """What `MemoryLedger.reserve` returns for an answer that it holds."""

    payload: bytes


class MemoryLedger:
    """A ledger for simulations: the books of a participant's file, with the same limits and refusals, kept in memory alone.

    Parameters
    ----------
    limit
        Most epsilon for each unit, in all, under the relation replace; without any limit, nothing is refused for its price.
    clock
        Dates the entries, and says which period is the present one.

    Examples
    --------
    >>> from shoal.privacy.events import LOCAL_PERSON
    >>> ledger, price = MemoryLedger(), Event("random-response", {}, LOCAL_PERSON, 0.5)
    >>> asked = ledger.reserve("7f3a", "age", price, source="rows", recipient="aggregator", title="A study")
    >>> ledger.store("7f3a", "age", b"noisy")
    >>> ledger.mark_sending("7f3a", "age"), ledger.totals()[0].spent
    (b'noisy', 500000000000)
    """

    def __init__(self, limit: float | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or ManualClock()
        self._books = Books()
        self._payloads: dict[Key, bytes] = {}
        self._books.take(Opened(self._clock.now()))
        if limit is not None:
            for unit in Unit:
                self.set_limit(Limit(unit, grains_down(limit), period=Period.EVER, delta_grains=DELTA_GRAINS - 1))

    @property
    def entries(self) -> Mapping[Key, Entry]:
        """Every release by study and question, in the order in which they were reserved."""
        return self._books.entries

    def totals(self) -> tuple[Total, ...]:
        """What is spent and held in all, per data source, unit and neighbouring relation."""
        return self._books.totals()

    def set_limit(self, limit: Limit) -> None:
        """Set a limit in place of one about the same."""
        self._books.take(LimitSet(self._clock.now(), limit))

    def reserve(self, study: str, question: str, event: Event, *, source: str, recipient: str, title: str) -> MemoryStored | None:
        release = Release(study, question, event, source, recipient, title)
        entry = self._books.find(release)
        if entry is None:
            if self._books.limits:
                self._books.refuse_if_over(event, source, self._clock.now())
            self._books.take(Reserve(self._clock.now(), release))
        return None if entry is None or entry.state is State.RESERVED else MemoryStored(self._payloads[release.key])

    def store(self, study: str, question: str, payload: bytes) -> None:
        key = Key(study, question)
        if self._payloads.get(key) != payload:
            self._books.take(Store(self._clock.now(), key, hashlib.sha256(payload).digest(), len(payload)))
            self._payloads[key] = payload

    def mark_sending(self, study: str, question: str) -> bytes:
        entry = self._entry(Key(study, question))
        self._books.refuse_if_voided(entry)
        if entry.state not in SPENT:
            if self._books.limits:
                self._books.refuse_to_send(entry, self._clock.now())
            self._move(entry, State.SENDING)
        return self._payloads[entry.release.key]

    def mark_sent(self, study: str, question: str) -> None:
        self._move(self._entry(Key(study, question)), State.SENT)

    def void(self, study: str, question: str) -> None:
        """Give up a release of which nothing was sent."""
        entry = self._entry(Key(study, question))
        self._move(entry, State.VOIDED)
        self._payloads.pop(entry.release.key, None)

    def unsent(self, study: str) -> Mapping[str, bytes]:
        begun = [key for key, entry in self.entries.items() if entry.state in (State.STORED, State.SENDING)]
        return {key.question: self._payloads[key] for key in begun if key.study == study}

    def _entry(self, key: Key) -> Entry:
        if key not in self.entries:
            raise LocalProtocolError("LEDGER-008", f"Question {key.question!r:.60} of this study was never reserved.")
        return self.entries[key]

    def _move(self, entry: Entry, state: State) -> None:
        if entry.state is not state:
            self._books.take(Move(self._clock.now(), entry.release.key, state))
