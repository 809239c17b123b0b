"""Base classes Peer and Aggregator.

Each protocol derives its peer and its aggregator from them; ``base`` has the contract with the
driver. `Peer` fixes the order of ledger and draw: a protocol implements hooks and cannot change it.
"""

# A hook receives everything that a protocol might need; the default hooks here need nothing.

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
    ComputationInput,
    Computed,
    Effect,
    Emitted,
    Granted,
    Input,
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
        raise ValueError("a time outside the calendar") from None


Moment = Annotated[
    AwareDatetime,
    BeforeValidator(_from_microseconds),
    PlainSerializer(lambda when: (when - _EPOCH) // _MICROSECOND, return_type=int),
]
"""A time in a state, such as a deadline; saved as microseconds since 1970."""


class Machine(ABC, Generic[State]):
    """One side of a protocol.

    Its state is a `Record`, which a driver saves and loads with ``codec.dump`` and ``codec.load``.

    Attributes
    ----------
    messages
        All messages of the protocol.
    study
        Digest of the manifest; the driver rejects messages with another digest.
    """

    messages: ClassVar[Registry]
    study: bytes

    @abstractmethod
    def initial_state(self) -> State:
        """Return the state before the first input."""

    @abstractmethod
    def step(
        self, state: State, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[State, Effects]:
        """Return the state after one input, and the effects."""


class Aggregator(Machine[State]):
    """The untrusted side: asks, collects and learns.

    It receives each submission once and need not remember which ones it has seen.
    """

    def step(
        self, state: State, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[State, Effects]:
        match given:
            case Started():
                return self.on_start(state, now, entropy)
            case Received(sender, message):
                return self.on_message(state, sender, message, now, entropy)
            case Tick():
                return self.on_tick(state, now, entropy)
            case _:
                raise LocalProtocolError(
                    "PROTO-001",
                    f"An aggregator was given {type(given).__name__}, an input for peers.",
                )

    @abstractmethod
    def on_start(self, state: State, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """Start: ask the first questions, or wait for messages."""

    @abstractmethod
    def on_message(
        self, state: State, sender: str, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[State, Effects]:
        """Handle a message from a peer, which may be false, repeated or late."""

    def on_tick(self, state: State, now: datetime, entropy: Entropy) -> tuple[State, Effects]:
        """Handle a tick; compare ``now`` with the deadlines in the state."""
        return state, ()


class PeerState(Record):
    """The state of every peer: the questions that it asked its ledger, and those it answered.

    Both are sorted. They save repeated requests to the ledger; the ledger remains the authority if
    a state is lost.
    """

    asked: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()

    def has_answered(self, question: str) -> bool:
        """Return whether the answer is stored."""
        return question in self.answered


P = TypeVar("P", bound=PeerState)


class Peer(Machine[P]):
    """The side that holds data.

    A protocol implements `price`, `answer` and `on_message`. This class fixes the order in which
    they are called.
    """

    def step(self, state: P, given: Input, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        match given:
            case Started():
                return self.on_start(state, now, entropy)
            case Received(sender, message):
                if sender != AGGREGATOR:
                    raise RemoteProtocolError(
                        "PROTO-003",
                        f"A peer received a {message.type_name} from {sender}, not from the "
                        "aggregator.",
                    )
                return self.on_message(state, message, now, entropy)
            case Tick():
                return self.on_tick(state, now, entropy)
            case Granted(question):
                if question not in state.asked or state.has_answered(question):
                    raise LocalProtocolError(
                        "PROTO-001",
                        f"Question {question} was granted, but the peer has not asked it.",
                    )
                return state, (Release(question, self.answer(state, question, entropy)),)
            case Answered(question, stored):
                return self.on_answer_stored(
                    state.replace(answered=tuple(sorted({*state.answered, question}))),
                    question,
                    stored,
                )
            case Emitted() | Computed() | Broken():
                return self.on_computation(state, given, now, entropy)
        asked, answered = (
            tuple(name for name in names if name != given.question)
            for names in (state.asked, state.answered)
        )
        return self.on_refusal(
            state.replace(asked=asked, answered=answered), given.question, given.error
        )

    def ask(self, state: P, question: str) -> tuple[P, Effects]:
        """Ask the ledger for a question, unless the peer did so before.

        A request of the aggregator is handled by this method, however often it is repeated.
        """
        if question in state.asked:
            return state, ()
        return state.replace(asked=tuple(sorted({*state.asked, question}))), (
            Spend(question, self.price(question)),
        )

    @abstractmethod
    def price(self, question: str) -> Event:
        """Return the cost of an answer, computed from the study alone.

        Raise `unpriced_question_error` for a question that is not part of the study.
        """

    @abstractmethod
    def answer(self, state: P, question: str, entropy: Entropy) -> Message:
        """Draw the answer: the only method that applies a mechanism to private values.

        `on_message` has checked everything that could be wrong. All random bits are for the fields
        of the report.
        """

    @abstractmethod
    def on_message(
        self, state: P, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[P, Effects]:
        """Handle a message from the aggregator, which is not trusted.

        This is the only method that may check a message and blame its sender.
        """

    def on_start(self, state: P, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """Start: ask for work, or wait for it."""
        return state, ()

    def on_tick(self, state: P, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        """Continue when the time of a `WakeAt` effect has come; do nothing by default."""
        return state, ()

    def on_answer_stored(self, state: P, question: str, message: Message) -> tuple[P, Effects]:
        """Continue after an answer is stored, whether drawn now or before a restart.

        The result must be the same in both cases. The hook may not blame anyone.
        """
        return state, ()

    def on_refusal(self, state: P, question: str, error: ShoalError) -> tuple[P, Effects]:
        """Continue or abort without the answer.

        The question is open again: the peer may ask it later, for example in the next period.
        """
        return state, (Abort(error),)

    def on_computation(
        self, state: P, given: ComputationInput, now: datetime, entropy: Entropy
    ) -> tuple[P, Effects]:
        """Handle the input of a joint computation, which the peer may have forgotten."""
        raise LocalProtocolError(
            "PROTO-001",
            f"A peer without joint computations was given {type(given).__name__}.",
        )


def unpriced_question_error(question: str) -> RemoteProtocolError:
    """Return the error that `Peer.price` raises for a question outside the study."""
    return RemoteProtocolError(
        "PROTO-002",
        f"The aggregator asked {question!r:.80}, which is not part of the study.",
        why="A peer prices questions from the study and does not answer others.",
    )
