"""Rounds of a secure sum with a meter on every party: processor time and bytes.

All parties are in one process, and every message is encoded as on the wire. All work of a party
between bytes in and bytes out is counted: decoding, checking, signing, boxes, shares, masks and
encoding. Its noise has a separate meter.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.crypto.identity import Identity, Roster
from shoal.crypto.secagg.context import (
    MemberPublicKeys,
    digest_key_list,
    encode_box_statement,
    encode_survivors_statement,
)
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.crypto.secagg.key_shares import draw_secrets, share_keys
from shoal.entropy import Entropy
from shoal.mechanisms.distributed_laplace import DistributedLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.messages.base import Message, Registry
from shoal.messages.codec import decode, encode
from shoal.privacy.events import Relation, Scope, Unit
from shoal.protocols.base import EVERYONE, START
from shoal.protocols.effects import Send
from shoal.protocols.machines import Effects
from shoal.protocols.secagg.collector import CollectorState, SumCollector
from shoal.protocols.secagg.member import MemberState, SumMember
from shoal.protocols.secagg.messages import (
    SUM_MESSAGES,
    SumAgreement,
    SumBoxes,
    SumKeyList,
    SumKeys,
    SumParameters,
    SumSurvivors,
)

SIZE = 10_000
EPSILON = 0.1
"""Epsilon of the noise's shares, for the whole vector."""

_STUDY, _QUERY = bytes(32), bytes(range(32))
_REGISTRY = Registry(*SUM_MESSAGES)
_SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and some of the databases")

Ints = npt.NDArray[np.int64]
P = ParamSpec("P")
T = TypeVar("T")


def colluders(n: int) -> int:
    """Return the tolerated number of colluders: three of ten."""
    return 3 * n // 10


def least(n: int) -> int:
    """Return the smallest threshold of such a study: t with 2 t > N + C; N - t may drop out."""
    return (n + colluders(n)) // 2 + 1


