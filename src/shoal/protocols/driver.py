"""Run one input to completion against the ledger; the host of one machine.

Every driver calls `run_input`: the coordinator, the participant, `base.run_local` and the faulty
network of `shoal.simulation`. The last two also use `Host`, which decodes received messages, counts
each submission once and records failures; they differ only in how bytes are delivered and what may
fail on the way.

The order in `run_input` is the privacy guarantee, and a change must keep it: the machine asks a
question, its cost is reserved, its answer is drawn, the answer is stored. Only then does the
machine learn that the answer is stored, and the driver that there is a message to send.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import (
    BudgetError,
    IntegrityError,
    LocalProtocolError,
    RemoteProtocolError,
    ShoalError,
)
from shoal.messages.base import Message
from shoal.messages.codec import decode, encode
from shoal.protocols.effects import (
    AGGREGATOR,
    EVERYONE,
    Abort,
    Answered,
    Compute,
    Effect,
    Feed,
    Finish,
    Granted,
    Input,
    Received,
    Refused,
    Release,
    Send,
    Spend,
    Started,
    WakeAt,
)
from shoal.protocols.ledger import Account, Ledger, MemoryLedger, StoredPayload
from shoal.protocols.machines import Aggregator, Effects, Machine, Peer, State


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """Bytes that a driver has to send.

    The bytes of an answer are stored under its question, and are sent as `Ledger.mark_sending`
    returns them.
    """

    to: str
    payload: bytes
    question: str | None = None


Work = OutgoingMessage | Compute | Feed | WakeAt | Finish | Abort
LedgerReply = tuple[Input, tuple[OutgoingMessage, ...]]


def run_input(
    machine: Machine[State],
    state: State,
    given: Input,
    now: datetime,
    entropy: Entropy,
    account: Account | None,
) -> tuple[State, tuple[Work, ...]]:
    """Give a machine one input, and a peer all replies of its ledger that follow from it.

    When it returns, each answer is stored. The caller saves state and work together before it sends
    anything. `Abort` is never combined with other work. `RemoteProtocolError` means that a message
    broke the rules, and that neither machine nor ledger has changed.
    """
    pending: deque[Input | tuple[Spend, Account]] = deque([given])
    asked: set[str] = set()
    granted: dict[str, Spend] = {}
    work: list[Work] = []
    while pending:
        item = pending.popleft()
        if isinstance(item, tuple):
            spend, ledger = item
            item, resends = _reserve_answer(spend, ledger, machine)
            work += resends
            if isinstance(item, Granted):
                granted[item.question] = spend
        state, effects = _step_machine(machine, state, item, now, entropy)
        for effect in effects:
            match effect:
                case Abort():
                    return state, (effect,)
                case WakeAt() | Finish():
                    work.append(effect)
                case Compute() | Feed() if account is not None:
                    work.append(effect)
                case Send(to, message):
                    work.append(
                        OutgoingMessage(
                            to, _encode_message(machine, message, is_priced=account is None)
                        )
                    )
                case Spend(question) if account is not None and question not in asked:
                    asked.add(question)
                    pending.append((effect, account))
                case Release(question, message) if account is not None and question in granted:
                    answered, resends = _store_answer(
                        granted.pop(question), message, account, machine
                    )
                    pending.append(answered)
                    work += resends
                case _:
                    raise _forbidden_effect_error(effect, account)
    return state, tuple(work)


def _step_machine(
    machine: Machine[State], state: State, given: Input, now: datetime, entropy: Entropy
) -> tuple[State, Effects]:
    """Run one step, in which only the sender of a message may be blamed.

    After any other input the ledger may have changed, and it is too late to reject a message.
    """
    try:
        return machine.step(state, given, now, entropy)
    except RemoteProtocolError as error:
        if isinstance(given, Received):
            raise
        raise LocalProtocolError(
            "PROTO-001",
            f"{type(machine).__name__} blamed another party for the input "
            f"{type(given).__name__}: {error.what}",
            fix="Check all of a message in on_message(), before a question is asked.",
        ) from error


def _reserve_answer(spend: Spend, account: Account, machine: Machine[Any]) -> LedgerReply:
    """Return the ledger's reply to a question; a stored answer is sent again unchanged."""
    question = spend.question
    try:
        reservation = account.reserve(question, spend.event)
    except BudgetError as error:
        return Refused(question, error), ()
    if not isinstance(reservation, StoredPayload):
        return Granted(question), ()
    try:
        stored = decode(reservation.payload, machine.messages, machine.study)
    except RemoteProtocolError as error:
        raise IntegrityError(
            "PROTO-004", f"The stored answer to {question} cannot be read: {error.what}"
        ) from None
    return Answered(question, stored), (OutgoingMessage(AGGREGATOR, reservation.payload, question),)


