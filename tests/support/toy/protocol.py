"""A toy protocol for tests of the contract: a vote by randomised response, in two rounds.

The aggregator asks everyone, counts each answer, and closes a round when all have answered or at
its deadline. An answer after its round is counted as late. A peer answers each round of the study
once, and nothing else. The driver makes sure that a repeated answer counts once, by the answer's
submission.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import ClassVar

from shoal.entropy import Entropy
from shoal.errors import MechanismError, RemoteProtocolError
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.messages.base import Message, Record, Registry
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.protocols.base import (
    EVERYONE,
    START,
    Aggregator,
    Effects,
    Finish,
    Moment,
    Peer,
    PeerState,
    Send,
    WakeAt,
    unpriced_question_error,
)


class Ask(Message):
    type_name: ClassVar[str] = "toy.ask"
    round: int


class Answer(Message):
    type_name: ClassVar[str] = "toy.answer"
    spends: ClassVar[bool] = True
    round: int
    report: bytes

    @property
    def submission(self) -> bytes:
        return str(self.round).encode()


@lru_cache
def mechanism(epsilon: float) -> RandomizedResponse:
    return RandomizedResponse(epsilon, 2)


@dataclass(frozen=True)
class Study:
    """Parameters that all parties agree on."""

    digest: bytes = bytes(range(32))
    epsilon: float = 0.5
    n_rounds: int = 2
    n_peers: int = 4
    phase_timeout: timedelta = timedelta(seconds=10)

    @property
    def mechanism(self) -> RandomizedResponse:
        return mechanism(self.epsilon)

    @property
    def questions(self) -> dict[str, int]:
        return {f"round-{number}": number for number in range(1, self.n_rounds + 1)}


class ToyPeer(Peer[PeerState]):
    """A peer with one bit."""

    messages = Registry(Ask, Answer)

    def __init__(self, study: Study, value: int) -> None:
        self.params = study
        self.study = study.digest
        self.value = Private(value)

    def initial_state(self) -> PeerState:
        return PeerState()

    def price(self, question: str) -> Event:
        if question not in self.params.questions:
            raise unpriced_question_error(question)
        return self.params.mechanism.event()

    def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
        mechanism = self.params.mechanism
        report = mechanism.encode(mechanism.report(self.value.reveal(), entropy))
        # The ticket-like padding makes two draws differ almost surely, so that a redraw shows even
        # where the bit is the same.
        return Answer(
            study=self.study,
            round=self.params.questions[question],
            report=report + entropy.bytes(8),
        )

    def on_message(
        self, state: PeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        if not isinstance(message, Ask):
            raise RemoteProtocolError("PROTO-003", "The aggregator sent an answer.")
        return self.ask(state, f"round-{message.round}")

    def on_answer_stored(
        self, state: PeerState, question: str, message: Message
    ) -> tuple[PeerState, Effects]:
        # The last round, not the number of answers: a peer that has lost its state does not know of
        # earlier ones.
        number = self.params.questions[question]
        return state, (Finish(number),) if number == self.params.n_rounds else ()


class Counting(Record):
    """The aggregator's state: the open round and the answers.

    The round is 0 before the first, and one more than the number of rounds after the last.
    """

    round: int = 0
    deadline: Moment = START
    counted: tuple[tuple[str, Answer], ...] = ()
    late: tuple[tuple[str, Answer], ...] = ()


class ToyAggregator(Aggregator[Counting]):
    """An aggregator that asks and counts."""

    messages = Registry(Ask, Answer)

    def __init__(self, study: Study) -> None:
        self.params = study
        self.study = study.digest

    def initial_state(self) -> Counting:
        return Counting()

    def on_start(
        self, state: Counting, now: datetime, entropy: Entropy
    ) -> tuple[Counting, Effects]:
        return self._next(state, now)

    def on_message(
        self, state: Counting, sender: str, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Counting, Effects]:
        if not isinstance(message, Answer) or not 1 <= message.round <= min(
            state.round, self.params.n_rounds
        ):
            raise RemoteProtocolError(
                "PROTO-003", f"{sender} answered a question that was not asked."
            )
        try:
            self.params.mechanism.decode(message.report[:-8])
        except MechanismError as error:
            raise RemoteProtocolError("MSG-005", error.what) from None
        if message.round < state.round:
            return state.replace(late=(*state.late, (sender, message))), ()
        state = state.replace(counted=(*state.counted, (sender, message)))
        is_full = (
            sum(answer.round == state.round for _, answer in state.counted) == self.params.n_peers
        )
        return self._next(state, now) if is_full else (state, ())

    def on_tick(self, state: Counting, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
        is_over = 1 <= state.round <= self.params.n_rounds and now >= state.deadline
        return self._next(state, now) if is_over else (state, ())

    def _next(self, state: Counting, now: datetime) -> tuple[Counting, Effects]:
        state = state.replace(round=state.round + 1, deadline=now + self.params.phase_timeout)
        if state.round > self.params.n_rounds:
            return state, (Finish(self.tally(state)),)
        return state, (
            Send(EVERYONE, Ask(study=self.study, round=state.round)),
            WakeAt(state.deadline),
        )

    def tally(self, state: Counting) -> tuple[int, ...]:
        """Return the ones in each round."""
        ones = [(answer.round, answer.report[0]) for _, answer in state.counted]
        return tuple(
            sum(bit for number, bit in ones if number == this)
            for this in self.params.questions.values()
        )


def make(study: Study) -> tuple[ToyAggregator, dict[str, ToyPeer]]:
    """Return an honest aggregator and honest peers; every other peer has a one."""
    return ToyAggregator(study), {f"peer-{i}": ToyPeer(study, i % 2) for i in range(study.n_peers)}
