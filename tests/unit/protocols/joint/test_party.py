"""Frames reach the other party's computation in order, once, and only if nobody has touched them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import permutations
from typing import Any

import pytest

from shoal.crypto.context import Context, Keys
from shoal.crypto.masks import public_of
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import Broken, Compute, Effects, Emitted, Feed, Progress, Send, run_local
from shoal.protocols.joint.messages import MAX_SEALED, JointFrame
from shoal.protocols.joint.party import MAX_AHEAD, Seat, Terms, begin, emitted, leave, received, recipient
from shoal.sim.network import run_network
from toy import joint

STUDY = bytes(range(32))
PRIVATE = {member: bytes([member]) * 32 for member in (3, 5, 9)}
KEYS = {member: Keys(bytes(32), public_of(private), bytes(32)) for member, private in PRIVATE.items()}
TERMS = Terms(Context(STUDY, bytes(32), 1, bytes(32)), "argmax", (3, 5, 9), (1, 2, 3))
TASK = "joint/1"


def seated(member: int, terms: Terms = TERMS, seat: Seat | None = None) -> tuple[Seat, Effects]:
    return begin(seat or Seat(round=1), terms, member, PRIVATE[member], KEYS, (member,))


def frames(member: int, to: int, n: int, terms: Terms = TERMS) -> list[JointFrame]:
    """What a party has for another one."""
    seat, _ = seated(member, terms)
    sent = []
    for number in range(n):
        seat, (send,) = emitted(seat, Emitted(TASK, to, f"{member} {number}".encode()), STUDY)
        assert isinstance(send, Send)
        sent.append(send.message)
    return sent


def refused(seat: Seat, message: JointFrame) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        received(seat, message)
    assert caught.value.code == "JOINT-002"
    assert f"party {message.sender}" in caught.value.what
    return caught.value.what


def test_a_party_computes_with_its_own_number_and_shares() -> None:
    seat, effects = seated(5)
    assert effects == (Compute(TASK, "argmax", 1, 3, (5,)),)
    assert [link is None for link in seat.links] == [False, True, False]


def test_frames_are_fed_in_the_order_in_which_they_were_emitted_however_they_come() -> None:
    sent = frames(3, 2, 3)
    for order in permutations((0, 1, 2, 1)):
        seat, fed = seated(9)[0], []
        for number in order:
            seat, effects = received(load(dump(seat), Seat), sent[number])
            fed += effects
        assert fed == [Feed(TASK, 0, f"3 {number}".encode()) for number in range(3)]
        assert seat.early == ()


def test_frames_of_different_parties_do_not_wait_for_each_other() -> None:
    seat, _ = seated(9)
    seat, none = received(seat, frames(3, 2, 2)[1])
    seat, effects = received(seat, frames(5, 2, 1)[0])
    assert (none, effects) == ((), (Feed(TASK, 1, b"5 0"),))
    assert [early.sender for early in seat.early] == [0]


def test_what_comes_before_the_beginning_is_kept_and_what_does_not_open_is_dropped() -> None:
    first, second = frames(3, 2, 2)
    seat = Seat(round=1)
    for message in (second, first.replace(sealed=bytes(20)), first.replace(sender=8), first):
        seat, effects = received(seat, message)
        assert effects == ()
    seat, effects = seated(9, seat=load(dump(seat), Seat))
    assert effects == (Compute(TASK, "argmax", 2, 3, (9,)), Feed(TASK, 0, b"3 0"), Feed(TASK, 0, b"3 1"))
    assert (seat.unopened, seat.early) == ((), ())


def test_no_more_is_kept_than_honest_parties_need() -> None:
    message = frames(3, 2, 1)[0]
    seat = Seat(round=1, unopened=(message,) * MAX_AHEAD)
    assert "too many" in refused(seat, message)
    seat, _ = seated(9)
    sent = frames(3, 2, MAX_AHEAD + 1)
    assert "ahead" in refused(seat, sent[MAX_AHEAD])
    assert received(seat, sent[MAX_AHEAD - 1])[1] == ()


def test_every_flipped_bit_is_refused_and_changes_nothing() -> None:
    seat, _ = seated(9)
    message = frames(3, 2, 1)[0]
    for place in range(8 * len(message.sealed)):
        sealed = bytearray(message.sealed)
        sealed[place // 8] ^= 1 << place % 8
        assert "does not open" in refused(seat, message.replace(sealed=bytes(sealed)))
    assert received(seat, message)[1] == (Feed(TASK, 0, b"3 0"),)


def test_a_frame_that_is_given_another_number_sender_or_recipient_is_refused() -> None:
    seat, _ = seated(9)
    first, second = frames(3, 2, 2)
    assert "does not open" in refused(seat, second.replace(number=0))
    assert "does not open" in refused(seat, first.replace(sender=1))
    assert "does not open" in refused(seat, frames(3, 1, 1)[0].replace(to=2))
    for wrong in (first.replace(to=1), first.replace(sender=2), first.replace(sender=3)):
        assert "not from another party to this one" in refused(seat, wrong)


def test_a_replay_is_dropped_in_its_round_and_does_not_open_in_another() -> None:
    seat, _ = seated(9)
    message = frames(3, 2, 1)[0]
    seat, _ = received(seat, message)
    assert received(seat, message) == (seat, ())
    later = replace(TERMS, context=replace(TERMS.context, round=2))
    seat, _ = seated(9, later, Seat(round=2))
    assert received(seat, message) == (seat, ())
    assert "does not open" in refused(seat, message.replace(round=2))
    assert "has not begun" in refused(seat, message.replace(round=3))


@pytest.mark.parametrize(
    "other",
    [
        replace(TERMS, contributors=(1, 2)),
        replace(TERMS, contributors=(1, 2, 4)),
        replace(TERMS, parties=(3, 5, 9, 1), contributors=(2, 3)),
        replace(TERMS, program="select"),
        *(replace(TERMS, context=replace(TERMS.context, **{name: b"\x01" * 32})) for name in ("study", "roster", "query")),
    ],
)
def test_parties_that_were_told_different_things_cannot_talk(other: Terms) -> None:
    keys = {**KEYS, 1: KEYS[9]}
    theirs, _ = begin(Seat(round=1), other, 3, PRIVATE[3], keys, ())
    _, (send,) = emitted(theirs, Emitted(TASK, 2, b"x"), STUDY)
    assert isinstance(send, Send)
    assert "does not open" in refused(seated(9)[0], send.message)


def test_a_seat_that_was_left_keeps_no_keys_and_takes_no_notice() -> None:
    seat = leave(seated(9)[0])
    assert seat == Seat(round=1, me=2, is_over=True)
    assert received(seat, frames(3, 2, 1)[0]) == (seat, ())
    assert emitted(seat, Emitted(TASK, 0, b"x"), STUDY) == (seat, ())


def test_what_another_computation_emits_is_not_sealed() -> None:
    seat, _ = seated(9)
    assert emitted(seat, Emitted("joint/0", 0, b"x"), STUDY) == (seat, ())
    assert emitted(seat, Emitted(TASK, 2, b"x"), STUDY) == (seat, ())


def test_no_counter_seals_twice() -> None:
    sent = frames(3, 2, 3)
    assert [message.number for message in sent] == [0, 1, 2]
    assert len({message.submission for message in (*sent, *frames(3, 1, 3))}) == 6
    assert all(b"3 " not in message.sealed for message in sent)


def test_a_frame_has_a_largest_size() -> None:
    seat, _ = seated(9)
    emitted(seat, Emitted(TASK, 0, bytes(MAX_SEALED - 16)), STUDY)
    with pytest.raises(LocalProtocolError):
        emitted(seat, Emitted(TASK, 0, bytes(MAX_SEALED)), STUDY)


def test_the_aggregator_passes_on_what_a_party_sends_in_its_own_name() -> None:
    message = frames(3, 2, 1)[0]
    assert recipient(message, 0, 3) == 2
    for wrong, sender in ((message, 1), (message.replace(to=0), 0), (message.replace(to=3), 0)):
        with pytest.raises(RemoteProtocolError) as caught:
            recipient(wrong, sender, 3)
        assert caught.value.code == "JOINT-002"


@pytest.mark.parametrize("drive", [run_local, run_network])
def test_parties_that_talk_come_to_their_end(drive: Any) -> None:
    outcome = drive(*joint.make(joint.Study("argmax", 4), [1, 2]), SeededEntropy(1), computer=joint.Chatter(5))
    assert outcome.results == {f"peer-{i}": (0,) for i in range(4)}
    assert not (outcome.rejected or outcome.failed or outcome.aborted)


class Meddling(joint.JointAggregator):
    """Passes each frame on, but first something else."""

    def __init__(self, study: joint.Study, change: Any) -> None:
        super().__init__(study)
        self.change = change

    def forward(self, message: JointFrame, party: int) -> Effects:
        (send,) = super().forward(message, party)
        assert isinstance(send, Send)
        return (Send(send.to, self.change(message)), send)


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.replace(sealed=message.sealed[:-1] + bytes([message.sealed[-1] ^ 1])),
        lambda message: message.replace(number=message.number + 1),
        lambda message: message.replace(sender=3 - message.sender - message.to),
        lambda message: message.replace(round=message.round + 1),
    ],
)
def test_an_aggregator_that_meddles_is_named_and_changes_nothing(change: Any) -> None:
    study = joint.Study("argmax", 3)
    _, peers = joint.make(study, [1, 2])
    outcome = run_local(Meddling(study, change), peers, SeededEntropy(1), computer=joint.Chatter())
    assert outcome.results == {f"peer-{i}": (0,) for i in range(3)}
    assert {(rejected.sender, rejected.error.code) for rejected in outcome.rejected} == {("aggregator", "JOINT-002")}
    assert len(outcome.rejected) >= 9, "of 18; one that seems to be past is dropped"


def test_a_peer_that_gives_up_is_out_of_all_computations() -> None:
    class Faint(joint.JointPeer):
        def computing(self, state: joint.Sitting, given: Progress, now: datetime, entropy: Entropy) -> tuple[joint.Sitting, Effects]:
            return super().computing(state, Broken(given.task, LocalProtocolError("JOINT-001", "Faint.")), now, entropy)

    study = joint.Study("argmax", 3)
    aggregator, peers = joint.make(study, [1, 2])
    for drive in (run_local, run_network):
        computer = joint.Chatter()
        outcome = drive(aggregator, {**peers, "peer-0": Faint(study, 0, (1, 2))}, SeededEntropy(1), computer=computer)
        assert set(outcome.aborted) == {"peer-0"}
        assert set(computer.heard) == {"peer-1", "peer-2"}
        assert not outcome.results


def test_a_peer_that_forges_a_frame_for_another_is_named() -> None:
    class Forger(joint.JointPeer):
        def received(self, state: joint.Sitting, message: Message, now: datetime, entropy: Entropy) -> tuple[joint.Sitting, Effects]:
            state, effects = super().received(state, message, now, entropy)
            forged = JointFrame(study=self.study, round=joint.ROUND, sender=1, to=2, number=0, sealed=bytes(20))
            return state, (*effects, Send("aggregator", forged))

    study = joint.Study("argmax", 3)
    aggregator, peers = joint.make(study, [1, 2])
    outcome = run_local(aggregator, {**peers, "peer-0": Forger(study, 0, (1, 2))}, SeededEntropy(1), computer=joint.Chatter())
    assert {(rejected.by, rejected.sender) for rejected in outcome.rejected} == {("aggregator", "peer-0")}
    assert len(outcome.results) == 3
