"""What can go wrong in a simulated network, and a ledger whose owner may go down between any two of its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from shoal.errors import UsageError
from shoal.privacy.events import Event
from shoal.protocols.base import Ledger

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad the network is. Chances are per event; times are whole milliseconds of virtual time.

    Parameters
    ----------
    loss, duplicate
        Chance that bytes, or an acknowledgement, never arrive; that they arrive twice.
    min_delay, max_delay
        Each copy takes a time of its own, uniform between these; so later bytes may overtake earlier ones.
    crash
        Chance that a peer goes down at each point between two durable steps: before and after each call of
        the ledger, before and after it is saved, and after each sending. An aggregator takes steps for all
        of its n peers, and goes down with an n-th of the chance at each: about as often as a peer.
    amnesia
        Chance that a peer which went down comes back with its ledger alone, as after a new installation.
    downtime
        How long a machine stays down.
    retry
        How long a sender waits for an acknowledgement at first; twice as long after each attempt, up to 32 times as long.
    absences
        Name of a peer -> when it drops out, and when it returns (None: never).
    """

    loss: float = 0.0
    duplicate: float = 0.0
    min_delay: int = 1
    max_delay: int = 1
    crash: float = 0.0
    amnesia: float = 0.0
    downtime: int = 500
    retry: int = 200
    absences: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "crash", "amnesia"):
            chance = getattr(self, name)
            if not 0 <= chance <= 1:
                raise UsageError("USAGE-001", f"{name} = {chance} is not a chance.", fix="Give a number between 0 and 1.")
        if not (0 <= self.min_delay <= self.max_delay and self.downtime > 0 and self.retry > 0):
            raise UsageError("USAGE-001", "Delays must not be negative nor fall; downtime and retry must be at least 1 ms.")
        for name, (leaves, returns) in self.absences.items():
            if leaves < 0 or (returns is not None and returns <= leaves):
                raise UsageError(
                    "USAGE-001", f"{name} is to leave at {leaves} ms and to return at {returns} ms.", why="Time runs forwards."
                )


class CrashError(BaseException):
    """A machine goes down here. Like the end of a process, it is nothing that a machine's code could catch as an error."""


@dataclass(frozen=True)
class FragileLedger:
    """A ledger whose caller may go down before or after each call; what a call has written stays."""

    ledger: Ledger
    shake: Callable[[], None]

    def reserve(self, study: str, question: str, event: Event, *, source: str, recipient: str, title: str) -> object:
        return self._between(partial(self.ledger.reserve, study, question, event, source=source, recipient=recipient, title=title))

    def store(self, study: str, question: str, payload: bytes) -> None:
        self._between(partial(self.ledger.store, study, question, payload))

    def mark_sending(self, study: str, question: str) -> bytes:
        return self._between(partial(self.ledger.mark_sending, study, question))

    def mark_sent(self, study: str, question: str) -> None:
        self._between(partial(self.ledger.mark_sent, study, question))

    def unsent(self, study: str) -> Mapping[str, bytes]:
        return self._between(partial(self.ledger.unsent, study))

    def _between(self, call: Callable[[], T]) -> T:
        self.shake()
        result = call()
        self.shake()
        return result
