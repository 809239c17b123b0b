"""A toy protocol of secure sums: the aggregator learns a sum of vectors in each round.

No noise is added, so that a sum can be compared with its expected value; there is a price
nevertheless, and the ledger is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import count
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shoal.crypto.identity import Identity, Roster
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import RemoteProtocolError, ShoalError
from shoal.messages.base import Array, Message, Record, Registry
from shoal.messages.codec import decode, dump, encode, load
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.private import Private
from shoal.protocols.base import (
    EVERYONE,
    START,
    Aggregator,
    Effects,
    Finish,
    Peer,
    PeerState,
    Send,
    unpriced_question_error,
)
from shoal.protocols.secagg.collector import CollectorState, SumCollector
from shoal.protocols.secagg.member import MemberState, SumMember
from shoal.protocols.secagg.messages import (
    SUM_MESSAGES,
    SumAgreed,
    SumKeys,
    SumMasked,
    SumParameters,
    SumShares,
    SumUnmask,
)

Ints = npt.NDArray[np.int64]


class AskSum(Message):
    type_name: ClassVar[str] = "toy.ask-sum"
    round: int


REGISTRY = Registry(AskSum, *SUM_MESSAGES)


@dataclass(frozen=True)
class SumStudy:
    """Parameters that all parties agree on."""

    n_members: int = 5
    threshold: int = 4
    n_rounds: int = 2
    size: int = 7
    phase_timeout: timedelta = timedelta(seconds=10)
    digest: bytes = bytes(range(32))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"peer-{i}" for i in range(self.n_members))

    def identity(self, position: int) -> Identity:
        return Identity.from_seed(hashlib.sha256(f"identity {position}".encode()).digest())

    @cached_property
    def terms(self) -> SumParameters:
        keys = tuple(self.identity(i).public_key for i in range(self.n_members))
        return SumParameters(self.digest, Roster(self.names, keys), self.threshold)

    @property
    def questions(self) -> dict[str, int]:
        return {f"round-{number}": number for number in range(1, self.n_rounds + 1)}

    def query(self, number: int) -> bytes:
        return hashlib.sha256(f"all of it, {number} times".encode()).digest()

    def values(self, position: int) -> Ints:
        return np.arange(self.size, dtype=np.int64) * (position + 1) ** 2 - 50 * position

    def expected(self, survivors: tuple[int, ...], number: int) -> list[int]:
        return [number * sum(int(self.values(i)[j]) for i in survivors) for j in range(self.size)]

    @property
    def event(self) -> Event:
        return Event(
            "laplace",
            {"sensitivity": 1},
            Scope(Unit.RECORD, Relation.ADD_REMOVE, "nobody: this is a toy"),
            0.25,
        )


class Summing(PeerState):
    sitting: MemberState | None = None


class SumPeer(Peer[Summing]):
    """A peer that adds its vector, times the round's number, to the sum of every round."""

    messages = REGISTRY

    def __init__(self, study: SumStudy, position: int) -> None:
        self.params = study
        self.study = study.digest
        self.member = SumMember(study.terms, position, study.identity(position))
        self.values = Private(study.values(position))

    def initial_state(self) -> Summing:
        return Summing()

    def price(self, question: str) -> Event:
        if question not in self.params.questions:
            raise unpriced_question_error(question)
        return self.params.event

    def on_message(
        self, state: Summing, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Summing, Effects]:
        if isinstance(message, AskSum):
            if f"round-{message.round}" not in self.params.questions:
                raise unpriced_question_error(f"round-{message.round}")
            sitting, sends = self.member.begin(
                state.sitting, message.round, self.params.query(message.round), entropy
            )
        elif state.sitting is None:
            return state, ()
        else:
            sitting, sends = self.member.handle_message(state.sitting, message, entropy)
        state = state.replace(sitting=sitting)
        if sitting.is_ready:
            state, spends = self.ask(state, f"round-{sitting.round}")
            return state, (*sends, *spends)
        return state, sends

    def answer(self, state: Summing, question: str, entropy: Entropy) -> Message:
        assert state.sitting is not None
        return self.member.mask_values(state.sitting, self.values.reveal() * state.sitting.round)

    def on_answer_stored(
        self, state: Summing, question: str, message: Message
    ) -> tuple[Summing, Effects]:
        assert state.sitting is not None and isinstance(message, SumMasked)
        return state.replace(sitting=self.member.mark_released(state.sitting, message)), ()

    def on_refusal(
        self, state: Summing, question: str, error: ShoalError
    ) -> tuple[Summing, Effects]:
        assert state.sitting is not None
        return state.replace(sitting=state.sitting.end()), ()


