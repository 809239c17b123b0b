"""What a driver needs of a peer's ledger, and one in memory for simulations.

The states of a release, and what they mean, are those of `shoal.privacy.ledger`: reserved, stored, sending, sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shoal.errors import BudgetError, LocalProtocolError
from shoal.privacy.events import Event
from shoal.privacy.ledger import SPENT, TRANSITIONS
from shoal.privacy.records import State


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
        """Fix the bytes of the answer."""
        ...

    def mark_sending(self, study: str, question: str) -> bytes:
        """Count the answer as spent for ever, and return the bytes that may leave: the same ones at every call."""
        ...

    def mark_sent(self, study: str, question: str) -> None:
        """The other side has acknowledged the answer."""
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


@dataclass(slots=True)
class MemoryEntry:
    """One release in a `MemoryLedger`; ``payload`` is empty until it is stored."""

    event: Event
    state: State = State.RESERVED
    payload: bytes = b""


class MemoryLedger:
    """A ledger for simulations: the same states and order as a participant's file, without the file and its limits per period.

    Parameters
    ----------
    limit
        Most epsilon in all, by plain sum.

    Examples
    --------
    >>> from shoal.privacy.events import LOCAL_PERSON
    >>> ledger, price = MemoryLedger(), Event("random-response", {}, LOCAL_PERSON, 0.5)
    >>> asked = ledger.reserve("7f3a", "age", price, source="rows", recipient="aggregator", title="A study")
    >>> ledger.store("7f3a", "age", b"noisy"), ledger.spent
    (None, 0.0)
    >>> ledger.mark_sending("7f3a", "age"), ledger.spent
    (b'noisy', 0.5)
    """

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        self.entries: dict[tuple[str, str], MemoryEntry] = {}

    @property
    def spent(self) -> float:
        """Epsilon of all that has begun to leave, by plain sum."""
        return math.fsum(entry.event.epsilon for entry in self.entries.values() if entry.state in SPENT)

    def reserve(self, study: str, question: str, event: Event, *, source: str, recipient: str, title: str) -> MemoryEntry | None:
        entry = self.entries.get((study, question))
        if entry is None:
            held = math.fsum(entry.event.epsilon for entry in self.entries.values())
            if held + event.epsilon > self.limit:
                raise BudgetError(
                    "BUDGET-002", f"Question {question} asks for epsilon {event.epsilon:g}; {held:g} of {self.limit:g} is taken."
                )
            self.entries[study, question] = entry = MemoryEntry(event)
        if entry.event != event:
            raise BudgetError("BUDGET-004", f"Question {question} was reserved before at another price.")
        return None if entry.state is State.RESERVED else entry

    def store(self, study: str, question: str, payload: bytes) -> None:
        entry = self._move(study, question, State.STORED)
        entry.payload = payload

    def mark_sending(self, study: str, question: str) -> bytes:
        entry = self.entries.get((study, question))
        if entry is None or entry.state not in SPENT:
            entry = self._move(study, question, State.SENDING)
        return entry.payload

    def mark_sent(self, study: str, question: str) -> None:
        entry = self.entries.get((study, question))
        if entry is None or entry.state is not State.SENT:
            self._move(study, question, State.SENT)

    def _move(self, study: str, question: str, state: State) -> MemoryEntry:
        entry = self.entries.get((study, question))
        if entry is None or state not in TRANSITIONS[entry.state]:
            before = "never reserved" if entry is None else entry.state
            raise LocalProtocolError("LEDGER-008", f"The answer to {question} was to become {state}, but it is {before}.")
        entry.state = state
        return entry
