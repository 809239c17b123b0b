"""What a participant would send, drawn and held in the ledger but not sent.

A preview is a join that goes down before anything is saved but the ledger: the answers are stored there, and whoever joins later sends
these bytes and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shoal.entropy import Entropy, require_system
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.participant.listening import listener
from shoal.protocols.driver import Handled, Outcome, Sent
from shoal.protocols.effects import AGGREGATOR, Abort, Started
from shoal.protocols.ledger import Account
from shoal.protocols.machines import Peer
from shoal.protocols.settle import Outbound


@dataclass(frozen=True, slots=True)
class Drawn:
    """An answer as it is stored: question, bytes, and the message that they are."""

    question: str
    payload: bytes
    message: Message


class Preview:
    """A peer that is given what can be heard without being named, and whose letters stay here.

    Parameters
    ----------
    peer, account
        The participant's side, and its ledger opened for the study.
    entropy
        What answers are drawn from.

    Privacy
    -------
    The cost of every answer is held from now on, and is spent when it is sent. An answer is drawn once.
    """

    def __init__(self, peer: Peer[Any], account: Account, entropy: Entropy) -> None:
        self._peer, self._account = peer, account
        self._host = listener(peer, account, require_system(entropy), peer.initial())

    def start(self, now: datetime) -> tuple[bytes, ...]:
        """Start the peer; what it would say to begin with, which costs nothing."""
        return self._taken(self._host.handle(Started(), now, Outcome()))

    def hear(self, payload: bytes, now: datetime) -> None:
        """Give the peer what its aggregator has published. What breaks the rules is dropped, as it is in a study."""
        self._taken(self._host.handle(Sent(now, AGGREGATOR, self._host.name, payload), now, Outcome()))

    def drawn(self) -> tuple[Drawn, ...]:
        """All answers that wait to be sent."""
        unsent = self._account.unsent()
        return tuple(Drawn(name, data, decode(data, self._peer.messages, self._peer.study)) for name, data in unsent.items())

    def _taken(self, handled: Handled) -> tuple[bytes, ...]:
        self._host.accept(handled)
        for item in handled.work:
            if isinstance(item, Abort):
                raise item.error
        return tuple(item.payload for item in handled.work if isinstance(item, Outbound) and item.question is None)