@dataclass
class Meter:
    """Resources that one party has used in a round."""

    ns: int = 0
    noise_ns: int = 0
    sent: int = 0
    received: int = 0

    def read(self, data: bytes) -> Message:
        self.received += len(data)
        return self.timed(decode, data, _REGISTRY, _STUDY)

    def write(self, message: Message) -> bytes:
        data = self.timed(encode, message)
        self.sent += len(data)
        return data

    def timed(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        start = time.process_time_ns()
        done = work(*given, **named)
        self.ns += time.process_time_ns() - start
        return done


@dataclass(frozen=True)
class Parties:
    """A roster of n members, of which ``threshold`` are needed; it makes both sides' machines."""

    n: int
    threshold: int

    @cached_property
    def identities(self) -> tuple[Identity, ...]:
        return tuple(Identity.from_seed(i.to_bytes(32, "big")) for i in range(self.n))

    @cached_property
    def terms(self) -> SumParameters:
        names = tuple(f"database-{i}" for i in range(self.n))
        return SumParameters(
            _STUDY, Roster(names, tuple(one.public_key for one in self.identities)), self.threshold
        )

    @cached_property
    def noise(self) -> DistributedLaplace:
        return DistributedLaplace(
            EPSILON, CellCounts(), _SCOPE, n_honest=self.threshold - colluders(self.n)
        )

    def member(self, position: int) -> SumMember:
        return SumMember(self.terms, position, self.identities[position])


@dataclass
class Round:
    """One whole round; the last ``n_gone`` members drop out after dealing.

    This costs the others most.
    """

    parties: Parties
    entropy: Entropy
    n_gone: int = 0
    meters: dict[int, Meter] = field(default_factory=dict)
    collector_meter: Meter = field(default_factory=Meter)

    @property
    def staying(self) -> tuple[Meter, ...]:
        """The meters of the members that do not drop out."""
        return tuple(self.meters[i] for i in range(self.n_staying))

    @property
    def n_staying(self) -> int:
        return self.parties.n - self.n_gone

    def play(self) -> Ints:
        """Return the sum, which is checked."""
        terms = self.parties.terms
        self._collector = SumCollector(terms, timedelta(hours=1))
        self._members = [self.parties.member(i) for i in range(self.parties.n)]
        self._counts = [self.entropy.below_many(1_000, SIZE) for _ in self._members]
        self._sittings: dict[int, MemberState] = {}
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._gathering, _ = self._collector.begin(1, _QUERY, SIZE, START)
        self.meters = {i: Meter() for i in range(self.parties.n)}
        with _without_pauses():
            for i, member in enumerate(self._members):
                self._keep(i, *self.meters[i].timed(member.begin, None, 1, _QUERY, self.entropy))
            while not self._gathering.is_over:
                self._deliver()
        expected = np.sum([self._counts[i] for i in range(self.n_staying)], axis=0)
        if self._gathering.failure is not None or not np.array_equal(
            self._gathering.total, expected
        ):
            raise RuntimeError("a round of the benchmark has not given the sum")
        return self._gathering.total

    def _deliver(self) -> None:
        """Deliver the collector's next message; if none is left, end its phase."""
        meter, before = self.collector_meter, self._gathering
        if self._waiting:
            i, data = self._waiting.popleft()
            message = meter.read(data)
            after = meter.timed(
                self._collector.handle_message,
                before,
                self.parties.terms.roster.names[i],
                message,
                START,
            )
        else:
            after = meter.timed(self._collector.handle_tick, before, before.deadline)
        self._follow(*after)

    def _follow(self, gathering: CollectorState, effects: Effects) -> None:
        self._gathering = gathering
        names = self.parties.terms.roster.names
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            data = self.collector_meter.write(effect.message)
            for i in range(self.parties.n) if effect.to == EVERYONE else (names.index(effect.to),):
                if isinstance(effect.message, SumKeyList) or i < self.n_staying:
                    self._show(i, data)

    def _show(self, i: int, data: bytes) -> None:
        meter = self.meters[i]
        message = meter.read(data)
        self._keep(
            i,
            *meter.timed(self._members[i].handle_message, self._sittings[i], message, self.entropy),
        )

    def _keep(self, i: int, sitting: MemberState, sends: tuple[Send, ...]) -> None:
        meter = self.meters[i]
        self._waiting += [(i, meter.write(send.message)) for send in sends]
        if sitting.is_ready:
            sitting, data = hand_in(
                self.parties, self._members[i], sitting, self._counts[i], meter, self.entropy
            )
            self._waiting.append((i, data))
        self._sittings[i] = sitting


def lone_member(parties: Parties, entropy: Entropy, n_gone: int = 0) -> Meter:
    """Return the meter of member 0 of a round with forged messages of the others.

    The messages are forged as cheaply as every check permits.
    """
    member, meter, context = parties.member(0), Meter(), parties.terms.make_context(1, _QUERY)
    everyone, staying = tuple(range(parties.n)), tuple(range(parties.n - n_gone))
    a_key = derive_public_key(entropy.bytes(32))
    with _without_pauses():
        sitting, (send,) = meter.timed(member.begin, None, 1, _QUERY, entropy)
        meter.write(send.message)
        assert isinstance(send.message, SumKeys)
        keys = {
            i: MemberPublicKeys(derive_public_key(entropy.bytes(32)), a_key, entropy.bytes(32))
            for i in everyone
        }
        keys[0] = MemberPublicKeys(send.message.mask, send.message.box, send.message.commitment)
        entries = b"".join(b"".join(one) for one in keys.values())
        digest, rows = digest_key_list(context, keys), []
        for dealer in everyone[1:]:
            dealing = share_keys(
                draw_secrets(entropy),
                context,
                dealer,
                {0: keys[0], dealer: keys[dealer]},
                1,
                entropy,
            )
            box, commitment = dealing.boxes[0], dealing.commitments[0]
            rows.append(
                (
                    box,
                    commitment,
                    parties.identities[dealer].sign(
                        encode_box_statement(context, dealer, 0, digest, box, commitment)
                    ),
                )
            )
        boxes, commitments, signatures = (b"".join(row) for row in zip(*rows, strict=True))
        statement, signers = (
            encode_survivors_statement(context, staying, everyone),
            staying[: parties.threshold],
        )
        signed = b"".join(parties.identities[i].sign(statement) for i in signers)
        for message in (
            SumKeyList(study=_STUDY, round=1, members=everyone, entries=entries),
            SumBoxes(
                study=_STUDY,
                round=1,
                dealers=everyone[1:],
                boxes=boxes,
                commitments=commitments,
                signatures=signatures,
            ),
            SumSurvivors(study=_STUDY, round=1, survivors=staying),
            SumAgreement(
                study=_STUDY, round=1, survivors=staying, signers=signers, signatures=signed
            ),
        ):
            sitting, sends = meter.timed(
                member.handle_message, sitting, meter.read(encode(message)), entropy
            )
            for send in sends:
                meter.write(send.message)
            if sitting.is_ready:
                sitting, _ = hand_in(
                    parties, member, sitting, np.ones(SIZE, np.int64), meter, entropy
                )
    if not sitting.is_over:
        raise RuntimeError("a member of the benchmark has not come to the end of its round")
    return meter


def hand_in(
    parties: Parties,
    member: SumMember,
    ready: MemberState,
    counts: Ints,
    meter: Meter,
    entropy: Entropy,
) -> tuple[MemberState, bytes]:
    """Return a member's masked vector, and its state after that.

    Its noise is drawn but left out, so that the sum can be checked.
    """
    start = time.process_time_ns()
    parties.noise.draw_share(SIZE, entropy)
    meter.noise_ns += time.process_time_ns() - start
    masked = meter.timed(member.mask_values, ready, counts)
    return meter.timed(member.mark_released, ready, masked), meter.write(masked)


@contextmanager
def _without_pauses() -> Iterator[None]:
    """Disable garbage collection, which would charge one party for the objects of all."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
