"""A machine in the hands of a driver: what is received is opened, counted once and settled, and what goes wrong is written down.

The loop in `shoal.protocols.base` and the network in `shoal.sim` differ only in how bytes travel and what may fail on the way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.messages.codec import decode
from shoal.protocols.effects import AGGREGATOR, EVERYONE, Abort, Finish, Input, Received, Refused, Started
from shoal.protocols.ledger import Account, Ledger, MemoryLedger
from shoal.protocols.machines import Aggregator, Machine, Peer
from shoal.protocols.settle import Outbound, Work, settle

STRANGER = "?"
"""How the name of a sender begins that was made up for one delivery."""

Submission = tuple[str, str, bytes]
"""What counts once: sender (`STRANGER` for all that are anonymous), type, and `Message.submission`."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of bytes that left a machine for one recipient; a retry leaves another one."""

    at: datetime
    sender: str
    to: str
    payload: bytes
    question: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record of a message that broke the rules, by whom, and how."""

    by: str
    sender: str
    error: RemoteProtocolError


@dataclass(frozen=True, slots=True)
class Failed:
    """A record of an input on which a machine failed by a fault of its own: a bug, or a ledger that cannot be written."""

    by: str
    sender: str
    error: Exception


@dataclass
class Outcome:
    """What a simulated run came to: results and last states by name, what went wrong, and all that left."""

    states: dict[str, Any] = field(default_factory=dict)
    results: dict[str, object] = field(default_factory=dict)
    aborted: dict[str, ShoalError] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def refusals(self) -> dict[str, int]:
        """How many messages were refused, by code: what was out of range, came twice, or was not the sender's to send."""
        return dict(Counter(refused.error.code for refused in self.rejected))

    def note(self, name: str, ending: Finish | Abort) -> None:
        """Write down how a machine ended."""
        if isinstance(ending, Finish):
            self.results[name] = ending.result
        else:
            self.aborted[name] = ending.error


@dataclass(frozen=True, slots=True)
class Handled:
    """What came of an input: to be saved together, before anything is acknowledged or sent. Each `Outbound` has one recipient."""

    state: Any
    work: tuple[Work, ...] = ()
    submission: tuple[Submission, bytes] | None = None


