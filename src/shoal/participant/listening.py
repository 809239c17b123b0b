"""The participant's machine as it hears a coordinator that nobody trusts: what would take too much to read is dropped unread."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.measuring import check_values
from shoal.protocols.driver import Handled, Host, Outcome, Rejected, Sent
from shoal.protocols.effects import Input
from shoal.protocols.ledger import Account
from shoal.protocols.machines import Peer

NAME = "participant"
"""What the participant is called at home; what the coordinator calls it has no part in how letters travel."""

MOST_VALUES = 1 << 18
"""Of a letter. The longest is AnonML's publication, with a few numbers for each feature; so many values take 300 MB to refuse at worst."""


class Listener(Host):
    """A host that measures a letter before it is opened."""

    def handle(self, given: Input | Sent, now: datetime, outcome: Outcome) -> Handled:
        if isinstance(given, Sent):
            try:
                check_values(given.payload, MOST_VALUES)
            except RemoteProtocolError as error:
                outcome.rejected.append(Rejected(self.name, given.sender, error))
                return Handled(self.state)
        return super().handle(given, now, outcome)


def listener(peer: Peer[Any], account: Account, entropy: Entropy, state: Any) -> Listener:
    """A participant's peer in the hands of its driver."""
    return Listener(NAME, peer, account, (), entropy, state)