def _store_answer(
    spend: Spend, message: Message, account: Account, machine: Machine[Any]
) -> LedgerReply:
    """Store an answer that was drawn just now.

    If another process has stored an answer since the question was granted, use that one.
    """
    payload = _encode_message(machine, message, is_priced=True)
    try:
        account.store(spend.question, payload)
    except LocalProtocolError:
        reply = _reserve_answer(spend, account, machine)
        if isinstance(reply[0], Granted):
            raise
        return reply
    return Answered(spend.question, message), (
        OutgoingMessage(AGGREGATOR, payload, spend.question),
    )


def _encode_message(machine: Machine[Any], message: Message, *, is_priced: bool) -> bytes:
    """Return the bytes of a message.

    Refuse a message of another protocol or study, and one that depends on private data but has no
    price.
    """
    if message.study != machine.study or machine.messages.get(
        (message.type_name, message.version)
    ) is not type(message):
        raise LocalProtocolError(
            "PROTO-001",
            f"A machine sent a {message.type_name} that is not of this protocol and study.",
        )
    if message.spends and not is_priced:
        raise LocalProtocolError(
            "PROTO-001",
            f"A machine sent a {message.type_name} without a price.",
            why="It is a mechanism's output on private data.",
            fix="Return a Spend, draw after Granted, and return a Release.",
        )
    return encode(message)


def _forbidden_effect_error(effect: Effect, account: Account | None) -> LocalProtocolError:
    """Return the error for an effect that the driver does not carry out."""
    kind = type(effect).__name__
    if not isinstance(effect, Spend | Release | Compute | Feed):
        return LocalProtocolError(
            "PROTO-001", f"A machine asked for {kind}, which this driver does not know."
        )
    if account is None or not isinstance(effect, Spend | Release):
        return LocalProtocolError("PROTO-001", f"A machine that has no ledger asked for {kind}.")
    fault = (
        "asked twice within one input"
        if isinstance(effect, Spend)
        else "released before it was granted"
    )
    return LocalProtocolError("PROTO-001", f"Question {effect.question!r:.60} was {fault}.")


ANONYMOUS_PREFIX = "?"
"""First character of a sender name that was made up for one delivery."""