class Sum(Record):
    round: int
    survivors: tuple[int, ...]
    total: Array | None
    reason: str | None


class Collecting(Record):
    gathering: CollectorState | None = None
    sums: tuple[Sum, ...] = ()


class SumAggregator(Aggregator[Collecting]):
    """An aggregator that asks for one sum after another; a failed round is left out."""

    messages = REGISTRY

    def __init__(self, study: SumStudy) -> None:
        self.params = study
        self.study = study.digest
        self.collector = SumCollector(study.terms, study.phase_timeout)

    def initial_state(self) -> Collecting:
        return Collecting()

    def on_start(
        self, state: Collecting, now: datetime, entropy: Entropy
    ) -> tuple[Collecting, Effects]:
        return self._ask(state, 1, now)

    def on_message(
        self, state: Collecting, sender: str, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Collecting, Effects]:
        if state.gathering is None:
            raise RemoteProtocolError(
                "PROTO-003", f"{sender} answered a question that was not asked."
            )
        return self._go_on(
            state, *self.collector.handle_message(state.gathering, sender, message, now), now
        )

    def on_tick(
        self, state: Collecting, now: datetime, entropy: Entropy
    ) -> tuple[Collecting, Effects]:
        assert state.gathering is not None
        return self._go_on(state, *self.collector.handle_tick(state.gathering, now), now)

    def _go_on(
        self, state: Collecting, gathering: CollectorState, effects: Effects, now: datetime
    ) -> tuple[Collecting, Effects]:
        was_over = state.gathering is not None and state.gathering.is_over
        state = state.replace(gathering=gathering)
        if was_over or not gathering.is_over:
            return state, effects
        failure = gathering.failure
        total = None if failure else Array.from_values(gathering.total)
        one = Sum(
            round=gathering.round,
            survivors=gathering.survivors,
            total=total,
            reason=failure and failure.what,
        )
        state = state.replace(sums=(*state.sums, one))
        if gathering.round == self.params.n_rounds:
            return state, (Finish(state.sums),)
        return self._ask(state, gathering.round + 1, now)

    def _ask(self, state: Collecting, number: int, now: datetime) -> tuple[Collecting, Effects]:
        gathering, effects = self.collector.begin(
            number, self.params.query(number), self.params.size, now
        )
        return state.replace(gathering=gathering), (
            Send(EVERYONE, AskSum(study=self.study, round=number)),
            *effects,
        )


def make(study: SumStudy) -> tuple[SumAggregator, dict[str, SumPeer]]:
    """Return an honest aggregator and honest peers."""
    return SumAggregator(study), {name: SumPeer(study, i) for i, name in enumerate(study.names)}


def check_sums(study: SumStudy, sums: tuple[Sum, ...]) -> int:
    """Raise AssertionError unless each sum is that of enough survivors.

    Return the number of sums.
    """
    assert [one.round for one in sums] == list(study.questions.values())
    done = [one for one in sums if one.total is not None]
    for one in done:
        assert len(one.survivors) >= study.threshold
        assert one.total is not None and one.total.expect(
            "int64", study.size
        ).tolist() == study.expected(one.survivors, one.round)
    assert all(one.reason for one in sums if one.total is None)
    return len(done)


PHASES = ("keys", "shares", "masked", "agreed", "unmask")
SENDS_IN: dict[type[Message], str] = {
    SumKeys: "keys",
    SumShares: "shares",
    SumMasked: "masked",
    SumAgreed: "agreed",
    SumUnmask: "unmask",
}


