"""The ledger interface that drivers need, and an in-memory ledger.

The states of a release and their meaning are those of `shoal.privacy.ledger.state`: reserved,
stored, sending, sent, voided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shoal.clock import Clock, ManualClock
from shoal.errors import LocalProtocolError
from shoal.privacy.events import Event
from shoal.privacy.ledger.charges import StudyBudget
from shoal.privacy.ledger.limits import Limit, Period
from shoal.privacy.ledger.records import (
    LedgerRelease,
    LimitRecord,
    OpeningRecord,
    ReleaseKey,
    ReleaseState,
    ReserveRecord,
    StoreRecord,
    TransitionRecord,
)
from shoal.privacy.ledger.state import SPENT_STATES, LedgerEntry, LedgerState, LedgerTotal
from shoal.privacy.rounding import DELTA_GRAINS, grains_down


@runtime_checkable
class StoredPayload(Protocol):
    """The result of `Ledger.reserve` for a question that was answered before.

    The question will have no other answer.
    """

    @property
    def payload(self) -> bytes:
        """The stored bytes."""
        ...


class Ledger(Protocol):
    """A peer's durable record of its releases. Each call is durable when it returns.

    A release is named by the study's digest, in hexadecimal digits, and the question. The
    participant's own ledger is ``shoal.participant.ledger_file.LedgerFile``.
    """

    def account(
        self,
        study: bytes,
        source: str,
        recipient: str,
        title: str,
        budget: StudyBudget | None = None,
    ) -> Account:
        """Return the ledger opened for one study, given by its digest, and one data source."""
        ...

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
    ) -> object:
        """Reserve the cost of a question.

        Return a `StoredPayload` if its answer is stored already, and any other object otherwise.
        Raise `BudgetError` if the ledger refuses. With a budget the whole study is charged once;
        without, its releases add up plainly.
        """
        ...

    def store(self, study: str, question: str, payload: bytes) -> None:
        """Store the bytes of the answer.

        Storing the same bytes again does nothing; other bytes raise `LocalProtocolError`.
        """
        ...

    def mark_sending(self, study: str, question: str) -> bytes:
        """Count the answer as spent for ever, and return the bytes to send.

        Each call returns the same bytes. Raise `BudgetError` if the answer may no longer be sent:
        it was voided, or a limit was lowered.
        """
        ...

    def mark_sent(self, study: str, question: str) -> None:
        """Record that the recipient has acknowledged the answer."""
        ...

    def list_unsent(self, study: str) -> Mapping[str, bytes]:
        """Return the stored bytes of unacknowledged answers by question.

        These answers are in the states stored and sending.
        """
        ...


@dataclass(frozen=True, slots=True)
class Account:
    """A ledger opened for one study and one data source.

    Parameters
    ----------
    study
        Digest of the study's manifest.
    source
        Name of the data that the study is about.
    recipient, title
        The receiver of the answers and the title of the study, for the participant's history.
    budget
        The budget of the whole study, if rho is composed within it.
    """

    ledger: Ledger
    study: bytes
    source: str
    recipient: str
    title: str
    budget: StudyBudget | None = None

    def reserve(self, question: str, event: Event) -> object:
        return self.ledger.reserve(
            self.study.hex(),
            question,
            event,
            source=self.source,
            recipient=self.recipient,
            title=self.title,
            budget=self.budget,
        )

    def store(self, question: str, payload: bytes) -> None:
        self.ledger.store(self.study.hex(), question, payload)

    def mark_sending(self, question: str) -> bytes:
        return self.ledger.mark_sending(self.study.hex(), question)

    def mark_sent(self, question: str) -> None:
        self.ledger.mark_sent(self.study.hex(), question)

    def list_unsent(self) -> Mapping[str, bytes]:
        return self.ledger.list_unsent(self.study.hex())


@dataclass(frozen=True, slots=True)
class MemoryPayload:
    """The result of `MemoryLedger.reserve` for an answer that is stored."""

    payload: bytes


class MemoryLedger:
    """A ledger in memory, for simulations.

    It has the state machine, limits and refusals of a participant's ledger file.

    Parameters
    ----------
    limit
        Largest total epsilon of all units together, under the relation replace. Without a limit,
        nothing is refused for its price.
    clock
        Dates the entries, and determines the current period.

    Examples
    --------
    >>> from shoal.privacy.events import LOCAL_PERSON
    >>> ledger, price = MemoryLedger(), Event("random-response", {}, LOCAL_PERSON, 0.5)
    >>> reply = ledger.reserve(
    ...     "7f3a", "age", price, source="rows", recipient="aggregator", title="A study"
    ... )
    >>> ledger.store("7f3a", "age", b"noisy")
    >>> ledger.mark_sending("7f3a", "age"), ledger.totals()[0].spent
    (b'noisy', 500000000000)
    """

    def __init__(self, limit: float | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or ManualClock()
        self._ledger_state = LedgerState()
        self._payloads: dict[ReleaseKey, bytes] = {}
        self._ledger_state.apply_unstored(OpeningRecord(self._clock.now()))
        if limit is not None:
            self.set_limit(
                Limit(None, grains_down(limit), period=Period.EVER, delta_grains=DELTA_GRAINS - 1)
            )

    @property
    def entries(self) -> Mapping[ReleaseKey, LedgerEntry]:
        """All releases by study and question, in the order in which they were reserved."""
        return self._ledger_state.entries

    def totals(self) -> tuple[LedgerTotal, ...]:
        """Return the spent and reserved totals per data source, unit and neighbouring relation."""
        return self._ledger_state.compute_totals()

    def set_limit(self, limit: Limit) -> None:
        """Set a limit, in place of an earlier one with the same `Limit.key`."""
        self._ledger_state.apply_unstored(LimitRecord(self._clock.now(), limit))

    def account(
        self,
        study: bytes,
        source: str,
        recipient: str,
        title: str,
        budget: StudyBudget | None = None,
    ) -> Account:
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
    ) -> MemoryPayload | None:
        release = LedgerRelease(study, question, event, source, recipient, title, budget)
        entry = self._ledger_state.find_entry(release)
        if entry is None:
            if self._ledger_state.limits:
                self._ledger_state.refuse_if_over(release, self._clock.now())
            self._ledger_state.apply_unstored(ReserveRecord(self._clock.now(), release))
        return (
            None
            if entry is None or entry.state is ReleaseState.RESERVED
            else MemoryPayload(self._payloads[release.key])
        )

    def store(self, study: str, question: str, payload: bytes) -> None:
        key = ReleaseKey(study, question)
        if self._payloads.get(key) != payload:
            self._ledger_state.apply_unstored(
                StoreRecord(self._clock.now(), key, hashlib.sha256(payload).digest(), len(payload))
            )
            self._payloads[key] = payload

    def mark_sending(self, study: str, question: str) -> bytes:
        entry = self._find_entry(ReleaseKey(study, question))
        self._ledger_state.refuse_if_voided(entry)
        if entry.state not in SPENT_STATES:
            if self._ledger_state.limits:
                self._ledger_state.refuse_sending_if_over(entry, self._clock.now())
            self._set_entry_state(entry, ReleaseState.SENDING)
        return self._payloads[entry.release.key]

    def mark_sent(self, study: str, question: str) -> None:
        self._set_entry_state(self._find_entry(ReleaseKey(study, question)), ReleaseState.SENT)

    def void(self, study: str, question: str) -> None:
        """Void a release of which nothing was sent."""
        entry = self._find_entry(ReleaseKey(study, question))
        self._set_entry_state(entry, ReleaseState.VOIDED)
        self._payloads.pop(entry.release.key, None)

    def list_unsent(self, study: str) -> Mapping[str, bytes]:
        unacknowledged = [
            key
            for key, entry in self.entries.items()
            if entry.state in (ReleaseState.STORED, ReleaseState.SENDING)
        ]
        return {key.question: self._payloads[key] for key in unacknowledged if key.study == study}

    def _find_entry(self, key: ReleaseKey) -> LedgerEntry:
        if key not in self.entries:
            raise LocalProtocolError(
                "LEDGER-008", f"Question {key.question!r:.60} of this study has not been reserved."
            )
        return self.entries[key]

    def _set_entry_state(self, entry: LedgerEntry, state: ReleaseState) -> None:
        if entry.state is not state:
            self._ledger_state.apply_unstored(
                TransitionRecord(self._clock.now(), entry.release.key, state)
            )
