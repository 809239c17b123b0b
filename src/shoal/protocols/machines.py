"""A peer and an aggregator as pure state machines; ``base`` says what they and their driver owe each other."""

# A hook is given all that a protocol might need; its default here needs nothing.

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Generic, TypeVar

from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.messages.base import Message, Registry
from shoal.privacy.events import Event
from shoal.protocols.effects import AGGREGATOR, Abort, Answered, Effect, Granted, Input, Received, Release, Spend, Started, Tick

State = TypeVar("State")
Effects = tuple[Effect, ...]


class Machine(ABC, Generic[State]):
    """One side of a protocol.

    Attributes
    ----------
    messages
        All messages of the protocol.
    study
        Digest of the manifest; a message that carries another one never reaches the machine.
    """

    messages: ClassVar[Registry]
    study: bytes

    @abstractmethod
    def initial(self) -> State:
        """The state before anything has happened."""

    @abstractmethod
    def step(self, state: State, given: Input, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """The state after one input, and what is to be done."""


class Aggregator(Machine[State]):
    """The untrusted side: asks, collects and learns. It folds each submission into its state once."""

    def step(self, state: State, given: Input, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        match given:
            case Started():
                return self.started(state, now, entropy)
            case Received(sender, message):
                return self.received(state, sender, message, now, entropy)
            case Tick():
                return self.ticked(state, now, entropy)
            case _:
                raise LocalProtocolError("PROTO-001", f"An aggregator was given {type(given).__name__}; it has no ledger.")

    @abstractmethod
    def started(self, state: State, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """Begin: ask the first questions, or wait to be asked."""

    @abstractmethod
    def received(self, state: State, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """Take a message from a peer, which may lie, repeat itself or be late."""

    def ticked(self, state: State, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """A moment has come; compare ``now`` with what is waited for."""
        return state, ()


@dataclass(frozen=True)
class PeerState:
    """What every peer remembers: which questions it has put to its ledger, and which it has answered.

    This spares the ledger repeated requests; the ledger remains the authority when a state is lost.
    """

    asked: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()

    def has_answered(self, question: str) -> bool:
        """Whether the answer is stored."""
        return question in self.answered


P = TypeVar("P", bound=PeerState)


class Peer(Machine[P]):
    """The side that holds data. A protocol fills in `price`, `answer` and what to do with messages; the order of things is fixed here."""

    def step(self, state: P, given: Input, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        match given:
            case Started():
                return self.started(state, now, entropy)
            case Received(sender, message):
                if sender != AGGREGATOR:
                    raise RemoteProtocolError("PROTO-003", f"A peer received a {message.type_name} from {sender}, not from the aggregator.")
                return self.received(state, message, now, entropy)
            case Tick():
                return self.ticked(state, now, entropy)
            case Granted(question):
                if question not in state.asked or state.has_answered(question):
                    raise LocalProtocolError("PROTO-001", f"Question {question} was granted, but it is not open.")
                drawn = self.answer(state, question, entropy)
                state, more = self._close(state, question, drawn)
                return state, (Release(question, drawn), *more)
            case Answered(question, stored):
                return self._close(state, question, stored)
        return self.refused(state, given.question, given.error)

    def ask(self, state: P, question: str) -> tuple[P, Effects]:
        """Put a question to the ledger, unless that was done before. The way to meet a request, however often it comes."""
        if question in state.asked:
            return state, ()
        return replace(state, asked=state.asked | {question}), (Spend(question, self.price(question)),)

    def _close(self, state: P, question: str, message: Message) -> tuple[P, Effects]:
        return self.released(replace(state, answered=state.answered | {question}), question, message)

    @abstractmethod
    def price(self, question: str) -> Event:
        """What an answer costs, by the study alone; raises `unpriced` for what the study does not ask."""

    @abstractmethod
    def answer(self, state: P, question: str, entropy: Entropy) -> Message:
        """Draw the answer: the one place where private values meet a mechanism."""

    @abstractmethod
    def received(self, state: P, message: Message, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """Take a message from the aggregator, which is not trusted."""

    def started(self, state: P, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """Begin: ask for work, or wait for it."""
        return state, ()

    def ticked(self, state: P, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """A moment has come."""
        return state, ()

    def released(self, state: P, question: str, message: Message) -> tuple[P, Effects]:
        """Go on after an answer is stored, drawn just now or before a restart; it must not matter which."""
        return state, ()

    def refused(self, state: P, question: str, error: ShoalError) -> tuple[P, Effects]:
        """Go on, or give up, without the answer."""
        return state, (Abort(error),)


def unpriced(question: str) -> RemoteProtocolError:
    """The refusal of a question that the study does not contain; a peer's `Peer.price` raises it."""
    return RemoteProtocolError(
        "PROTO-002",
        f"The aggregator asks {question!r:.80}, which is not part of the study.",
        why="What the study does not name cannot be priced, and is not answered.",
    )