class Bench:
    """The two machines of a sum without peers around them.

    They exchange encoded messages and save their states; one round after another.

    Attributes
    ----------
    gone
        The phase in which each absent member stops, right before it would send something.
    told, shown
        Every message to the collector and to a member, with the receiver's state before it.
    """

    def __init__(self, study: SumStudy, seed: int = 1) -> None:
        self.study = study
        self.collector = SumCollector(study.terms, study.phase_timeout)
        self.members = {
            i: SumMember(study.terms, i, study.identity(i)) for i in range(study.n_members)
        }
        self.entropy = SeededEntropy(seed)
        self.now = START
        self.n_draws = count()
        self.sittings: dict[int, MemberState | None] = dict.fromkeys(self.members)
        self.gathering = CollectorState(
            round=0, query=bytes(32), size=0, deadline=START, phase="over"
        )
        self.gone: dict[int, str] = {}
        self.told: list[tuple[int, CollectorState, Message]] = []
        self.shown: list[tuple[int, MemberState, Message]] = []
        self.pending: list[tuple[int, Message]] = []

    def draw(self) -> Entropy:
        return self.entropy.spawn("draw", next(self.n_draws))

    def begin(self, number: int) -> None:
        query = self.study.query(number)
        self.gathering, _ = self.collector.begin(number, query, self.study.size, self.now)
        for i, member in self.members.items():
            self.keep(i, *member.begin(self.sittings[i], number, query, self.draw()))

    def keep(self, i: int, sitting: MemberState, sends: tuple[Send, ...]) -> None:
        """Save the result of a message to a member; the ledger grants immediately."""
        self.pending += [(i, send.message) for send in sends]
        if sitting.is_ready:
            masked = self.members[i].mask_values(sitting, self.study.values(i) * sitting.round)
            self.pending.append((i, masked))
            sitting = self.members[i].mark_released(sitting, masked)
        self.sittings[i] = load(dump(sitting), MemberState)

    def show(self, i: int, message: Message) -> None:
        sitting = self.sittings[i]
        assert sitting is not None
        self.shown.append((i, sitting, message))
        self.keep(i, *self.members[i].handle_message(sitting, message, self.draw()))

    def tell(self, i: int, message: Message) -> None:
        message = decode(encode(message), REGISTRY, self.study.digest)
        self.told.append((i, self.gathering, message))
        self.follow(
            *self.collector.handle_message(self.gathering, self.study.names[i], message, self.now)
        )

    def follow(self, gathering: CollectorState, effects: Effects) -> None:
        self.gathering = load(dump(gathering), CollectorState)
        for effect in effects:
            if isinstance(effect, Send):
                message = decode(encode(effect.message), REGISTRY, self.study.digest)
                for i in (
                    self.members if effect.to == EVERYONE else [self.study.names.index(effect.to)]
                ):
                    self.show(i, message)

    def hurry(self) -> None:
        self.now = self.gathering.deadline
        self.follow(*self.collector.handle_tick(self.gathering, self.now))

    def is_there(self, i: int, phase: str) -> bool:
        return i not in self.gone or PHASES.index(phase) < PHASES.index(self.gone[i])

    def run(self, until: str = "over") -> CollectorState:
        """Run until a phase is reached or the round is over."""
        while self.gathering.phase not in (until, "over"):
            phase, batch, self.pending = self.gathering.phase, self.pending, []
            for i, message in batch:
                if self.is_there(i, SENDS_IN[type(message)]):
                    self.tell(i, message)
            if self.gathering.phase == phase:
                self.hurry()
        return self.gathering

    def play(
        self, number: int = 1, gone: Mapping[int, str] | None = None, until: str = "over"
    ) -> CollectorState:
        self.gone, self.pending = dict(gone or {}), []
        self.begin(number)
        return self.run(until)

    def before(self, kind: type[Message], i: int) -> tuple[MemberState, Any]:
        """Return a member's state before its first message of a kind, and the message."""
        return next(
            (sitting, message)
            for to, sitting, message in self.shown
            if to == i and isinstance(message, kind)
        )

    def heard(self, kind: type[Message], i: int) -> tuple[CollectorState, Any]:
        """Return a member's first message of a kind, and the collector's state before it."""
        return next(
            (gathering, message)
            for sender, gathering, message in self.told
            if sender == i and isinstance(message, kind)
        )
