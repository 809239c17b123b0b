"""A toy protocol for tests of joint computations.

Peers exchange keys, compute together, and end with their results. Each peer has its shares from the
start. A peer aborts if the computation is broken; the aggregator only publishes keys and forwards
frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from shoal.crypto.secagg.context import MemberPublicKeys, RoundContext
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message, Record, Registry
from shoal.privacy.events import Event
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    Abort,
    Aggregator,
    Broken,
    ComputationInput,
    Compute,
    Computed,
    Effects,
    Emitted,
    Feed,
    Finish,
    Peer,
    PeerState,
    Send,
    unpriced_question_error,
)
from shoal.protocols.effects import Program
from shoal.protocols.mpc import shares as dealing
from shoal.protocols.mpc.party import (
    ComputationParameters,
    JointFrame,
    PartyState,
    begin,
    find_recipient,
    handle_frame,
    leave,
    send_frame,
)

ROUND = 7


class Hello(Message):
    type_name: ClassVar[str] = "toyjoint.hello"
    key: bytes

    @property
    def submission(self) -> bytes:
        return b"hello"


class Everybody(Message):
    type_name: ClassVar[str] = "toyjoint.everybody"
    keys: tuple[bytes, ...]


MESSAGES = Registry(Hello, Everybody, JointFrame)


@dataclass(frozen=True)
class Study:
    """Parameters that all parties agree on."""

    program: Program = "select"
    n_peers: int = 3
    digest: bytes = bytes(range(32))

    @property
    def terms(self) -> ComputationParameters:
        everyone = tuple(range(self.n_peers))
        return ComputationParameters(
            RoundContext(self.digest, bytes(32), ROUND, bytes(32)), self.program, everyone, everyone
        )


class Sitting(PeerState):
    private: bytes = b""
    seat: PartyState = PartyState(round=ROUND)


class JointPeer(Peer[Sitting]):
    """A peer that computes with the others."""

    messages = MESSAGES

    def __init__(
        self,
        study: Study,
        me: int,
        inputs: tuple[int, ...] = (),
        terms: ComputationParameters | None = None,
    ) -> None:
        self.params, self.study, self.me, self.inputs = study, study.digest, me, inputs
        self.terms = study.terms if terms is None else terms

    def initial_state(self) -> Sitting:
        return Sitting()

    def price(self, question: str) -> Event:
        raise unpriced_question_error(question)

    def answer(self, state: Sitting, question: str, entropy: Entropy) -> Message:
        raise unpriced_question_error(question)

    def on_start(self, state: Sitting, now: datetime, entropy: Entropy) -> tuple[Sitting, Effects]:
        private = entropy.bytes(32)
        return state.replace(private=private), (
            Send(AGGREGATOR, Hello(study=self.study, key=derive_public_key(private))),
        )

    def on_message(
        self, state: Sitting, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Sitting, Effects]:
        match message:
            case JointFrame():
                seat, effects = handle_frame(state.seat, message)
            case Everybody(keys=keys) if keys[self.me] != derive_public_key(state.private):
                raise RemoteProtocolError("PROTO-003", "The keys are those of an earlier life.")
            case Everybody() if state.seat.links or state.seat.is_over:
                return state, ()
            case Everybody(keys=keys):
                listed = {
                    member: MemberPublicKeys(bytes(32), key, bytes(32))
                    for member, key in enumerate(keys)
                }
                seat, effects = begin(
                    state.seat, self.terms, self.me, state.private, listed, self.inputs
                )
            case _:
                raise RemoteProtocolError("PROTO-003", "An aggregator has nothing else to say.")
        return state.replace(seat=seat), effects

    def on_computation(
        self, state: Sitting, given: ComputationInput, now: datetime, entropy: Entropy
    ) -> tuple[Sitting, Effects]:
        match given:
            case Computed(_, result):
                return state.replace(seat=leave(state.seat)), (Finish(result),)
            case Broken(_, error):
                return state.replace(seat=leave(state.seat)), (Abort(error),)
        seat, effects = send_frame(state.seat, given, self.study)
        return state.replace(seat=seat), effects


class Table(Record):
    keys: tuple[tuple[int, bytes], ...] = ()


class JointAggregator(Aggregator[Table]):
    """Publishes the keys when all have arrived, and forwards frames."""

    messages = MESSAGES

    def __init__(self, study: Study) -> None:
        self.params, self.study = study, study.digest

    def initial_state(self) -> Table:
        return Table()

    def on_start(self, state: Table, now: datetime, entropy: Entropy) -> tuple[Table, Effects]:
        return state, ()

    def on_message(
        self, state: Table, sender: str, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Table, Effects]:
        party = int(sender.removeprefix("peer-"))
        if isinstance(message, JointFrame):
            return state, self.forward(message, party)
        if not isinstance(message, Hello):
            raise RemoteProtocolError("PROTO-003", "A peer has nothing else to say.")
        state = Table(keys=tuple(sorted({**dict(state.keys), party: message.key}.items())))
        if len(state.keys) < self.params.n_peers:
            return state, ()
        return state, (
            Send(EVERYONE, Everybody(study=self.study, keys=tuple(key for _, key in state.keys))),
        )

    def forward(self, message: JointFrame, party: int) -> Effects:
        return (Send(f"peer-{find_recipient(message, party, self.params.n_peers)}", message),)


def make(study: Study, values: Sequence[int] = ()) -> tuple[JointAggregator, dict[str, JointPeer]]:
    """Return an honest aggregator and honest peers, with shares of some numbers."""
    shares = (
        dealing.split(values, study.n_peers, SeededEntropy("shares"))
        if values
        else [()] * study.n_peers
    )
    return JointAggregator(study), {
        f"peer-{i}": JointPeer(study, i, shares[i]) for i in range(study.n_peers)
    }


class Chatter:
    """A computation with parties that exchange frames.

    Each has some frames for every other, and is done when it was fed all of theirs in order.
    """

    def __init__(self, n_frames: int = 3) -> None:
        self.n_frames = n_frames
        self.heard: dict[str, dict[int, list[bytes]]] = {}
        self._ready: list[tuple[str, ComputationInput]] = []

    def begin(self, owner: str, asked: Compute) -> None:
        others = [party for party in range(asked.n_parties) if party != asked.me]
        self.heard[owner] = {party: [] for party in others}
        words = [
            f"{asked.me}>{to} {number}".encode() for number in range(self.n_frames) for to in others
        ]
        self._ready += [
            (owner, Emitted(asked.task, others[i % len(others)], word))
            for i, word in enumerate(words)
        ]

    def feed(self, owner: str, given: Feed) -> None:
        if owner not in self.heard:
            return
        self.heard[owner][given.sender].append(given.payload)
        if all(len(words) == self.n_frames for words in self.heard[owner].values()):
            for party, words in self.heard.pop(owner).items():
                assert words == [
                    f"{party}>{owner.removeprefix('peer-')} {number}".encode()
                    for number in range(self.n_frames)
                ]
            self._ready.append((owner, Computed(given.task, (0,))))

    def end(self, owner: str) -> None:
        self.heard.pop(owner, None)
        self._ready = [(name, progress) for name, progress in self._ready if name != owner]

    def collect(self) -> list[tuple[str, ComputationInput]]:
        ready, self._ready = self._ready, []
        return ready