SubmissionKey = tuple[str, str, bytes]
"""Key of a submission, which counts once: sender, type and `Message.submission`.

The sender of all anonymous messages is `ANONYMOUS_PREFIX`.
"""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A record of bytes sent by a machine to one recipient; a retry makes another record."""

    at: datetime
    sender: str
    to: str
    payload: bytes
    question: str | None = None


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """A record of a message that broke the rules: who rejected it, its sender, and the error."""

    by: str
    sender: str
    error: RemoteProtocolError


@dataclass(frozen=True, slots=True)
class FailedInput:
    """A record of an input on which a machine failed without a fault of the sender.

    The cause is a bug, or a ledger that cannot be written.
    """

    by: str
    sender: str
    error: Exception


@dataclass
class ProtocolOutcome:
    """The outcome of a simulated run.

    It has results and last states by name, rejections and failures, and all sent messages.
    """

    states: dict[str, Any] = field(default_factory=dict)
    results: dict[str, object] = field(default_factory=dict)
    aborted: dict[str, ShoalError] = field(default_factory=dict)
    rejected: list[RejectedMessage] = field(default_factory=list)
    failed: list[FailedInput] = field(default_factory=list)
    sent: list[SentMessage] = field(default_factory=list)

    def count_rejections(self) -> dict[str, int]:
        """Return the number of rejected messages by error code.

        A message is rejected if it is out of range, repeated with other bytes, or not the sender's
        to send.
        """
        return dict(Counter(rejection.error.code for rejection in self.rejected))

    def record_ending(self, name: str, ending: Finish | Abort) -> None:
        """Record how a machine ended."""
        if isinstance(ending, Finish):
            self.results[name] = ending.result
        else:
            self.aborted[name] = ending.error


@dataclass(frozen=True, slots=True)
class InputResult:
    """The result of an input, saved together before anything is acknowledged or sent.

    Each `OutgoingMessage` has one recipient.
    """

    state: Any
    work: tuple[Work, ...] = ()
    submission: tuple[SubmissionKey, bytes] | None = None


@dataclass
class Host:
    """One machine, and everything that its driver stores for it."""

    name: str
    machine: Machine[Any]
    account: Account | None
    peers: Collection[str]
    entropy: Entropy
    state: Any
    submissions: dict[SubmissionKey, bytes] = field(default_factory=dict)
    inputs: Iterator[int] = field(default_factory=count)

    def handle(
        self, given: Input | SentMessage, now: datetime, outcome: ProtocolOutcome
    ) -> InputResult:
        """Run an input to completion; nothing in the host changes until `commit`."""
        number = next(self.inputs)
        sender = given.sender if isinstance(given, SentMessage) else self.name
        submission = None
        try:
            if isinstance(given, SentMessage):
                payload, given = given.payload, self._decode(given, number)
                sender = given.sender
                submission = self._index_submission(given, payload)
                if submission is not None and submission[0] in self.submissions:
                    return InputResult(self.state)
            again = self._list_unsent() if isinstance(given, Started) else ()
            state, work = run_input(
                self.machine, self.state, given, now, self._derive_entropy(number), self.account
            )
            return InputResult(state, tuple(self._address_work(again, work)), submission)
        except RemoteProtocolError as error:
            outcome.rejected.append(RejectedMessage(self.name, sender, error))
        except Exception as error:
            # One sender's input must not end an aggregator's service for the others. A peer has no
            # others to serve, and stops.
            ending = self._record_failure(sender, error, outcome)
            return InputResult(self.state, () if self.account is None else (ending,))
        return InputResult(self.state)

    def commit(self, handled: InputResult) -> None:
        """Save the result of an input."""
        self.state = handled.state
        if handled.submission is not None:
            key, digest = handled.submission
            self.submissions[key] = digest

    def begin_send(
        self, outgoing: OutgoingMessage, now: datetime, outcome: ProtocolOutcome
    ) -> SentMessage | Refused | Abort:
        """Return the bytes to send now.

        If the ledger does not allow it, return the machine's next input, `Refused`; if the ledger
        fails, return `Abort`.
        """
        payload, question = outgoing.payload, outgoing.question
        try:
            if self.account is not None and question is not None:
                payload = self.account.mark_sending(question)
        except BudgetError as error:
            return Refused(str(question), error)
        except Exception as error:
            return self._record_failure(self.name, error, outcome)
        return SentMessage(now, self.name, outgoing.to, payload, question)

    def mark_acknowledged(self, question: str | None) -> None:
        """Record that the recipient has saved or rejected a message."""
        if self.account is not None and question is not None:
            self.account.mark_sent(question)

    def _record_failure(self, sender: str, error: Exception, outcome: ProtocolOutcome) -> Abort:
        outcome.failed.append(FailedInput(self.name, sender, error))
        if isinstance(error, ShoalError):
            return Abort(error)
        # The text of an unknown exception is left out: it may contain a private value.
        what = f"{self.name} failed with {type(error).__name__}."
        return Abort(
            LocalProtocolError("PROTO-005", what, why="This is a bug in the protocol's code.")
        )

    def _decode(self, sent: SentMessage, number: int) -> Received:
        message = decode(sent.payload, self.machine.messages, self.machine.study)
        is_hidden = message.is_anonymous and self.account is None
        return Received(f"{ANONYMOUS_PREFIX}{number}" if is_hidden else sent.sender, message)

    def _index_submission(
        self, received: Received, payload: bytes
    ) -> tuple[SubmissionKey, bytes] | None:
        """Return the index entry of a message that an aggregator receives only once.

        Reject a message with other bytes than an earlier one under the same name.
        """
        message = received.message
        if self.account is not None or message.submission is None:
            return None
        key = (
            ANONYMOUS_PREFIX if message.is_anonymous else received.sender,
            message.type_name,
            message.submission,
        )
        digest = hashlib.sha256(payload).digest()
        if self.submissions.get(key, digest) != digest:
            raise RemoteProtocolError(
                "PROTO-003",
                f"{received.sender} sent a second, different {message.type_name} under the name "
                "of its first.",
            )
        return key, digest

    def _list_unsent(self) -> tuple[OutgoingMessage, ...]:
        """Return the stored answers of a peer that starts without a saved state.

        They are sent until they are acknowledged.
        """
        stored = {} if self.account is None else self.account.list_unsent()
        return tuple(
            OutgoingMessage(AGGREGATOR, payload, question) for question, payload in stored.items()
        )

    def _address_work(
        self, again: tuple[OutgoingMessage, ...], work: tuple[Work, ...]
    ) -> Iterator[Work]:
        """Yield the work, with one message for each recipient.

        Unsent answers of the ledger are sent too, unless the work already sends them or aborts.
        """
        sending = {item.question for item in work if isinstance(item, OutgoingMessage)}
        if not any(isinstance(item, Abort) for item in work):
            yield from (message for message in again if message.question not in sending)
        for item in work:
            if isinstance(item, OutgoingMessage):
                yield from (
                    OutgoingMessage(to, item.payload, item.question)
                    for to in list_recipients(self.name, item.to, self.peers)
                )
            else:
                yield item

    def _derive_entropy(self, number: int) -> Entropy:
        """Return a separate random stream for each input, if the source can be split.

        The draws of one machine then do not depend on the others.
        """
        return (
            self.entropy.spawn("machine", self.name, number)
            if isinstance(self.entropy, SeededEntropy)
            else self.entropy
        )


def open_hosts(
    aggregator: Aggregator[Any],
    peers: Mapping[str, Peer[Any]],
    entropy: Entropy,
    ledgers: Mapping[str, Ledger] | None,
) -> dict[str, Host]:
    """Return the host of each machine by name.

    A simulated peer uses the ledger given for it, or else a new ledger in memory.
    """
    for name in peers:
        if name in (AGGREGATOR, EVERYONE) or name.startswith(ANONYMOUS_PREFIX):
            raise LocalProtocolError(
                "PROTO-001", f"A peer cannot have the name {name!r:.60}.", fix="Rename the peer."
            )
    hosts = {
        AGGREGATOR: Host(AGGREGATOR, aggregator, None, peers, entropy, aggregator.initial_state())
    }
    for name, peer in peers.items():
        ledger = ledgers[name] if ledgers and name in ledgers else MemoryLedger()
        account = ledger.account(peer.study, name, AGGREGATOR, "simulation")
        hosts[name] = Host(name, peer, account, peers, entropy, peer.initial_state())
    return hosts


def list_recipients(sender: str, to: str, peers: Collection[str]) -> Collection[str]:
    """Return the recipients: the aggregator, one peer, or all peers.

    A peer may send to the aggregator only; the aggregator to one peer or to everyone.
    """
    if sender == AGGREGATOR and to == EVERYONE:
        return peers
    if (sender == AGGREGATOR) == (to == AGGREGATOR) or (sender == AGGREGATOR and to not in peers):
        raise LocalProtocolError(
            "PROTO-001",
            f"{sender} cannot send to {to!r:.60}.",
            why="A peer sends to the aggregator, and the aggregator to one peer or to everyone.",
        )
    return (to,)
