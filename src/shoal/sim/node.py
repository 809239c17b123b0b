"""A machine in its place in a simulated network: what it has saved, whether it is up, and how it loses what it has not saved."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shoal.errors import LocalProtocolError
from shoal.messages.base import Record
from shoal.messages.codec import dump, load
from shoal.protocols.base import Host, Outbound


@dataclass
class Node:
    """A host with its outbox, wake-up times and joint computations under way, which with its state and index are all that survives a fall.

    ``life`` counts falls, so that what was planned in an earlier life does not happen in a later one.
    """

    host: Host
    crash: float
    outbox: dict[int, Outbound] = field(default_factory=dict)
    alarms: set[int] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)
    has_started: bool = False
    is_up: bool = False
    down_until: float = 0
    life: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether it never comes back."""
        return self.down_until == math.inf

    def fall(self, until: float, *, forgets: bool) -> None:
        """Go down; come back with what was saved, or, as after a new installation, with the ledger alone."""
        if self.is_gone:
            return
        if forgets:
            self.host.state, self.has_started = self.host.machine.initial(), False
            self._forget()
        self.host.state = through_bytes(self.host.state)
        self.is_up = False
        self.life += 1
        self.down_until = max(self.down_until, until)

    def give_up(self) -> None:
        """Go down for ever with all that is not sent."""
        self._forget()
        self.fall(math.inf, forgets=False)

    def _forget(self) -> None:
        self.outbox.clear()
        self.alarms.clear()
        self.tasks.clear()

    def drop(self, question: str) -> None:
        """Forget the letters of a question, which may not leave any more."""
        for number in [number for number, letter in self.outbox.items() if letter.question == question]:
            del self.outbox[number]


def through_bytes(state: Record) -> Record:
    """A state as it is when it has been saved and read again."""
    again = load(dump(state), type(state))
    if again != state:
        raise LocalProtocolError("PROTO-001", f"A {type(state).__name__} is another one when it has been saved and read again.")
    return again
