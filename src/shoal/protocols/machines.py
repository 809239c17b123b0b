"""A peer and an aggregator as pure state machines; ``base`` says what they and their driver owe each other."""

# A hook is given all that a protocol might need; its default here needs nothing.

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar, Generic, TypeVar

from pydantic import AwareDatetime, BeforeValidator, PlainSerializer

from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.messages.base import Message, Record, Registry
from shoal.privacy.events import Event
from shoal.protocols.effects import (
    AGGREGATOR,
    Abort,
    Answered,
    Broken,
    Computed,
    Effect,
    Emitted,
    Granted,
    Input,
    Progress,
    Received,
    Release,
    Spend,
    Started,
    Tick,
)

State = TypeVar("State", bound=Record)
Effects = tuple[Effect, ...]

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def _from_microseconds(value: object) -> object:
    if type(value) is not int:
        return value
    try:
        return _EPOCH + value * _MICROSECOND
    except OverflowError:
        raise ValueError("a moment beyond the calendar") from None


Moment = Annotated[
    AwareDatetime, BeforeValidator(_from_microseconds), PlainSerializer(lambda when: (when - _EPOCH) // _MICROSECOND, return_type=int)
]
"""A time in a state, such as a deadline; it is saved as microseconds since 1970."""


class Machine(ABC, Generic[State]):
    """One side of a protocol. Its state is a `Record`, so that a driver can save it: ``codec.dump`` and ``codec.load``.

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
    """The untrusted side: asks, collects and learns. It is given each submission once, and need not remember which it has seen."""

    def step(self, state: State, given: Input, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        match given:
            case Started():
                return self.started(state, now, entropy)
            case Received(sender, message):
                return self.received(state, sender, message, now, entropy)
            case Tick():
                return self.ticked(state, now, entropy)
            case _:
                raise LocalProtocolError(
                    "PROTO-001", f"An aggregator was given {type(given).__name__}; it neither has a ledger nor computes."
                )

    @abstractmethod
    def started(self, state: State, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """Begin: ask the first questions, or wait to be asked."""

    @abstractmethod
    def received(self, state: State, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """Take a message from a peer, which may lie, repeat itself or be late."""

    def ticked(self, state: State, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """A moment has come; compare ``now`` with what is waited for."""
        return state, ()


class PeerState(Record):
    """What every peer remembers: which questions it has put to its ledger, and which it has answered; both in order.

    This spares the ledger repeated requests; the ledger remains the authority when a state is lost.
    """

    asked: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()

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
                return state, (Release(question, self.answer(state, question, entropy)),)
            case Answered(question, stored):
                return self.released(state.replace(answered=tuple(sorted({*state.answered, question}))), question, stored)
            case Emitted() | Computed() | Broken():
                return self.computing(state, given, now, entropy)
        asked, answered = (tuple(name for name in names if name != given.question) for names in (state.asked, state.answered))
        return self.refused(state.replace(asked=asked, answered=answered), given.question, given.error)

    def ask(self, state: P, question: str) -> tuple[P, Effects]:
        """Put a question to the ledger, unless that was done before. The way to meet a request, however often it comes."""
        if question in state.asked:
            return state, ()
        return state.replace(asked=tuple(sorted({*state.asked, question}))), (Spend(question, self.price(question)),)

    @abstractmethod
    def price(self, question: str) -> Event:
        """What an answer costs, by the study alone; raises `unpriced` for what the study does not ask."""

    @abstractmethod
    def answer(self, state: P, question: str, entropy: Entropy) -> Message:
        """Draw the answer: the one place where private values meet a mechanism. All that could be wrong was checked in `received`."""

    @abstractmethod
    def received(self, state: P, message: Message, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """Take a message from the aggregator, which is not trusted: the one place to check it, and to blame its sender."""

    def started(self, state: P, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """Begin: ask for work, or wait for it."""
        return state, ()

    def ticked(self, state: P, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """A moment has come."""
        return state, ()

    def released(self, state: P, question: str, message: Message) -> tuple[P, Effects]:
        """Go on once an answer is stored, drawn just now or before a restart; it must not matter which. Nobody may be blamed any more."""
        return state, ()

    def refused(self, state: P, question: str, error: ShoalError) -> tuple[P, Effects]:
        """Go on, or give up, without the answer. The question is open again: it may be asked anew, in a later period say."""
        return state, (Abort(error),)

    def computing(self, state: P, given: Progress, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """Go on with a joint computation, or without it. It may be one that the peer has forgotten."""
        raise LocalProtocolError("PROTO-001", f"A peer that asks for no computation was given {type(given).__name__}.")


def unpriced(question: str) -> RemoteProtocolError:
    """The refusal of a question that the study does not contain; a peer's `Peer.price` raises it."""
    return RemoteProtocolError(
        "PROTO-002",
        f"The aggregator asks {question!r:.80}, which is not part of the study.",
        why="What the study does not name cannot be priced, and is not answered.",
    )