@dataclass
class Host:
    """One machine, and all that its driver keeps for it."""

    name: str
    machine: Machine[Any]
    account: Account | None
    peers: Collection[str]
    entropy: Entropy
    state: Any
    submissions: dict[Submission, bytes] = field(default_factory=dict)
    inputs: Iterator[int] = field(default_factory=count)

    def handle(self, given: Input | Sent, now: datetime, outcome: Outcome) -> Handled:
        """Take an input to its end; nothing here has changed until `accept`."""
        number = next(self.inputs)
        sender = given.sender if isinstance(given, Sent) else self.name
        submission = None
        try:
            if isinstance(given, Sent):
                payload, given = given.payload, self._open(given, number)
                sender = given.sender
                submission = self._submission(given, payload)
                if submission is not None and submission[0] in self.submissions:
                    return Handled(self.state)
            again = self._unsent() if isinstance(given, Started) else ()
            state, work = settle(self.machine, self.state, given, now, self._stream(number), self.account)
            return Handled(state, tuple(self._addressed(again, work)), submission)
        except RemoteProtocolError as error:
            outcome.rejected.append(Rejected(self.name, sender, error))
        except Exception as error:
            # One sender's input must not end the service of all the others; a peer serves nobody else, and errs on the side of silence.
            ending = self._failed(sender, error, outcome)
            return Handled(self.state, () if self.account is None else (ending,))
        return Handled(self.state)

    def accept(self, handled: Handled) -> None:
        """Save what came of an input."""
        self.state = handled.state
        if handled.submission is not None:
            key, digest = handled.submission
            self.submissions[key] = digest

    def send(self, letter: Outbound, now: datetime, outcome: Outcome) -> Sent | Refused | Abort:
        """The bytes that may leave now; or, where the ledger does not let them, what the machine is given and what ends it instead."""
        payload, question = letter.payload, letter.question
        try:
            if self.account is not None and question is not None:
                payload = self.account.mark_sending(question)
        except BudgetError as error:
            return Refused(str(question), error)
        except Exception as error:
            return self._failed(self.name, error, outcome)
        return Sent(now, self.name, letter.to, payload, question)

    def acknowledged(self, question: str | None) -> None:
        """The other side has saved what came of a letter, or has rejected it."""
        if self.account is not None and question is not None:
            self.account.mark_sent(question)

    def _failed(self, sender: str, error: Exception, outcome: Outcome) -> Abort:
        outcome.failed.append(Failed(self.name, sender, error))
        if isinstance(error, ShoalError):
            return Abort(error)
        # The text of a foreign exception is left out: it may hold a private value.
        what = f"{self.name} failed with {type(error).__name__}."
        return Abort(LocalProtocolError("PROTO-005", what, why="That is a fault in the protocol's code."))

    def _open(self, sent: Sent, number: int) -> Received:
        message = decode(sent.payload, self.machine.messages, self.machine.study)
        is_hidden = message.is_anonymous and self.account is None
        return Received(f"{STRANGER}{number}" if is_hidden else sent.sender, message)

    def _submission(self, received: Received, payload: bytes) -> tuple[Submission, bytes] | None:
        """The index entry of a message that an aggregator is to be given once; other bytes under a name that is taken are rejected."""
        message = received.message
        if self.account is not None or message.submission is None:
            return None
        key = (STRANGER if message.is_anonymous else received.sender, message.type_name, message.submission)
        digest = hashlib.sha256(payload).digest()
        if self.submissions.get(key, digest) != digest:
            raise RemoteProtocolError("PROTO-003", f"{received.sender} submits a second {message.type_name} under the name of its first.")
        return key, digest

    def _unsent(self) -> tuple[Outbound, ...]:
        """What a peer that starts without a saved state finds in its ledger, to be sent until it is acknowledged."""
        held = {} if self.account is None else self.account.unsent()
        return tuple(Outbound(AGGREGATOR, payload, question) for question, payload in held.items())

    def _addressed(self, again: tuple[Outbound, ...], work: tuple[Work, ...]) -> Iterator[Work]:
        """The work, with a letter for each recipient; what the ledger holds goes out too, unless the work sends it already or gives up."""
        sending = {item.question for item in work if isinstance(item, Outbound)}
        if not any(isinstance(item, Abort) for item in work):
            yield from (letter for letter in again if letter.question not in sending)
        for item in work:
            if isinstance(item, Outbound):
                yield from (Outbound(to, item.payload, item.question) for to in recipients(self.name, item.to, self.peers))
            else:
                yield item

    def _stream(self, number: int) -> Entropy:
        """Randomness of its own for each input, so that what one machine draws does not depend on the others; where it can be split."""
        return self.entropy.spawn("machine", self.name, number) if isinstance(self.entropy, SeededEntropy) else self.entropy


def open_hosts(
    aggregator: Aggregator[Any], peers: Mapping[str, Peer[Any]], entropy: Entropy, ledgers: Mapping[str, Ledger] | None
) -> dict[str, Host]:
    """Everyone in their place: each simulated peer with the ledger given for it, or with one of its own in memory."""
    for name in peers:
        if name in (AGGREGATOR, EVERYONE) or name.startswith(STRANGER):
            raise LocalProtocolError("PROTO-001", f"A peer cannot be called {name!r:.60}.", fix="Give it another name.")
    hosts = {AGGREGATOR: Host(AGGREGATOR, aggregator, None, peers, entropy, aggregator.initial())}
    for name, peer in peers.items():
        ledger = ledgers[name] if ledgers and name in ledgers else MemoryLedger()
        account = Account(ledger, peer.study, name, AGGREGATOR, "simulation")
        hosts[name] = Host(name, peer, account, peers, entropy, peer.initial())
    return hosts


def recipients(sender: str, to: str, peers: Collection[str]) -> Collection[str]:
    """Who is meant: a peer may write to the aggregator, the aggregator to one peer or to everyone."""
    if sender == AGGREGATOR and to == EVERYONE:
        return peers
    if (sender == AGGREGATOR) == (to == AGGREGATOR) or (sender == AGGREGATOR and to not in peers):
        raise LocalProtocolError(
            "PROTO-001", f"{sender} cannot send to {to!r:.60}.", why="Peers and the aggregator talk to each other only."
        )
    return (to,)
